"""Failures that the user accepts for a while: a TOML file that says which, why, and until when."""

from __future__ import annotations

import datetime
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ropeaudit.arithmetic.formats import parse
from ropeaudit.errors import BadInput, UnknownName, parser_reason
from ropeaudit.features.check.checked import NONE, Checked
from ropeaudit.recognition.diagnosis import codes, kinds
from ropeaudit.runtime import paths

EXAMPLE = (
    '[[waive]] check = "rotation", target = "rope.py:rotate", reason = "ticket 12", until = "2027-01-31"'
)
_NEEDED = ("check", "target", "reason", "until")
_KEYS = (*_NEEDED, "dtype", "diagnosis")
_FAILS = ("fail", "waived")
_LARGEST_FILE = 2**20  # bytes


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

    def covers(self, one: Checked) -> bool:
        """Return whether it is about this check, or about why it fails."""
        apart = self.check != one.finding.check or not _same(self.target, one)
        if apart or self.dtype not in (None, one.dtype):
            return False
        return self.diagnosis is None or one.finding.status not in _FAILS or self.diagnosis in _codes(one)

    def __str__(self) -> str:
        """Return what it is about."""
        alone = f" in {self.dtype}" if self.dtype else ""
        return f"{self.check} of {self.target}{alone}" + (f" by {self.diagnosis}" if self.diagnosis else "")


def _same(target: str, one: Checked) -> bool:
    """Return whether a check is of this target, however a path is written."""
    if target == one.target or one.kind == "model":
        return target == one.target
    if one.kind != "code":
        return paths.same(target, one.target)
    (path, _, name), (other, _, own) = target.rpartition(":"), one.target.rpartition(":")
    return name == own and path.endswith(".py") and paths.same(path, other)


def _codes(one: Checked) -> set[str]:
    """Return every code of what explains a check: of faults together, and of equals."""
    found = one.finding.diagnosis
    equals = () if found is None else (found, *found.alternatives)
    return {part.code for whole in equals for part in whole.parts()}


def today() -> datetime.date:
    """Return the day in UTC, by which waivers end."""
    return datetime.datetime.now(datetime.UTC).date()


def read(path: str) -> list[Waiver]:
    """Return the waivers of a TOML file. Raises: BadInput, which says what to type."""
    try:
        content = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadInput(
            f"--waive {path!r}: {reason}; give a TOML file with entries such as {EXAMPLE}"
        ) from None
    if len(content) > _LARGEST_FILE:
        raise BadInput(f"--waive {path!r}: is larger than 1 MiB; give a file of [[waive]] entries")
    try:
        tables = tomllib.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        message = parser_reason(error)[:100] or "nested too deeply"
        raise BadInput(f"--waive {path!r}: is not TOML in UTF-8: {message}; write {EXAMPLE}") from None
    if unknown := [name for name in tables if name != "waive"]:
        raise BadInput(f"--waive {path!r}: {unknown[0]!r} is not understood; write entries as {EXAMPLE}")
    entries = tables.get("waive", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise BadInput(f"--waive {path!r}: waive is not a list of tables; write [[waive]], not [waive]")
    return [_waiver(entry, f"--waive {path!r}, entry {number}") for number, entry in enumerate(entries, 1)]


def _waiver(entry: dict[str, Any], place: str) -> Waiver:
    for key in entry:
        if key not in _KEYS:
            raise BadInput(f"{place}: {UnknownName('key', key, _KEYS)}")
    for key in _NEEDED:
        if key not in entry:
            raise BadInput(f"{place}: {key} is missing; write {EXAMPLE}")
    for key, value in entry.items():
        if key != "until" and not (isinstance(value, str) and value.strip()):
            raise BadInput(f'{place}: {key} is not text; write {key} = "..."')
    diagnosis = entry.get("diagnosis")
    try:
        dtype = parse(entry["dtype"]).name if "dtype" in entry else None
        if diagnosis is not None and diagnosis not in kinds():
            raise UnknownName("diagnosis", diagnosis, list(kinds()))
    except UnknownName as error:
        raise BadInput(f"{place}: {error}") from None
    day = entry["until"]  # as text, or as a date of TOML
    try:
        is_date = isinstance(day, datetime.date) and not isinstance(day, datetime.datetime)
        until = day if is_date else datetime.date.fromisoformat(day)
    except (TypeError, ValueError):
        raise BadInput(f'{place}: until = {day!r} is not a day; write until = "2027-01-31"') from None
    return Waiver(entry["check"], entry["target"], entry["reason"], until, dtype, diagnosis)


def applied(results: Iterable[Checked], waivers: Sequence[Waiver], day: datetime.date) -> Iterator[Checked]:
    """Yield the checks; a failure waived on this day no longer counts, and says why."""
    for one in results:
        found = [waiver for waiver in waivers if waiver.covers(one)] if one.finding.failed else []
        status, text = one.finding.status, ""
        if valid := [waiver for waiver in found if day <= waiver.until]:
            status, text = "waived", f"; waived until {valid[0].until}: {valid[0].reason}"
        elif found:
            last = max(found, key=lambda waiver: waiver.until)
            text = f"; its waiver ended on {last.until}: {last.reason}"
        yield replace(one, finding=replace(one.finding, status=status, detail=one.finding.detail + text))


def notes(results: Sequence[Checked], waivers: Sequence[Waiver]) -> list[str]:
    """Return which waivers are about nothing that failed."""
    messages = []
    for waiver in waivers:
        covered = [one for one in results if waiver.covers(one)]
        if any(one.finding.status in _FAILS for one in covered):
            continue
        anywhere, anyhow = replace(waiver, dtype=None), replace(waiver, diagnosis=None)
        others = {one.dtype for one in results if anywhere.covers(one) and one.finding.failed}
        failing = [one for one in results if anyhow.covers(one) and one.finding.status in _FAILS]
        if failing:
            known = sorted({codes(one.finding.diagnosis) or "no diagnosis" for one in failing})
            seen = f"it fails with {', '.join(known)}"
        elif covered:
            seen = "it does not fail; remove the entry"
        elif others == {NONE}:
            seen = "that check is made once for all dtypes; leave out dtype"
        elif others:
            seen = f"it fails in {', '.join(sorted(others))}"
        else:
            seen = "nothing of that name was checked; remove the entry"
        messages.append(f"the waiver of {waiver} waives nothing: {seen}")
    return messages
