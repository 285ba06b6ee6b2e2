"""report: which of its options go together, and the rows of several files as those of one."""

import json
from pathlib import Path

import pytest
from command_line import ran

import ropeaudit
from ropeaudit.main import main
from ropeaudit.reports.reading import read

SHIFT = ["shift", "--heads", "1", "--seq-len", "12", "--head-dim", "8", "--recipe", "hf,uniform", "-q"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a sweep, the same in two halves, and a half with a row that differs."""
    folder = tmp_path_factory.mktemp("reports")
    for name, offsets in (("whole.json", "0,7"), ("first.jsonl", "0"), ("second.json", "7")):
        command = [*SHIFT, "--dtype", "fp16,bf16", "--offset", offsets, "-o", str(folder / name)]
        assert main(command) == 0
    rows = [json.loads(line) for line in (folder / "first.jsonl").read_text(encoding="utf-8").splitlines()]
    rows[0]["drift_rms"] *= 3
    (folder / "other.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


@pytest.fixture(autouse=True)
def there(folder, monkeypatch) -> None:
    monkeypatch.chdir(folder)


def test_several_files_are_one_in_every_report(capsys) -> None:
    halves = ["first.jsonl", "second.json", "first.jsonl"]
    shown = ran(capsys, ["report", *halves, "whole.json", "-f", "csv"])
    assert "8 rows stand in these files more than once and count once" in shown.err
    assert len(shown.rows) == len(read("whole.json")) == 8
    for more in (["--by", "dtype"], ["--by", "implementation", "--worst"]):
        merged = ran(capsys, ["report", *halves, "whole.json", *more, "-f", "csv"]).out
        assert ran(capsys, ["report", *halves, *more, "-f", "csv"]).out == merged
    assert main(["report", *halves, "--against", "whole.json", "--fail-if", "drift_rms>1x"]) == 0
    assert capsys.readouterr().out.startswith("OK  8 cases   no case changed: all are within")
    result = ropeaudit.diff("whole.json", halves)
    assert len(result.shared) == 8
    assert sum(len(group.rows) for group in ropeaudit.summary([*halves, "whole.json"])) == 8
    assert [row.as_dict()["offset"] for row in ropeaudit.merge(halves)] == [0] * 4 + [7] * 4


def test_reports_of_two_processors_are_of_none_that_is_known() -> None:
    text = Path("second.json").read_text(encoding="utf-8")
    about = json.loads(text)["environment"]
    Path("elsewhere.json").write_text(text.replace(about["simd"], "OTHER_SIMD"), encoding="utf-8")
    assert ropeaudit.diff("whole.json", "second.json").processors[1]
    assert ropeaudit.diff("whole.json", ["second.json", "elsewhere.json"]).processors[1] == ""


def test_a_page_shows_two_rows_of_a_case_and_data_refuses_them(capsys) -> None:
    files = ["first.jsonl", "other.jsonl"]
    shown = ran(capsys, ["report", *files]).out
    assert shown.count("other.jsonl") == 1
    ran(capsys, ["report", *files, "-q", "-o", "page.html"])
    assert "other.jsonl" in Path("page.html").read_text(encoding="utf-8")
    two = "two different rows of the same cell: hf float16 at offset 0"
    assert two in ran(capsys, ["report", *files, "-f", "json"], 2).err
    assert main(["report", "other.jsonl", "--against", "first.jsonl"]) == 0
    assert "1 drift more, the worst: hf float16 at offset 0 3.00 times" in capsys.readouterr().out


@pytest.mark.parametrize("more", [["--by", "dtype"], ["--against", "whole.json"]])
def test_with_a_file_alone_the_finding_is_printed(more, tmp_path, capsys) -> None:
    target = str(tmp_path / "out.csv")
    seen = ran(capsys, ["report", "whole.json", *more, "-o", target])
    assert seen.out.count("\n") == 1
    assert f"wrote {target}: " in seen.err
    assert main(["report", "whole.json", *more, "-o", target, "-f", "csv"]) == 0
    assert capsys.readouterr().out == Path(target).read_text(encoding="utf-8")


def test_a_drift_that_is_no_number_is_the_worst(tmp_path, capsys) -> None:
    fine = {"within_tolerance": True, "verdict": "sound", "drift_relative": 0.001}
    rows = [{**row, **fine} for row in read("first.jsonl")]
    rows[1]["drift_relative"] = None
    (tmp_path / "x.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    said = ran(capsys, ["report", str(tmp_path / "x.jsonl"), "-q"]).out
    assert said.startswith("WARN  ")
    assert said.endswith("is no number\n")
