"""Whether another engine agrees with NumPy: a corner of a tile computed by both, step by step.

Each step is given the numbers of the engine under test, so that no step hides another. What rounds element by
element (rotations, the exact part of the reference, scaling and storing) must be the same bits; a sum of d
products may run in another order, and differ by what that can change (Higham, Accuracy and Stability,
section 3.1: gamma_d times the sum of sizes, on either side); the statistics of the same numbers by roundings.

Letters: r and c rows and columns of the corner, d head_dim.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ropeaudit.arithmetic.arrays import bits_differ
from ropeaudit.arithmetic.formats import FP32, FP64, FloatArray
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.engine import kernel, scores
from ropeaudit.engine.array_library import NUMPY, ArrayLibrary
from ropeaudit.engine.plan import CellIndex, Plan
from ropeaudit.engine.statistics import Block, Statistics
from ropeaudit.engine.tile import Tile
from ropeaudit.errors import EnginesDiffer
from ropeaudit.inputs.qk import Inputs
from ropeaudit.reference import exact_scores
from ropeaudit.reference.exact_scores import Factor
from ropeaudit.subjects import Subject

CORNER = 128  # rows and columns that are compared
_SUMS = 2.0**-30  # of statistics: RMS values of a million numbers are 2^-33 apart at most in any order


def check(tile: Tile[Any], head: int, rows: slice, keys: slice) -> None:
    """Compute the last rows and keys of a tile in NumPy too. Raises: EnginesDiffer."""
    in_q, in_k = _last(tile.in_q), _last(tile.in_k)
    part = Tile(tile.plan, tile.block, tile.q, tile.k, in_q, in_k, tile.workspace)
    Corner(tile.plan, tile.block.library, head, _last(rows), _last(keys)).check(part)


def _last(part: slice) -> slice:
    return slice(max(part.start, part.stop - CORNER), part.stop)


class Corner:
    """Some rows of a head of q and of k."""

    def __init__(
        self, plan: Plan[Inputs], library: ArrayLibrary[Any], head: int, rows: slice, keys: slice
    ) -> None:
        self.library, self.plan, self.head = library, plan, head
        self.rows, self.keys = rows, keys
        inputs = plan.inputs
        self.kv_head = head // inputs.group
        self.given = inputs.q[head][rows], inputs.k[self.kv_head][keys]
        self.positions = [np.arange(part.start, part.stop, dtype=np.int64) for part in (rows, keys)]
        self.block: Block[Any] = Block.tile(plan.mask, head, rows, keys)

    def check(self, tile: Tile[Any]) -> None:
        """Compare reference and subjects of a tile. Raises: EnginesDiffer."""
        tables = [
            exact_scores.distance_table((at + self.plan.origin).astype(np.float64), self.plan.setting)
            for at in self.positions
        ]
        for key, members in self.plan.keys().items():
            mine = kernel.exact_factors(
                self.given, key.input, (tables[0], tables[1]), self.plan.setting, key.precision
            )
            seen = tile.q.reference[key].rows(tile.in_q), tile.k.reference[key].rows(tile.in_k)
            exact = self._check_reference(mine, seen)
            for index in members:
                for offset in self.plan.offsets[index]:
                    operands = tile.operands((index, offset))
                    assert operands is not None  # noqa: S101 for mypy: the engines under test look for no nan
                    self.check_cell((index, offset), operands, exact)

    def _check_reference(
        self, mine: tuple[Factor, Factor], other: tuple[Factor, Factor]
    ) -> tuple[FloatArray, FloatArray | None]:
        """Return the engine's exact scores, once they are known to be right."""
        q, k = other
        for own, theirs in zip(mine, other, strict=True):
            for name in ("whole", "head", "rest"):
                if getattr(own, name) is not None:
                    seen = self.library.given_back(getattr(theirs, name))
                    self.same(f"the reference's {name} rotated vectors", getattr(own, name), seen)
        wanted, parts = exact_scores.product(*mine), exact_scores.product(q, k)
        high = self.library.given_back(parts[0])
        low = None if parts[1] is None else self.library.given_back(parts[1])
        if wanted[1] is not None:
            self.same("the exact part of the reference's scores", wanted[0], high)
        error = 2 * max(exact_scores.certificate(*mine), exact_scores.certificate(q, k))
        if wanted[1] is None or low is None:
            self._near("the reference's scores", wanted[0], high, error)
        else:
            self._near("the reference's scores", wanted[1], low, error)
        return high, low

    def check_cell(
        self, cell: CellIndex, factors: tuple[Any, Any], exact: tuple[FloatArray, FloatArray | None]
    ) -> None:
        """Compare a subject at an offset: rotated vectors, sums, stored scores, statistics.

        factors: rotated q and k of the engine. exact: exact scores. Shapes: (r, d), (d, c), two of (r, c).
        Raises: EnginesDiffer.
        """
        subject = self.plan.subjects[cell[0]]
        what = f"{subject.name} in {subject.dtype} at offset {cell[1]}"
        q, k = (self.library.given_back(x) for x in factors)
        if self.library.rotates(subject):
            for own, other in zip(self._rotated(subject, cell[1]), (q, k), strict=True):
                self.same(f"rotated vectors of {what}", own, other)
        fmt = scores.tile_format(subject)
        out, mine = self.library.empty(self.block.shape, fmt), NUMPY.empty(self.block.shape, fmt)
        scores.accumulate(self.library, *factors, subject, out)
        scores.accumulate(NUMPY, q, k, subject, mine)
        self._near(f"sums of products of {what}", mine, self.library.given_back(out), _order(subject, q, k))
        mine = self.library.given_back(out)
        scores.store(self.library, out, subject, self.plan.setting.scale)
        scores.store(NUMPY, mine, subject, self.plan.setting.scale)
        self.same(f"stored scores of {what}", mine, self.library.given_back(out))
        self._check_statistics(what, out, mine, exact)

    def _rotated(self, subject: Subject, offset: int) -> tuple[FloatArray, FloatArray]:
        """Return q and k as NumPy rotates them. Shapes: -> (r, d), (d, c)."""
        heads, results = (self.head, self.kv_head), []
        for side, x, at, head in zip(("q", "k"), self.given, self.positions, heads, strict=True):
            table = subject.table(at, offset)
            rotated = kernel.rotate(subject, side, round_to(x, subject.input), table, head)  # type: ignore[arg-type]
            results.append(scores.operand(rotated, subject))
        return results[0], results[1].T

    def _check_statistics(
        self, what: str, formed: Any, mine: FloatArray, exact: tuple[FloatArray, FloatArray | None]
    ) -> None:
        """Compare the statistics of the same scores."""
        results = []
        for library, values in ((NUMPY, mine), (self.library, formed)):
            parts = library.taken(tuple(part for part in exact if part is not None))
            block = Block.tile(self.plan.mask, self.head, self.rows, self.keys, library)
            pair = parts[0], parts[1] if len(parts) > 1 else None
            drift = kernel.minus_exact(library, library.converted(values, FP64), pair, block.hidden)
            gathered = Statistics()
            gathered.add(drift, block)
            library.settle()
            results.append(gathered)
        own, other = results
        compare(own, other, f"the drift of {what}")

    def same(self, what: str, own: FloatArray, other: FloatArray) -> None:
        """Raise EnginesDiffer unless both are the same bits; a nan is like every other nan."""
        self._all(what, ~bits_differ(own, other), own, other)

    def _near(self, what: str, own: FloatArray, other: FloatArray, error: Any) -> None:
        """Raise EnginesDiffer unless both are within an error that is finite, wherever it is."""
        close = np.abs(own.astype(np.float64) - other) <= error
        alike = close | (own == other) | (np.isnan(own) & np.isnan(other)) | ~np.isfinite(error)
        self._all(what, alike, own, other)

    def _all(self, what: str, alike: Any, own: FloatArray, other: FloatArray) -> None:
        if not alike.all():
            where = np.unravel_index(int(np.argmin(alike)), alike.shape)
            raise differ(
                f"{what} ({int((~alike).sum())} of {alike.size})", own[where].item(), other[where].item()
            )


def compare(own: Statistics, other: Statistics, what: str) -> None:
    """Raise EnginesDiffer unless NumPy's statistics and another engine's are of the same numbers."""
    for name in ("count", "nonfinite", "largest", "place"):
        if getattr(own, name) != getattr(other, name):
            raise differ(f"{name} of {what}", getattr(own, name), getattr(other, name))
    sizes = {"squares": own.squares, "absolute": own.absolute, "total": own.absolute}
    for name, size in sizes.items():
        first, second = getattr(own, name), getattr(other, name)
        if not abs(first - second) <= _SUMS * size:
            raise differ(f"sum ({name}) of {what}", first, second)


def _order(subject: Subject, q: FloatArray, k: FloatArray) -> FloatArray:
    """Bound how far apart sums of the same products are; inf where they may overflow on the way.

    A narrow accumulator adds one by one in both engines. Shapes: q (r, d), k (d, c) -> (r, c).
    """
    single = subject.accumulate is FP32 and q.dtype == np.float32
    sizes = np.abs(q).astype(np.float64) @ np.abs(k).astype(np.float64)
    if not single and subject.accumulate is not FP64:
        return np.where(np.isfinite(sizes), 0.0, np.inf)
    fmt = FP32 if single else FP64
    n = (q.shape[1] + 1) * fmt.unit_roundoff
    bound = 2 * n / (1 - n) * sizes + 2 * q.shape[1] * fmt.smallest_subnormal
    return np.where(sizes < fmt.largest / 2, bound, np.inf)


def differ(what: str, own: object, other: object) -> EnginesDiffer:
    """Return the error for numbers that differ: NumPy's own and another engine's."""
    return EnginesDiffer(
        f"the torch engine and NumPy differ in {what}: {other!r} against {own!r}; nothing that it measures "
        "on this device can be relied on: give --engine numpy"
    )
