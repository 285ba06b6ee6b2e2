"""Edges of rules where a slip of the code once stayed unseen, each as whoever uses it would notice."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import ran

from ropeaudit import shift
from ropeaudit.audits.cases import Case
from ropeaudit.audits.comparison import Pair
from ropeaudit.console import gates, sweep_file
from ropeaudit.errors import BadInput
from ropeaudit.main import main
from ropeaudit.rope import hf_config

SMALL = ["--heads", "1", "--seq-len", "4", "--head-dim", "8"]
LLAMA = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "rope_theta": 1e4}
ROW = next(iter(shift(7, "fp16", "uniform", heads=1, seq_len=4, head_dim=8))).as_dict()


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., str]:
    def write(name: str, **values: Any) -> str:
        path = tmp_path / f"{name}.jsonl"
        path.write_text(json.dumps({key: v for key, v in (ROW | values).items() if v == v}))
        kernels = {"blas": "openblas 0.3 Haswell", "simd": "X86_V3"}  # all of one processor
        Path(f"{path}.meta.json").write_text(json.dumps({"environment": kernels}))
        return str(path)

    return write


# ---------------------------------------------------------------------------- gates and lists


@pytest.mark.parametrize(
    ("after", "code"),
    [(3e-19, 0), (1e-18 + 1e-19, 0), (1.2e-18, 1)],
    ids=["within the certificate", "its whole width", "beyond it"],
)
def test_a_relative_gate_holds_within_the_error_of_the_exact_scores(
    after,
    code,
    written,
    capsys,
) -> None:
    earlier = written("earlier", drift_rms=1e-19, reference_error=1e-18)
    later = written("later", drift_rms=after, reference_error=1e-18)
    assert main(["report", later, "--against", earlier, "--fail-if", "drift_rms>1.1x"]) == code
    capsys.readouterr()


def test_a_relative_gate_has_nothing_to_say_of_a_new_row() -> None:
    before = ROW | {"drift_rms": 2 * ROW["drift_rms"]}
    old, new = Pair(before, ROW), Pair(None, ROW)
    half, zero = (gates.parse(f"drift_rms>{bound}", relative=True) for bound in ("0.4x", "0"))
    assert [gate.broken_since(pair) for gate in (half, zero) for pair in (old, new)] == [
        True,
        False,
        True,
        True,
    ]
    assert not half.broken_since(Pair(ROW, None))
    [relative], [plain] = (gates.broken_since([gate], [old]) for gate in (half, zero))
    assert f", before {before['drift_rms']}" in relative
    assert "before" not in plain  # what it was has no part in the condition


def test_a_windows_width_may_have_a_suffix(capsys) -> None:
    flags = ["--recipe", "hf", "--dtype", "fp16", "--offset", "0", "-f", "json", "-q"]
    assert main(["shift", *SMALL, *flags, "--mask", "window:2,Window:1k, window:0.5k"]) == 0
    results = json.loads(capsys.readouterr().out)["records"]
    assert [row["mask"] for row in results] == ["window:2", "window:1024", "window:512"]


# ---------------------------------------------------------------------------- what is refused before any work


def no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ropeaudit.runtime.run_metadata.free_bytes", lambda: 2**10)
    for name in ("inputs.qk.make", "inputs.sampled_rows.synthetic", "engine.measure.measure"):
        monkeypatch.setattr(f"ropeaudit.{name}", lambda *_: pytest.fail("work was done"))


TOO_LARGE = """
shift --offset 7 --dtype fp16 --recipe hf
shift --offset 7 --dtype fp16 --recipe hf --sample 5
parity hf meta --dtype fp16
shift --recipe hf --dtype fp16 --turn 1 --rerotate 1
explain --offset 7 --recipe hf --dtype fp16
limit --recipe hf --dtype fp16 --up-to 99
"""


def test_what_does_not_fit_in_memory_is_refused_before_q_and_k_are_made(monkeypatch, capsys) -> None:
    no_room(monkeypatch)
    for command in TOO_LARGE.strip().splitlines():
        assert main([*command.split(), "--heads", "1", "--seq-len", "400", "--head-dim", "64"]) == 2
        assert "GiB of memory" in capsys.readouterr().err, command


SMALL_SCORES = [  # q, k, scale: whether their product is lost
    (1e-20, 1.0, 1.0, False),
    (1.0, 1e-20, 1.0, False),
    (1e-20, 1e-4, 1.0, False),
    (1e-20, 1e-6, 1.0, True),
    (1e-20, 1e-4, 1e-3, True),
    (1e-20, 1e-4, 1e3, False),
    (0.0, 1.0, 1.0, False),  # scores of 0 are exact
]


def test_scores_vanish_by_the_product_of_q_k_and_scale(tmp_path) -> None:
    for q, k, scale, vanishes in SMALL_SCORES:
        np.savez(tmp_path / "qk.npz", q=np.full((1, 3, 4), -q), k=np.full((1, 3, 4), -k))
        case = Case(qk=str(tmp_path / "qk.npz"), scale=scale)
        if vanishes:
            with pytest.raises(BadInput, match="would vanish in float32"):
                case.load()
        else:
            assert case.load()[0].q.min() == -q


@pytest.mark.skipif(os.name != "posix", reason="such names are none elsewhere")
def test_a_config_is_named_on_one_line(tmp_path) -> None:
    folder = tmp_path / "a\nb"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    assert hf_config.read(str(folder)).name == "a\\nb"


# ---------------------------------------------------------------------------- sweeps


@pytest.mark.parametrize(("suffix", "offset"), [("json", 131072), ("csv", 131072), ("json", 7)])
def test_rows_with_infinite_bounds_go_on_from_the_report(
    suffix, offset, tmp_path, monkeypatch, capsys
) -> None:
    """JSON has no infinity, but a text for it: what goes on from such a file is what runs through."""
    flags = ["--recipe", "uniform", "--dtype", "fp16", "--offset", f"{offset},{offset + 1}", "-q"]
    command = ["shift", *SMALL, *flags, "-o", f"{tmp_path / 'x'}.{suffix}"]
    append, rows = sweep_file.SweepFile.append, []

    def interrupted(self: sweep_file.SweepFile, row: Any) -> None:
        if rows:
            raise KeyboardInterrupt
        append(self, row)
        rows.append(row)

    with monkeypatch.context() as patch:
        patch.setattr(sweep_file.SweepFile, "append", interrupted)
        assert main(command) == 130
    assert rows
    part = tmp_path / f"x.{suffix}.part"
    assert part.exists()  # it has all columns, and the report those that were asked for
    capsys.readouterr()
    resumed = ran(capsys, [*command, "--resume", "-f", "csv"]).out
    assert not part.exists()
    assert ran(capsys, [*command[:-2], "-f", "csv"]).out == resumed
