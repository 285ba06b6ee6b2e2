"""Two ways to rotate the same q and k: how far their scores differ, and which is nearer to the exact ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.formats import Format
from ropeaudit.arithmetic.rounding import bits_differ, round_to
from ropeaudit.engine import kernel
from ropeaudit.engine.kernel import Side
from ropeaudit.engine.measure import Rotated, Tile, Tiles
from ropeaudit.engine.plan import Plan
from ropeaudit.engine.statistics import Moments, Statistics
from ropeaudit.inputs import masks
from ropeaudit.inputs.qk import Inputs
from ropeaudit.reference import exact_scores
from ropeaudit.runtime import doing, run_metadata
from ropeaudit.runtime.threads import Map, mapping, worth

Dims: TypeAlias = NDArray[np.int64]  # an order of dims
_EQUAL = 0.005  # share by which two RMS drifts must differ for one to be nearer


@dataclass(slots=True)
class PairStatistics:
    """Statistics of two subjects, a and b, over the same scores. Units: score units.

    drifts: of each against its own reference. references: the exact scores of each. difference: a's scores
    minus b's. nearer: how many scores of each are nearer to the exact ones than the other's. error: the
    certificate of the reference. elements: how many of rotated q and k were compared bit by bit; differing:
    how many of these are not the same.
    """

    drifts: tuple[Statistics, Statistics] = field(default_factory=lambda: (Statistics(), Statistics()))
    references: tuple[Statistics, Statistics] = field(
        default_factory=lambda: (Statistics(Moments.SQUARES), Statistics(Moments.SQUARES))
    )
    difference: Statistics = field(default_factory=Statistics)
    nearer: tuple[int, int] = (0, 0)
    error: float = 0.0
    elements: int = 0
    differing: int = 0

    def merge(self, later: PairStatistics) -> None:
        """Take in what was gathered over later tiles."""
        for name in ("drifts", "references"):
            for mine, other in zip(getattr(self, name), getattr(later, name), strict=True):
                mine.merge(other)
        self.difference.merge(later.difference)
        self.nearer = self.nearer[0] + later.nearer[0], self.nearer[1] + later.nearer[1]
        self.error = max(self.error, later.error)

    def winner(self) -> int | None:
        """Return 0 or 1, the one with the smaller RMS drift, -1 if they are equal, None if both are nan.

        Equal: to within `_EQUAL`, or within the certified error of the reference.
        """
        first, second = (drift.rms for drift in self.drifts)
        if np.isnan(first) or np.isnan(second):
            return None if np.isnan(first) and np.isnan(second) else int(np.isnan(first))
        alike = max(self.error, _EQUAL * max(first, second))
        return -1 if abs(first - second) <= alike else int(second < first)


def compare(cases: Plan[Inputs], bits: Format) -> PairStatistics:
    """Return what is measured of the two subjects of a plan, at one offset.

    bits: the format in which rotated q and k are compared bit by bit.
    """
    inputs, result = cases.inputs, PairStatistics()
    total = masks.count(cases.mask, inputs.seq_len) * inputs.heads
    with mapping(worth(min(run_metadata.threads(), inputs.heads), inputs.seq_len)) as mapped:
        tiles = _PairTiles(cases, mapped, bits)
        for part in tiles.strips():
            result.merge(part)
            doing.step(result.difference.count / total)
    result.elements = sum(elements for elements, _ in tiles.compared.values())
    result.differing = sum(differing for _, differing in tiles.compared.values())
    return result


class _PairTiles(Tiles[PairStatistics]):
    """The scores of two subjects against each other.

    compared: how many elements of rotated q and k there are, and how many differ, by side, head and panel.
    """

    def __init__(self, cases: Plan[Inputs], mapped: Map, bits: Format) -> None:
        super().__init__(cases, mapped)
        self.bits, self.cells = bits, cases.cells()
        keys = {index: key for key, members in self.groups.items() for index in members}
        self.keys = [keys[index] for index, _ in self.cells]
        self.compared: dict[tuple[Side, int, int], tuple[int, int]] = {}

    def empty(self) -> PairStatistics:
        return PairStatistics()

    def rotated(self, side: Side, head: int, panel: slice) -> Rotated:
        result, where = super().rotated(side, head, panel), (side, head, panel.start)
        if where not in self.compared:
            first, second = (round_to(result.subjects[cell], self.bits) for cell in self.cells)
            self.compared[where] = first.size, int(np.count_nonzero(bits_differ(first, second)))
        return result

    def gather(self, tile: Tile, result: PairStatistics) -> None:
        """Form both scores of a tile and take in their differences."""
        exact = {key: tile.factors(key) for key in self.groups}
        result.error = max(result.error, *(exact_scores.certificate(q, k) for q, k in exact.values()))
        scores = {key: exact_scores.product(q, k) for key, (q, k) in exact.items()}
        subjects = [self.plan.subjects[index] for index, _ in self.cells]
        formed = [
            kernel.formed(*tile.operands(cell), subject, self.plan.setting.scale)
            for cell, subject in zip(self.cells, subjects, strict=True)
        ]
        block, sizes = tile.block, []
        difference = kernel.minus_exact(formed[0], (formed[1], None), block.hidden)
        scratch = np.empty_like(difference)
        result.difference.add(difference, block, scratch)
        for index, key in enumerate(self.keys):
            kernel.gather_exact(result.references[index], scores[key], block)
            drift = kernel.minus_exact(formed[index], scores[key], block.hidden)
            result.drifts[index].add(drift, block, scratch)
            sizes.append(np.abs(drift))
        nearer = int((sizes[0] < sizes[1]).sum()), int((sizes[1] < sizes[0]).sum())
        result.nearer = result.nearer[0] + nearer[0], result.nearer[1] + nearer[1]
