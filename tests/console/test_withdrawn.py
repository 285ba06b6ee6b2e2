"""An option that was withdrawn ends in exit code 2 and in a line that says what to use instead."""

import pytest

from ropeaudit.console.withdrawn import WITHDRAWN
from ropeaudit.main import main


def test_each_withdrawn_option_says_what_to_use_instead(capsys: pytest.CaptureFixture[str]) -> None:
    failed = []
    for (command, option), instead in WITHDRAWN.items():
        code = main([*command.split(), option, "anything"])
        said = capsys.readouterr().err
        wanted = f"ropeaudit: error: {option} of `ropeaudit {command}` was withdrawn; {instead}\n"
        if (code, said) != (2, wanted):
            failed.append(f"{command} {option}: exit code {code}, {said!r}")
    assert not failed, "\n".join(failed)
