"""Snippets run as a stranger would run them: in a process that has not seen the package."""

from __future__ import annotations

import json
import math
import subprocess
import sys

from ropeaudit.reports.tickets.ticket import Reproduction

LINES = 25

_RUNNER = """
import contextlib, io, json, sys
results = []
for code in json.load(sys.stdin):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(code, {})
    results.append(out.getvalue())
assert "ropeaudit" not in sys.modules
print(json.dumps(results))
"""


def printed(snippets: list[Reproduction]) -> list[str]:
    """Return what each prints, all of them run in one process, for an import of torch takes seconds."""
    run = subprocess.run(
        [sys.executable, "-c", _RUNNER],
        input=json.dumps([one.code for one in snippets]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return json.loads(run.stdout.splitlines()[-1])


def same_digits(text: str, value: float) -> bool:
    """Return whether three digits are those of a number, up to one in the last: BLAS orders its sums."""
    number = float(text.split()[-1])
    return abs(number - value) <= 1.01 * 10.0 ** (math.floor(math.log10(value)) - 2)


def assert_small(snippet: Reproduction) -> None:
    """Raise AssertionError unless a snippet has few lines and names nothing of this package."""
    assert len(snippet.code.splitlines()) <= LINES
    assert "ropeaudit" not in snippet.code
    assert snippet.code.startswith("import torch\n")
