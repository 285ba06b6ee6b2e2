"""Scores of sampled pairs, of subjects and of the reference, into statistics.

Each pair is rotated at its own positions. A float32 or float64 sum of the d products may run in another
order than in a tile's product (`scores.form_pairs`); narrower accumulators
and the exact reference know no difference.
Letters: n pairs of a block, d head_dim.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.engine import scores
from ropeaudit.engine.estimates import Estimated
from ropeaudit.engine.plan import Key, Measured, Plan
from ropeaudit.engine.statistics import Size
from ropeaudit.inputs.sampled_rows import SampledQK
from ropeaudit.reference import exact_scores
from ropeaudit.reference.exact_scores import Factor
from ropeaudit.runtime.threads import mapping
from ropeaudit.subjects import key_rotation

BLOCK = 2048  # pairs at once

CellResult = dict[tuple[int, int], Measured]


def measure(cases: Plan[SampledQK], threads: int, progress: Callable[[float], None]) -> CellResult:
    """Return what was measured, for every cell of the plan; `progress` gets the share done."""
    results, count, groups = _nothing(cases), len(cases.inputs), cases.keys()
    blocks = [slice(i, min(i + BLOCK, count)) for i in range(0, count, BLOCK)]
    with mapping(threads) as mapped:
        for block, part in zip(blocks, mapped(lambda some: _block(cases, groups, some), blocks), strict=True):
            for cell, measured in part.items():
                results[cell].merge(measured)
            progress(block.stop / count)
    for measured in results.values():
        _place(measured, cases.inputs)
    return results


def interval(drift: Any) -> tuple[float | None, float | None]:
    """Return the 95 % interval of the RMS of all scores; nan if undefined, None if nothing was sampled."""
    return drift.interval() if isinstance(drift, Estimated) else (None, None)


def _nothing(cases: Plan[SampledQK]) -> CellResult:
    return {cell: Measured(Estimated(), Estimated(), Estimated()) for cell in cases.cells()}


def _estimated(statistics: Size) -> Estimated:
    """Return what `_nothing` made as what it is."""
    return cast(Estimated, statistics)


def _block(cases: Plan[SampledQK], groups: dict[Key, list[int]], some: slice) -> CellResult:
    """Measure all cells over some of the pairs."""
    result, sampled = _nothing(cases), cases.inputs
    q, k = sampled.q[some], sampled.k[some]
    queries, keys = sampled.pairs.query[some], sampled.pairs.key[some]
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        tables = [
            exact_scores.distance_table((at + cases.origin).astype(np.float64), cases.setting)
            for at in (queries, keys)
        ]
        for key, members in groups.items():
            left, right = (
                exact_scores.rotated(
                    round_to(x, key.input).astype(np.float64), table, cases.setting, key.precision, by
                )
                for x, table, by in zip((q, k), tables, (cases.setting.scale, 1.0), strict=True)
            )
            reference = exact_scores.paired(left, right)
            for index in members:
                _compare(cases, index, (q, k), (queries, keys), (left, right), reference, some, result)
    return result


def _compare(
    cases: Plan[SampledQK],
    index: int,
    sides: tuple[Array, Array],
    places: tuple[Any, Any],
    factors: tuple[Factor, Factor],
    reference: tuple[Array, Array | None],
    some: slice,
    results: CellResult,
) -> None:
    """Form a subject's scores of a block at every offset; gather their drift and self-drift."""
    subject, (high, low) = cases.subjects[index], reference
    given = [round_to(side, subject.input) for side in sides]
    weights, exact, base = cases.inputs.pairs.weight[some], exact_scores.joined(high, low), np.empty(0)
    for number, offset in enumerate(cases.offsets[index]):
        q, k = (
            scores.operand(rotate(x, subject.table(at, offset)), subject)
            for rotate, x, at in zip((subject.rotate, key_rotation(subject)), given, places, strict=True)
        )
        formed = scores.form_pairs(q, k, subject, cases.setting.scale)
        measured = results[index, offset]
        _estimated(measured.reference).take(exact, weights, some.start)
        measured.error = exact_scores.certificate(*factors)
        drift = formed - high if low is None else (formed - high) - low
        _estimated(measured.drift).take(drift, weights, some.start)
        if number:
            _estimated(measured.own).take(formed - base, weights, some.start)
        else:  # the difference of a score to itself: 0, or nan where it is not finite
            base = formed.astype(np.float64, copy=False)
            measured.own.count, measured.own.nonfinite = measured.drift.count, measured.drift.nonfinite


def _place(measured: Measured, plotted: SampledQK) -> None:
    """Say where the largest values stand: until here their number among the pairs was kept."""
    for spread in (measured.drift, measured.own):
        if spread.place is not None:
            number = spread.place[2]
            where = plotted.pairs.head, plotted.pairs.query, plotted.pairs.key
            head, query, key = (int(part[number]) for part in where)
            spread.place = head, query, key
