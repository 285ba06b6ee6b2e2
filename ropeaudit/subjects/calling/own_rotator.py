"""One instance of own code, called as was found out.

Letters: b batch, h heads of q, g heads of k, s positions, d head_dim.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime import process_state
from ropeaudit.subjects import Positions
from ropeaudit.subjects.calling.arrays import Refilling, Strides
from ropeaudit.subjects.calling.code import Rotator
from ropeaudit.subjects.calling.conventions import Answer, Convention
from ropeaudit.subjects.calling.detection import Fit
from ropeaudit.subjects.calling.environments import Environment
from ropeaudit.subjects.calling.timeout import together
from ropeaudit.subjects.exact_rotation import half_split

if TYPE_CHECKING:
    from ropeaudit.subjects.calling.own_code import OwnCode

T = TypeVar("T")


@dataclass(slots=True)
class OwnRotator(Rotator):
    """An instance of own code that is called."""

    own: OwnCode
    fit: Fit
    setting: RopeSetting
    dtype: Format
    instance: Any

    @property
    def has_past(self) -> bool:
        """Whether it is a function that may have been called before, and may keep something of that."""
        return not self.own.executed_anew and self.instance is self.own.thing

    def afresh(self) -> OwnRotator:
        """Return a rotator of an instance that has not been called yet."""
        return self.own.rotator(self.setting, self.dtype)

    def rotate_one(self, x: FloatArray, at: Positions, key: bool) -> FloatArray:
        """Return x rotated, as what is returned for q or for k, where both are given."""
        answer = self.answer(x[None], None, at)
        rotated: FloatArray = (answer.keys if key and answer.keys is not None else answer.values)[0]
        return rotated

    def rotate_both(self, q: FloatArray, k: FloatArray, at: Positions) -> tuple[FloatArray, FloatArray]:
        """Return q and k rotated, by one call where it takes both, dims in the order they were given."""
        first, second = self.rotate_whole(q, k, at)
        if not self.fit.permuted:
            return first, second
        back = np.argsort(half_split(self.setting.rotary_dim, self.setting.head_dim))
        return first[..., back], second[..., back]

    def rotate_whole(self, q: FloatArray, k: FloatArray, at: Positions) -> tuple[FloatArray, FloatArray]:
        """Return the same with dims in the order in which the code returns them."""
        if self.fit.convention.takes_keys:
            answer = self.answer(q, k, at)
            first, second = answer.values, answer.keys
            if second is None:  # it takes k and returns q alone
                second = self.answer(k, None, at).values
        else:
            first = self.answer(q, None, at).values
            second = first if k is q else self.answer(k, None, at).values
        return first, second

    def together(self, calls: Callable[[], T], what: str) -> T:
        """Return what `calls` returns, which calls this instance many times in a row, in one state."""
        with process_state.at_home(self.own.state()):
            result: T = together(calls, what)
        return result

    def lying(self, strides: Strides, index: Literal["int64", "int32"] = "int64") -> OwnRotator:
        """Return the same instance, given vectors that lie so in memory, and positions as such integers."""

        def of(convention: Convention) -> Convention:
            return replace(convention, strides=strides, index=index)

        rows = None if self.fit.rows is None else of(self.fit.rows)
        return replace(self, fit=replace(self.fit, convention=of(self.fit.convention), rows=rows))

    def refilling(self) -> OwnRotator:
        """Return the same instance, given positions in one tensor that each call fills anew."""
        return replace(self, instance=Refilling(self.instance))

    def otherwise(self, dtype: Format, environment: Environment | None = None) -> OwnRotator:
        """Return the same instance, called in another dtype, and in an environment where one is given."""
        if environment is None:
            return replace(self, dtype=dtype)
        wrapped = environment.wrapped(self.instance, self.own.device.name)
        return replace(self, dtype=dtype, own=self.own.under(environment), instance=wrapped)

    def answer(self, q: FloatArray, k: FloatArray | None, at: Positions) -> Answer:
        """Return what one call gives, with what it did beside; k is q where it is None.

        Shapes: (b, h, s, d), (b, g, s, d), (s,) or (b, s) where it takes them.
        """
        convention = self.fit.rows if at.ndim == 2 and self.fit.rows is not None else self.fit.convention
        if self.own.narrow_tables(self.fit, self.setting, self.dtype):
            convention = replace(convention, narrow=True)
        with process_state.at_home(self.own.state()):
            answer = convention(self.instance, q, at, self.setting, self.dtype, k, self.own.changes)
        self.own.note_answer(answer, self.dtype)
        return answer
