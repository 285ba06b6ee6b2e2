"""A report that is read back is the report that was written."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from ropeaudit import records, reports
from ropeaudit.audit import shift
from ropeaudit.errors import BadInput
from ropeaudit.reports.drift import drift_report
from ropeaudit.reports.reading import read


@pytest.mark.parametrize("suffix", [".csv", ".json", ".jsonl"])
@pytest.mark.parametrize("attention", [False, True])
def test_what_is_written_is_read_back(suffix: str, attention: bool, tmp_path: Path) -> None:
    offsets = (0, 131072)
    found = list(shift(offsets, ("fp16", "fp64"), seq_len=9, heads=1, head_dim=8, attention=attention))
    path = tmp_path / f"report{suffix}"
    path.write_text(reports.render(reports.form_of(str(path)), drift_report(found, None, {})))
    rows = read(str(path))
    assert len(rows) == 4
    for row, record in zip(rows, found, strict=True):
        for name, value in record.as_dict().items():
            back = row[name]
            undefined = value is None or (isinstance(value, float) and not math.isfinite(value))
            if undefined and suffix != ".csv":  # JSON has null for all of them
                assert back is None or math.isnan(back)
            elif isinstance(value, float) and math.isnan(value):
                assert back is None or math.isnan(back), name
            else:
                assert back == value, name
                assert type(back) is type(value) or name == "top1_flips", name  # a count, or nan


def test_rows_of_the_same_cell_have_the_same_identity() -> None:
    first, second = (list(shift((0, 7), "fp16", seq_len=9, heads=1, head_dim=8)) for _ in range(2))
    assert [one.identity() for one in first] == [one.identity() for one in second]
    other = list(shift((0, 7), "fp16", seq_len=9, heads=1, head_dim=8, changes={"angle": "fp32"}))
    assert len({one.identity() for one in (*first, *other)}) == 4


@pytest.mark.parametrize(
    ("name", "text", "fragment"),
    [
        ("x.md", "# x", "is for readers"),
        ("x.csv", "a,b\n1,2\n", "no subject and offset"),
        ("x.csv", "schema,subject,offset\n1,hf\n", "another number of cells"),
        ("x.csv", "schema,subject,offset\n1,hf,many\n", "not a report"),
        ("x.json", "[]", "not a report"),
        ("x.json", "{", "not a report"),
        ("x.jsonl", "7\n", "not a report"),
        (
            "x.jsonl",
            json.dumps({"schema": records.SCHEMA + 1, "subject": "", "offset": 0}),
            "newer ropeaudit",
        ),
    ],
)
def test_what_is_no_report_is_refused(name: str, text: str, fragment: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(BadInput, match=fragment):
        read(str(path))
    with pytest.raises(BadInput, match="cannot be read"):
        read(str(tmp_path / "none.csv"))


def test_an_older_file_lacks_columns_and_is_read(tmp_path: Path) -> None:
    path = tmp_path / "old.csv"
    path.write_text("schema,subject,offset,drift_rms,unknown\n1,hf,1000,0.5,9\n")
    assert read(str(path)) == [{"schema": 1, "subject": "hf", "offset": 1000, "drift_rms": 0.5}]
