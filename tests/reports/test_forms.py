"""The registry of forms: a line there and a file are all that a form takes, text or binary."""

import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from command_line import ran

from ropeaudit import reports
from ropeaudit.main import main
from ropeaudit.reports import REGISTRY, Form
from ropeaudit.reports.forms import csv

SMALL = ["--heads", "1", "--seq-len", "4", "--head-dim", "8", "--dtype", "bf16", "--recipe", "hf", "-q"]


def test_a_binary_form_takes_a_file_and_a_line(monkeypatch, tmp_path: Path, capsys) -> None:
    module = ModuleType("toy")
    module.render = lambda report: b"\xff\x00\x01\xfe" + csv.render(report).encode()
    module.decode = lambda content: csv.decode(content[4:])
    monkeypatch.setitem(sys.modules, "ropeaudit.reports.forms.toy", module)
    monkeypatch.setitem(REGISTRY, "toy", Form((".toy",), reads=True, binary=True))
    path = tmp_path / "x.toy"
    assert main(["shift", *SMALL, "-o", str(path)]) == 0
    assert path.read_bytes().startswith(b"\xff\x00\x01\xfeimplementation,")
    capsys.readouterr()
    assert "hf" in ran(capsys, ["report", str(path), "--by", "implementation", "-f", "csv"]).out


def test_what_the_registry_says_of_a_form_is_so() -> None:
    suffixes = [suffix for listed in REGISTRY.values() for suffix in listed.suffixes]
    assert len(set(suffixes)) == len(suffixes)
    report = reports.Report(
        [{"implementation": "hf", "offset": 1}],
        ["implementation", "offset"],
        ["implementation", "offset"],
        faults=(),
    )
    for name, form in REGISTRY.items():
        if form.package and find_spec(form.package) is None:
            continue
        functions, content = reports.functions(name), reports.encoded(name, report)
        assert reports.form_of(f"x{form.suffixes[0].upper()}") == name
        assert isinstance(functions.render(report), bytes) == form.binary
        assert hasattr(functions, "decode") == form.reads
        if form.reads:
            (block,), _ = functions.decode(content)
            (row,) = block
            assert {name: str(value) for name, value in row.items()} == {
                "implementation": "hf",
                "offset": "1",
            }
        if form.reads and form.metadata == "within":
            timed = reports.encoded(name, replace(report, metadata={"time": "now"}))
            assert functions.decode(timed)[1]["time"] == "now"
