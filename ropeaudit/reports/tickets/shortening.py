"""Making a snippet fit its few lines: what is used once is written where it is used."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from ropeaudit.reports.tickets.reproduction import LINES

_ONCE = ("theta", "config", "scores")  # names that may be written out, in this order


def fitted(lines: Sequence[str], most: int = LINES) -> tuple[str, ...]:
    """Return lines that do the same, at most so many where that can be had.

    >>> fitted(["def f(x):", "    return x", "theta = 1 + 2", "y = 3 * theta", "z = theta"], 3)
    ('def f(x): return x', 'theta = 1 + 2', 'y = 3 * theta', 'z = theta')
    >>> fitted(["theta = 1 + 2", "y = 3 * theta"], 1)
    ('y = 3 * (1 + 2)',)
    """
    results = list(lines)
    steps: list[Callable[[list[str]], list[str]]] = [_functions_on_a_line]
    steps += [lambda given, name=name: _written_out(given, name) for name in _ONCE]  # type: ignore[misc]
    for step in steps:
        if len(results) > most:
            results = step(results)
    return tuple(results)


def _functions_on_a_line(lines: list[str]) -> list[str]:
    """Return lines with functions whose body is a single line on that of their `def`."""
    results: list[str] = []
    for number, line in enumerate(lines):
        following = lines[number + 1] if number + 1 < len(lines) else ""
        single = line.startswith("    ") and not following.startswith(" ")
        if single and results[-1].startswith("def ") and results[-1].endswith(":"):
            results[-1] += f" {line.strip()}"
        else:
            results.append(line)
    return results


def _written_out(lines: list[str], name: str) -> list[str]:
    """Return lines without an assignment of `name` that the next line alone uses, once."""
    results: list[str] = []
    for number, line in enumerate(lines):
        before = results[-1] if results else ""
        uses = len(re.findall(rf"\b{name}\b", line))
        later = _until_assigned(lines[number + 1 :], name)
        if before.startswith(f"{name} = ") and uses == 1 and not line.startswith("def ") and not later:
            value = results.pop().removeprefix(f"{name} = ")
            bare = re.search(rf"[(]{name}[)]", line) or (value.endswith(")") and value.startswith("to("))
            results.append(
                re.sub(rf"\b{name}\b", (value if bare else f"({value})").replace("\\", r"\\"), line)
            )
        else:
            results.append(line)
    return results


def _until_assigned(lines: Sequence[str], name: str) -> bool:
    """Return whether lines use a name before it is assigned again."""
    for line in lines:
        if re.match(rf"{name} = ", line):
            return bool(re.search(rf"\b{name}\b", line.partition(" = ")[2]))
        if re.search(rf"\b{name}\b", line):
            return True
    return False
