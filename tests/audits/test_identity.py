"""A row says all that was asked for: no two different audits give rows of the same cell."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from command_line import ran

from ropeaudit import shift
from ropeaudit.audits import records
from ropeaudit.audits.cases import Case
from ropeaudit.audits.comparison import compare
from ropeaudit.audits.records import case_digest
from ropeaudit.audits.sweep import Audit, Sweep
from ropeaudit.errors import BadInput
from ropeaudit.main import main

SMALL = {"heads": 1, "seq_len": 4, "head_dim": 8}
QUIET = ["-q", "-f", "csv"]
OWN = """
def turn(x, positions):
    import numpy as np

    if not isinstance(x, np.ndarray):
        raise TypeError("NumPy alone")
    d = x.shape[-1]
    t = positions[:, None] * 10000.0 ** (-np.arange(0, d, 2) / d)
    a, b = np.split(x.astype(np.float64), 2, -1)
    return np.concatenate([a * np.cos(t) - b * np.sin(t), b * np.cos(t) + a * np.sin(t)], -1)
"""


def row(**requested) -> records.Record:
    return next(shift(7, "bf16", **requested))


def captured(path: Path, seed: int) -> None:
    q, k = np.random.default_rng(seed).standard_normal((2, 1, 4, 8))
    np.savez(path, q=q, k=k)


@pytest.mark.parametrize(
    "switch",
    [
        'frequency_form = "divide"',
        'frequency_form = "recurrence"',
        'rotation_rounding = "once"',
        "scale_after_store = false",
    ],
)
def test_recipes_that_differ_in_a_switch_are_other_cells(switch, tmp_path) -> None:
    path = tmp_path / "own.toml"
    results = []
    for text in ("", switch):
        path.write_text(text)
        results.append(row(recipes=str(path), **SMALL))
    assert results[0].implementation == results[1].implementation == "own"
    assert results[0].key() != results[1].key()
    name, _, value = switch.replace('"', "").partition(" = ")
    if value != "false":
        assert f" {name}={value}" in results[1].stages
    else:
        assert (" scale_after_store=true" in results[0].stages, name in results[1].stages) == (True, False)


def test_recipes_of_one_name_are_kept_apart_where_frequencies_depend_on_the_length(tmp_path) -> None:
    for folder, text in (("a", 'position = "bf16"'), ("b", 'position = "fp32"')):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "own.toml").write_text(text)
    paths = [str(tmp_path / folder / "own.toml") for folder in "ab"]
    case = SMALL | {"scaling": "dynamic:factor=4,maximum=4", "length": "shifted"}
    both = list(shift((0, 4097), "bf16", paths, **case))
    alone = [one for path in paths for one in shift((0, 4097), "bf16", path, **case)]
    assert list(map(repr, both)) == list(map(repr, alone))


@pytest.mark.parametrize("more", [{}, {"sample": 3}])
def test_other_numbers_under_the_same_name_are_another_cell(more, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    results, planned = [], []
    for seed in (0, 1, 0):
        captured(Path("my q.npz"), seed)
        results.append(row(qk="my q.npz", **more))
        sweep = Sweep(Audit([Case(qk="my q.npz", **more)], dtypes=["bf16"], offsets=[7]))
        planned.append(sweep.cells[0].key)
    assert [one.key() for one in results] == planned
    assert planned[0] != planned[1]
    assert planned[0] == planned[2]
    assert re.fullmatch(r"my q\.npz sha256:[0-9a-f]{12}", results[0].source)


def test_the_same_numbers_in_another_shape_are_another_cell(tmp_path) -> None:
    path, results = tmp_path / "x.npz", []
    for shape in ((1, 4, 8), (2, 2, 8)):
        np.savez(path, q=np.arange(32.0).reshape(shape), k=np.arange(32.0).reshape(shape))
        results.append(row(qk=str(path)).source)
    assert results[0] != results[1]


def test_rows_of_another_capture_are_not_resumed(tmp_path, capsys) -> None:
    qk, out = tmp_path / "x.npz", tmp_path / "x.jsonl"
    command = ["shift", "--qk", str(qk), "--dtype", "bf16", *QUIET, "-o", str(out), "--resume"]
    captured(qk, 0)
    assert main(command) == main(command) == 0
    rows = out.read_bytes()
    captured(qk, 1)
    assert "rows of another sweep" in ran(capsys, command, 2).err
    assert out.read_bytes() == rows


def test_own_code_has_the_digest_of_its_file_as_version(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    path, results = tmp_path / "code_of_mine.py", []
    for text in (OWN, OWN + "\n# another\n", OWN):
        path.write_text(text)
        results.append(row(implementations="code_of_mine.py:turn", **SMALL))
    assert results[0].implementation == "code_of_mine.py:turn"
    assert re.fullmatch(r"sha256:[0-9a-f]{12}", results[0].version)
    assert results[0].key() == results[2].key() != results[1].key()
    assert row(implementations="code_of_mine:turn", **SMALL).version == results[2].version
    # diff compares earlier and later code
    assert compare([results[0].as_dict()], [results[1].as_dict()]).pairs[0].status == "same"


def test_an_order_of_axes_that_was_asked_for_is_part_of_the_cell(tmp_path) -> None:
    path = tmp_path / "code.py"
    path.write_text(OWN)
    free, requested = (row(implementations=f"{path}:turn", order=order, **SMALL) for order in (None, "bhsd"))
    assert free.key() != requested.key()
    assert requested.stages.endswith(" order=bhsd")


def test_what_executes_own_code_is_known_before_the_plan(tmp_path) -> None:
    path = tmp_path / "code.py"
    path.write_text(OWN)
    case = Case(**SMALL, layout="half")
    audit = Audit([case], (), ["bf16"], range(3), implementations=[f"{path}:turn"])
    cells = Sweep(audit).cells
    assert [cell.key for cell in cells] == [one.key() for one in audit.run(1)]
    assert cells[0].identity[records.IDENTITY.index("backend")] == "numpy"


# ---------------------------------------------------------------------------- files of other schemas


def test_other_numbers_are_no_case_in_common(tmp_path) -> None:
    path = tmp_path / "x.npz"
    captured(path, 0)
    before = [row(recipes="hf", qk=str(path)).as_dict()]
    captured(path, 1)
    with pytest.raises(BadInput, match=r"no case in common: source is .* sha256:"):
        compare(before, [row(recipes="hf", qk=str(path)).as_dict()])


@pytest.mark.parametrize("schema", [1, 2, 3])
def test_rows_of_an_older_schema_are_refused(schema, tmp_path, capsys) -> None:
    path = tmp_path / "x.jsonl"
    sizes = ["--heads", "1", "--seq-len", "4", "--head-dim", "8", "--dtype", "bf16", "--offset", "7"]
    path.write_text(json.dumps(row(**SMALL).as_dict() | {"schema": schema}) + "\n")
    for command in (["shift", *sizes, *QUIET, "-o", str(path), "--resume"], ["report", str(path)]):
        message = ran(capsys, command, 2).err
        assert f"is of schema {schema} and this version knows {records.SCHEMA}; measure again" in message
        assert message.count("\n") == 1


def test_an_empty_cell_of_a_file_is_the_same_request_as_none() -> None:
    [row] = [one.as_dict() for one in shift(0, "fp32", "uniform", seq_len=9, heads=1, head_dim=8)]
    empty = row | {name: "" for name in records.IDENTITY if row[name] is None}
    assert empty != row
    assert case_digest(empty) == case_digest(row) == row["case"]
