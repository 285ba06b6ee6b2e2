"""The report of a comparison: answer, rows and columns of cases in two reports."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ropeaudit.audits import records
from ropeaudit.audits.comparison import COMPARED, Difference, Pair, Pairs, value
from ropeaudit.audits.records import NOT_IN_CASE
from ropeaudit.reports import Report, only, reading, settings, tabulated
from ropeaudit.reports.answers import Answer, Status
from ropeaudit.reports.numbers import counted, short
from ropeaudit.reports.verdicts import case_name
from ropeaudit.runtime.columns import Column, Columns, table
from ropeaudit.runtime.rows import Rows

SCHEMA = 2  # 2: within_tolerance, rotation_excess
_DISPENSABLE = ("drift_max_ratio", "change_rms_ratio", "verdict_before", "verdict_after")
_SCREEN = ("status", "drift_rms_before", "drift_rms_after", "drift_rms_ratio", *_DISPENSABLE)
_CASE = tuple(name for name in records.IDENTITY if name not in NOT_IN_CASE or name == "case")
_TEXTS = ("version", "within_tolerance", "verdict")
_PARTS = ("_before", "_after", "_ratio", "_change")


def _columns(name: str) -> Iterator[Column]:
    column = records.COLUMNS[name]
    for side, text in (("before", "of the earlier report"), ("after", "of the later one")):
        yield Column(f"{name}_{side}", column.kind, f"{name} {text}", column.unit, optional=True)
    if name in COMPARED:
        yield Column(f"{name}_ratio", float, "after / before; inf from 0 to more, nan where one is undefined")
        yield Column(f"{name}_change", float, "after - before", column.unit)


COLUMNS = Columns(
    [
        *table("report-against").values(),
        *(records.COLUMNS[name] for name in _CASE),
        *(column for name in (*_TEXTS, *COMPARED) for column in _columns(name)),
    ]
)


def row(pair: Pair) -> dict[str, Any]:
    """Return the row of a case in two reports."""
    before, after = pair.before or {}, pair.after or {}
    values = {"schema": SCHEMA, "status": pair.status, "changed": _changed_columns(pair)}
    values |= {name: pair.row.get(name) for name in _CASE}
    for name in (*_TEXTS, *COMPARED):
        values |= {f"{name}_before": before.get(name), f"{name}_after": after.get(name)}
        if name in COMPARED:
            values |= {f"{name}_ratio": pair.ratio(name), f"{name}_change": pair.change(name)}
    return values


def report(
    results: Sequence[Difference],
    columns: Sequence[str] | None,
    metadata: Mapping[str, Any],
    unchanged: bool = False,
) -> Report:
    """Return the report of the cases that changed. unchanged: of all cases."""
    compared = only(results)
    same = set() if unchanged else set(compared.pairs.numbers("same"))
    shown = [number for number in range(len(compared.pairs)) if number not in same]
    rows = Rows.of([row(compared.pairs[number]) for number in shown])
    device = ["device"] * records.COLUMNS["device"].shown(rows)
    first = ["implementation", "dtype", "offset", *device]
    screen = settings.screen(rows, first, _SCREEN)
    # files have only columns with values in the compared reports
    silent = set(records.COLUMNS) - set(
        reading.telling_columns([compared.pairs[number].row for number in shown])
    )
    left_out = {f"{name}{part}" for name in silent for part in ("", *_PARTS)} if shown else set()
    made = tabulated(
        COLUMNS,
        SCHEMA,
        rows,
        screen,
        columns,
        {"ratio": compared.ratio, **metadata},
        answers=[answer(compared)],
        dispensable=_DISPENSABLE,
        written=[name for name in COLUMNS if name not in left_out],
    )
    return made if rows else replace(made, screen=())


def _processor_words(results: Difference) -> str:
    before, after = results.processors
    if not before or not after:
        return "on a processor that is not recorded"
    if before == after:
        return ""
    first, second = (side.replace(",", "").split() for side in (before, after))
    old = [word for word in first if word not in second]
    new = [word for word in second if word not in first]
    return f"on another processor ({' '.join(old)} → {' '.join(new)})"


def answer(results: Difference) -> Answer:
    """Return the answer about a comparison: how many cases drift more, and the worst."""
    pairs, changed = results.pairs, results.of("changed")
    sizes = list(map(_drift_ratio, changed))
    more, less, rest = (
        [pair for pair, times in zip(changed, sizes, strict=True) if (times > 1, times < 1) == side]
        for side in ((True, False), (False, True), (False, False))
    )
    processors, facts, unknown = _processor_words(results), list[tuple[str, str]](), _incomparable(pairs)
    left = len(pairs.shared) - len(set().union(*unknown.values()))
    counts = {word: len(some) for word, some in unknown.items()}
    counts |= {f"{word}, not compared": len(pairs.numbers(word)) for word in ("new", "gone")}
    apart = [f"{count:,} {word}" for word, count in counts.items() if count]
    if more:
        decides = f"{len(more)} drift more, the worst: {_sentence(max(more, key=_change_size))}"
    elif changed:
        decides = "none drifts more"
    elif not left:
        decides = "nothing was compared"
    else:
        within = f"{results.ratio:g} times what they were"
        if results.only_reordered:
            within = f"what the order of sums explains {processors}"
        decides = f"no case changed: {f'{left:,}' if apart else 'all'} are within {within}"
    decides = "; ".join([decides, *apart])
    if less:
        facts.append(("drift less", f"{len(less)}, most: {_sentence(max(less, key=_change_size))}"))
    if rest:
        other = f"{case_name(rest[0].row)} in {_changed_columns(rest[0])}"
        facts.append(("otherwise", f"{len(rest)}, first: {other}"))
    if changed and all(results.processors) and processors:
        facts.append(("measured", f"{processors}, which the order of sums does not explain"))
    status: Status = "WARN" if more or rest or apart else "OK"
    return Answer(status, counted(len(pairs.shared), "case"), decides, facts=facts)


def _incomparable(pairs: Pairs) -> dict[str, set[int]]:
    """Return the numbers of the pairs without comparable drifts, by reason."""
    verdicts = {n: {old, new} for n, old, new in pairs.cells("verdict")}
    drifts = {n: {old, new} for n, old, new in pairs.cells("drift_rms")}
    refused = {n for n, both in verdicts.items() if "refused" in both}
    wrong = {n for n, both in verdicts.items() if both == {"wrong_rotation"}}
    return {
        "rotating wrongly in both": wrong,
        "refused in both": {n for n in refused if len(verdicts[n]) == 1},
        "refused in one": {n for n in refused if len(verdicts[n]) > 1},
        "nan in both": {n for n, both in drifts.items() if both == {None}} - refused,
        "without drift_rms": {n for n, _, _ in pairs.shared} - drifts.keys() - refused,
    }


def _drift_ratio(pair: Pair) -> float:
    """Return by how much drift has changed: 1 for other changes, inf for new nonfinite scores."""
    nonfinite = [value(side, "nonfinite") or 0.0 for side in (pair.before, pair.after)]
    if nonfinite[0] != nonfinite[1] and not math.isnan(sum(nonfinite)):
        return math.inf if nonfinite[1] > nonfinite[0] else 0.0
    drifts = [name for name in COMPARED if name in pair.changed and "drift" in name]
    times = [1.0 if math.isnan(pair.ratio(name)) else pair.ratio(name) for name in drifts]
    return times[0] if times else 1.0


def _change_size(pair: Pair) -> float:
    times = _drift_ratio(pair)
    return times if times > 1 else 1 / times if times else math.inf


def _sentence(pair: Pair) -> str:
    if "nonfinite" in pair.changed:
        counts = [int(value(side, "nonfinite")) for side in (pair.before, pair.after)]
        return f"{case_name(pair.row)} gives {counts[1]} scores that are nan or infinite, before {counts[0]}"
    name = next(name for name in COMPARED if name in pair.changed and "drift" in name)
    what = "" if name == "drift_rms" else f"{name} "
    old, new = (short(value(side, name)) for side in (pair.before, pair.after))
    return f"{case_name(pair.row)} {what}{short(pair.ratio(name))} times ({old} to {new})"


def _changed_columns(pair: Pair) -> str:
    """Return changed columns, those that grew most first."""

    def growth(name: str) -> float:
        times = pair.ratio(name) if name in COMPARED else 0.0
        return -math.inf if math.isnan(times) else -times

    return " ".join(sorted(pair.changed, key=growth)) or "none"
