"""Two subjects side by side for people: the finding in words, the rows, the notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ropeaudit.audits.records import ratio
from ropeaudit.features.parity.analysis import Parity
from ropeaudit.reports import Report, settings
from ropeaudit.reports.numbers import percent, short

SCHEMA = 1
# column -> what it holds
COLUMNS: dict[str, str] = {
    "schema": "version of this list of columns",
    "a": "first subject, with the changes made to it in brackets",
    "b": "second subject",
    "dtype": "number format of the model, which both recipes apply to their stages",
    "offset": "integer added to every position, in tokens",
    **settings.COLUMNS,
    "scores": "how many scores were compared",
    "a_nonfinite": "how many of a's scores are nan or infinite",
    "b_nonfinite": "how many of b's scores are nan or infinite",
    "reference_rms": "RMS of the exact scores, of q and k as a rounds them",
    "reference_error": "certified bound on the error of the exact scores, in score units",
    "parity_max": "largest |a's score - b's score|",
    "parity_rms": "root mean square of a's scores minus b's",
    "parity_bias": "signed mean of a's scores minus b's",
    "parity_relative": "parity_rms / reference_rms",
    "a_drift_max": "largest |a's score - exact score|",
    "a_drift_rms": "root mean square of a's scores minus the exact ones",
    "b_drift_max": "largest |b's score - exact score|",
    "b_drift_rms": "root mean square of b's scores minus the exact ones",
    "nearer": "name of the one with the smaller drift_rms; equal: to 0.5 % or within reference_error",
    "a_nearer": "share of the scores of which a's is nearer to the exact one",
    "b_nearer": "share of the scores of which b's is nearer to the exact one; the rest is as near",
    "worst_head": "head of parity_max; nan where no score differs or some are not finite",
    "worst_query": "query index of parity_max, unshifted",
    "worst_key": "key index of parity_max, unshifted",
}
LEGEND = (
    "parity: a's scores minus b's; drift: scores minus the exact ones; nearer: smaller drift rms.\n"
    "Scores are scaled, before softmax. Parity is not accuracy: both goals are legitimate."
)
_SCREEN: tuple[str, ...] = (
    "parity_max",
    "parity_rms",
    "a_drift_max",
    "a_drift_rms",
    "b_drift_max",
    "b_drift_rms",
    "nearer",
)
_SCREEN += ("a_nearer", "b_nearer", "worst_head", "worst_query", "worst_key")
_DISPENSABLE: tuple[str, ...] = (
    "worst_head",
    "worst_query",
    "worst_key",
    "a_drift_max",
    "b_drift_max",
    "b_nearer",
)
_DISPENSABLE += ("a_nearer", "parity_max")


def row(results: Parity) -> dict[str, Any]:
    """Return the columns of `COLUMNS`."""
    apart, (first, second) = results.apart, results.apart.drifts
    head, query, key = (
        apart.difference.place if apart.difference.place and not apart.difference.nonfinite else (None,) * 3
    )
    winner, count = apart.winner(), apart.difference.count
    values = {
        "schema": SCHEMA,
        "a": results.names[0],
        "b": results.names[1],
        "dtype": results.dtype.name,
        "offset": results.offset,
        **settings.row(results),
        "scores": count,
        "a_nonfinite": first.nonfinite,
        "b_nonfinite": second.nonfinite,
        "reference_rms": apart.references[0].rms,
        "reference_error": apart.error,
        "parity_max": apart.difference.max,
        "parity_rms": apart.difference.rms,
        "parity_bias": apart.difference.mean,
        "parity_relative": ratio(apart.difference.rms, apart.references[0].rms),
        "a_drift_max": first.max,
        "a_drift_rms": first.rms,
        "b_drift_max": second.max,
        "b_drift_rms": second.rms,
        "nearer": None if winner is None else "equal" if winner < 0 else results.names[winner],
        "a_nearer": ratio(apart.nearer[0], count),
        "b_nearer": ratio(apart.nearer[1], count),
        "worst_head": head,
        "worst_query": query,
        "worst_key": key,
    }
    return {name: values[name] for name in COLUMNS}


def parity_report(
    results: Sequence[Parity], columns: Sequence[str] | None, metadata: Mapping[str, Any]
) -> Report:
    """Return the report; `columns` chooses and orders what is shown and written."""
    rows = [row(one) for one in results]
    return Report(
        rows=rows,
        columns=list(columns or COLUMNS),
        screen=list(columns or ["a", "b", "dtype", "offset", *settings.varying(rows), *_SCREEN]),
        dispensable=() if columns else _DISPENSABLE,
        headline=headline(rows),
        notes=notes(results),
        legend=LEGEND,
        metadata={"schema": SCHEMA, **metadata},
    )


def headline(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the finding in a sentence: where the two differ most, and who is nearer to the truth there."""
    if not rows:
        return "No case was compared."
    worst = max(rows, key=_severity)
    names, where = f"{worst['a']} and {worst['b']}", f"in {worst['dtype']} at offset {worst['offset']}"
    nonfinite = [(worst[side], worst[f"{side}_nonfinite"]) for side in "ab" if worst[f"{side}_nonfinite"]]
    if nonfinite:
        message = ", ".join(f"{count} of {worst['scores']} scores of {name}" for name, count in nonfinite)
        return f"{names} cannot be compared {where}: {message} are nan or infinite."
    if worst["parity_max"] == 0:
        count = f", and in all {len(rows)} cases" if len(rows) > 1 else ""
        return f"{names} give the same scores {where}{count}: every one of {worst['scores']} is equal."
    drifts = worst["a_drift_rms"], worst["b_drift_rms"]
    size = f"{names} differ by {short(worst['parity_rms'])} RMS {where}"
    if worst["nearer"] == "equal":
        return f"{size}; both are equally near to the exact scores ({short(drifts[0])} RMS)."
    return (
        f"{size}; {worst['nearer']} is nearer to the exact scores ({short(min(drifts))} against "
        f"{short(max(drifts))})."
    )


def _severity(one: Mapping[str, Any]) -> tuple[int, float]:
    relative = one["parity_relative"]
    return one["a_nonfinite"] + one["b_nonfinite"], relative if relative == relative else 0.0


def notes(results: Sequence[Parity]) -> list[str]:
    """Return what the reader must know: inputs that differ, scores that are lost, who wins where."""
    message = []
    for one in results:
        where = f"{one.dtype} at offset {one.offset}"
        if one.inputs_differ:
            (first, second), (a, b) = one.formats, one.names
            message.append(
                f"{one.dtype}: {a} rounds q and k to {first}, {b} to {second}: each is compared with its own "
                "reference, and parity holds that rounding too; --set input=FORMAT makes them alike."
            )
        for name, drift in zip(one.names, one.apart.drifts, strict=True):
            if drift.nonfinite:
                share = percent(drift.nonfinite / drift.count)
                message.append(
                    f"{name} {where}: {share} of the scores are nan or infinite; `ropeaudit explain` names "
                    "the stage that overflows."
                )
    return list(dict.fromkeys(message))
