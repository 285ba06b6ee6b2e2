"""Two implementations side by side for people: how far apart, who is closer to the exact result."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ropeaudit.audits.judging import TOLERANCE, ratio
from ropeaudit.features.parity.analysis import Parity
from ropeaudit.reports import Report, settings, tabulated
from ropeaudit.reports.answers import Answer
from ropeaudit.reports.model_notes import model_notes
from ropeaudit.reports.numbers import counted, percent
from ropeaudit.runtime.columns import table

SCHEMA = 2  # 2: bits_differing, refused
COLUMNS = table("parity")


def row(one: Parity) -> dict[str, Any]:
    """Return the row of two implementations in a case."""
    statistics, difference = one.statistics, one.statistics.difference
    winner = None if one.refused else statistics.winner()
    place = difference.place if difference.place and not difference.nonfinite else (None, None, None)
    values: dict[str, Any] = dict(zip(("worst_head", "worst_query", "worst_key"), place, strict=True))
    for index, side in enumerate("ab"):
        drift = statistics.drifts[index]
        values |= {side: one.names[index], f"{side}_device": one.devices[index]}
        values |= {f"{side}_nonfinite": drift.nonfinite, f"{side}_drift_max": drift.max}
        values[f"{side}_drift_rms"] = drift.rms
        values[f"{side}_nearer"] = ratio(statistics.nearer[index], difference.count)
    values |= settings.values(one) | {
        "schema": SCHEMA,
        "dtype": one.dtype.name,
        "offset": one.offset,
        "scores": difference.count,
        "reference_rms": statistics.references[0].rms,
        "reference_error": statistics.error,
        "parity_max": difference.max,
        "parity_rms": difference.rms,
        "parity_bias": difference.mean,
        "parity_relative": ratio(difference.rms, statistics.references[0].rms),
        "nearer": None if winner is None else "equal" if winner < 0 else one.names[winner],
        "bits_differing": ratio(statistics.differing, statistics.elements),
        "refused": one.refused or "none",
    }
    return {name: values[name] for name in COLUMNS}


def report(results: Sequence[Parity], columns: Sequence[str] | None, metadata: Mapping[str, Any]) -> Report:
    """Return the report; `columns` chooses and orders what is shown and written."""
    rows = [row(result) for result in results]
    a, b, dtype, offset, *others = COLUMNS.screen(rows)
    screen = settings.screen(rows, [a, b, dtype, offset], others)
    some = [answer(results, rows)] if results else []
    return tabulated(
        *(COLUMNS, SCHEMA, rows, screen, columns, metadata, some),
        notes=[*model_notes([one.case for one in results], [one.offset for one in results]), *notes(results)],
        brief=not columns,
    )


def answer(results: Sequence[Parity], rows: Sequence[Mapping[str, Any]]) -> Answer:
    """Return the answer: how far apart the two are where they are farthest, and each case in a line."""
    shared, own = settings.told_apart(rows, ("model", "dtype", "offset"))
    every = sorted(zip(rows, own, strict=True), key=lambda one: _distance(one[0]), reverse=True)
    worst, name = every[0]
    alike = all(one["parity_max"] == one["bits_differing"] == 0 for one in rows)
    decides = f"the same bits in {counted(len(rows), 'case')}" if alike else _apart(worst, name)
    facts = list[tuple[str, str]]()
    if len(rows) == 1 and math.isfinite(_distance(worst)):
        facts = [("off by", _drifts(worst)), ("bits", _bits(worst))]
    elif len(rows) > 1 and not alike:
        facts = settings.listed([(label, _line(one)) for one, label in every])
    findings = dict.fromkeys(text for one in results for text in one.findings if ": called as " in text)
    facts += [("called as", text.replace(": called as ", ": ")) for text in findings]
    facts += settings.facts(rows)
    facts.append(("percentages", "root mean squares over that of the exact scores"))
    facts.append(("not checked", "other offsets, other q and k"))
    facts.append(("next", "all columns: -v"))
    target = ", ".join(filter(None, [f"{worst['a']} and {worst['b']}", shared]))
    return Answer("OK" if _distance(worst) <= TOLERANCE else "WARN", target, decides, facts=facts)


def _distance(one: Mapping[str, Any]) -> float:
    """Return how far apart two are as a share of the scores' RMS; inf where they cannot be compared."""
    relative, lost = float(one["parity_relative"]), one["a_nonfinite"] + one["b_nonfinite"]
    if one["parity_max"] == 0:
        return 0.0
    return math.inf if lost or one["refused"] != "none" or math.isnan(relative) else relative


def _apart(one: Mapping[str, Any], name: str = "") -> str:
    """Return how far apart two are in a case, if it has a name, and which is closer to the exact result."""
    where = f" ({name})" if name else ""
    if one["refused"] != "none":
        return f"{one['refused']}{where}"
    for side in "ab":
        if count := one[f"{side}_nonfinite"]:
            return f"{count:,} of {one['scores']:,} scores of {one[side]} are nan or infinite{where}"
    if one["parity_max"] == 0:
        return f"the same scores{where}"
    closer = "both are equally close" if one["nearer"] == "equal" else f"{_name(one['nearer'])} is closer"
    return f"scores {percent(one['parity_relative'])} apart{where}; {closer} to the exact result"


def _line(one: Mapping[str, Any]) -> str:
    """Return what is known of one case among several, in a line."""
    if not math.isfinite(_distance(one)):
        return _apart(one)
    return f"{percent(one['parity_relative'])} apart; off by: {_drifts(one)}; {_bits(one)}"


def _drifts(one: Mapping[str, Any]) -> str:
    """Return how far each is from the exact scores."""
    sizes = (ratio(one[f"{side}_drift_rms"], one["reference_rms"]) for side in "ab")
    return ", ".join(f"{_name(one[side])} {percent(size)}" for side, size in zip("ab", sizes, strict=True))


def _name(name: str) -> str:
    """Return a name without its folders."""
    return name.rpartition("/")[2]


def _bits(one: Mapping[str, Any]) -> str:
    return f"{percent(one['bits_differing'])} of elements differ in bits"


def notes(results: Sequence[Parity]) -> list[str]:
    """Return what else the reader must know: layouts, inputs and scores that differ, scores that are lost."""
    texts: list[str] = []
    for one in results:
        where = f"{one.dtype} at offset {one.offset}"
        texts += [*one.findings, *([f"{where}: {one.refused}."] if one.refused else one.differences)]
        texts += [
            f"{name} {where}: {percent(drift.nonfinite / drift.count)} of the scores are nan or infinite; "
            "`ropeaudit explain` names the stage that overflows."
            for name, drift in zip(one.names, one.statistics.drifts, strict=True)
            if drift.nonfinite and not one.refused
        ]
    return list(dict.fromkeys(texts))
