"""Keys rotated again and again, for people: the finding in words, the rows, the notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ropeaudit.audits import records
from ropeaudit.audits.judging import ratio
from ropeaudit.features.rerotate.analysis import Rerotated
from ropeaudit.reports import Report, settings, tabulated
from ropeaudit.reports.numbers import percent, short
from ropeaudit.runtime.columns import Declare

SCHEMA = 1


def _place(result: Rerotated) -> tuple[int, int, int] | tuple[None, None, None]:
    drift = result.statistics.drifts[0]
    return drift.place if drift.place and not drift.nonfinite else (None, None, None)


of = Declare[Rerotated]()


class RerotateColumns:
    """The columns of `ropeaudit rerotate`."""

    schema = of.like(records.COLUMNS["schema"], lambda one: SCHEMA)
    subject = of.like(records.COLUMNS["subject"], shown=True)
    dtype = of.like(records.COLUMNS["dtype"], lambda one: one.dtype.name, shown=True)
    steps: int = of("how many times the stored keys were rotated", shown=True)
    by: int = of("tokens of one step", unit="tokens", shown=True)
    position: int = of(
        "position of the first key, and of the first query, after the steps",
        unit="tokens",
        shown=True,
        leaves=3,
    )
    settings = settings.COLUMNS
    scores = of.like(records.COLUMNS["scores"], lambda one: one.statistics.drifts[0].count)
    nonfinite = of.like(
        records.COLUMNS["nonfinite"],
        lambda one: one.statistics.drifts[0].nonfinite,
        "how many of the scores of re-rotated keys are nan or infinite",
    )
    reference_rms = of.like(records.COLUMNS["reference_rms"], lambda one: one.statistics.references[0].rms)
    reference_error = of.like(records.COLUMNS["reference_error"], lambda one: one.statistics.error)
    drift_max = of.like(
        records.COLUMNS["drift_max"],
        lambda one: one.statistics.drifts[0].max,
        "largest |score of re-rotated keys - exact score|",
        shown=True,
        leaves=2,
    )
    drift_rms = of.like(
        records.COLUMNS["drift_rms"],
        lambda one: one.statistics.drifts[0].rms,
        "root mean square of the scores of re-rotated keys minus the exact ones",
        shown=True,
    )
    drift_relative = of.like(
        records.COLUMNS["drift_relative"],
        lambda one: ratio(one.statistics.drifts[0].rms, one.statistics.references[0].rms),
        shown=True,
        leaves=4,
    )
    fresh_drift_max: float = of(
        "largest |score of keys rotated afresh to the final position - exact score|",
        lambda one: one.statistics.drifts[1].max,
        unit="score",
    )
    fresh_drift_rms: float = of(
        "root mean square of the same", lambda one: one.statistics.drifts[1].rms, unit="score", shown=True
    )
    from_fresh_max: float = of(
        "largest |score of re-rotated keys - score of keys rotated afresh|",
        lambda one: one.statistics.difference.max,
        unit="score",
        shown=True,
        leaves=1,
    )
    from_fresh_rms: float = of(
        "root mean square of the same",
        lambda one: one.statistics.difference.rms,
        unit="score",
        shown=True,
        leaves=5,
    )
    key_norm_growth: float = of(
        "mean relative change of the norm of the keys against the exact norm",
        lambda one: one.norm,
        shown=True,
    )
    worst_head = of.like(records.COLUMNS["worst_head"], lambda one: _place(one)[0])
    worst_query = of.like(
        records.COLUMNS["worst_query"], lambda one: _place(one)[1], "query index of drift_max"
    )
    worst_key = of.like(records.COLUMNS["worst_key"], lambda one: _place(one)[2], "key index of drift_max")


COLUMNS = of.columns(RerotateColumns)
LEGEND = (
    "drift: scores of re-rotated keys minus the exact ones; fresh drift: the same of keys rotated afresh to "
    "the final position;\nfrom fresh: the first minus the second. Queries are fresh. Scores are scaled, "
    "before softmax."
)
_DECORRELATED, _NOTABLE = 0.5, 0.01  # shares of the RMS score, and of the norm of the keys


def rerotate_report(
    results: Sequence[Rerotated], columns: Sequence[str] | None, metadata: Mapping[str, Any]
) -> Report:
    """Return the report; `columns` chooses and orders what is shown and written."""
    rows = [COLUMNS.row(result) for result in results]
    subject, dtype, *others = COLUMNS.screen(results)
    screen = settings.screen(rows, [subject, dtype], others)
    report = tabulated(COLUMNS, SCHEMA, rows, screen, columns, metadata)
    return replace(report, headline=headline(rows), notes=notes(rows), legend=LEGEND)


def headline(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the finding in a sentence: the worst number of steps against a fresh rotation."""
    if not rows:
        return "No case was measured."
    worst = max(rows, key=_severity)
    who = f"{worst['steps']} steps of {worst['by']} with {worst['subject']} in {worst['dtype']}"
    if worst["nonfinite"]:
        return f"{who} give {worst['nonfinite']} of {worst['scores']} scores that are nan or infinite."
    times = ratio(worst["drift_rms"], worst["fresh_drift_rms"])
    return (
        f"{who} drift by {short(worst['drift_rms'])} RMS, {percent(worst['drift_relative'])} of the scores "
        f"and {times:.3g} times a fresh rotation; key norms change by {_signed(worst['key_norm_growth'])}."
    )


def notes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a remedy for each recipe and dtype that changes key norms or loses the scores."""
    message = {}
    for one in rows:
        who = f"{one['subject']} {one['dtype']} after {one['steps']} steps"
        key = one["subject"], one["dtype"]
        if one["nonfinite"]:
            message[key] = (
                f"{who}: scores are nan or infinite; rotate keys afresh from their unrotated values."
            )
        elif one["drift_relative"] >= _DECORRELATED:
            share = percent(one["drift_relative"])
            message[key] = f"{who}: drift is {share} of the scores' RMS; rotate keys afresh."
        elif abs(one["key_norm_growth"]) >= _NOTABLE:
            message[key] = (
                f"{who}: key norms change by {_signed(one['key_norm_growth'])}: each step multiplies a pair "
                "by sqrt(cos² + sin²) as stored and rounds the products; take fewer, larger steps, or a "
                "wider table and rotation."
            )
    return list(message.values())


def _signed(share: float) -> str:
    """Return a change as text, with its sign."""
    return f"{100 * share:+.2g} %" if abs(share) < 0.995 else f"{100 * share:+.0f} %"


def _severity(one: Mapping[str, Any]) -> tuple[int, float]:
    relative = one["drift_relative"]
    return one["nonfinite"], relative if relative == relative else 0.0
