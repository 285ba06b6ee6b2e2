"""The guess of the time that is left, with a clock that is set by hand."""

import io
import itertools
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from ropeaudit.conformance.finding import Finding
from ropeaudit.console.rows import Forecast, Progress
from ropeaudit.features.check import analysis
from ropeaudit.features.check.checked import Checked
from ropeaudit.main import main
from ropeaudit.runtime import doing

STEPS = 400


def ran(pace: Callable[[float], float]) -> list[tuple[float, float, float | None]]:
    """Return share, seconds left and guess at every step. pace: share -> seconds that all would take."""
    forecast, now, seen = Forecast(), 5.0, []
    for step in range(1, STEPS + 1):
        now += pace(step / STEPS) / STEPS
        seen.append((step / STEPS, now, forecast.left(step / STEPS, now)))
    return [(share, now - then, guess) for share, then, guess in seen]


def off(seen: list[tuple[float, float, float | None]], begin: float) -> Iterator[float]:
    """Yield by which factor each guess is off, from a share on."""
    for share, left, guess in seen:
        if guess is not None and begin <= share < 1:
            assert guess > 0
            yield max(left / guess, guess / left)


def guessed(seen: list[tuple[float, float, float | None]]) -> list[float]:
    return [share for share, _, guess in seen if guess is not None]


def test_steady_work_is_guessed_exactly() -> None:
    seen = ran(lambda share: 60.0)
    assert max(off(seen, 0)) == pytest.approx(1)
    assert guessed(seen)[0] == pytest.approx(0.2)
    assert len(guessed(seen)) == pytest.approx(0.8 * STEPS, abs=2)


@pytest.mark.parametrize(
    "pace", [lambda share: 60.0, lambda share: 60 * share, lambda share: 60 * (2 - share)]
)
def test_no_guess_before_a_tenth(pace) -> None:
    assert all(guess is None for share, _, guess in ran(pace) if share <= 0.1)


@pytest.mark.parametrize("slow", [3, 10, 100])
def test_a_slow_first_tenth_counts_for_nothing(slow) -> None:
    seen = ran(lambda share: 60.0 * (slow if share <= 0.1 else 1))
    assert max(off(seen, 0)) == pytest.approx(1)
    assert guessed(seen)[0] == pytest.approx(0.2)


def test_a_guess_counts_down_and_ends_when_the_work_is_late() -> None:
    forecast = Forecast()
    for step in range(1, 6):
        guess = forecast.left(step / 10, 10.0 * step)
    assert guess == pytest.approx(50)
    assert forecast.left(0.5, 60.0) == pytest.approx(40)
    assert forecast.left(0.5, 74.0) == pytest.approx(26)
    assert forecast.left(0.5, 76.0) is None


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_line_has_a_guess_only_where_there_is_one(monkeypatch) -> None:
    now, shown = 0.0, Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    progress = Progress(False)
    for step in range(1, 11):
        now = 6.0 * step
        progress(step / 20)
    lines = shown.getvalue().split("\r\033[K")[1:]
    assert len(lines) == 10
    assert [line.partition("] ")[2] for line in lines[:3]] == ["  5%", " 10%", " 15%"]
    assert [line.partition("] ")[2] for line in lines[-2:]] == [
        " 45%, 1 min 6 s to go",
        " 50%, 1 min 0 s to go",
    ]


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
