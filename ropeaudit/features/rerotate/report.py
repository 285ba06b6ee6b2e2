"""Keys rotated again and again, for people: the finding in words, the rows, the notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ropeaudit.audits.records import ratio
from ropeaudit.features.rerotate.analysis import Rerotated
from ropeaudit.reports import Report, settings
from ropeaudit.reports.numbers import percent, short

SCHEMA = 1
# column -> what it holds
COLUMNS: dict[str, str] = {
    "schema": "version of this list of columns",
    "subject": "recipe, with the changes made to it in brackets",
    "dtype": "number format of the model, which the recipe applies to its stages",
    "steps": "how many times the stored keys were rotated",
    "by": "tokens of one step",
    "position": "position of the first key, and of the first query, after the steps",
    **settings.COLUMNS,
    "scores": "how many scores were compared",
    "nonfinite": "how many of the scores of re-rotated keys are nan or infinite",
    "reference_rms": "RMS of the exact scores",
    "reference_error": "certified bound on the error of the exact scores, in score units",
    "drift_max": "largest |score of re-rotated keys - exact score|",
    "drift_rms": "root mean square of the scores of re-rotated keys minus the exact ones",
    "drift_relative": "drift_rms / reference_rms",
    "fresh_drift_max": "largest |score of keys rotated afresh to the final position - exact score|",
    "fresh_drift_rms": "root mean square of the same",
    "from_fresh_max": "largest |score of re-rotated keys - score of keys rotated afresh|",
    "from_fresh_rms": "root mean square of the same",
    "key_norm_growth": "mean relative change of the norm of the keys against the exact norm",
    "worst_head": "head of drift_max; nan where no score differs or some are not finite",
    "worst_query": "query index of drift_max",
    "worst_key": "key index of drift_max",
}
LEGEND = (
    "drift: scores of re-rotated keys minus the exact ones; fresh drift: the same of keys rotated afresh to "
    "the final position;\nfrom fresh: the first minus the second. Queries are fresh. Scores are scaled, "
    "before softmax."
)
_SCREEN: tuple[str, ...] = ("drift_max", "drift_rms", "drift_relative", "fresh_drift_rms", "from_fresh_max")
_SCREEN += ("from_fresh_rms", "key_norm_growth")
_DISPENSABLE = ("from_fresh_max", "drift_max", "position", "drift_relative", "from_fresh_rms")
_DECORRELATED, _NOTABLE = 0.5, 0.01  # shares of the RMS score, and of the norm of the keys


def row(results: Rerotated) -> dict[str, Any]:
    """Return the columns of `COLUMNS`."""
    apart, (drift, fresh) = results.apart, results.apart.drifts
    head, query, key = drift.place if drift.place and not drift.nonfinite else (None, None, None)
    values = {
        "schema": SCHEMA,
        "subject": results.subject,
        "dtype": results.dtype.name,
        "steps": results.steps,
        "by": results.by,
        "position": results.position,
        **settings.row(results),
        "scores": drift.count,
        "nonfinite": drift.nonfinite,
        "reference_rms": apart.references[0].rms,
        "reference_error": apart.error,
        "drift_max": drift.max,
        "drift_rms": drift.rms,
        "drift_relative": ratio(drift.rms, apart.references[0].rms),
        "fresh_drift_max": fresh.max,
        "fresh_drift_rms": fresh.rms,
        "from_fresh_max": apart.difference.max,
        "from_fresh_rms": apart.difference.rms,
        "key_norm_growth": results.norm,
        "worst_head": head,
        "worst_query": query,
        "worst_key": key,
    }
    return {name: values[name] for name in COLUMNS}


def rerotate_report(
    results: Sequence[Rerotated], columns: Sequence[str] | None, metadata: Mapping[str, Any]
) -> Report:
    """Return the report; `columns` chooses and orders what is shown and written."""
    rows = [row(one) for one in results]
    varying = settings.varying(rows)
    return Report(
        rows=rows,
        columns=list(columns or COLUMNS),
        screen=list(columns or ["subject", "dtype", *varying, "steps", "by", "position", *_SCREEN]),
        dispensable=() if columns else _DISPENSABLE,
        headline=headline(rows),
        notes=notes(rows),
        legend=LEGEND,
        metadata={"schema": SCHEMA, **metadata},
    )


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
