"""State that leaks: does an implementation give the same after it has been called in another way?

The same call is made on a fresh instance and on one that has been called before: in another dtype, for
another length, at another offset. What is returned must be the same to the last bit.
Letters: h heads, s positions, d head_dim.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.audits.cases import Case, positions_fit
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import third_party
from ropeaudit.subjects.calling import implementation
from ropeaudit.subjects.calling.implementation import Implementation
from ropeaudit.subjects.third_party.adapter import Rotation

_HEADS, _FURTHER, _LONGEST = 2, 4096, 2**16


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


@dataclass(frozen=True, slots=True)
class History:
    """What a call gives after another one. kind: how that one differs. Units: those of q and k.

    difference: largest |after it - on a fresh instance|, inf where one of the two alone is nan. refused: why
    the calls could not be made; empty where they could.
    """

    name: str
    version: str
    setting: RopeSetting
    call: AuditCall
    kind: str
    before: AuditCall
    difference: float
    refused: str = ""

    @property
    def leaks(self) -> bool:
        """Whether anything differs at all."""
        return self.difference > 0


def histories(call: AuditCall, dtypes: Sequence[Format]) -> list[tuple[str, AuditCall]]:
    """Return what is called before: how it differs, and the call."""
    dtype, first, length = call
    whole = max(first, 0) + length  # positions from 0
    results = [("the same call", call)]
    for other in dtypes:
        if other is not dtype:
            results.append(("another dtype", AuditCall(other, first, length)))
            if first > 0 and whole <= _LONGEST:
                results.append(("another dtype from 0", AuditCall(other, 0, whole)))
    results += [
        ("longer", AuditCall(dtype, first, 2 * length)),
        ("shorter", AuditCall(dtype, first, max(1, length // 2))),
    ]
    results.append(("another offset", AuditCall(dtype, first + _FURTHER, length)))
    if first > 0 and whole <= _LONGEST:
        results.append(("from 0", AuditCall(dtype, 0, whole)))
    return results


def run(
    cases: Sequence[Case],
    names: Sequence[str],
    dtypes: Sequence[Format],
    offsets: Sequence[int],
    progress: Callable[[float], None] = lambda share: None,
) -> Iterator[History]:
    """Yield what was found, case by case, implementation by implementation, dtype by dtype, offset by offset.

    Raises: UsageError, UnknownName, MissingPackage, BadShape.
    """
    chosen = [third_party.implementation(name) for name in names]
    for case in cases:
        case.check(offsets)
    work = [(c, one, d, o) for c in cases for one in chosen for d in dtypes for o in offsets]
    for done, (case, one, dtype, offset) in enumerate(work):
        length = 256 if case.seq_len is None else case.seq_len
        positions_fit([offset, offset + _FURTHER, offset + length], length)
        setting = case.setting(length)
        if case.layout is None and case.model is None and case.config is None:
            setting = replace(setting, layout=one.layouts[0])
        progress(done / len(work))
        yield from _one(one, setting, AuditCall(dtype, offset, length), dtypes)


def _one(
    one: Implementation, setting: RopeSetting, call: AuditCall, dtypes: Sequence[Format]
) -> Iterator[History]:
    """Make one call on a fresh instance, and after each history."""
    refused = implementation.refusal(one, setting, call.dtype)
    if not refused and not isinstance(one, Reusable):
        refused = "its instances cannot be called again"
    fresh: FloatArray | None = None
    for kind, before in histories(call, dtypes):
        difference, reason = np.nan, refused
        if not reason and isinstance(one, Reusable):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    if fresh is None:
                        fresh = _called(one.instance(setting, call.dtype), setting, call)
                    instance = one.instance(setting, call.dtype)
                    reason = one.refuses(setting, before.dtype)
                    if not reason:
                        _called(instance, setting, before)
                        difference = _difference(_called(instance, setting, call), fresh)
            except Exception as error:  # whatever other people's code raises is a finding
                reason = implementation.one_line(error)
        yield History(one.name, one.version, setting, call, kind, before, float(difference), reason)


def _called(rotate: Rotation, setting: RopeSetting, call: AuditCall) -> FloatArray:
    """Call an instance with the same numbers in every dtype. Shapes: -> (h, s, d)."""
    shape = (_HEADS, call.length, setting.head_dim)
    x = round_to(np.random.default_rng(0).standard_normal(shape), call.dtype).astype(call.dtype.carrier)
    positions = np.arange(call.length, dtype=np.int64) + call.first
    return rotate(x, positions, call.dtype).astype(np.float64)


def _difference(results: FloatArray, fresh: FloatArray) -> float:
    """Return the largest difference; nan equals nan. Shapes: (h, s, d) twice."""
    same = (results == fresh) | (np.isnan(results) & np.isnan(fresh))
    with np.errstate(invalid="ignore"):
        apart = np.abs(np.where(same, 0.0, results - fresh))
    return float(np.where(np.isnan(apart), np.inf, apart).max())
