"""ropeaudit check CASE --returned OUT: what a kernel wrote back, judged on the command line."""

from pathlib import Path

import numpy as np
import pytest
from cases import table
from command_line import ran, refused
from vector_kernels import case, rotated, written

import ropeaudit


def test_a_claimed_recipe_is_what_is_allowed(tmp_path: Path, capsys) -> None:
    read = case(tmp_path / "case")
    out = written(read, tmp_path / "out", rotated(read, "hf-model-cast"))
    for code, recipe in ((1, []), (0, ["--recipe", "hf-model-cast"]), (2, ["--recipe", "none"])):
        ran(capsys, ["check", read.folder, "--returned", out, *recipe], code)


def test_several_cases_are_judged_by_folders_of_their_names(tmp_path: Path, capsys) -> None:
    for name in ("a", "b"):
        read = case(tmp_path / "cases" / name, seed=ord(name))
        written(read, tmp_path / "outs.v1", rotated(read)).rename(tmp_path / name)
    (tmp_path / "outs.v1").mkdir()
    for name in ("a", "b"):
        (tmp_path / name).rename(tmp_path / "outs.v1" / name)
    cases = sorted((tmp_path / "cases").iterdir())
    command = ["check", *cases, "--returned", tmp_path / "outs.v1"]
    assert [line[:4] for line in ran(capsys, command).out.splitlines()] == ["PASS", "PASS"]
    (tmp_path / "outs.v1" / "b").rename(tmp_path / "outs.v1" / "c")
    assert "outs.v1/b': No such file or directory" in ran(capsys, command, 2).err


REFUSED = table(__file__, "check_case.toml")


@pytest.mark.parametrize("arguments", REFUSED)
def test_what_does_not_fit_a_case_is_refused(arguments: str, tmp_path: Path, capsys) -> None:
    err = refused(capsys, ["check", case(tmp_path / "case").folder, *arguments.split()])
    assert REFUSED[arguments] in err
    assert err.count("\n") == 1
    assert err.count("--returned 'none'") <= 1


def test_a_folder_of_outputs_goes_with_a_case_alone(tmp_path: Path, capsys) -> None:
    err = refused(capsys, ["check", "llama-2-7b", "--returned", tmp_path])
    assert f"--returned {tmp_path} goes with a case of vectors; leave it out" in err


def test_python_judges_as_the_command_does(tmp_path: Path) -> None:
    read = case(tmp_path / "case")
    arrays = rotated(read)
    arrays[1000]["k"][1, 0, 7] = np.roll(arrays[1000]["k"][1, 0, 7], 1)
    out = written(read, tmp_path / "out", arrays)
    results = list(ropeaudit.check(str(read.folder), returned=str(out)))
    assert next(one.finding.check for one in results if one.finding.failed) == "rotation"
    assert "position 1007" in results[1].finding.where
    assert ropeaudit.report(results).headline.startswith(f"FAIL {read.folder}: ")


def test_no_file_of_a_case_or_of_what_came_back_is_written_over(tmp_path: Path, capsys) -> None:
    read = case(tmp_path / "case")
    out = written(read, tmp_path / "out", rotated(read))
    files = [*(tmp_path / "case").iterdir(), *(tmp_path / "out").iterdir()]
    before = {path: path.read_bytes() for path in files}
    for target in (read.folder, read.folder / "manifest.json"):
        for path in files:
            ran(capsys, ["check", target, "--returned", out, "--junit", path], 2)
    ran(capsys, ["check", read.folder, "--returned", out, "-o", read.folder / "manifest.json"], 2)
    assert {path: path.read_bytes() for path in files} == before
