"""The registry of forms: a line there and a file are all that a form takes, text or binary."""

import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
from command_line import ran

from ropeaudit import reports
from ropeaudit.main import main
from ropeaudit.reports import REGISTRY, ListedForm, ReportForm
from ropeaudit.reports.forms import csv

SMALL = ["--heads", "1", "--seq-len", "4", "--head-dim", "8", "--dtype", "bf16", "--recipe", "hf", "-q"]


def registered(monkeypatch: pytest.MonkeyPatch, listed: ListedForm, form: ReportForm) -> None:
    module = ModuleType("toy")
    module.FORM = form
    monkeypatch.setitem(sys.modules, "ropeaudit.reports.forms.toy", module)
    monkeypatch.setitem(REGISTRY, "toy", listed)


def test_a_binary_form_takes_a_file_and_a_line(monkeypatch, tmp_path: Path, capsys) -> None:
    form = ReportForm(
        lambda report: b"\xff\x00\x01\xfe" + csv.render(report).encode(),
        lambda content: csv.decode(content[4:]),
    )
    registered(monkeypatch, ListedForm((".toy",), binary=True), form)
    path = tmp_path / "x.toy"
    assert main(["shift", *SMALL, "-o", str(path)]) == 0
    assert path.read_bytes().startswith(b"\xff\x00\x01\xfeimplementation,")
    capsys.readouterr()
    assert "hf" in ran(capsys, ["report", str(path), "--by", "implementation", "-f", "csv"]).out


def test_the_package_of_a_form_is_asked_for_before_the_work(monkeypatch, tmp_path: Path, capsys) -> None:
    form = ReportForm(lambda report: b"", package="no_such_package")
    registered(monkeypatch, ListedForm((".toy",), binary=True), form)
    assert main(["shift", *SMALL, "-o", str(tmp_path / "x.toy")]) == 2
    assert "a .toy file needs no_such_package; type: pip install 'ropeaudit[toy]'" in capsys.readouterr().err


def test_what_the_registry_says_of_a_form_is_so() -> None:
    suffixes = [suffix for listed in REGISTRY.values() for suffix in listed.suffixes]
    assert len(set(suffixes)) == len(suffixes)
    report = reports.Report(
        [{"implementation": "hf", "offset": 1}],
        ["implementation", "offset"],
        ["implementation", "offset"],
        faults=(),
    )
    for name, listed in REGISTRY.items():
        form = reports.form_named(name)
        if form.package and find_spec(form.package) is None:
            continue
        content = reports.encoded(name, report)
        assert reports.form_of(f"x{listed.suffixes[0].upper()}") == name
        assert isinstance(form.render(report), bytes) == listed.binary
        assert (form.about is not None) == (form.metadata == "within" and form.decode is not None)
        if form.decode:
            (row,) = form.decode(content)
            assert {name: str(value) for name, value in row.items()} == {
                "implementation": "hf",
                "offset": "1",
            }
        if form.about:
            assert (
                form.about(reports.encoded(name, replace(report, metadata={"time": "now"})))["time"] == "now"
            )
