"""The steps of examples/github-actions.yml run, and the gate in it can fail."""

import subprocess
from pathlib import Path

import pytest
from documented import EXAMPLES, INTERLEAVED, in_comments, shell

yaml = pytest.importorskip("yaml")
JOB = yaml.safe_load((EXAMPLES / "github-actions.yml").read_text(encoding="utf-8"))["jobs"]["drift"]
NETWORK = "Install"  # the step that is not run
UNLESS_CANCELLED = "${{ !cancelled() }}"
CARELESS = INTERLEAVED.replace("positions.double()", "positions.to(x.dtype).double()")


def run(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return shell(script, folder, GITHUB_STEP_SUMMARY=str(folder / "summary.md"), **JOB["env"])


def job(folder: Path) -> dict[str, int]:
    """Run the steps in order; after a failure only those that say so. Returns exit codes."""
    codes: dict[str, int] = {}
    for step in JOB["steps"]:
        due = not any(codes.values()) or step.get("if") == UNLESS_CANCELLED
        if "run" in step and step["name"] != NETWORK and due:
            codes[step["name"]] = run(step["run"], folder).returncode
    return codes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mypkg").mkdir()
    (tmp_path / "mypkg" / "rope.py").write_text(INTERLEAVED, encoding="utf-8")
    (baseline,) = (line for line in in_comments() if "baseline" in line)
    done = run(baseline, tmp_path)
    assert done.returncode == 0, done.stderr
    return tmp_path


def uploaded(folder: Path) -> Path:
    (path,) = (step["with"]["path"] for step in JOB["steps"] if "upload-artifact" in step.get("uses", ""))
    return folder / path


@pytest.mark.slow
def test_a_kernel_that_is_as_good_as_before_passes(folder) -> None:
    assert list(job(folder).values()) == [0, 0, 0]
    summary = (folder / "summary.md").read_text(encoding="utf-8")
    assert summary.startswith("```text\nOK  mypkg/rope.py:apply_rope   within tolerance")
    assert uploaded(folder).read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


@pytest.mark.slow
def test_a_careless_kernel_fails_and_its_report_is_there(folder) -> None:
    (folder / "mypkg" / "rope.py").write_text(CARELESS, encoding="utf-8")
    assert list(job(folder).values()) == [1, 1, 0]
    assert "FAIL  mypkg/rope.py:apply_rope" in (folder / "summary.md").read_text(encoding="utf-8")
    assert "v v-broken w-no" in uploaded(folder).read_text(encoding="utf-8")
