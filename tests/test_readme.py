"""The output shown in README is what the command gives."""

import re
import shlex
from pathlib import Path

import pytest

from ropeaudit.cli.main import main

README = Path(__file__).parent.parent / "README.md"
SHOWN = re.compile(r"<!-- output: (ropeaudit .*?) -->\n```text\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize(("command", "output"), SHOWN.findall(README.read_text(encoding="utf-8")))
def test_shown_output_is_real(command: str, output: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(command)[1:]) == 0
    assert capsys.readouterr().out == output


def test_the_run_command_is_the_one_whose_output_is_shown() -> None:
    text = README.read_text(encoding="utf-8")
    shown = SHOWN.findall(text)[0][0]
    assert f".venv/bin/{shown}\n" in text


def test_both_commands_are_one_line_each() -> None:
    lines = README.read_text(encoding="utf-8").splitlines()
    assert sum(line.startswith("python3 -m venv .venv && ") for line in lines) == 2


if __name__ == "__main__":  # write the outputs anew: python tests/test_readme.py
    import contextlib
    import io

    def fresh(match: re.Match[str]) -> str:
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            main(shlex.split(match[1])[1:])
        return f"<!-- output: {match[1]} -->\n```text\n{text.getvalue()}```"

    README.write_text(SHOWN.sub(fresh, README.read_text(encoding="utf-8")), encoding="utf-8")
