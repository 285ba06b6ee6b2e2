"""What a kernel wrote back, as code that is called: each call is looked up among the calls of the case.

A gradient is the inverse rotation. With the second number of each pair negated, before and after, it is the
rotation itself, exactly; so it is judged as one.
Letters: b batch elements, h heads of q, g of k, n positions of a call, s of the case, d head_dim.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np

from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.conformance.case_calls import CaseCall, Key
from ropeaudit.conformance.returned_files import Arrays
from ropeaudit.conformance.vector_case import CaseSpec, VectorCase
from ropeaudit.recognition.verification import GivenVectors
from ropeaudit.rope.axes import Axes
from ropeaudit.rope.setting import Layout, RopeSetting
from ropeaudit.subjects import Positions, Subject
from ropeaudit.subjects.calling.called import Called
from ropeaudit.subjects.calling.code import Code, Rotator
from ropeaudit.subjects.factories import SubjectFactory

Sides: TypeAlias = tuple[FloatArray, FloatArray]  # q (b, h, s, d) and k (b, g, s, d)


class NotAsked(LookupError):
    """A call that is not one of the case."""


class CaseVectors(GivenVectors):
    """The vectors of a case, all batch elements as they were given, for `verification.check`."""

    def __init__(self, given: Sides, seed: int, at: Positions | None = None) -> None:
        """Take q and k of all batch elements. at: the positions (s,) of the first; a run from 0 if None."""
        every = np.arange(given[0].shape[2], dtype=np.int64)
        super().__init__(given[0][0], given[1][0], every if at is None else at, seed)
        object.__setattr__(self, "given", given)

    given: Sides

    def blocks(self, dtype: Format) -> Iterator[tuple[FloatArray, FloatArray, Positions]]:
        """Yield q, k and positions, all at once, as the kernel got them."""
        yield *self.given, self.positions


class ReturnedCode(Code, Rotator):
    """What was written back for a case: each call is looked up."""

    engine = "files"

    def __init__(self, case: VectorCase, arrays: Arrays, name: str) -> None:
        """Read what was given; arrays: what was written back, by call and name."""
        self.case, self.name, self.spec = case, name, case.spec
        self.layouts: tuple[Layout, ...] = (case.spec.setting.layout,)
        self.given, self.rotated = forward(case, arrays)
        self._rows = {
            (side, row.tobytes()): (b, h, i)
            for side, x in enumerate(self.given)
            for (b, h), rows in ((at, x[at]) for at in np.ndindex(x.shape[:2]))
            for i, row in enumerate(rows)
        }

    @property
    def version(self) -> str:
        """The beginning of the case's digest."""
        return self.case.digest[:19]

    def refuses(self, setting: RopeSetting, dtype: Format) -> str:
        """Return why a setting or dtype is not that of the case."""
        if setting == self.spec.setting and dtype is self.spec.dtype:
            return ""
        return "the case is of another setting or dtype"

    def rotator(self, setting: RopeSetting, dtype: Format) -> ReturnedCode:
        """Return what looks calls up."""
        return self

    def rotate_one(self, x: FloatArray, at: Positions, key: bool) -> FloatArray:
        """Return what was written back for heads of one batch element. Shapes: (h, n, d), (n,) -> (h, n, d).

        Raises: NotAsked.
        """
        return np.stack([self._head(head, at, int(key)) for head in x])

    def _head(self, x: FloatArray, at: Positions, side: int) -> FloatArray:
        b, h, first = self._rows.get((side, x[:1].tobytes()), (-1, -1, -1))
        part = slice(first, first + len(x))
        if b < 0 or not np.array_equal(self.given[side][b, h, part], x):
            raise NotAsked("vectors that the case does not give")
        rotated: FloatArray = self._call(int(at[0]) - first, first, at)[side][b, h, part]
        return rotated

    def rotate_both(self, q: FloatArray, k: FloatArray, at: Positions) -> Sides:
        """Return what was written back for q and k of all batch elements. Raises: NotAsked."""
        if at.ndim != 1 or not all(map(np.array_equal, (q, k), self.given)):
            raise NotAsked("vectors that the case does not give")
        return self._call(int(at[0]), 0, at)

    def _call(self, offset: int, first: int, at: Positions) -> Sides:
        if offset not in self.rotated or not np.array_equal(at, np.arange(len(at)) + offset + first):
            raise NotAsked(f"positions from {int(at[0])}, which the case does not ask for")
        return self.rotated[offset]


class ReturnedCall(Rotator):
    """What was written back for a call with sizes of its own; it was made once, and is looked up."""

    def __init__(self, code: ReturnedCode, call: CaseCall) -> None:
        """Take the call of a case."""
        q, k = code.given
        self.call, self.given, self.rotated = call, (call.part(q, False), call.part(k, True)), code.rotated

    def rotate_one(self, x: FloatArray, at: Positions, key: bool) -> FloatArray:
        """Raise NotAsked: q and k were written back together."""
        raise NotAsked("a part of a call")

    def rotate_both(self, q: FloatArray, k: FloatArray, at: Positions) -> Sides:
        """Return what was written back for the q, k and positions that were given. Raises: NotAsked."""
        asked = np.array_equal(np.broadcast_to(at, (len(q), q.shape[2])), self.call.positions())
        if not asked or not all(map(np.array_equal, (q, k), self.given)):
            raise NotAsked(f"vectors or positions that are not those of {self.call.key}")
        return self.rotated[self.call.key]


class ReturnedSubject(Called):
    """What was written back, as a subject of an audit."""

    code: ReturnedCode

    def refusal(self, seq_len: int, offset: int) -> str:
        """Return why an offset cannot be judged; empty for those of the case."""
        return "" if offset in self.code.rotated else "the case does not ask for it"

    def together(self, q: FloatArray, k: FloatArray, wanted: Positions | None = None) -> None:
        """Look each head up by itself: nothing is called, and batch elements were written back together."""

    def distinct_positions(self, positions: Positions) -> int:
        """Return how many positions there are: how many stay different is not seen of random vectors."""
        return int(positions.size)


def factory(code: ReturnedCode) -> SubjectFactory:
    """Return the maker of a subject."""

    def make(setting: RopeSetting, axes: Axes | None) -> Subject:
        return ReturnedSubject(code, setting, code.spec.dtype)

    dtype = code.spec.dtype
    return SubjectFactory(code.name, dtype, make, {"input": dtype.name}, lambda setting: setting.layout)


def forward(case: VectorCase, arrays: Arrays) -> tuple[Sides, dict[Key, Sides]]:
    """Return what was given and what was written back of each call, as of the rotation itself."""
    spec, vectors = case.spec, case.vectors()
    gradient = spec.want == "gradient"
    names = (
        [("grad_rotated_q", "grad_q"), ("grad_rotated_k", "grad_k")] if gradient else [("q", "q"), ("k", "k")]
    )

    def seen(x: FloatArray) -> FloatArray:
        return conjugate(x, spec) if gradient else x

    given = seen(vectors[names[0][0]]), seen(vectors[names[1][0]])
    rotated = {key: (seen(of[names[0][1]]), seen(of[names[1][1]])) for key, of in arrays.items()}
    return given, rotated


def conjugate(x: FloatArray, spec: CaseSpec) -> FloatArray:
    """Return x with the second number of each rotated pair negated. Shapes: (..., d) -> (..., d)."""
    setting, y = spec.setting, x.copy()
    r = setting.rotary_dim
    second = slice(r // 2, r) if setting.layout == "half" else slice(1, r, 2)
    y[..., second] *= -1
    return y
