"""The registry of forms: a line there and a file are all that a form takes, text or binary."""

import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

from ropeaudit import reports
from ropeaudit.main import main
from ropeaudit.reports import REGISTRY, ReportForm
from ropeaudit.reports.forms import csv

SMALL = ["--heads", "1", "--seq-len", "4", "--head-dim", "8", "--dtype", "bf16", "--recipe", "hf", "-q"]


def registered(monkeypatch: pytest.MonkeyPatch, form: ReportForm, render) -> None:
    module = ModuleType(form.name)
    module.render, module.decode = render, lambda content: csv.decode(content[4:])
    monkeypatch.setitem(sys.modules, f"ropeaudit.reports.forms.{form.name}", module)
    monkeypatch.setitem(REGISTRY, form.name, form)


def test_a_binary_form_takes_a_file_and_a_line(monkeypatch, tmp_path: Path, capsys) -> None:
    form = ReportForm("toy", (".toy",), data=True, binary=True)
    registered(monkeypatch, form, lambda report: b"\xff\x00\x01\xfe" + csv.render(report).encode())
    path = tmp_path / "x.toy"
    assert main(["shift", *SMALL, "-o", str(path)]) == 0
    assert path.read_bytes().startswith(b"\xff\x00\x01\xfeimplementation,")
    capsys.readouterr()
    assert main(["report", str(path), "--by", "implementation", "-f", "csv"]) == 0
    assert "hf" in capsys.readouterr().out


def test_a_text_form_takes_a_file_and_a_line(monkeypatch, tmp_path: Path) -> None:
    registered(monkeypatch, ReportForm("toy", (".toy",)), lambda report: f"toy {len(report.rows)}\n")
    monkeypatch.setattr(reports, "FORMS", (*reports.FORMS, "toy"))
    path = tmp_path / "x.toy"
    assert main(["shift", *SMALL, "-o", str(path)]) == 0
    assert path.read_text() == "toy 2\n"


def test_the_package_of_a_form_is_asked_for_before_the_work(monkeypatch, tmp_path: Path, capsys) -> None:
    form = ReportForm("toy", (".toy",), binary=True, package="no_such_package")
    registered(monkeypatch, form, lambda report: b"")
    assert main(["shift", *SMALL, "-o", str(tmp_path / "x.toy")]) == 2
    assert "a .toy file needs no_such_package; type: pip install 'ropeaudit[toy]'" in capsys.readouterr().err


def test_what_the_registry_says_of_a_form_is_so() -> None:
    suffixes = [suffix for form in REGISTRY.values() for suffix in form.suffixes]
    assert len(set(suffixes)) == len(suffixes)
    report = reports.Report(
        [{"implementation": "hf", "offset": 1}], ["implementation", "offset"], ["implementation", "offset"]
    )
    for form in REGISTRY.values():
        if form.package and find_spec(form.package) is None:
            continue
        content = reports.encoded(form.name, report)
        assert reports.form_of(f"x{form.suffixes[0].upper()}") == form.name
        if form.data:
            (row,) = reports.decoded(form.name, content)
            assert {name: str(value) for name, value in row.items()} == {
                "implementation": "hf",
                "offset": "1",
            }
