"""The output shown in README and in docs/ is what the commands give."""

import contextlib
import io
import re
import runpy
import shlex
import sys
from pathlib import Path
from unittest import mock

import pytest

from ropeaudit.main import main

ROOT = Path(__file__).parent.parent
README, DOCS = ROOT / "README.md", sorted((ROOT / "docs").glob("*.md"))
SHOWN = re.compile(r"<!-- output: (ropeaudit .*?) -->\n```text\n(.*?)```", re.DOTALL)


def shown(*paths: Path) -> list[tuple[str, str]]:
    return [block for path in paths for block in SHOWN.findall(path.read_text(encoding="utf-8"))]


def write_captured(folder: Path) -> None:
    """Write the files that commands in docs/ read, with the examples that make them."""
    path = ROOT / "examples" / "cancelling_terms.py"
    with mock.patch.object(sys, "argv", [str(path), str(folder / "cancelling.npz")]):
        runpy.run_path(str(path))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("docs")
    write_captured(built)
    return built


@pytest.mark.parametrize(("command", "output"), shown(README))
def test_shown_output_is_real(command, output, capsys, monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    finding = " module " in command  # a cast is a finding, with an exit code of its own
    assert main(shlex.split(command)[1:]) == (1 if finding else 0)
    assert capsys.readouterr().out == output


@pytest.mark.parametrize(("command", "output"), shown(*DOCS))
def test_output_shown_in_docs_is_real(command, output, folder, capsys, monkeypatch) -> None:
    monkeypatch.chdir(folder)
    assert main(shlex.split(command)[1:]) == 0
    assert capsys.readouterr().out == output


def test_every_cause_has_a_section_and_an_example() -> None:
    text = (ROOT / "docs" / "causes.md").read_text(encoding="utf-8")
    for cause in ("aliasing", "sensitivity", "quantisation", "cancellation", "overflow"):
        _, _, section = text.partition(f"\n## {cause.capitalize()}\n")
        ((_, output),) = SHOWN.findall(section.partition("\n## ")[0])
        assert f"({cause}" in output.splitlines()[0]


def test_the_run_command_is_the_one_whose_output_is_shown() -> None:
    text = README.read_text(encoding="utf-8")
    assert f".venv/bin/{shown(README)[0][0]}\n" in text


def test_both_commands_are_one_line_each() -> None:
    lines = README.read_text(encoding="utf-8").splitlines()
    assert sum(line.startswith("python3 -m venv .venv && ") for line in lines) == 2


if __name__ == "__main__":  # write the outputs anew: python tests/test_readme.py
    import os
    import tempfile

    def fresh(match: re.Match[str]) -> str:
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            main(shlex.split(match[1])[1:])
        return f"<!-- output: {match[1]} -->\n```text\n{text.getvalue()}```"

    with tempfile.TemporaryDirectory() as place:
        write_captured(Path(place))
        for page in (README, *DOCS):
            os.chdir(ROOT if page == README else place)
            page.write_text(SHOWN.sub(fresh, page.read_text(encoding="utf-8")), encoding="utf-8")
