"""Scores of sampled pairs, of subjects and of the reference, into statistics.

Each pair is rotated at its own positions. A float32 or float64 sum of the d products may run in another
order than in a tile's product (`scores.form_pairs`); narrower accumulators
and the exact reference know no difference.
Letters: n pairs of a block, d head_dim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ropeaudit.arithmetic.formats import FloatArray
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.engine import kernel, scores
from ropeaudit.engine.kernel import Workspace
from ropeaudit.engine.plan import CellIndex, CellStatistics, Key, Plan
from ropeaudit.engine.statistics import Block
from ropeaudit.inputs.sampled_rows import SampledInputs
from ropeaudit.reference import exact_scores
from ropeaudit.runtime.threads import mapping

BLOCK = 2048  # pairs at once


def measure(
    cases: Plan[SampledInputs], threads: int, progress: Callable[[float], None]
) -> dict[CellIndex, CellStatistics]:
    """Return what was measured, for every cell of the plan; `progress` gets the share done."""
    results, count = {cell: CellStatistics.sampled() for cell in cases.cells()}, len(cases.inputs)
    pairs = _Pairs(cases)
    blocks = [slice(i, min(i + BLOCK, count)) for i in range(0, count, BLOCK)]
    with mapping(threads) as mapped:
        for rows, part in zip(blocks, mapped(pairs.measure, blocks), strict=True):
            for cell, measured in part.items():
                results[cell].merge(measured)
            progress(rows.stop / count)
    chosen = cases.inputs.pairs
    for measured in results.values():
        for statistics in (measured.drift, measured.self_drift):
            if statistics.place is not None:
                at = statistics.place[2]
                statistics.place = int(chosen.head[at]), int(chosen.query[at]), int(chosen.key[at])
    return results


class _Pairs:
    """The sampled pairs of a plan, a block at a time."""

    def __init__(self, cases: Plan[SampledInputs]) -> None:
        self.plan, self.groups = cases, cases.keys()
        self.workspace = Workspace()

    def measure(self, rows: slice) -> dict[CellIndex, CellStatistics]:
        """Measure all cells over some of the pairs."""
        results = {cell: CellStatistics.sampled() for cell in self.plan.cells()}
        pairs, origin, setting = self.plan.inputs.pairs, self.plan.origin, self.plan.setting
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):
            tables = (
                exact_scores.distance_table((pairs.query[rows] + origin).astype(np.float64), setting),
                exact_scores.distance_table((pairs.key[rows] + origin).astype(np.float64), setting),
            )
            for key, members in self.groups.items():
                self._measure_key(key, members, rows, tables, results)
        return results

    def _measure_key(
        self,
        key: Key,
        members: list[int],
        rows: slice,
        tables: tuple[Any, Any],
        results: dict[CellIndex, CellStatistics],
    ) -> None:
        """Compute the reference of a key, and compare its subjects, the `members`, with it."""
        setting, sampled = self.plan.setting, self.plan.inputs
        block = Block.pairs(rows.start, sampled.pairs.weight[rows])
        sides = sampled.q[rows], sampled.k[rows]
        q, k = kernel.exact_factors(sides, key.input, tables, setting, key.precision)
        exact, error = exact_scores.paired(q, k), exact_scores.certificate(q, k)
        for index in members:
            of_subject = [results[index, offset] for offset in self.plan.offsets[index]]
            kernel.gather_reference(exact, error, block, of_subject)
            operands = self._operands(index, sides, rows)
            subject = self.plan.subjects[index]
            kernel.measure(subject, operands, setting.scale, exact, block, of_subject, self.workspace)

    def _operands(
        self, index: int, sides: tuple[FloatArray, FloatArray], rows: slice
    ) -> Iterator[tuple[FloatArray, FloatArray]]:
        """Yield q and k of the pairs as the subject rotates them, at every offset. Shapes: (n, d) twice."""
        subject, pairs = self.plan.subjects[index], self.plan.inputs.pairs
        x, y = (round_to(side, subject.input) for side in sides)
        for offset in self.plan.offsets[index]:
            q = kernel.rotate(subject, "q", x, subject.table(pairs.query[rows], offset))
            k = kernel.rotate(subject, "k", y, subject.table(pairs.key[rows], offset))
            yield scores.operand(q, subject), scores.operand(k, subject)
