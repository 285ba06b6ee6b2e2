"""A report that is read back is the report that was written."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path

import pandas as pd
import pytest
from command_line import ran
from optional import needs

from ropeaudit import reports, shift
from ropeaudit.audits import records
from ropeaudit.errors import BadInput
from ropeaudit.main import main
from ropeaudit.reports.drift import report as drift_report
from ropeaudit.reports.reading import load, read

SUFFIXES = pytest.mark.parametrize(
    "suffix", [".csv", ".json", ".jsonl", pytest.param(".parquet", marks=needs("pyarrow"))]
)


@SUFFIXES
@pytest.mark.parametrize("attention", [False, True])
def test_what_is_written_is_read_back(suffix: str, attention: bool, tmp_path: Path) -> None:
    offsets = (0, 131072)
    results = list(
        shift(offsets, ("fp16", "fp64"), "uniform", seq_len=9, heads=1, head_dim=8, attention=attention)
    )
    path = tmp_path / f"report{suffix}"
    path.write_bytes(reports.encoded(reports.form_of(str(path)), drift_report(results, ["all"], {})))
    rows = read(str(path))
    assert len(rows) == 4
    for row, record in zip(rows, results, strict=True):
        for name, value in record.as_dict().items():
            if suffix == ".csv" and records.COLUMNS[name].sentence:
                continue
            back = row[name]
            if isinstance(value, float) and math.isnan(value):
                assert back is None or math.isnan(back), name
            else:
                assert back == value, name
                assert type(back) is type(value) or name == "top1_flips", name  # a count, or nan


@SUFFIXES
def test_infinity_is_told_from_nan_and_from_what_was_not_measured(suffix: str, tmp_path: Path) -> None:
    """A weight that --softmax recipe lost, an offset at which scores overflow, and one without attention."""
    case = {"seq_len": 9, "heads": 1, "head_dim": 8}
    (lost,) = shift(0, "fp8_e4m3", "hf", scale=9.0, attention=True, softmax="recipe", **case)
    (overflow,) = shift(131072, "fp16", "uniform", attention=True, **case)
    (without,) = shift(0, "fp16", "uniform", **case)
    path = tmp_path / f"report{suffix}"
    results = drift_report([lost, overflow, without], list(records.COLUMNS), {})
    path.write_bytes(reports.encoded(reports.form_of(str(path)), results))
    back = read(str(path))
    assert lost.attention_kl_max == overflow.bound_max == math.inf
    assert back[0]["attention_kl_max"] == back[1]["bound_max"] == math.inf
    assert back[1]["attention_kl_max"] is None or math.isnan(back[1]["attention_kl_max"])
    assert back[2]["attention_kl_max"] is None
    if suffix == ".jsonl":
        frame = pd.read_json(path, lines=True)
        assert frame["attention_kl_max"].tolist()[0] == frame["bound_max"].tolist()[1] == math.inf
        assert json.loads(path.read_text().splitlines()[0])["attention_kl_max"] == "inf"


LINE = '{"implementation": "hf", "offset": 7, "drift_rms": %s}\n'
LINES = LINE % 1 * 5000
CELLS = "implementation,offset\n"
MANY = "hf,1\n" * 5000
NO_REPORT = "is not a report of `ropeaudit shift`"
NO_NUMBER = "row 5001 has drift_rms 'x', which is no number"
REFUSED = [
    ("x.md", "# x", "is for readers"),
    ("x.csv", "a,b\n1,2\n", "no implementation and offset"),
    ("x.csv", CELLS + "hf\n", "line 2 has another number of cells"),
    ("x.csv", CELLS + MANY + "hf,many\n", "row 5001 has offset 'many'"),
    ("x.csv", f"offset,{CELLS}", "its first line has 'offset' twice"),
    ("x.json", "[]", "not a report"),
    ("x.json", "{", "not a report"),
    ("x.jsonl", "7\n", "not a report"),
    ("x.jsonl", LINES + LINE % "{", "in line 5001: Expecting"),
    ("x.jsonl", f"{LINES.strip()},{LINE % 1}", "in line 5000: Extra data"),
    ("x.jsonl", LINES + LINE % '"x"', NO_NUMBER),
    ("x.jsonl", '{"schema": 1, "offset": 7}', NO_REPORT),
    ("x.parquet", "PAR1", "not a report"),
    ("x.jsonl", '{"schema": 99, "implementation": "", "offset": 0}', "newer ropeaudit"),
    ("none.csv", "", "cannot be read"),
]


def test_what_is_no_report_is_refused_with_its_place(tmp_path: Path) -> None:
    for name, text, fragment in REFUSED:
        path = tmp_path / name
        if text:
            path.write_text(text)
        with pytest.raises(BadInput, match=fragment):
            read(str(path))


def test_rows_may_have_other_columns_and_stand_in_several_blocks(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"implementation": "meta", "offset": 3}\n' + LINE % "null" * 5000)
    rows = read(str(path))
    assert len(rows) == 5001
    assert "drift_rms" not in rows[0]
    assert math.isnan(rows[-1]["drift_rms"])
    assert [row["implementation"] for row in rows[:2]] == ["meta", "hf"]


def test_a_file_of_few_columns_is_read_and_an_older_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "few.csv"
    path.write_text("schema,implementation,offset,drift_rms,unknown\n4,hf,1000,0.5,9\n")
    [row] = read(str(path))
    assert {"schema": 4, "implementation": "hf", "offset": 1000, "drift_rms": 0.5}.items() <= row.items()
    implied = row["model"], row["scaling"], row["backend"]  # their absence says so
    assert implied == ("none", "default", "numpy")
    assert "unknown" not in row
    path.write_text(
        "schema,version,tolerance,case,implementation,offset,drift_rms\n4,1,0.01,ab,hf,1000,0.5\n"
    )
    [row] = read(str(path))  # too few to say whether these are of that case
    assert (row["case"], row["drift_rms"]) == ("ab", 0.5)
    path.write_text("schema,implementation,offset,drift_rms,unknown\n3,hf,1000,0.5,9\n")
    with pytest.raises(BadInput, match="is of schema 3 and this version knows 4; measure again"):
        read(str(path))


def test_parquet_is_typed_for_data_frames(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "x.parquet"
    small = "--heads 1 --seq-len 9 --offset 0,131072 --dtype fp16,bf16 --recipe uniform -q"
    assert main(["shift", *small.split(), "--seed", str(2**64 - 1), "-o", f"{path}"]) == 0
    capsys.readouterr()
    frame = pd.read_parquet(path)
    assert list(frame.columns) == list(records.CORE)
    assert frame["seed"].tolist() == [2**64 - 1] * 4
    assert frame["offset"].dtype == "int64"
    assert frame["drift_rms"].dtype == "float64"
    schema = parquet.read_schema(path)
    assert str(schema.field("scores").type) == "int64"
    assert str(schema.field("refused").type) == "string"
    about = json.loads(schema.metadata[b"ropeaudit"])
    assert about["schema"] == records.SCHEMA
    assert "angle" in about["stages"]["uniform float16"]


@needs("pyarrow")
def test_a_parquet_file_carries_how_it_was_made_as_json_does(tmp_path: Path, capsys) -> None:
    paths = [f"{tmp_path / name}" for name in ("x.json", "x.parquet")]
    small = ["--heads", "1", "--seq-len", "9", "--recipe", "uniform", "-q"]
    assert main(["shift", *small, "-o", paths[0], "-o", paths[1]]) == 0
    assert load(paths[0]).processor == load(paths[1]).processor != ""
    carried = []
    for path in paths:
        capsys.readouterr()
        (source,) = json.loads(ran(capsys, ["report", path, "-f", "json"]).out)["sources"]
        assert source.pop("file") == path
        carried.append(source)
    assert carried[0] == carried[1]
    assert carried[0].keys() == {"rows", "command", "time", "environment", "stages"}


def test_every_command_writes_parquet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "x.parquet"
    small = ["--heads", "1", "--seq-len", "9", "-o", f"{path}"]
    for command in (["explain", "--by", "pair"], ["parity", "hf", "meta"], ["limit", "--up-to", "64"]):
        rows = list(csv.DictReader(io.StringIO(ran(capsys, [*command, *small, "-f", "csv"]).out)))
        assert parquet.read_table(path).num_rows == len(rows) > 0
        assert parquet.read_table(path).column_names == list(rows[0])


def test_without_pyarrow_one_is_told_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "find_spec", lambda name: None)
    for command in (["shift", "-o", f"{tmp_path / 'x.parquet'}"], ["report", f"{tmp_path / 'x.parquet'}"]):
        seen = ran(capsys, command, 2)
        assert seen.out == ""
        assert "needs pyarrow; type: pip install 'ropeaudit[parquet]'" in seen.err
    assert "unknown report format 'parquet'" in ran(capsys, ["shift", "-f", "parquet"], 2).err


def _written(tmp_path: Path, **options) -> Path:
    path = tmp_path / "x.csv"
    results = list(shift((0, 7), "fp16", "uniform", seq_len=9, heads=1, head_dim=8, **options))
    path.write_bytes(reports.encoded("csv", drift_report(results, (), {})))
    return path


@needs("pyarrow")
def test_spreadsheets_and_data_frames_do_not_spoil_a_report(tmp_path: Path) -> None:
    path = _written(tmp_path)
    rows, text = read(str(path)), path.read_text()
    columns = len(text.splitlines()[0].split(",")) - 1
    path.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode() + b"," * columns + b"\r\n")
    assert repr(read(str(path))) == repr(rows)
    assert main(["report", str(path), "-q"]) == 0
    other = tmp_path / "ones.csv"
    other.write_text(_written(tmp_path, qk="ones").read_text())
    both = pd.concat([pd.read_csv(io.StringIO(text)), pd.read_csv(other)])
    for name in ("both.csv", "both.parquet"):
        held = tmp_path / name
        both.to_csv(held, index=False) if name.endswith("csv") else both.to_parquet(held)
        back = read(str(held))
        assert [row["seed"] for row in back] == [0, 0, None, None], name  # 0.0 and a gap, in the file
        assert type(back[0]["seed"]) is int
        assert [{name: row[name] for name in rows[0]} for row in back[:2]] == list(rows)
    mark = tmp_path / "x.jsonl"
    mark.write_bytes(b"\xef\xbb\xbf" + reports.encoded("jsonl", drift_report(list(shift(0)), (), {})))
    assert read(str(mark))[0]["schema"] == records.SCHEMA


@pytest.mark.parametrize(
    ("old", "new", "fragment"),
    [
        (",", ";", "cells are parted by ';'; save it with commas"),
        ("", None, "is empty"),
        ("implementation,", "sep=,\nsubject,", "first line has no implementation and offset"),
        (",float16,7,", ",float16,,", "has a row without an offset"),
        (",float16,7,", ",float16,7.5,", "row 2 has offset '7.5', which is no whole number"),
        (",float16,7,", ",float16,1e60,", "row 2 has offset '1e60', which is no whole number"),
        (",9,1,8,", ",,1,8,", "has a row without seq_len"),
    ],
)
@pytest.mark.parametrize("command", ["report", pytest.param("plot", marks=needs("matplotlib"))])
def test_what_a_hand_spoils_is_said_in_a_line(old, new, fragment, command, tmp_path, capsys) -> None:
    path = _written(tmp_path)
    text = path.read_text()
    path.write_text("" if new is None else text.replace(old, new))
    (tmp_path / "good.csv").write_text(text)
    more = ["-o", str(tmp_path / "x.svg")] if command == "plot" else [str(tmp_path / "good.csv"), "-f", "csv"]
    code = main([command, str(path), *more])
    assert code == (0 if command == "plot" and "seq_len" in fragment else 2)
    if code:
        assert fragment in capsys.readouterr().err
