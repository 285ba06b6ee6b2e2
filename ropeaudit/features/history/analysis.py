"""State that leaks: does an implementation give the same after it has been called in another way?

The same call is made on a fresh instance and on one that has been called before: in another dtype, for
another length, at another offset. What is returned must be the same to the last bit.
Letters: h heads, s positions, d head_dim.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Unpack

import numpy as np

from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.audits import arguments
from ropeaudit.audits.arguments import CaseArguments, Names, OnProgress
from ropeaudit.audits.cases import Case, positions_fit
from ropeaudit.conformance import earlier_calls
from ropeaudit.conformance.earlier_calls import FURTHER, AuditCall, Instances, histories, instance, rotated
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import factories
from ropeaudit.subjects.calling import environments, implementation
from ropeaudit.subjects.calling.environments import Environment
from ropeaudit.subjects.calling.implementation import Implementation
from ropeaudit.subjects.calling.own_code import Own

DTYPES, OFFSETS = ("fp32", "fp16", "bf16"), (0, 1000)


@dataclass(frozen=True, slots=True)
class History:
    """What a call gives after another one. kind: how that one differs. Units: those of q and k.

    device: where both were made.
    difference: largest |after it - on a fresh instance|, inf where one of the two alone is nan. refused: why
    the calls could not be made; empty where they could. environment: of the call, none for the clean one;
    before_environment: of the one before it.
    afresh: whether each was made on an instance without a past; a function of an installed package is loaded
    once.
    """

    name: str
    version: str
    setting: RopeSetting
    call: AuditCall
    kind: str
    before: AuditCall
    difference: float
    refused: str = ""
    device: str = "cpu"
    environment: str = "none"
    afresh: bool = True
    before_environment: str = "none"

    @property
    def leaks(self) -> bool:
        """Whether anything differs at all."""
        return self.difference > 0


@arguments.checked
def history(
    implementations: Names,
    dtypes: Names = DTYPES,
    offsets: int | Iterable[int] = OFFSETS,
    *,
    device: str | None = None,
    under: Names = (),
    cases: Case | Iterable[Case] | None = None,
    on_progress: OnProgress | None = None,
    **case: Unpack[CaseArguments],
) -> Iterator[History]:
    """Find state that leaks between the calls of real code: the same call, fresh and after other calls.

    Yields one History per implementation, environment, dtype, offset and kind of earlier call, in that order.
    implementations: FILE.py:NAME, package.module:NAME or names of `ropeaudit list implementations`.
    dtypes: of the calls, and of those before them.
    offsets: first positions of the calls. device: where they are made. under: environments in which all
    calls are made too; and before a clean call the same one is made in each.
    cases, on_progress, case: as in `ropeaudit.shift`; q and k are not looked at, but for seq_len.
    Raises: UsageError, UnknownName, MissingPackage, BadShape.
    """
    formats, numbers = arguments.formats(dtypes), arguments.numbers(offsets)
    chosen = arguments.cases_of(cases, case)
    names, places = arguments.listed(implementations), arguments.listed(under)
    return run(chosen, names, formats, numbers, on_progress or arguments.silent, device, places)


def run(
    cases: Sequence[Case],
    names: Sequence[str],
    dtypes: Sequence[Format],
    offsets: Sequence[int],
    on_progress: OnProgress = arguments.silent,
    device: str | None = None,
    under: Sequence[str] = (),
) -> Iterator[History]:
    """Yield the histories, case by case, implementation by implementation, dtype by dtype, offset by offset.

    Raises: UsageError, UnknownName, MissingPackage, BadShape.
    """
    code = [factories.implementation(name, device=device) for name in names]
    chosen = [placed for one in code for placed in factories.in_environments(one, under)]
    for case in cases:
        case.check(offsets)
    work = [(c, i, d, o) for c in cases for i in chosen for d in dtypes for o in offsets]
    for done, (case, tested, dtype, offset) in enumerate(work):
        length = 256 if case.seq_len is None else case.seq_len
        positions_fit([offset, offset + FURTHER, offset + length], length)
        setting = case.setting(length)
        if case.layout is None and case.model is None and case.config is None:
            detect = getattr(tested, "fit", None)
            layout = detect(setting).layout if detect else tested.layouts[0]
            setting = replace(setting, layout=layout)
        on_progress(done / len(work))
        yield from _histories_of(tested, setting, AuditCall(dtype, offset, length), dtypes, under)


def _histories_of(
    tested: Implementation,
    setting: RopeSetting,
    call: AuditCall,
    dtypes: Sequence[Format],
    under: Sequence[str],
) -> Iterator[History]:
    """Yield how one call differs after each history from the same on a fresh instance."""
    refused = implementation.refusal(tested, setting, call.dtype)
    if not refused and not earlier_calls.reusable(tested):
        refused = "its instances cannot be called again"
    fresh: FloatArray | None = None
    afresh = True
    for earlier in _earlier_calls(tested, call, dtypes, under):
        difference, reason = np.nan, refused
        if not reason:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    if fresh is None:
                        afresh = earlier_calls.afresh(tested, setting, call.dtype)
                        fresh = rotated(instance(tested, setting, call.dtype), setting, call)
                    reason = earlier.refusal(tested, setting)
                    if not reason:
                        used, before = earlier.instances(tested, setting, call.dtype)
                        rotated(before, setting, earlier.call)
                        difference = earlier_calls.difference(rotated(used, setting, call), fresh)
            except Exception as error:  # whatever other people's code raises is a finding
                reason = implementation.one_line(error)
        place, size = implementation.device_of(tested).label, float(difference)
        yield History(
            *(tested.name, tested.version, setting, call, earlier.kind, earlier.call, size, reason, place),
            environment=implementation.environment_of(tested),
            afresh=afresh,
            before_environment=earlier.environment_label(tested),
        )


@dataclass(frozen=True, slots=True)
class _Earlier:
    """What is called before: how it differs, the call, and the environment that it alone is made in."""

    kind: str
    call: AuditCall
    environment: Environment | None = None

    def refusal(self, tested: Implementation, setting: RopeSetting) -> str:
        """Return why it cannot be made; empty where it can."""
        if isinstance(tested, Own) and self.environment:
            tested = tested.under(self.environment)
        return tested.refuses(setting, self.call.dtype)

    def instances(self, tested: Implementation, setting: RopeSetting, dtype: Format) -> Instances:
        """Return a new instance, as it is called for the call and before it."""
        if isinstance(tested, Own) and self.environment:
            return earlier_calls.under(tested, self.environment, setting, dtype)
        used = instance(tested, setting, dtype)
        return used, used

    def environment_label(self, tested: Implementation) -> str:
        """Return what a row calls the environment of the call before."""
        device = implementation.device_of(tested).name
        return self.environment.label(device) if self.environment else implementation.environment_of(tested)


def _earlier_calls(
    tested: Implementation, call: AuditCall, dtypes: Sequence[Format], under: Sequence[str]
) -> Iterator[_Earlier]:
    """Yield what is called before: for a clean call of own code the same one in each environment too."""
    for kind, before in histories(call, dtypes):
        yield _Earlier(kind, before)
    if isinstance(tested, Own) and tested.clean is None:
        for environment in environments.chosen(under)[1:]:
            yield _Earlier("another environment", call, environment)
