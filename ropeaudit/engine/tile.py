"""One tile of scores: the reference, every subject's scores, and their differences.

Letters: s positions, d head_dim, r and c rows and columns of the tile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic

from ropeaudit.arithmetic.formats import FP64
from ropeaudit.engine import kernel
from ropeaudit.engine.array_library import A
from ropeaudit.engine.kernel import ExactScores, Workspace
from ropeaudit.engine.plan import CellIndex, CellStatistics, Key, Plan
from ropeaudit.engine.statistics import Block
from ropeaudit.inputs.qk import Inputs
from ropeaudit.reference import exact_scores
from ropeaudit.reference.exact_scores import Factor

TILE_ROWS, TILE_COLUMNS = 512, 512  # a tile's few arrays stay in a core's cache


@dataclass(frozen=True, slots=True)
class RotatedPanel(Generic[A]):
    """q or k of one head and one panel, rotated by every subject and by the reference.

    Rotated q are (s, d); rotated k are (d, s), so that a tile's product runs over contiguous rows.
    nonfinite: cells in which every row of q or every column of k holds a nan, and so every score is one.
    """

    subjects: dict[CellIndex, A] = field(default_factory=dict)
    reference: dict[Key, Factor] = field(default_factory=dict)
    nonfinite: set[CellIndex] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Tile(Generic[A]):
    """Some queries of a head with some keys. in_q, in_k: where they stand in the rotated panels."""

    plan: Plan[Inputs]
    block: Block[A]
    q: RotatedPanel[A]
    k: RotatedPanel[A]
    in_q: slice
    in_k: slice
    workspace: Workspace[A]

    def measure(self, key: Key, members: Sequence[int], results: Mapping[CellIndex, CellStatistics]) -> None:
        """Compute the reference of a key, and compare its subjects, the `members`, with it."""
        q, k = self.q.reference[key], self.k.reference[key]
        joined, high, low = (self.workspace.array(number, FP64, self.block.shape) for number in (0, 3, 4))
        exact: ExactScores[A] = exact_scores.product(q.rows(self.in_q), k.rows(self.in_k), high, low)  # type: ignore[arg-type,assignment]
        cells = {index: [(index, offset) for offset in self.plan.offsets[index]] for index in members}
        of_key = [results[cell] for index in members for cell in cells[index]]
        kernel.gather_reference(exact, exact_scores.certificate(q, k), self.block, of_key, joined)
        for index in members:
            kernel.measure(
                self.plan.subjects[index],
                map(self.operands, cells[index]),
                self.plan.setting.scale,
                exact,
                self.block,
                [results[cell] for cell in cells[index]],
                self.workspace,
            )

    def operands(self, cell: CellIndex) -> tuple[A, A] | None:
        """Return rotated q and k of the tile; None if every score is nan. Shapes: (r, d), (d, c)."""
        if cell in self.q.nonfinite or cell in self.k.nonfinite:
            return None
        return self.q.subjects[cell][self.in_q], self.k.subjects[cell][:, self.in_k]
