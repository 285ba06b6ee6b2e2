"""report --against: what changed between two reports, what is new or gone, and gates on it."""

import csv
import json
import math
from pathlib import Path

import pytest
from command_line import ran
from hypothesis import given
from hypothesis import strategies as st

from ropeaudit import shift
from ropeaudit.audits.comparison import COMPARED, compare
from ropeaudit.audits.records import case_digest
from ropeaudit.errors import BadInput, UsageError
from ropeaudit.main import main
from ropeaudit.reports.comparison import COLUMNS, answer
from ropeaudit.reports.reading import read

SMALL = ["--heads", "1", "--seq-len", "40", "--offset", "0,128k", "--dtype", "fp64,fp16,bf16"]
SHIFT = ["shift", *SMALL, "--recipe", "uniform,hf", "-q"]
ROWS = [
    record.as_dict() for record in shift((0, 7), ("fp16", "bf16"), "uniform", heads=1, seq_len=9, head_dim=8)
]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reports")
    files = [word for suffix in ("csv", "json", "jsonl") for word in ("-o", f"{folder / 'a'}.{suffix}")]
    assert main([*SHIFT, *files]) == 0
    planted(folder / "a.csv", folder / "b.csv", 1.1)
    return folder


def planted(source: Path, target: Path, times: float) -> None:
    """Write a report in which hf bfloat16 drifts so much more at offset 131072."""
    with source.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        if (row["implementation"], row["dtype"], row["offset"]) == ("hf", "bfloat16", "131072"):
            row |= {
                name: repr(times * float(row[name]))
                for name in row
                if name.startswith(("drift", "self_drift"))
            }
    with target.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def changed(row: dict, **values) -> dict:
    whole = {**row, **values}
    return whole | {"case": case_digest(whole)}


def test_a_run_again_is_silent(reports, capsys) -> None:
    gates = ["--fail-if", "drift_rms>1.0x", "--fail-if", "drift_max>1x"]
    within = "no case changed: 11 are within 1.05 times what they were; 1 nan in both"
    for again in ("a.csv", "a.json", "a.jsonl"):
        seen = ran(capsys, ["report", reports / again, "--against", reports / "a.csv", *gates])
        assert (seen.out, seen.err) == (f"WARN  12 cases   {within}\n", ""), again


def test_a_planted_regression_is_found(reports, capsys) -> None:
    before, after = reports / "a.csv", reports / "b.csv"
    command = ["report", f"{after}", "--against", f"{before}", "-f", "json"]
    seen = ran(capsys, [*command, "--fail-if", "drift_rms>1.05x"], 1)
    report = json.loads(seen.out)
    (row,) = report["records"]
    assert [name for name in COLUMNS if name in row] == list(row)
    assert {"drift_rms_before", "drift_rms_ratio", "verdict_after", "case"} <= row.keys()
    old = next(one for one in read(str(reports / "a.csv")) if one["case"] == row["case"])
    assert row["drift_rms_before"] == old["drift_rms"]
    assert row["drift_rms_ratio"] == pytest.approx(1.1)
    assert row["drift_rms_change"] == pytest.approx(0.1 * old["drift_rms"])
    assert (row["status"], row["implementation"], row["dtype"], row["offset"]) == (
        "changed",
        "hf",
        "bfloat16",
        131072,
    )
    drifts = "WARN 12 cases: 1 drift more, the worst: hf bfloat16 at offset 131072 1.10 times ("
    assert report["headline"].startswith(drifts)
    assert "before" in seen.err
    assert "(drift_rms>1.05x) for hf bfloat16 at offset 131072; 1 of 12 cases fail" in seen.err
    ran(capsys, [*command, "--fail-if", "drift_rms>1.2x"])
    ran(capsys, [*command, "--fail-if", "drift_rms>1e-9"], 1)
    seen = ran(capsys, [*command, "--ratio", "1.2"])
    assert "no case changed" in json.loads(seen.out)["headline"]


def test_new_and_gone() -> None:
    result = compare(ROWS[:3], ROWS[1:])
    assert [pair.status for pair in result.pairs] == ["same", "same", "new", "gone"]
    seen = answer(result)
    within = "no case changed: 2 are within 1.05 times what they were"
    assert seen.headline == f"WARN 2 cases: {within}; 1 new, not compared; 1 gone, not compared"


def test_what_was_not_compared_is_never_said_to_be_within() -> None:
    refused = [{**row, "verdict": "refused", "drift_rms": math.nan} for row in ROWS]
    silent = [{name: row[name] for name in row if name != "drift_rms"} for row in ROWS]
    half = [*ROWS[:2], *refused[2:]]
    for before, after, decides in (
        (refused, refused, "nothing was compared; 4 refused in both"),
        (ROWS, silent, "nothing was compared; 4 without drift_rms"),
        (half, half, "no case changed: 2 are within 1.05 times"),
        (ROWS, refused[:1] + ROWS[1:], "none drifts more; 1 refused in one"),
    ):
        seen = answer(compare(before, after))
        assert seen.decides.startswith(decides), seen.decides
        assert seen.status == "WARN"


def test_neither_version_nor_tolerance_makes_another_case() -> None:
    result = compare(ROWS, [changed(row, version="another", tolerance=0.5) for row in ROWS])
    assert {pair.status for pair in result.pairs} == {"same"}


def test_missing_columns_are_not_compared_and_rows_without_a_case_are_refused() -> None:
    few = [
        {name: row[name] for name in ("implementation", "dtype", "offset", "case", "drift_rms")}
        for row in ROWS
    ]
    assert {pair.status for pair in compare(few, ROWS).pairs} == {"same"}
    with pytest.raises(BadInput, match="the earlier report has no column case; write both reports without"):
        compare(
            [{name: row[name] for name in ("implementation", "offset", "drift_rms")} for row in ROWS], ROWS
        )


def test_what_is_refused_breaks_a_gate(tmp_path, capsys) -> None:
    seen = [changed(row, attention_d=0.1) for row in ROWS[:2]]
    rows = [changed(ROWS[0], verdict="refused", attention_d=None), seen[1]]
    for name, some in (("a", seen), ("b", rows)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))
    command = ["report", f"{tmp_path}/b.jsonl", "--against", f"{tmp_path}/a.jsonl"]
    ran(capsys, [*command, "--fail-if", "attention_d>9"], 1)


def test_what_shares_no_case_says_why() -> None:
    with pytest.raises(BadInput, match="no case in common: seed is 0 in the earlier and 1 in the later one"):
        compare(ROWS, [changed(row, seed=1) for row in ROWS])
    with pytest.raises(BadInput, match="the later one is empty"):
        compare(ROWS, [])
    with pytest.raises(BadInput, match="does not tell why; measure one of them again"):
        compare(ROWS[:1], [ROWS[0] | {"case": "another"}])
    for ratio in (0.5, math.nan):
        with pytest.raises(UsageError, match=rf"ratio {ratio}"):
            compare(ROWS, ROWS, ratio)


@given(st.sampled_from(COMPARED), st.floats(1e-3, 1e3), st.floats(1.0, 4.0))
def test_changed_is_more_than_the_ratio(column: str, times: float, ratio: float) -> None:
    before = changed(ROWS[1], **{column: 0.5}, reference_error=0.0)
    after = changed(before, **{column: 0.5 * times})
    (pair,) = compare([before], [after], ratio).pairs
    own = pair.ratio(column)
    beyond = own > ratio or own < 1 / ratio
    if column in ("nonfinite", "distinct_positions"):
        beyond = times != 1
    assert own == pytest.approx(times)
    assert (pair.changed == (column,)) is beyond


def test_lost_scores_are_a_change_and_break_a_gate(tmp_path, capsys) -> None:
    nan = {"drift_rms": math.nan, "drift_max": math.nan, "nonfinite": 5, "verdict": "overflow"}
    result = compare(ROWS, [*ROWS[:3], changed(ROWS[3], **nan)])
    worst = "uniform bfloat16 at offset 7 gives 5 scores that are nan or infinite, before 0"
    assert answer(result).headline == f"WARN 4 cases: 1 drift more, the worst: {worst}"
    for name, rows in (("a", ROWS), ("b", [*ROWS[:3], changed(ROWS[3], **nan)])):
        lines = [json.dumps({k: v if v == v else None for k, v in row.items()}) for row in rows]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    files = {name: f"{tmp_path / name}.jsonl" for name in "ab"}
    since = ["report", files["b"], "--against", files["a"]]
    again = ["report", files["b"], "--against", files["b"]]
    ran(capsys, [*since, "--fail-if", "drift_rms>1.1x"], 1)
    ran(capsys, [*again, "--fail-if", "drift_rms>1.1x"])
    ran(capsys, [*again, "--fail-if", "drift_rms>1000"], 1)  # as in shift


def test_changes_within_the_certificate_are_none() -> None:
    before = changed(ROWS[0], drift_rms=1e-19, drift_max=2e-19, reference_error=1e-18)
    (pair,) = compare([before], [changed(before, drift_rms=3e-19, drift_max=9e-19)]).pairs
    assert pair.status == "same"
    (pair,) = compare([before], [changed(before, drift_rms=3e-18)]).pairs
    assert pair.changed == ("drift_rms",)


def test_a_baseline_of_other_cases_keeps_the_rows(reports, capsys) -> None:
    seen = ran(capsys, [*SHIFT, "--seed", "1", "--baseline", reports / "a.csv", "-f", "csv"], 2)
    assert seen.out.count("\n") == 13
    assert "no case in common: seed is 0 in the earlier and 1" in seen.err
