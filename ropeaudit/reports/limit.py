"""How far positions may be shifted, for people: the finding in words, the rows, the notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ropeaudit import records
from ropeaudit.analyses.limit import Limit
from ropeaudit.reports import Report, headlines, settings, verdicts

SCHEMA = 1
# column -> what it holds
COLUMNS: dict[str, str] = {
    "schema": "version of this list of columns",
    "subject": records.COLUMNS["subject"],
    "dtype": records.COLUMNS["dtype"],
    **settings.COLUMNS,
    "model_maximum": "positions that the model is made for; nan where nothing says it",
    "tolerance_column": "column of a record that the tolerance speaks of",
    "tolerance": "largest |value| that is accepted; of distinct_positions the smallest",
    "up_to": "largest offset that was looked at",
    "safe_up_to": "safe_position in words: a position, never, or that there was no failure",
    "safe_offset": "largest offset such that no measured one up to it fails; nan if offset 0 does",
    "safe_position": "last position of the sequence at safe_offset",
    "first_failing_offset": "smallest offset that was found to fail; nan if none was",
    "first_failing_position": "last position of the sequence at first_failing_offset",
    "value_at_zero": "value of the column at offset 0",
    "value_at_safe": "value of the column at safe_offset",
    "value_at_failing": "value of the column at first_failing_offset",
    "guaranteed_offset": "largest offset up to which the a-priori bound proves the tolerance, or nan",
    "evaluated": "how many offsets were measured",
    "how": "exhaustive: every offset below the first failing one was measured or is guaranteed; or searched",
}
LEGEND = (
    "safe up to: the last position of a sequence such that no measured offset up to its own fails;\n"
    "first failing position: that of the first one found to fail. guaranteed offset: up to it an\n"
    "a-priori bound proves the tolerance. how: exhaustive: every offset below the first failing one\n"
    "was measured or is guaranteed; searched: those likely to fail were, and another may fail."
)
_SCREEN = ("safe_up_to", "first_failing_position", "value_at_safe", "value_at_failing", "guaranteed_offset")
_DISPENSABLE = ("guaranteed_offset", "value_at_safe", "how", "value_at_failing", "model_maximum")


def row(found: Limit) -> dict[str, Any]:
    """Return the columns of `COLUMNS`."""
    zero, column = found.at_zero, found.tolerance.column
    at = {"zero": zero, "safe": found.at_safe, "failing": found.at_failing}
    values = {
        "schema": SCHEMA,
        "subject": zero.subject,
        "dtype": zero.dtype,
        **{name: getattr(zero, name) for name in settings.NAMES},
        "model_maximum": found.case.maximum,
        "tolerance_column": column,
        "tolerance": found.tolerance.value,
        "up_to": found.up_to,
        "safe_up_to": _words(found),
        "safe_offset": found.safe_offset,
        "safe_position": found.last_position(found.safe_offset),
        "first_failing_offset": found.first_failing_offset,
        "first_failing_position": found.last_position(found.first_failing_offset),
        **{f"value_at_{place}": _value(record, column) for place, record in at.items()},
        "guaranteed_offset": found.guaranteed,
        "evaluated": found.boundary.tested,
        "how": "exhaustive" if found.boundary.exhaustive else "searched",
    }
    return {name: values[name] for name in COLUMNS}


def _value(record: records.Record | None, column: str) -> Any:
    return None if record is None else getattr(record, column)


def _words(found: Limit) -> str:
    if found.safe_offset is None:
        return "never"
    position = f"{found.last_position(found.safe_offset):,}"
    return position if found.first_failing_offset is not None else f"no failure up to {position}"


def limit_report(
    found: Sequence[Limit], columns: Sequence[str] | None, circumstances: Mapping[str, Any]
) -> Report:
    """Return the report; `columns` chooses and orders what is shown and written."""
    rows = [row(one) for one in found]
    varying = settings.varying(rows)
    known = ["model_maximum"] if any(one["model_maximum"] for one in rows) else []
    screen = [
        "subject",
        "dtype",
        *varying,
        *known,
        "tolerance_column",
        "tolerance",
        *_SCREEN,
        "how",
    ]
    return Report(
        rows=rows,
        columns=list(columns or COLUMNS),
        screen=list(columns or screen),
        dispensable=() if columns else _DISPENSABLE,
        headline=headline(found),
        notes=notes(found),
        legend=LEGEND,
        circumstances={"schema": SCHEMA, **circumstances},
    )


def headline(found: Sequence[Limit]) -> str:
    """Return the finding in a sentence: the one that fails first."""
    if not found:
        return "No limit was looked for."
    first = min(found, key=lambda one: _or(one.last_position(one.first_failing_offset), float("inf")))
    if len(found) == 1:
        return _sentence(first)
    if first.first_failing_offset is None:
        return f"None of {len(found)} cases fails: {_sentence(first)}"
    failing = sum(1 for one in found if one.first_failing_offset is not None)
    count = f"{failing} of {len(found)} cases fail up to offset {first.up_to:,}"
    return f"{count}; the first of them: {_sentence(first)}"


def _or(value: int | None, other: float) -> float:
    return other if value is None else value


def _sentence(one: Limit) -> str:
    """What is known of one limit."""
    zero, failing, safe = one.at_zero, one.at_failing, one.last_position(one.safe_offset)
    who = f"{zero.subject} in {zero.dtype}" + ("" if zero.model == "none" else f" ({zero.model})")
    if failing is None:
        every = "every" if one.boundary.exhaustive else "every measured"
        return f"{who} meets {one.tolerance} at {every} offset: no failure up to position {safe:,}."
    value = getattr(failing, one.tolerance.column)
    if failing.nonfinite and value != value:
        value = f"{failing.nonfinite} of {failing.scores} scores are nan or infinite"
    else:
        value = f"{one.tolerance.column} is {value:.4g}"
    if safe is None:
        return f"{who} never meets {one.tolerance}: {value} at offset 0 already."
    last = one.last_position(one.first_failing_offset)
    verb = "fails" if one.boundary.exhaustive else "is the first found to fail"
    return f"{who} meets {one.tolerance} up to position {safe:,}; position {last:,} {verb}: {value}."


def notes(found: Sequence[Limit]) -> list[str]:
    """Return what the reader must know: models that fall short, remedies, frozen frequencies."""
    said, shown = [], []
    for one in found:
        safe, maximum, failing = one.last_position(one.safe_offset), one.case.maximum, one.at_failing
        if failing is not None and maximum is not None and safe is not None and safe + 1 < maximum:
            zero = one.at_zero
            said.append(
                f"{zero.model}: made for {maximum:,} positions, {zero.subject} in {zero.dtype} meets "
                f"{one.tolerance} on the first {safe + 1:,}."
            )
        if failing is not None and (text := verdicts.note(failing)):
            said.append(text)
        shown += [record for record in (one.at_safe, failing) if record is not None]
    return list(dict.fromkeys([*said, *headlines.structure_notes(shown, True)]))
