"""What code is called with before a call: in another dtype, of another shape, at other positions.

Letters: b batch, h heads, s positions, d head_dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.conformance.code_under_test import CodeUnderTest
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects.calling.code import Code, Rotator
from ropeaudit.subjects.calling.environments import Environment

FURTHER = 4096
SAME, OTHER_NUMBERS = "the same call", "other q and k"
_LONGEST = 2**16


@dataclass(frozen=True, slots=True)
class AuditCall:
    """A call of `batch` rows of `heads` heads at positions first ... first + length - 1."""

    dtype: Format
    first: int
    length: int
    batch: int = 1
    heads: int = 1

    def positions(self) -> str:
        """Return its positions in words."""
        return f"positions {self.first} to {self.first + self.length - 1}"


@dataclass(frozen=True, slots=True)
class EarlierCall:
    """A call that is made before another. kind: how it differs. environment: what it alone is made in."""

    kind: str
    call: AuditCall
    environment: Environment | None = None

    def __str__(self) -> str:
        """Return it in words."""
        words = f"a call in {self.call.dtype.name} at {self.call.positions()}"
        if self.kind in ("other heads", "other batch"):
            words += f" of {self.call.batch} x {self.call.heads} heads"
        return f"{words} under {self.environment.label()}" if self.environment else words

    def short(self, dtype: Format) -> str:
        """Return how it differs from a call in a dtype, in a few words."""
        other = self.environment.label() if self.environment else self.call.dtype.name
        return f"{self.kind} ({other})" if self.environment or self.call.dtype is not dtype else self.kind


def earlier_calls(
    call: AuditCall,
    dtypes: Sequence[Format],
    up_to: int,
    environments: Sequence[Environment] = (),
    axes: str = "bh",
) -> list[EarlierCall]:
    """Return what is called before a call, at positions below `up_to`. axes: those of q that the code has."""
    dtype, first, length = call.dtype, call.first, call.length
    until_now = first + length  # positions from 0
    last = max(0, up_to - length)
    elsewhere = first + FURTHER if first + FURTHER <= last else 0 if first else last
    from_0 = replace(call, first=0, length=until_now) if first > 0 and until_now <= _LONGEST else None
    earlier = [EarlierCall(SAME, call), EarlierCall(OTHER_NUMBERS, call)]
    for other in dtypes:
        if other is not dtype:
            earlier.append(EarlierCall("another dtype", replace(call, dtype=other)))
            if from_0:
                earlier.append(EarlierCall("another dtype from 0", replace(from_0, dtype=other)))
    earlier.append(EarlierCall("longer", replace(call, length=2 * length)))
    earlier.append(EarlierCall("shorter", replace(call, length=max(1, length // 2))))
    earlier.append(EarlierCall("another offset", replace(call, first=elsewhere)))
    if from_0:
        earlier.append(EarlierCall("from 0", from_0))
    if "h" in axes:
        earlier.append(EarlierCall("other heads", replace(call, heads=2 * call.heads)))
    if "b" in axes:
        earlier.append(EarlierCall("other batch", replace(call, batch=call.batch + 1)))
    earlier += [EarlierCall("another environment", call, environment) for environment in environments]
    return [
        one
        for one in earlier
        if one.call.first + one.call.length <= up_to
        and (one.call != call or one.environment or one.kind in (SAME, OTHER_NUMBERS))
    ]


def afresh(tested: Code, setting: RopeSetting, dtype: Format) -> bool:
    """Return whether a new instance has no past: a function that is loaded once may have one."""
    return tested.has_instances or tested.uncalled(setting, dtype) is not tested


def called_before(
    code: CodeUnderTest, earlier: EarlierCall, given: tuple[FloatArray, FloatArray]
) -> Rotator | str:
    """Return an instance that an earlier call was made of, or why that cannot be made.

    given: q and k of the call itself, (b, h, s, d). Raises: what the code raises.
    """
    before = earlier.call
    q, k = given if earlier.kind == SAME else (_vectors(code, before, side) for side in (1, 2))
    at = np.arange(before.length, dtype=np.int64) + before.first
    placed = code.tested.under(earlier.environment) if earlier.environment else code.tested
    if reason := placed.refuses(code.setting, before.dtype):
        return reason
    rotator = code.afresh()
    rotator.otherwise(before.dtype, earlier.environment).rotate_both(q, k, at)
    return rotator


def _vectors(code: CodeUnderTest, call: AuditCall, side: int) -> FloatArray:
    """Return the same random numbers in every dtype, rounded to it. Shapes: -> (b, h, s, d)."""
    shape = (call.batch, call.heads, call.length, code.setting.head_dim)
    x = round_to(np.random.default_rng([code.seed, side]).standard_normal(shape), call.dtype)
    return x.astype(call.dtype.carrier)
