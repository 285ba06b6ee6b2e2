"""Forty answers at 100 and 80 columns: what people see first. The snapshots are to be read."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from cases import table

from ropeaudit.console import delivery
from ropeaudit.main import main
from ropeaudit.reports import Report
from ropeaudit.reports.forms import table as form

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "tests" / "kernels"
TABLE = table(__file__, "answers.toml")
CONFIGS = TABLE["configs"]
CHECKS = {name: line.replace("<small>", TABLE["small"]) for name, line in TABLE["checks"].items()}
CHECKS |= {f"config {name}": f"check {name}.json" for name in CONFIGS}
OTHERS = TABLE["others"]
LONGEST = {100: 15, 80: 20}  # lines of an answer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("answers")
    files = {
        "kernel.py": ROOT / "examples" / "kernel.py",
        "faulty.py": KERNELS / "conformance" / "kernels_faulty.py",
        "reduction.py": KERNELS / "cases" / "reduction.py",
        "raises.py": KERNELS / "cases" / "always_raises.py",
        "needs.py": KERNELS / "cases" / "many_needed.py",
    }
    for name, source in files.items():
        shutil.copy(source, path / name)
    theta = 1e4 ** (-np.arange(64) / 64)
    np.save(path / "cast.npy", theta.astype(ml_dtypes.bfloat16).astype(np.float32))
    for name, more in CONFIGS.items():
        config = more if name == "no-rope" else TABLE["llama"] | more
        (path / f"{name}.json").write_text(json.dumps(config))
    assert main(["shift", "--heads", "1", "--seq-len", "64", "-q", "-o", f"{path / 'a.csv'}"]) == 0
    return path


def screens(command: str, monkeypatch: pytest.MonkeyPatch) -> dict[int, str]:
    reports: list[Report] = []

    def keep(report: Report, screen: delivery.ScreenOptions, alone: bool = False) -> int:
        reports.append(replace(report, verbose=screen.verbose))
        return 0

    monkeypatch.setattr(delivery, "print_report", keep)
    main(command.split())
    results = {}
    for width in LONGEST:
        lines = [line for report in reports for line in form.lines(report, width)]
        results[width] = "".join(f"{''.join(text for text, _ in line).rstrip()}\n" for line in lines)
    return results


@pytest.mark.slow  # each is a whole command
@pytest.mark.parametrize("name", [*CHECKS, *OTHERS])
def test_an_answer_is_short_and_fits(name, folder, monkeypatch, capsys, snapshot) -> None:
    monkeypatch.chdir(folder)
    shown = screens({**CHECKS, **OTHERS}[name], monkeypatch)
    error = capsys.readouterr().err
    for width, text in shown.items():
        lines = text.splitlines()
        if name in CHECKS or name.startswith(("limit", "explain", "parity", "module")):
            assert len(lines) <= LONGEST[width], text
        assert all(len(line) <= width for line in lines[:1]), text
    assert "Traceback" not in error
    # how far it is, and how long it took, is said of what takes seconds, and depends on the machine
    said = "".join(f"{line}\n" for line in error.splitlines() if not re.search(r"done in|: +\d+%", line))
    assert f"{shown[100]}--- 80\n{shown[80]}--- stderr\n{said}" == snapshot
