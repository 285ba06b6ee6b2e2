"""How far positions may be shifted, for people: the rows and how to read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ropeaudit.audits.records import Record
from ropeaudit.features.limit.limit_result import Limit
from ropeaudit.features.limit.sentences import headline, notes
from ropeaudit.reports import Report, settings, tabulated
from ropeaudit.runtime.columns import table

SCHEMA = 2
_LENGTH = (
    "positions that the frequencies stand for at offset 0 (longrope: the border, or one more); empty without"
)


def _at(record: Record | None, column: str) -> float | None:
    return None if record is None else getattr(record, column)


def _judged(result: Limit) -> bool:
    return result.margin is not None


def _frequencies(result: Limit) -> str:
    if result.frozen:
        return "unshifted"
    return "shifted" if result.changing else "fixed"


def row(one: Limit) -> dict[str, Any]:
    """Return the row of a limit."""
    return {
        "schema": SCHEMA,
        "implementation": one.at_zero.implementation,
        "dtype": one.at_zero.dtype,
        "device": one.at_zero.device,
        **{name: getattr(one.at_zero, name) for name in settings.NAMES},
        "frequencies": _frequencies(one),
        "maximum": one.case.maximum,
        "margin": one.margin,
        "proved_margin": one.proved_margin,
        "tolerance_column": one.tolerance.column,
        "tolerance": one.tolerance.value,
        "up_to": one.up_to,
        "proved_up_to": one.proved_up_to,
        "proof": one.proof,
        "bound_up_to": one.bound_up_to,
        "measured_up_to": one.measured_up_to,
        "measured_offsets": one.boundary.held,
        "first_failure_seen": one.first_failure_seen,
        "first_failure": one.first_failure,
        "proved_position": one.last_position(one.proved_up_to),
        "measured_position": one.last_position(one.measured_up_to),
        "failure_position": one.last_position(one.first_failure_seen),
        "value_at_zero": _at(one.at_zero, one.tolerance.column),
        "value_at_measured": _at(one.at_measured, one.tolerance.column),
        "value_at_failure": _at(one.at_failure, one.tolerance.column),
        "evaluated": one.boundary.tested,
    }


COLUMNS = table("limit")
LEGEND = (
    "proved up to: guaranteed up to this offset: every one from 0 is measured or bounded (exhaustive: every\n"
    "one that the bound leaves open is measured). measured up to: largest tested offset without a "
    "failure; untested\n"
    "ones may still fail.\n"
    "first failure seen: the smallest offset measured to fail; first failure: where it is proved to be the\n"
    "first. All of it for these q and k. The last position of a sequence is its offset + seq_len - 1."
)
_MARGIN = "margin: positions up to which no failure was seen / maximum, those that the model is made for."


def report(
    results: Sequence[Limit],
    columns: Sequence[str] | None,
    metadata: Mapping[str, Any],
    extra_notes: Sequence[str] = (),
) -> Report:
    """Return the report; `columns` chooses and orders what is shown. extra_notes: the first ones."""
    rows = [row(result) for result in results]
    subject, dtype, *others = COLUMNS.screen(rows)
    screen = settings.screen(rows, [subject, dtype], others)
    legend = f"{LEGEND}\n{_MARGIN}" if "margin" in others else LEGEND
    return replace(
        tabulated(COLUMNS, SCHEMA, rows, screen, columns, metadata),
        headline=headline(results),
        notes=[*extra_notes, *notes(results)],
        legend=legend,
        dispensable=() if columns else settings.dispensable(screen, COLUMNS.dispensable),
        constant=(subject, dtype, "tolerance_column", "tolerance") if "model" in screen else (),
    )
