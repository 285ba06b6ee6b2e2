"""The line of a long run, with a clock that is set by hand: the share that is done, and what is left."""

import io
import sys
import time

import pytest

from ropeaudit.console.rows import Progress
from ropeaudit.runtime import doing


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("named", ["", "check 7 of 23: decode"])
def test_time_is_guessed_from_the_first_tenth_on_and_not_of_named_steps(named, monkeypatch) -> None:
    now, shown = 0.0, Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    progress = Progress(False)
    doing.begin(named)
    for share in (0.05, 0.1, 0.5, 0.999):
        now += 6
        progress(share)
    lines = [line.removeprefix("ropeaudit: ").strip() for line in shown.getvalue().split("\r\033[K")[1:]]
    left = ["5%", "10%, 1 min 48 s to go", "50%, 18 s to go", "99%, 0 s to go"]
    steps = [f"{share}, check 7 of 23: decode" for share in ("5%", "10%", "50%", "99%")]
    assert lines == (steps if named else left)
