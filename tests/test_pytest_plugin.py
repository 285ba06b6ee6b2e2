"""The pytest plugin, in a sample project of its own."""

import importlib
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[1]
CALLED = ROOT / "tests" / "kernels" / "called"


def pytested(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "ropeaudit.pytest_plugin", *arguments]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    added = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": path, **environment}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env={**os.environ, **added})


@pytest.fixture
def project(tmp_path) -> Path:
    shutil.copy(CALLED / "plugged_kernel.py", tmp_path / "kernel.py")
    shutil.copy(CALLED / "plugged_tests.py", tmp_path / "test_kernel.py")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\nfilterwarnings = error\n")
    return tmp_path


def test_the_fixture_checks_and_records_what_it_saw(project) -> None:
    ran = pytested(project, "--junit-xml=junit.xml")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "2 failed, 3 passed" in ran.stdout
    assert "argument of assert_rope 'up_tp'; did you mean up_to" in ran.stdout
    assert "base 500000 instead of 10000" in ran.stdout
    assert ">       rope_check(wrong)" in ran.stdout
    shown = [line for line in ran.stdout.splitlines() if line.startswith("E ")]
    assert "FAIL  wrong   fp32, positions 0 to 63   1 cause, " in shown[0]
    assert "error[wrong-base]: base 500000 instead of 10000" in shown[1]
    assert sum("base 500000 instead of 10000" in line for line in shown) == 1, "it is said once"
    assert len(shown) > 3
    assert "ropeaudit/" not in ran.stdout, "the test's own line is shown, and none of what found it wrong"
    cases = {case.get("name"): case for case in ElementTree.parse(project / "junit.xml").iter("testcase")}  # noqa: S314
    seen = {
        name: {one.get("name"): one.get("value") for one in case.iter("property")}
        for name, case in cases.items()
    }
    assert seen["test_wrong"].pop("ropeaudit.diagnosis") == "wrong-base"
    worst = {
        name: float(seen[name].pop("ropeaudit.worst")) for name in seen if "ropeaudit.worst" in seen[name]
    }
    assert worst.keys() == cases.keys() - {"test_not_of_it", "test_argument"}
    assert worst.pop("test_wrong") > 100
    assert all(0 < value <= 1 for value in worst.values())
    assert not any(seen.values())


def test_it_loads_neither_numpy_nor_torch(project) -> None:
    (project / "test_loaded.py").write_text(
        "import sys\n\ndef test_it():\n    assert not {'numpy', 'torch'} & set(sys.modules)\n"
    )
    ran = pytested(project, "test_loaded.py")
    assert ran.returncode == 0, ran.stdout
    (project / "test_loaded.py").write_text("import numpy\n" + (project / "test_loaded.py").read_text())
    assert pytested(project, "test_loaded.py").returncode == 1, "this test can fail"


def test_pytest_finds_it_by_its_entry_point() -> None:
    entries = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    module = importlib.import_module(entries["ropeaudit"])
    assert module.rope_check
    assert "rope(**options)" in pytested(ROOT / "examples", "--markers").stdout
