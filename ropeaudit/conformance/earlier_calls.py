"""What code is called with before a call, and whether anything of it stays.

Letters: h heads, s positions, d head_dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np

from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions
from ropeaudit.subjects.calling.environments import Environment
from ropeaudit.subjects.calling.implementation import Implementation
from ropeaudit.subjects.calling.own_code import Own
from ropeaudit.subjects.calling.own_rotator import OwnRotator
from ropeaudit.subjects.third_party.adapter import Rotation

Instances: TypeAlias = tuple[Rotation, Rotation]  # an instance as it is called, and as it is called before
FURTHER = 4096
_HEADS, _LONGEST = 2, 2**16


@runtime_checkable
class Reusable(Protocol):
    """An implementation whose instance can be called again, in other dtypes too."""

    def instance(self, setting: RopeSetting, dtype: Format) -> Rotation:
        """Return the function of a new instance, made for a dtype, which takes the others too."""


class AuditCall(NamedTuple):
    """A call at positions first ... first + length - 1."""

    dtype: Format
    first: int
    length: int


def histories(call: AuditCall, dtypes: Sequence[Format]) -> list[tuple[str, AuditCall]]:
    """Return what is called before: how it differs, and the call."""
    dtype, first, length = call
    until_now = max(first, 0) + length  # positions from 0
    calls = [("the same call", call)]
    for other in dtypes:
        if other is not dtype:
            calls.append(("another dtype", AuditCall(other, first, length)))
            if first > 0 and until_now <= _LONGEST:
                calls.append(("another dtype from 0", AuditCall(other, 0, until_now)))
    calls += [
        ("longer", AuditCall(dtype, first, 2 * length)),
        ("shorter", AuditCall(dtype, first, max(1, length // 2))),
    ]
    calls.append(("another offset", AuditCall(dtype, first + FURTHER, length)))
    if first > 0 and until_now <= _LONGEST:
        calls.append(("from 0", AuditCall(dtype, 0, until_now)))
    return calls


def afresh(tested: Implementation, setting: RopeSetting, dtype: Format) -> bool:
    """Return whether `instance` has no past: a function that is loaded once may have one."""
    return not isinstance(tested, Own) or tested.has_instances or tested.anew(setting, dtype) is not None


def reusable(tested: Implementation) -> bool:
    """Return whether an instance can be called again, in other dtypes too."""
    return isinstance(tested, (Own, Reusable))


def instance(tested: Implementation, setting: RopeSetting, dtype: Format) -> Rotation:
    """Return the function of a new instance, made for a dtype, which takes the others too.

    A function of an installed package has but one instance. Raises: whatever the code raises.
    """
    if isinstance(tested, Own):
        return _called(tested.anew(setting, dtype) or tested.rotator(setting, dtype))
    if not isinstance(tested, Reusable):
        raise TypeError(f"instances of {tested.name} cannot be called again")
    return tested.instance(setting, dtype)


def under(tested: Own, environment: Environment, setting: RopeSetting, dtype: Format) -> Instances:
    """Return a new instance as it is called clean, and the same one as it is called in an environment."""
    clean = tested.anew(setting, dtype) or tested.rotator(setting, dtype)
    placed, wrapped = clean.own.under(environment), environment.wrapped(clean.instance, tested.device.name)
    return _called(clean), _called(replace(clean, own=placed, instance=wrapped))


def _called(rotator: OwnRotator) -> Rotation:
    def rotate(x: FloatArray, at: Positions, fmt: Format) -> FloatArray:
        answer = replace(rotator, dtype=fmt).answer(x[None], None, at)
        return answer.values[0] if answer.keys is None else np.concatenate([answer.values[0], answer.keys[0]])

    return rotate


def given(setting: RopeSetting, call: AuditCall, seed: int = 0) -> FloatArray:
    """Return the same random numbers in every dtype, rounded to it. Shapes: -> (h, s, d)."""
    shape = (_HEADS, call.length, setting.head_dim)
    x = round_to(np.random.default_rng(seed).standard_normal(shape), call.dtype)
    return x.astype(call.dtype.carrier)


def rotated(rotate: Rotation, setting: RopeSetting, call: AuditCall, seed: int = 0) -> FloatArray:
    """Call an instance. Shapes: -> (h, s, d), of code that rotates k too (2h, s, d): its rows behind q's."""
    positions = np.arange(call.length, dtype=np.int64) + call.first
    return rotate(given(setting, call, seed), positions, call.dtype).astype(np.float64)


def difference(after: FloatArray, fresh: FloatArray) -> float:
    """Return the largest difference; nan equals nan. Shapes: (h, s, d) twice."""
    same = (after == fresh) | (np.isnan(after) & np.isnan(fresh))
    with np.errstate(invalid="ignore"):
        apart = np.abs(np.where(same, 0.0, after - fresh))
    return float(np.where(np.isnan(apart), np.inf, apart).max())
