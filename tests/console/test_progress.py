"""The guess of the time that is left, with a clock that is set by hand."""

import io
import itertools
import sys
import time
from collections.abc import Iterator

import pytest

from ropeaudit.conformance.finding import Finding
from ropeaudit.console.rows import Progress
from ropeaudit.features.check import analysis
from ropeaudit.features.check.checked import Checked
from ropeaudit.main import main
from ropeaudit.runtime import doing


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


LEFT = ["1 min 36 s", "1 min 30 s", "1 min 24 s", "1 min 18 s", "1 min 12 s", "1 min 6 s", "1 min 0 s"]
# what is done, in per cent, and the seconds since the line before -> the time that is said to be left
GUESSES = [
    ([(5 * n, 6) for n in range(1, 11)], ["", "", "", *LEFT]),
    ([(5 * n, 600 if n < 3 else 6) for n in range(1, 11)], ["", "", "", *LEFT]),  # a slow first tenth
    ([(10, 12), (20, 12), (20, 40), (20, 10)], ["", "1 min 36 s", "56 s", ""]),  # it is late
]


@pytest.mark.parametrize(("steps", "left"), GUESSES)
def test_the_line_has_a_guess_only_where_there_is_one(steps, left, monkeypatch) -> None:
    now, shown = 0.0, Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    progress = Progress(False)
    for share, seconds in steps:
        now += seconds
        progress(share / 100)
    lines = shown.getvalue().split("\r\033[K")[1:]
    assert [line.partition("%, ")[2].removesuffix(" to go") for line in lines] == left


def test_the_line_names_what_runs_and_is_never_full_before_the_end(monkeypatch) -> None:
    now, shown = 0.0, Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    progress = Progress(False, proportional=False)
    doing.begin("check 7 of 23: decode")
    now = 6.0
    progress(0.999)
    assert shown.getvalue().endswith(" 99%, check 7 of 23: decode")


def test_a_check_guesses_nothing_as_its_shares_are_not_proportional_to_work(monkeypatch) -> None:
    seconds, shown = itertools.count(0.0, 6.0), Terminal()

    def run(targets, case, options, on_progress, note) -> Iterator[Checked]:
        for step in range(1, 11):
            on_progress(step / 20)
        finding = Finding("rotation", "pass", "as asked")
        yield Checked("llama-3-8b", "case", "none", "none", None, 0, finding)

    monkeypatch.setattr(analysis, "run", run)
    monkeypatch.setattr(time, "monotonic", lambda: next(seconds))
    monkeypatch.setattr(sys, "stderr", shown)
    assert main(["check", "llama-3-8b"]) == 0
    assert " 50%" in shown.getvalue()
    assert "to go" not in shown.getvalue()
