"""Two subjects side by side for people: the finding in words, the rows, the notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ropeaudit.audits.judging import ratio
from ropeaudit.features.parity.analysis import Parity
from ropeaudit.reports import Report, settings, tabulated
from ropeaudit.reports.model_notes import model_notes
from ropeaudit.reports.numbers import percent, short
from ropeaudit.runtime.columns import table

SCHEMA = 2  # 2: bits_differing, refused


def _nearer(result: Parity) -> str | None:
    winner = None if result.refused else result.statistics.winner()
    return None if winner is None else "equal" if winner < 0 else result.names[winner]


def _place(result: Parity) -> tuple[int, int, int] | tuple[None, None, None]:
    parity = result.statistics.difference
    return parity.place if parity.place and not parity.nonfinite else (None, None, None)


def row(one: Parity) -> dict[str, Any]:
    """Return the row of two implementations in a case."""
    return {
        "schema": SCHEMA,
        "a": one.names[0],
        "b": one.names[1],
        "dtype": one.dtype.name,
        "offset": one.offset,
        "a_device": one.devices[0],
        "b_device": one.devices[1],
        **(settings.values(one)),
        "scores": one.statistics.difference.count,
        "a_nonfinite": one.statistics.drifts[0].nonfinite,
        "b_nonfinite": one.statistics.drifts[1].nonfinite,
        "reference_rms": one.statistics.references[0].rms,
        "reference_error": one.statistics.error,
        "parity_max": one.statistics.difference.max,
        "parity_rms": one.statistics.difference.rms,
        "parity_bias": one.statistics.difference.mean,
        "parity_relative": ratio(one.statistics.difference.rms, one.statistics.references[0].rms),
        "a_drift_max": one.statistics.drifts[0].max,
        "a_drift_rms": one.statistics.drifts[0].rms,
        "b_drift_max": one.statistics.drifts[1].max,
        "b_drift_rms": one.statistics.drifts[1].rms,
        "nearer": _nearer(one),
        "a_nearer": ratio(one.statistics.nearer[0], one.statistics.difference.count),
        "b_nearer": ratio(one.statistics.nearer[1], one.statistics.difference.count),
        "bits_differing": ratio(one.statistics.differing, one.statistics.elements),
        "worst_head": _place(one)[0],
        "worst_query": _place(one)[1],
        "worst_key": _place(one)[2],
        "refused": one.refused or "none",
    }


COLUMNS = table("parity")
LEGEND = (
    "parity: a's scores minus b's; drift: scores minus the exact ones; nearer: smaller drift rms.\n"
    "bits differing: of the elements of rotated q and k, rounded to the dtype.\n"
    "Scores are scaled, before softmax."
)


def report(results: Sequence[Parity], columns: Sequence[str] | None, metadata: Mapping[str, Any]) -> Report:
    """Return the report; `columns` chooses and orders what is shown and written."""
    rows = [row(result) for result in results]
    a, b, dtype, offset, *others = COLUMNS.screen(rows)
    screen = settings.screen(rows, [a, b, dtype, offset], others)
    read = model_notes([one.case for one in results], [one.offset for one in results])
    return replace(
        tabulated(COLUMNS, SCHEMA, rows, screen, columns, metadata),
        headline=headline(rows),
        notes=[*read, *notes(results)],
        legend=LEGEND,
    )


def headline(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the finding in a sentence: where the two differ most, and who is nearer to the truth there."""
    if not rows:
        return "No case was compared."
    compared = [row for row in rows if row["refused"] == "none"]
    if not compared:
        one = rows[0]
        return f"{one['a']} and {one['b']} cannot be compared {_where(one)}: {one['refused']}."
    missing = len(rows) - len(compared)
    left = f" {missing} of {len(rows)} cases {'is' if missing == 1 else 'are'} refused." if missing else ""
    return f"{_difference(max(compared, key=_severity), len(compared))}.{_bits(compared)}{left}"


def _where(one: Mapping[str, Any]) -> str:
    return f"in {one['dtype']} at offset {one['offset']}"


def _difference(worst: Mapping[str, Any], count: int) -> str:
    """Return how far the two are apart in the case where they are farthest."""
    names, where = f"{worst['a']} and {worst['b']}", _where(worst)
    nonfinite = [(worst[side], worst[f"{side}_nonfinite"]) for side in "ab" if worst[f"{side}_nonfinite"]]
    if nonfinite:
        message = ", ".join(f"{many} of {worst['scores']} scores of {name}" for name, many in nonfinite)
        return f"{names} cannot be compared {where}: {message} are nan or infinite"
    if worst["parity_max"] == 0:
        every = f", and in all {count} cases" if count > 1 else ""
        return f"{names} give the same scores {where}{every}: every one of {worst['scores']} is equal"
    drifts = worst["a_drift_rms"], worst["b_drift_rms"]
    size = f"{names} differ by {short(worst['parity_rms'])} RMS {where}"
    if worst["nearer"] == "equal":
        return f"{size}; both are equally near to the exact scores ({short(drifts[0])} RMS)"
    return (
        f"{size}; {worst['nearer']} is nearer to the exact scores ({short(min(drifts))} against "
        f"{short(max(drifts))})"
    )


def _bits(compared: Sequence[Mapping[str, Any]]) -> str:
    """Return in how many elements of rotated q and k the bits differ, in the case where most do."""
    most = max(compared, key=lambda row: float(row["bits_differing"]))
    if most["bits_differing"] == 0:
        return " Rotated q and k have the same bits in all."
    where = f" {_where(most)}" if len(compared) > 1 else ""
    upto = "Up to " if len(compared) > 1 else ""
    return f" {upto}{percent(most['bits_differing'])} of the rotated elements differ in their bits{where}."


def _severity(one: Mapping[str, Any]) -> tuple[int, float]:
    relative = one["parity_relative"]
    return one["a_nonfinite"] + one["b_nonfinite"], relative if relative == relative else 0.0


def notes(results: Sequence[Parity]) -> list[str]:
    """Return what the reader must know: inputs that differ, scores that are lost, who wins where."""
    message: list[str] = []
    for one in results:
        where = f"{one.dtype} at offset {one.offset}"
        message += one.findings
        if one.refused:
            message.append(f"{where}: {one.refused}.")
            continue
        for name, layout in one.permuted:
            message.append(
                f"{name} pairs dims in the layout {layout}, q and k are {one.setting.layout}: their dims are "
                "permuted for it and back, as conversions of weights do; --layout gives both the same ones."
            )
        if one.forms and one.forms[0] != one.forms[1]:
            (a, b), forms = one.names, one.forms
            message.append(
                f"{one.dtype}: scores of {a} are formed in {forms[0]}, those of {b} in {forms[1]}: parity "
                "holds that too, bits differing does not; --set accumulate=fp64,score=fp64 makes them alike."
            )
        if one.inputs_differ:
            (first, second), (a, b) = one.formats, one.names
            message.append(
                f"{one.dtype}: {a} rounds q and k to {first}, {b} to {second}: each is compared with its own "
                "reference, and parity holds that rounding too; --set input=FORMAT makes them alike."
            )
        for name, drift in zip(one.names, one.statistics.drifts, strict=True):
            if drift.nonfinite:
                share = percent(drift.nonfinite / drift.count)
                message.append(
                    f"{name} {where}: {share} of the scores are nan or infinite; `ropeaudit explain` names "
                    "the stage that overflows."
                )
    return list(dict.fromkeys(message))
