"""What the notes of an audit say of several rows together: growth, formats, structure, grids, remedies."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from ropeaudit.audits import judging
from ropeaudit.audits.identity import moved_apart
from ropeaudit.audits.records import Record
from ropeaudit.reports import settings, verdicts
from ropeaudit.reports.numbers import counted, percent, setting, short, times
from ropeaudit.rope.scaling_names import short_names

_MOST_GRIDS = 3
# what must agree for two rows to be of the same case but for rerotation
_SAME = (
    *("implementation", "environment", "dtype", "offset", "sample", "tolerance"),
    *(name for name in settings.NAMES if name != "layout"),
)
_DECORRELATED, _NOTABLE = 0.5, 0.01  # shares of the RMS score, and of the norm of the keys


def notes(results: Sequence[Record], frozen: bool) -> list[str]:
    """Return all notes on some rows. frozen: see `drift.report`."""
    return [
        *verdicts.notes(results, differing(results)),
        *(frozen_notes(results) if frozen else []),
        *grid_notes(results),
        *rerotation_notes(results),
    ]


def refusals(results: Sequence[Record]) -> list[str]:
    """Return why rows were refused, each reason of a subject once."""
    reasons = Counter((one.implementation, one.why) for one in results if one.verdict == "refused")
    return [
        f"refused: {subject}, {counted(count, 'row')}: {reason}"
        for (subject, reason), count in reasons.items()
    ]


def differing(results: Sequence[Record]) -> Callable[[Record], dict[str, str]]:
    """Return what gives a row's settings, besides the model, that differ from row to row."""
    rows = [{name: getattr(record, name) for name in settings.NAMES} for record in results]
    several = [name for name in settings.independent(rows) if name not in ("model", "layout")]
    scalings = short_names(record.scaling for record in results)

    def named(record: Record) -> dict[str, str]:
        texts = {name: setting(getattr(record, name)) for name in several}
        return texts | ({"scaling": scalings[record.scaling]} if "scaling" in texts else {})

    return named


def frozen_notes(results: Sequence[Record]) -> list[str]:
    """Return that frequencies that depend on the length were kept at every offset."""
    shifted = [record for record in results if record.length is not None and record.offset]
    if not shifted or any(record.structural_max > 0 for record in results):
        return []
    return [
        f"scaling {shifted[0].scaling.partition(':')[0]} depends on the length; frequencies are those for "
        f"{shifted[0].length} positions at every offset; --length shifted lets them change."
    ]


def grid_notes(results: Iterable[Record]) -> list[str]:
    """Return by how much an offset moved each axis of a grid, where `offset` does not say it."""
    farthest: dict[str, Record] = {}
    for record in results:
        if record.offset and moved_apart(record):
            name = f"{record.model} {record.axes}"
            farthest[name] = max(farthest.setdefault(name, record), record, key=lambda one: abs(one.offset))
    return [
        f"{name}, grid {one.grid}: offset {one.offset} moves {_moves(one)}, in the unit of its positions."
        for name, one in list(farthest.items())[:_MOST_GRIDS]
    ]


def _moves(record: Record) -> str:
    """Return the axes of a grid and by how much each moved."""
    moved = [(name, getattr(record, f"offset_{name}")) for name in "thw"]
    return ", ".join(f"{name} by {short(value)}" for name, value in moved if value is not None)


def rerotation_notes(results: Sequence[Record]) -> list[str]:
    """Return what keys that are rotated again cost, and the remedy: each subject and dtype at its worst."""
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in results:
        if record.rerotated is not None and record.verdict != "refused":
            groups.setdefault((record.model, record.implementation, record.dtype), []).append(record)
    named, notes = differing(results), []
    for some in groups.values():
        worst = max(some, key=lambda one: verdicts.severity(verdicts.columns(one)))
        clauses = [*_times_fresh(worst, results), *_remedies(worst)]
        if clauses:
            notes.append(f"{verdicts.who(worst, named(worst))}: {'; '.join(clauses)}.")
    return notes


def _times_fresh(record: Record, results: Sequence[Record]) -> list[str]:
    """Return how many times as much it drifts as keys that were rotated once, where that was measured."""
    for one in results:
        once = one.rerotated is None or one.rerotated.startswith("0 x ")
        if once and one is not record and all(getattr(one, name) == getattr(record, name) for name in _SAME):
            growth = judging.ratio(record.drift_rms, one.drift_rms)
            return [f"{times(growth)} times the drift of keys rotated once"] if math.isfinite(growth) else []
    return []


def _remedies(record: Record) -> list[str]:
    """Return what scores that are lost, and norms that change, ask for."""
    if record.nonfinite:
        return ["scores are nan or infinite: rotate keys afresh from their unrotated values"]
    clauses, growth = [], record.key_norm_growth
    if record.drift_relative >= _DECORRELATED:
        clauses.append(f"drift is {percent(record.drift_relative)} of the scores' RMS: rotate keys afresh")
    if growth is not None and abs(growth) >= _NOTABLE:
        share = f"{100 * growth:+.2g} %" if abs(growth) < 0.995 else f"{100 * growth:+.0f} %"
        clauses.append(
            f"key norms change by {share}: each turn multiplies a pair by sqrt(cos² + sin²) as stored and "
            "rounds the products; take fewer, larger turns, or a wider table and rotation"
        )
    return clauses
