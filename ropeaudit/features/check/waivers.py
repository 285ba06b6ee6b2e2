"""Failures accepted for a while: a TOML file of which, why, and until when."""

from __future__ import annotations

import datetime
import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ropeaudit.arithmetic.formats import parse
from ropeaudit.errors import BadInput, UnknownName, parser_reason
from ropeaudit.features.check.checked import Checked
from ropeaudit.recognition.diagnosis import codes, kinds
from ropeaudit.runtime import paths

EXAMPLE = (
    '[[waive]] check = "rotation", target = "rope.py:rotate", reason = "ticket 12", until = "2027-01-31"'
)
_NEEDED = ("check", "target", "reason", "until")
_KEYS = (*_NEEDED, "dtype", "diagnosis")


@dataclass(frozen=True, slots=True)
class Waiver:
    """A check of a target that may fail.

    until: the last day. dtype: the only one, None for all. diagnosis: a code that must be among those of the
    failure, None for any failure.
    """

    check: str
    target: str
    reason: str
    until: datetime.date
    dtype: str | None = None
    diagnosis: str | None = None

    def covers(self, check: Checked) -> bool:
        """Return whether it applies to a failure."""
        if self.check != check.finding.check or self.dtype not in (None, check.dtype):
            return False
        shown = re.split(r"[+|]", codes(check.finding.diagnosis))
        return self.diagnosis in (None, *shown) and _is_target(self.target, check)

    def __str__(self) -> str:
        """Return check, target, dtype and diagnosis."""
        alone = f" in {self.dtype}" if self.dtype else ""
        return f"{self.check} of {self.target}{alone}" + (f" by {self.diagnosis}" if self.diagnosis else "")


def _is_target(target: str, check: Checked) -> bool:
    """Return whether a check is of this target, however a path is written."""
    if target == check.target or check.kind == "model":
        return target == check.target
    if check.kind != "code":
        return paths.same_file(target, check.target)
    (path, _, name), (other, _, own) = target.rpartition(":"), check.target.rpartition(":")
    return name == own and path.endswith(".py") and paths.same_file(path, other)


def today() -> datetime.date:
    """Return the date in UTC, by which waivers end."""
    return datetime.datetime.now(datetime.UTC).date()


def read(path: str) -> list[Waiver]:
    """Return the waivers of a TOML file. Raises: BadInput, which says what to type."""
    place = f"--waive {path!r}"
    try:
        tables = tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise BadInput(
            f"{place}: {error.strerror}; give a TOML file with entries such as {EXAMPLE}"
        ) from None
    except (ValueError, RecursionError) as error:
        message = parser_reason(error)[:100] or "nested too deeply"
        raise BadInput(f"{place}: is not TOML in UTF-8: {message}; write {EXAMPLE}") from None
    if unknown := [name for name in tables if name != "waive"]:
        raise BadInput(f"{place}: {unknown[0]!r} is not understood; write entries as {EXAMPLE}")
    entries = tables.get("waive", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise BadInput(f"{place}: waive is not a list of tables; write [[waive]], not [waive]")
    results = []
    for number, entry in enumerate(entries, 1):
        try:
            results.append(_waiver(entry))
        except (UnknownName, BadInput) as error:
            raise BadInput(f"{place}, entry {number}: {error}") from None
    return results


def _waiver(entry: dict[str, Any]) -> Waiver:
    """Return the waiver of an entry. Raises: BadInput, UnknownName."""
    for key, value in entry.items():
        if key not in _KEYS:
            raise UnknownName("key", key, _KEYS)
        if key != "until" and not (isinstance(value, str) and value.strip()):
            raise BadInput(f'{key} is not text; write {key} = "..."')
    for key in _NEEDED:
        if key not in entry:
            raise BadInput(f"{key} is missing; write {EXAMPLE}")
    day, dtype, diagnosis = entry["until"], entry.get("dtype"), entry.get("diagnosis")
    if diagnosis is not None and diagnosis not in kinds():
        raise UnknownName("diagnosis", diagnosis, list(kinds()))
    try:
        until = datetime.date.fromisoformat(str(day))  # of a date of TOML too
    except ValueError:
        raise BadInput(f'until = {day!r} is not a day; write until = "2027-01-31"') from None
    return Waiver(**entry | {"until": until, "dtype": parse(dtype).name if dtype else None})


def applied(
    results: Iterable[Checked],
    waivers: Sequence[Waiver],
    day: datetime.date,
) -> Iterator[Checked]:
    """Yield the checks; a failure that is waived on this day gets that status and the reason."""
    for check in results:
        applicable = [waiver for waiver in waivers if waiver.covers(check)] if check.finding.failed else []
        if applicable:
            last = max(applicable, key=lambda waiver: waiver.until)
            valid = day <= last.until
            text = f"{'waived until' if valid else 'its waiver ended on'} {last.until}: {last.reason}"
            detail = f"{check.finding.detail}; {text}"
            waived = replace(check.finding, status="waived" if valid else "fail", detail=detail)
            check = replace(check, finding=waived)
        yield check


def notes(results: Sequence[Checked], waivers: Sequence[Waiver]) -> list[str]:
    """Return notes on waivers that apply to no failure."""
    wrong = [check for check in results if check.finding.status in ("fail", "waived")]
    idle = [waiver for waiver in waivers if not any(map(waiver.covers, wrong))]
    why = "no failure of that check, target, dtype and diagnosis was seen; change the entry or remove it"
    return [f"the waiver of {waiver} waives nothing: {why}" for waiver in idle]
