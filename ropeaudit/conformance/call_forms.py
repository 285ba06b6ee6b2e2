"""Other ways to call the same code: by parts, a row alone, rows in another order. Each is a `Rotator`.

Letters: b batch, h heads, s positions, d head_dim.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ropeaudit.arithmetic.formats import FloatArray
from ropeaudit.subjects import Positions
from ropeaudit.subjects.calling.code import Rotator

Both = tuple[FloatArray, FloatArray]


@dataclass(slots=True)
class CallForm(Rotator):
    """One instance that is called in a way of its own."""

    rotator: Rotator

    @property
    def has_past(self) -> bool:
        """Whether it is a function that may have been called before; see `OwnRotator`."""
        return self.rotator.has_past

    def rows_of_call(self, row: int, length: int) -> slice:
        """Return which of so many rows the call takes that takes a row."""
        return slice(0, length)

    @abstractmethod
    def rotate_both(self, q: FloatArray, k: FloatArray, at: Positions) -> Both:
        """Return q and k rotated. Shapes: (b, h, s, d) twice, (s,) or (b, s) -> two arrays like q and k."""

    def rotate_one(self, x: FloatArray, at: Positions, key: bool) -> FloatArray:
        """Return x rotated as q, or as k. Shapes: (h, s, d), (s,) -> (h, s, d)."""
        rotated: FloatArray = self.rotate_both(x[None], x[None], at)[int(key)][0]
        return rotated


@dataclass(slots=True)
class Pieces(CallForm):
    """Parts of the sequence, one call each; lengths: of the parts, again from the first where they end."""

    lengths: Sequence[int]

    def rotate_both(self, q: FloatArray, k: FloatArray, at: Positions) -> Both:
        """Return q and k rotated, piece after piece."""

        def calls() -> list[Both]:
            return [
                self.rotator.rotate_both(q[:, :, part], k[:, :, part], at[..., part])
                for part in self._parts(at.shape[-1])
            ]

        rotated = self.rotator.together(calls, "a row of calls")
        first, second = (np.concatenate(parts, axis=2) for parts in zip(*rotated, strict=True))
        return first, second

    def rows_of_call(self, row: int, length: int) -> slice:
        """Return the rows of its piece."""
        return next(part for part in self._parts(length) if row < part.stop)

    def _parts(self, length: int) -> Iterator[slice]:
        start = 0
        for size in itertools.cycle(self.lengths):
            yield slice(start, min(start + size, length))
            start += size
            if start >= length:
                return


class PiecesAfresh(Pieces):
    """Parts of the sequence, each a call of an instance that was not called before."""

    afresh: Callable[[], Rotator]

    def __init__(self, afresh: Callable[[], Rotator], lengths: Sequence[int]) -> None:
        """afresh: makes an instance. lengths: of the parts, again from the first where they end."""
        super().__init__(afresh(), lengths)
        self.afresh = afresh

    def rotate_both(self, q: FloatArray, k: FloatArray, at: Positions) -> Both:
        """Return q and k rotated, each piece by an instance of its own."""
        rotated = [
            self.afresh().rotate_both(q[:, :, part], k[:, :, part], at[..., part])
            for part in self._parts(at.shape[-1])
        ]
        first, second = (np.concatenate(parts, axis=2) for parts in zip(*rotated, strict=True))
        return first, second


class Alone(CallForm):
    """Each batch element in a call of its own."""

    def rotate_both(self, q: FloatArray, k: FloatArray, at: Positions) -> Both:
        """Return q and k rotated, element after element."""
        rows = at if at.ndim == 2 else np.broadcast_to(at, (len(q), at.size))
        rotated = [
            self.rotator.rotate_both(q[b : b + 1], k[b : b + 1], rows[b : b + 1] if at.ndim == 2 else at)
            for b in range(len(q))
        ]
        first, second = (np.concatenate(elements) for elements in zip(*rotated, strict=True))
        return first, second


class Reversed(CallForm):
    """The batch elements and the heads in reverse order."""

    def rotate_both(self, q: FloatArray, k: FloatArray, at: Positions) -> Both:
        """Return q and k rotated, in the order in which they were given."""
        rows = np.ascontiguousarray(at[::-1]) if at.ndim == 2 else at
        q, k = (np.ascontiguousarray(x[::-1, ::-1]) for x in (q, k))
        first, second = self.rotator.rotate_both(q, k, rows)
        return first[::-1, ::-1], second[::-1, ::-1]
