"""How far positions may be shifted, for people: the rows and how to read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ropeaudit.audits import records
from ropeaudit.audits.records import Record
from ropeaudit.features.limit.limit_result import Limit
from ropeaudit.features.limit.sentences import headline, notes
from ropeaudit.reports import Report, settings, tabulated
from ropeaudit.runtime.columns import Declare, Together

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


of = Declare[Limit]()


class LimitColumns:
    """The columns of `ropeaudit limit`."""

    schema = of.like(records.COLUMNS["schema"], lambda one: SCHEMA)
    implementation = of.like(
        records.COLUMNS["implementation"], lambda one: one.at_zero.implementation, shown=True
    )
    dtype = of.like(records.COLUMNS["dtype"], lambda one: one.at_zero.dtype, shown=True)
    device = of.like(
        records.COLUMNS["device"],
        lambda one: one.at_zero.device,
        shown=lambda one: one.at_zero.device != "cpu",
        leaves=6,
    )
    settings = Together[Limit](
        [replace(one, meaning=_LENGTH) if one.name == "length" else one for one in settings.COLUMNS.declared],
        lambda one: one.at_zero.as_dict(),
    )
    frequencies: str = of(
        "unshifted: those of offset 0 at every offset, though a longer sequence would have others; shifted: "
        "each offset has those of its own length; fixed: no offset looked at changes them",
        _frequencies,
    )
    maximum: int | None = of(
        "positions that the model is made for; empty where nothing says it",
        lambda one: one.case.maximum,
        unit="tokens",
        shown=_judged,
        leaves=5,
    )
    margin: float | None = of(
        "positions up to which no failure was seen, proved or measured, divided by maximum; empty without a "
        "maximum, with unshifted frequencies, for a longer sequence, or if offset 0 fails",
        shown=_judged,
    )
    proved_margin: float | None = of("the same of the positions up to which it is proved")
    tolerance_column: str = of(
        "column of a record that the tolerance speaks of", lambda one: one.tolerance.column, shown=True
    )
    tolerance: float = of(
        "largest |value| that is accepted; of distinct_positions the smallest",
        lambda one: one.tolerance.value,
        style="setting",
        shown=True,
    )
    up_to: int = of("largest offset that was looked at; the smallest is 0", unit="tokens")
    proved_up_to: int | None = of(
        "no offset from 0 to it fails: proved by the bound, or each measured; empty if 0 fails, and for code "
        "unless every offset was measured",
        unit="tokens",
        shown=True,
    )
    proof: str = of(
        "of proved_up_to: bound: by the a-priori bound alone; exhaustive: every offset that the bound leaves "
        "open was measured; none: offset 0 fails, or code was not measured at every offset",
        shown=True,
        leaves=2,
    )
    bound_up_to: int | None = of(
        "largest offset up to which the a-priori bound proves the tolerance; empty if nowhere", unit="tokens"
    )
    measured_up_to: int | None = of(
        "largest measured offset below the first failure seen; others below it may fail; empty if offset 0 "
        "does",
        unit="tokens",
        shown=True,
    )
    measured_offsets: int = of(
        "how many offsets were measured from 0 to measured_up_to; none of them fails",
        lambda one: one.boundary.held,
        shown=True,
        leaves=4,
    )
    first_failure_seen: int | None = of(
        "smallest offset that was measured to fail; empty if none was", unit="tokens", shown=True
    )
    first_failure: int | None = of(
        "the same where every smaller offset is proved; empty where a smaller one may fail",
        unit="tokens",
        shown=True,
        leaves=1,
    )
    proved_position: int | None = of(
        "last position of the sequence at proved_up_to",
        lambda one: one.last_position(one.proved_up_to),
        unit="tokens",
    )
    measured_position: int | None = of(
        "last position of the sequence at measured_up_to",
        lambda one: one.last_position(one.measured_up_to),
        unit="tokens",
    )
    failure_position: int | None = of(
        "last position of the sequence at first_failure_seen",
        lambda one: one.last_position(one.first_failure_seen),
        unit="tokens",
    )
    value_at_zero: float = of(
        "value of the column at offset 0", lambda one: _at(one.at_zero, one.tolerance.column)
    )
    value_at_measured: float | None = of(
        "value of the column at measured_up_to", lambda one: _at(one.at_measured, one.tolerance.column)
    )
    value_at_failure: float | None = of(
        "value of the column at first_failure_seen",
        lambda one: _at(one.at_failure, one.tolerance.column),
        shown=True,
        leaves=3,
    )
    evaluated: int = of(
        "how many offsets were measured in all, for other tolerances of the same case too",
        lambda one: one.boundary.tested,
    )


COLUMNS = of.columns(LimitColumns)
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
    rows = [COLUMNS.row(result) for result in results]
    subject, dtype, *others = COLUMNS.screen(results)
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
