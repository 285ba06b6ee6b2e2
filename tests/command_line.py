"""A command line that a test runs in this process, and what it prints."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from typing import Any, NamedTuple

import pytest

from ropeaudit.main import main


class Printed(NamedTuple):
    """What a command line printed."""

    out: str
    err: str

    @property
    def json(self) -> Any:
        """The report that stdout holds."""
        return json.loads(self.out)

    @property
    def rows(self) -> list[dict[str, str]]:
        """The rows of CSV that stdout holds."""
        return list(csv.DictReader(io.StringIO(self.out)))


def ran(capsys: pytest.CaptureFixture[str], words: Iterable[object], code: int = 0) -> Printed:
    """Run a command line that must exit with a code; return what is printed since it was last read."""
    given = main([str(word) for word in words])
    printed = Printed(*capsys.readouterr())
    assert given == code, printed.err
    return printed


def refused(capsys: pytest.CaptureFixture[str], words: Iterable[object]) -> str:
    """Run a command line that must be refused in one line; return that line."""
    printed = ran(capsys, words, 2)
    first, *more = printed.err.splitlines()  # what was seen, then what is known and what to type
    assert not printed.out, first
    assert all(line.startswith(("   = ", "  --> ")) for line in more), printed.err
    return printed.err
