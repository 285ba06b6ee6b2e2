"""State that leaks: does an implementation give the same after it has been called in another way?

The same call is made on a fresh instance and on one that has been called before: in another dtype, for
another length, at another offset. What is returned must be the same to the last bit.
Letters: h heads, s positions, d head_dim.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, Unpack, runtime_checkable

import numpy as np

from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.audits import arguments
from ropeaudit.audits.arguments import CaseArguments, Names, OnProgress
from ropeaudit.audits.cases import Case, positions_fit
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import third_party
from ropeaudit.subjects.calling import implementation
from ropeaudit.subjects.calling.implementation import Implementation
from ropeaudit.subjects.third_party.adapter import Rotation

DTYPES, OFFSETS = ("fp32", "fp16", "bf16"), (0, 1000)
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
    calls.append(("another offset", AuditCall(dtype, first + _FURTHER, length)))
    if first > 0 and until_now <= _LONGEST:
        calls.append(("from 0", AuditCall(dtype, 0, until_now)))
    return calls


@arguments.checked
def history(
    implementations: Names,
    dtypes: Names = DTYPES,
    offsets: int | Iterable[int] = OFFSETS,
    *,
    cases: Case | Iterable[Case] | None = None,
    on_progress: OnProgress | None = None,
    **case: Unpack[CaseArguments],
) -> Iterator[History]:
    """Find state that leaks between the calls of real code: the same call, fresh and after other calls.

    Yields one History per implementation, dtype, offset and kind of earlier call, in that order.
    implementations: names of `ropeaudit list impls`. dtypes: of the calls, and of those before them.
    offsets: first positions of the calls.
    cases, on_progress, case: as in `ropeaudit.shift`; q and k are not looked at, but for seq_len.
    Raises: UsageError, UnknownName, MissingPackage, BadShape.
    """
    formats, numbers = arguments.formats(dtypes), arguments.numbers(offsets)
    chosen = arguments.cases_of(cases, case)
    return run(chosen, arguments.listed(implementations), formats, numbers, on_progress or arguments.silent)


def run(
    cases: Sequence[Case],
    names: Sequence[str],
    dtypes: Sequence[Format],
    offsets: Sequence[int],
    on_progress: OnProgress = arguments.silent,
) -> Iterator[History]:
    """Yield the histories, case by case, implementation by implementation, dtype by dtype, offset by offset.

    Raises: UsageError, UnknownName, MissingPackage, BadShape.
    """
    chosen = [third_party.implementation(name) for name in names]
    for case in cases:
        case.check(offsets)
    work = [(c, i, d, o) for c in cases for i in chosen for d in dtypes for o in offsets]
    for done, (case, tested, dtype, offset) in enumerate(work):
        length = 256 if case.seq_len is None else case.seq_len
        positions_fit([offset, offset + _FURTHER, offset + length], length)
        setting = case.setting(length)
        if case.layout is None and case.model is None and case.config is None:
            setting = replace(setting, layout=tested.layouts[0])
        on_progress(done / len(work))
        yield from _histories_of(tested, setting, AuditCall(dtype, offset, length), dtypes)


def _histories_of(
    tested: Implementation, setting: RopeSetting, call: AuditCall, dtypes: Sequence[Format]
) -> Iterator[History]:
    """Yield how one call differs after each history from the same on a fresh instance."""
    refused = implementation.refusal(tested, setting, call.dtype)
    if not refused and not isinstance(tested, Reusable):
        refused = "its instances cannot be called again"
    fresh: FloatArray | None = None
    for kind, before in histories(call, dtypes):
        difference, reason = np.nan, refused
        if not reason and isinstance(tested, Reusable):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    if fresh is None:
                        fresh = _rotated(tested.instance(setting, call.dtype), setting, call)
                    instance = tested.instance(setting, call.dtype)
                    reason = tested.refuses(setting, before.dtype)
                    if not reason:
                        _rotated(instance, setting, before)
                        difference = _difference(_rotated(instance, setting, call), fresh)
            except Exception as error:  # whatever other people's code raises is a finding
                reason = implementation.one_line(error)
        yield History(tested.name, tested.version, setting, call, kind, before, float(difference), reason)


def _rotated(rotate: Rotation, setting: RopeSetting, call: AuditCall) -> FloatArray:
    """Call an instance with the same numbers in every dtype. Shapes: -> (h, s, d)."""
    shape = (_HEADS, call.length, setting.head_dim)
    x = round_to(np.random.default_rng(0).standard_normal(shape), call.dtype).astype(call.dtype.carrier)
    positions = np.arange(call.length, dtype=np.int64) + call.first
    return rotate(x, positions, call.dtype).astype(np.float64)


def _difference(after: FloatArray, fresh: FloatArray) -> float:
    """Return the largest difference; nan equals nan. Shapes: (h, s, d) twice."""
    same = (after == fresh) | (np.isnan(after) & np.isnan(fresh))
    with np.errstate(invalid="ignore"):
        difference = np.abs(np.where(same, 0.0, after - fresh))
    return float(np.where(np.isnan(difference), np.inf, difference).max())
