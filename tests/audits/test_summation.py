"""What another order of sums may change, and what a change is between reports of two processors."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import first_fast
from command_line import ran

from ropeaudit import recipes, shift
from ropeaudit.audits import comparison, records
from ropeaudit.audits.comparison import compare
from ropeaudit.console import gates
from ropeaudit.engine import kernel
from ropeaudit.main import main
from ropeaudit.reports.comparison import answer
from ropeaudit.runtime import run_metadata
from ropeaudit.subjects import Subject

RECIPES = tuple(recipe.name for recipe in recipes.all_recipes() if not recipe.refused)
DTYPES = ("fp64", "fp32", "fp16", "bf16")
ELSEWHERE = ("openblas 0.3 Haswell, X86_V3", "openblas 0.3 SkylakeX, AVX512_SPR")
NOWHERE = ("worst_head", "worst_query", "worst_key")


def rows(**case: Any) -> list[dict[str, Any]]:
    return [one.as_dict() for one in shift((0, 1000, 70001), DTYPES, RECIPES, **case)]


@pytest.fixture
def another_order(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let the products of NumPy arrays add their terms from the last one to the first, in some parts."""

    def reorder(count: int = 1) -> None:
        plain = np.matmul

        def matmul(a: np.ndarray, b: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
            cut = max(1, a.shape[-1] // count)
            starts = range(0, a.shape[-1], cut)
            parts = [slice(start, start + cut) for start in starts][::-1]
            total = sum(plain(a[..., part][..., ::-1], b[..., part, :][..., ::-1, :]) for part in parts)
            if out is None:
                return np.asarray(total)
            out[...] = total
            return out

        accumulate = kernel.accumulate

        def reordered(q: np.ndarray, k: np.ndarray, subject: Subject, out: np.ndarray) -> None:
            if kernel.native(q, subject):
                matmul(q, k, out)
            else:
                accumulate(q, k, subject, out)

        monkeypatch.setattr(kernel, "accumulate", reordered)

    return reorder


def differences(before: list[dict], after: list[dict]) -> dict[str, float]:
    """Return the largest change over its allowance of every column in which two reports differ."""
    largest: dict[str, float] = {}
    for old, new in zip(before, after, strict=True):
        for name in records.COLUMNS:
            if old[name] == new[name] or repr(old[name]) == repr(new[name]):
                continue
            if not isinstance(old[name], float):
                largest[name] = math.inf if name not in (*NOWHERE, "top1_flips") else 0.0
                continue
            allowed = comparison.allowance(old, new, name)
            allowed += old["reference_error"] if "drift" in name else 0.0
            change = abs(old[name] - new[name])
            largest[name] = max(largest.get(name, 0.0), change / allowed if allowed else math.inf)
    return largest


@pytest.mark.parametrize(
    ("case", "parts"),
    first_fast(
        [
            ({"seq_len": 40, "head_dim": 64, "seed": 3, "attention": True, "softmax": "recipe"}, 4),
            ({"seq_len": 4, "head_dim": 8}, 1),
            ({"seq_len": 128, "head_dim": 128}, 1),
            ({"seq_len": 96, "head_dim": 64, "qk": "ones"}, 4),
        ]
    ),
    ids=str,
)
def test_another_order_of_sums_stays_within_its_allowance(
    case: dict,
    parts: int,
    another_order,
) -> None:
    before = rows(heads=1, **case)
    another_order(parts)
    found = differences(before, rows(heads=1, **case))
    assert found.get("drift_rms", 0.0) > 0  # it is another order
    assert {name: size for name, size in found.items() if size > 1} == {}
    float64 = ("reference_rms", "reference_error", "predicted_rms", "bound_max", "attainable_rms")
    assert not {*found} & {*records.IDENTITY, "distinct_positions", "nonfinite", *float64}


def planted(before: list[dict], dtype: str, times: float) -> list[dict]:
    drifts = ("drift_rms", "drift_relative", "excess", "drift_mean_abs", "drift_max")
    return [
        row | {name: row[name] * times for name in drifts if row["dtype"] == dtype and row["offset"]}
        for row in before
    ]


@pytest.mark.parametrize(
    ("dtype", "times", "ratio"),
    first_fast([("float16", 1.02, 1.01), ("bfloat16", 1.1, 1.05), ("float32", 1.5, 1.05)]),
)
def test_a_planted_change_is_seen_across_processors(dtype, times, ratio, another_order) -> None:
    case = {"heads": 1, "seq_len": 160, "head_dim": 64}
    before = rows(**case)
    another_order()
    after = planted(rows(**case), dtype, times)
    result = compare(before, after, ratio, ELSEWHERE)
    due = [pair for pair in result.pairs if pair.row["dtype"] == dtype and pair.row["offset"]]
    due = [
        pair
        for pair in due
        if pair.row["drift_rms"] > pair.row["reference_error"] and not pair.row["nonfinite"]
    ]
    assert len(due) > 60
    assert [pair.row["implementation"] for pair in due if "drift_rms" not in pair.changed] == []
    assert all(pair in due for pair in result.of("changed"))
    gate = [gates.parse(f"drift_rms>{ratio}x", relative=True)]
    assert f"{len(due)} of" in gates.broken_since(gate, result.pairs)[0]


def test_no_change_between_processors_is_said_as_what_it_is(another_order) -> None:
    case = {"heads": 1, "seq_len": 40, "head_dim": 64}
    before = rows(**case)
    assert answer(compare(before, before, 1.05, ELSEWHERE)).decides.endswith(
        "within 1.05 times what they were; 6 nan in both"
    )
    another_order()
    after = rows(**case)
    result = compare(before, after, 1.0, ELSEWHERE)
    assert result.of("changed") == []
    assert answer(result).decides.endswith(
        "what the order of sums explains on another processor (Haswell X86_V3 → SkylakeX AVX512_SPR); "
        "6 nan in both"
    )
    unknown = compare(before, after, 1.0, ("", ELSEWHERE[1]))
    assert answer(unknown).decides.endswith("a processor that is not recorded; 6 nan in both")
    assert compare(before, after, 1.0).of("changed")  # on one processor nothing moves by itself
    gate = [gates.parse("drift_max>1.0x", relative=True)]
    assert gates.broken_since(gate, result.pairs) == []
    assert gates.broken_since(gate, compare(before, after, 1.0).pairs) != []


def test_words_at_a_threshold_are_no_change() -> None:
    [row] = [one.as_dict() for one in shift((0,), ("fp32",), "hf", heads=1, seq_len=40, head_dim=64)]
    near = row | {"verdict": "coarse", "drift_rms": row["drift_rms"] * (1 + 1e-4)}
    assert compare([row], [near], 1.05, ELSEWHERE).of("changed") == []
    assert compare([row], [near], 1.05).of("changed")[0].changed == ("verdict",)
    far = near | {"drift_rms": row["drift_rms"] * 1.04, "floor_rms": row["floor_rms"] * 3}
    assert "verdict" in compare([row], [far], 1.05, ELSEWHERE).of("changed")[0].changed


def test_the_kernel_stands_in_the_metadata_and_is_read_back(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    line = ["shift", "--heads", "1", "--seq-len", "8", "--head-dim", "8", "--recipe", "hf", "--dtype", "fp32"]
    assert main([*line, "-q", "-o", "a.csv", "-o", "a.json"]) == 0
    here = run_metadata.processor(run_metadata.kernels())
    for name in ("a.csv.meta.json", "a.json"):
        assert run_metadata.processor(json.loads(Path(name).read_text())["environment"]) == here
    moved = Path("a.json").read_text().replace(here.split(", ")[1], "OTHER_SIMD")
    Path("b.json").write_text(moved.replace('"drift_rms": ', '"drift_rms": 1'))
    capsys.readouterr()
    assert "on another processor" in ran(capsys, ["report", "b.json", "--against", "a.csv"]).out
    os.remove("a.csv.meta.json")
    assert main(["report", "a.json", "--against", "a.csv"]) == 0
    assert capsys.readouterr().out.startswith("OK  2 cases   no case changed: all are within 1.05 times")


@pytest.mark.parametrize(
    "lacking", ["head_dim", "seq_len", "heads", "reference_rms", "attainable_rms", "stages"]
)
def test_rows_that_lack_a_column_are_compared_by_what_they_say(lacking: str) -> None:
    case = {"heads": 1, "seq_len": 8, "head_dim": 8, "attention": True, "softmax": "recipe"}
    [row] = [one.as_dict() for one in shift((0,), ("fp32",), "hf", **case)]
    before = {name: value for name, value in row.items() if name != lacking}
    figures = ("drift_rms", "drift_relative", "excess", "attention_tv_mean", "attention_kl_max")
    after = before | {name: before[name] * 1.5 for name in figures}
    result = compare([before], [after], 1.01, ELSEWHERE)
    assert lacking == "attainable_rms" or {*result.pairs[0].changed} >= {*figures} - {"excess"}
