"""Which columns files have: decided by the request, few, in a reader's order, and readable by a shell."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import json
from pathlib import Path

import pandas as pd
import pytest
from optional import needs

from ropeaudit import shift, to_frame
from ropeaudit.audits import records, sweep
from ropeaudit.audits.records import NOT_IN_CASE, case_digest
from ropeaudit.main import main

SMALL = "--heads 1 --seq-len 12 --head-dim 8"
KERNEL = str(Path(__file__).parents[2] / "examples" / "kernel.py")
SHIFT = f"shift {SMALL} --offset 0,7 --dtype fp32,bf16"
SHORT = """
import numpy as np
def turn(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    if positions.max() > 100:
        raise ValueError('too far, "really"')
    z = (x[..., :4] + 1j * x[..., 4:]) * np.exp(1j * positions[:, None] * 1e4 ** -(np.arange(4) / 4))
    return np.concatenate([z.real, z.imag], -1).astype(x.dtype)
"""


def printed(line: str, codes: tuple[int, ...] = (0, 1), form: str = "csv") -> str:
    """Return what a command prints to stdout."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        code = main([*line.split(), "-f", form])
    assert code in codes, line
    return out.getvalue()


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "rows.csv"
    printed(f"{SHIFT} -o {path}")
    return path


def test_by_default_a_row_has_28_columns_and_none_is_empty_but_two() -> None:
    found = list(csv.DictReader(io.StringIO(printed("shift"))))
    assert list(found[0]) == [name for name in records.CORE if not records.COLUMNS[name].sentence]
    assert len(found[0]) <= 28
    empty = {name for name in found[0] if all(row[name] == "" for row in found)}
    assert empty == {"refused", "diagnosis"}


@pytest.mark.parametrize(
    ("ask", "others"),
    [
        (SHIFT, f"{SHIFT} --offset 131072 --dtype fp16 --recipe uniform"),
        (f"{SHIFT} --attention", f"{SHIFT} --attention --offset 131072 --dtype fp16 --recipe uniform"),
        (
            f"shift --impl {KERNEL}:apply_rope {SMALL} --dtype bf16",
            f"shift --impl {KERNEL}:careless {SMALL} --dtype bf16 --offset 1000",
        ),
    ],
)
def test_the_request_decides_and_never_the_values(ask: str, others: str) -> None:
    assert printed(ask).splitlines()[0] == printed(others).splitlines()[0]


@pytest.mark.parametrize(
    ("more", "there"),
    [
        ("--attention", {"softmax", "anchor", *records.group_columns("attention")}),
        ("--sample 50", {"sample", "drift_rms_low", "drift_rms_high"}),
        ("--scaling linear:factor=2", {"scaling"}),
        ("--clip 2", {"clip", "structural_max", "structural_rms"}),
        ("--rerotate 3", {"rerotated", "key_norm_growth"}),
        ("--layout interleaved", {"layout"}),
        ("--rotary-dim 4", {"rotary_dim"}),
        ("--heads 2 --kv-heads 1", {"kv_heads"}),
        ("--fail-if bound_max>9", set(records.group_columns("bounds"))),
        ("--fail-if worst_query>99", set(records.group_columns("detail"))),
    ],
)
def test_a_request_brings_its_settings_and_groups(more: str, there: set[str]) -> None:
    header = printed(f"{SHIFT} --seq-len 24 {more}").splitlines()[0].split(",")
    core = [name for name in records.CORE if not records.COLUMNS[name].sentence]
    told = {name for name in there if not records.COLUMNS[name].sentence}
    assert set(header) - set(core) == told
    assert [name for name in header if name in core] == core


def test_columns_are_chosen_by_name_by_group_or_all() -> None:
    def header(names: str) -> list[str]:
        return printed(f"{SHIFT} --columns {names}").splitlines()[0].split(",")

    told = [name for name in records.ALL_COLUMNS if not records.COLUMNS[name].sentence]
    assert header("all") == told
    assert sorted(records.ALL_COLUMNS) == sorted(records.COLUMNS)
    assert header("offset,drift_rms") == ["offset", "drift_rms"]
    assert header("bounds,offset") == [*records.group_columns("bounds"), "offset"]
    assert header("offset,reason") == ["offset", "reason"]  # a sentence that was asked for


def test_every_column_is_in_the_core_or_in_one_group() -> None:
    for name, column in records.COLUMNS.items():
        assert (name in records.CORE) == (column.group == ""), name
        assert column.group in ("", *records.GROUPS), name


def test_a_case_is_all_that_was_requested() -> None:
    [row] = shift(7, "bf16", "hf", heads=1, seq_len=4, head_dim=8)
    values = row.as_dict()
    assert case_digest(values) == row.case
    for name in records.IDENTITY:
        value = values[name]
        other = "another" if isinstance(value, str) or value is None else value + 1
        assert (case_digest(values | {name: other}) == row.case) == (name in NOT_IN_CASE), name
    assert len(row.case) == 12
    assert int(row.case, 16) >= 0
    bf16, fp16 = (next(shift(7, dtype, "hf", heads=1)).case for dtype in ("bf16", "fp16"))
    assert bf16 != fp16


def test_metadata_hold_what_all_rows_agree_on_of_this_csv(rows: Path, tmp_path: Path) -> None:
    about = json.loads(Path(f"{rows}.meta.json").read_text())
    assert about["constants"]["backend"] == "numpy"
    assert not set(about["constants"]) & {"offset", "dtype", "implementation", "seq_len"}
    copy = tmp_path / "rows.csv"
    about["constants"]["model"] = "mine"
    changed = rows.read_text().replace("hf,", "meta,")  # its cases are not those of its settings
    for text, model in ((rows.read_text(), {"mine"}), (changed, {"none", "unknown"})):
        copy.write_text(text)
        Path(f"{copy}.meta.json").write_text(json.dumps(about))
        found = csv.DictReader(io.StringIO(printed(f"report {copy} --columns model,offset")))
        assert {row["model"] for row in found} == model


@pytest.mark.parametrize("name", ["x.csv", "x.jsonl", "x.json"])
def test_a_run_goes_on_from_the_columns_that_it_wrote(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    whole = printed(f"{SHIFT} -o {path}")
    first = path.read_bytes()
    assert printed(f"{SHIFT} -o {path} --resume") == whole
    if not name.endswith("json"):  # which holds its command and the time
        assert path.read_bytes() == first
    assert printed(f"{SHIFT} --offset 0,7,9 -o {path} --resume", (0,)).startswith(whole.splitlines()[0])
    before = path.read_bytes()
    with contextlib.redirect_stderr(io.StringIO()) as seen:
        more = ["--offset", "0,7,9", "--columns", "core,bounds", "--resume", "-o", str(path)]
        assert main([*SHIFT.split(), *more]) == 2
    assert "has no column attainable_rms, which is asked for now" in seen.getvalue()
    assert path.read_bytes() == before


@needs("pyarrow")
def test_pandas_reads_typed_columns_and_writes_what_report_reads(rows: Path, tmp_path: Path) -> None:
    frame = pd.read_csv(rows)
    assert frame["offset"].dtype == frame["seq_len"].dtype == "int64"
    assert frame["drift_rms"].dtype == frame["base"].dtype == "float64"
    before = printed(f"report {rows}")
    for name in ("again.csv", "again.parquet"):
        again = tmp_path / name
        frame.to_csv(again, index=False) if name.endswith("csv") else frame.to_parquet(again)
        assert printed(f"report {again}") == before
    assert printed(f"report {rows}") == rows.read_text()


def test_a_data_frame_has_the_columns_of_the_request_typed() -> None:
    results = list(shift((0, 131072), "fp16", "uniform", heads=1, seq_len=12))
    frame = to_frame(results)
    assert list(frame) == list(records.CORE)
    assert frame["verdict"].dtype == pd.CategoricalDtype(records.COLUMNS["verdict"].words)
    assert frame["verdict"].tolist() == [one.verdict for one in results]
    assert str(frame["offset"].dtype) == "Int64"
    assert frame["refused"].isna().all()
    assert frame["drift_rms"].isna().tolist() == [False, True]  # overflow: not a number
    assert list(to_frame(results, ["offset", "bounds"])) == ["offset", *records.group_columns("bounds")]


def test_a_refused_row_says_a_code_in_csv_and_a_sentence_in_json(tmp_path: Path) -> None:
    kernel = tmp_path / "short.py"
    kernel.write_text(SHORT)
    line = f"shift --impl {kernel}:turn {SMALL} --offset 0,1000 --dtype fp32 -o {tmp_path}/x.json"
    found = list(csv.DictReader(io.StringIO(printed(line))))
    assert [row["refused"] for row in found] == ["", "raises"]
    assert all("reason" not in row for row in found)
    told = json.loads((tmp_path / "x.json").read_text())["records"]
    assert told[0]["reason"] is None
    assert 'too far, "really"' in told[1]["reason"]


def test_a_record_without_its_sentence_still_says_why() -> None:
    [row] = shift(7, "bf16", "hf", heads=1, seq_len=4, head_dim=8)
    assert row.why == ""
    assert dataclasses.replace(row, refused="raises").why == "a call failed"
    assert dataclasses.replace(row, refused="raises", reason="ValueError: no").why == "ValueError: no"


# ---------------------------------------------------------------------------- files of few columns

STRETCHED = f"shift {SMALL} --recipe hf --dtype bf16 --scaling linear:factor=4"


@pytest.fixture
def few(tmp_path: Path) -> Path:
    """A core alone, of a setting that is not the usual one, without its metadata."""
    path = tmp_path / "few.csv"
    printed(f"{STRETCHED} --columns core --offset 0,1000 -o {path}")
    Path(f"{path}.meta.json").rename(tmp_path / "meta.json")
    return path


def test_a_setting_that_no_file_says_is_not_the_usual_one(few: Path, capsys) -> None:
    found = json.loads(printed(f"report {few} --columns scaling,model,offset", (0,), "json"))["records"]
    assert {(row["scaling"], row["model"]) for row in found} == {("unknown", "unknown")}
    assert "scaling" not in printed(f"report {few}").splitlines()[0]
    few.parent.joinpath("meta.json").rename(f"{few}.meta.json")
    assert "linear(factor=4)" in printed(f"report {few} --columns scaling,offset")


def test_a_run_goes_on_with_the_settings_that_it_asks_for(few: Path) -> None:
    text = printed(f"{STRETCHED} --columns core,scalings --offset 0,1000,2000 -o {few} --resume")
    assert [row["scaling"] for row in csv.DictReader(io.StringIO(text))] == ["linear(factor=4)"] * 3


def test_rows_with_and_without_metadata_are_the_same_rows(few: Path) -> None:
    whole = few.with_name("whole.csv")
    printed(f"{STRETCHED} --columns core --offset 0,1000 -o {whole}")
    for pair in (f"{few} {whole}", f"{whole} {few}"):
        assert printed(f"report {pair}").count("\n") == 3
    assert printed(f"report {few} --against {whole}").count("\n") == 1


def test_switches_of_recipes_are_in_the_metadata(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    printed(f"{SHIFT} --recipe hf,meta,vllm-cuda -o {path}")
    measured = printed(f"{SHIFT} --recipe hf,meta,vllm-cuda --columns case,stages")
    assert printed(f"report {path} --columns case,stages") == measured


def test_a_sentence_stands_in_the_metadata_of_a_csv(tmp_path: Path) -> None:
    kernel = tmp_path / "short.py"
    kernel.write_text(SHORT)
    line = f"shift --impl {kernel}:turn {SMALL} --dtype fp32 -o {tmp_path}/x.csv -o {tmp_path}/x.jsonl"
    printed(f"{line} --offset 0,1000")
    printed(f"{line} --offset 0,1000,2000 --resume")
    rows = [json.loads(text) for text in (tmp_path / "x.jsonl").read_text().splitlines()]
    assert [row["reason"] for row in rows] == [None, *['ValueError: too far, "really"'] * 2]


def test_a_condition_is_quoted_as_it_was_typed(capsys) -> None:
    assert main([*SHIFT.split(), "-q", "--fail-if", "tolerance>0.0099999999"]) == 1
    assert "tolerance = 0.01 (tolerance>0.0099999999)" in capsys.readouterr().err


def test_a_relative_condition_on_an_empty_column_says_so(tmp_path: Path, capsys) -> None:
    whole = tmp_path / "whole.csv"
    printed(f"{SHIFT} --columns all -o {whole}")
    assert main(["report", str(whole), "--against", str(whole), "--fail-if", "entropy>1.1x"]) == 2
    assert "entropy is empty in 8 of 8 rows" in capsys.readouterr().err


def test_bounds_are_computed_where_something_shows_or_compares_them(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    printed(f"{SHIFT} -o with.json --columns all")
    printed(f"{SHIFT} -o without.json")
    asked = list[bool]()
    made = sweep.Audit.__post_init__
    monkeypatch.setattr(sweep.Audit, "__post_init__", lambda one: (asked.append(one.bounded), made(one))[1])
    lines = {
        "": False,
        "--columns excess": False,
        "--columns predicted_rms": True,
        "--fail-if bound_max>9": True,
        "--baseline with.json": True,
        "--baseline without.json": False,
        "-o page.html": True,
        "-o page.html --resume": False,
    }
    for more in lines:
        printed(f"{SHIFT} --dry-run {more}", (0, 1, 2))
    assert dict(zip(lines, asked, strict=True)) == lines
