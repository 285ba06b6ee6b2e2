"""Every example of the help is run and does what it says; --help shows every option in full."""

import contextlib
import csv
import json
from pathlib import Path

import click
import pytest
from cases import table
from documented import BY_NAME, CONFIG, FACTORIES, HALF, command, furnish, language_model, report, write

from ropeaudit.console import help
from ropeaudit.main import main

WIDTH = 100
COMMANDS = {name: each for name, each in BY_NAME.items() if not isinstance(each, click.Group)}


def worse(path: Path) -> None:
    """Write a report in which each case drifts twice as far as it does."""
    report(path)
    with open(path, encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    place = header.index("drift_rms")
    rows = [[*row[:place], str(2 * float(row[place])), *row[place + 1 :]] for row in rows]
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *rows])


HELD = {
    "after.csv": worse,
    "rope.py:": lambda path: write(HALF)(path.parent / "rope.py"),
    "./my-model": language_model,
}
HELD |= {"config.json": write(json.dumps(CONFIG)), "shard-1.jsonl": report, "shard-2.jsonl": report}
# An example -> its exit code, and what it prints or a file that it writes.
DONE = table(__file__, "help_examples.toml")
EXAMPLES: dict[str, list[str]] = {}  # by command
for _line in help.examples():
    _name = "decay" if "decay" in _line else _line.partition(" ")[0]  # it is drawn once it is there
    EXAMPLES.setdefault(_name, []).append(_line.partition("  # ")[0])
SLOW = {"check", "explain", "limit", "model", "module", "parity", "shift"}  # they run code, or a model


def shown(capsys, *line: str) -> str:
    assert main([*line]) == 0
    return capsys.readouterr().out


@pytest.fixture(autouse=True)
def _width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in EXAMPLES]
)
def test_examples_do_what_they_say(name, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("documented.FACTORIES", FACTORIES | HELD)
    monkeypatch.setenv("COLUMNS", "200")
    lines = EXAMPLES[name]
    furnish(tmp_path, "\n".join(lines))
    for line in lines:
        code, result = DONE[line]
        there = (tmp_path / result).exists()
        with contextlib.chdir(tmp_path):
            assert main(command(f"ropeaudit {line}")) == code, line
        printed = capsys.readouterr().out
        assert result in printed or ((tmp_path / result).is_file() and not there), printed


def test_the_results_of_examples_are_those_of_examples() -> None:
    assert DONE.keys() == {line for lines in EXAMPLES.values() for line in lines}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_every_option_in_full(name: str, capsys) -> None:
    text = shown(capsys, *name.split(), "--help")
    words, command = "".join(text.split()), COMMANDS[name]
    context = click.Context(command)
    options = [param for param in command.params if isinstance(param, click.Option)]
    for flags, meaning in (param.get_help_record(context) for param in options):
        assert f"  {flags} " in text or f"  {flags}\n" in text
        assert "".join(meaning.split()) in words
    assert shown(capsys, *name.split(), "--help-all") == text
