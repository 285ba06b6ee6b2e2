"""Parity: two subjects on the same q and k, such as what trains a model and what serves it.

Parity is not accuracy: two that make the same error agree, and two that are equally accurate may differ by
more than either drifts. So their distance and the drift of each are measured together.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Unpack

from ropeaudit.arithmetic.formats import Format
from ropeaudit.audits import arguments
from ropeaudit.audits.arguments import CaseArguments, Names, OnProgress, steps
from ropeaudit.audits.cases import Case, fits, loaded
from ropeaudit.audits.results import Result
from ropeaudit.engine.pair import Comparison, PairStatistics
from ropeaudit.features.parity import sides
from ropeaudit.features.parity.sides import CallFailed, Compared, OneRotation, subjects
from ropeaudit.inputs.qk import Inputs
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects.factories import SubjectFactory

OFFSETS = (0, 1000)


@dataclass(frozen=True, slots=True)
class Parity(Result):
    """Two subjects in one case, dtype and offset.

    refused: why the two could not be compared; empty where they could. findings: how code was called.
    differences: in what else than their rotations the two differ, a sentence each.
    """

    report_module: ClassVar[str] = "ropeaudit.features.parity.report"
    case: Case
    setting: RopeSetting
    inputs: Inputs
    names: tuple[str, str]
    dtype: Format
    offset: int
    statistics: PairStatistics
    refused: str = ""
    findings: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()
    devices: tuple[str, str] = ("cpu", "cpu")


@arguments.checked
def parity(
    a: str,
    b: str,
    offsets: int | Iterable[int] = OFFSETS,
    dtypes: Names = "bf16",
    *,
    changes: Mapping[str, str] | None = None,
    device: str | None = None,
    cases: Case | Iterable[Case] | None = None,
    on_progress: OnProgress | None = None,
    **case: Unpack[CaseArguments],
) -> Iterator[Parity]:
    """Compare the scores of two subjects, such as a trainer's and a server's, on the same q and k.

    Yields one Parity per dtype and offset, in that order.
    a, b: a recipe or a recipe file, changed in brackets as in "hf[angle=fp64]"; or code that is called: a
    name of `list implementations`, or your own as "file.py:name". Code gets q and k in the layout that it
    has, and its scores are formed in float64.
    device: where code is called. offsets, dtypes, changes, cases, on_progress, case: as in `ropeaudit.shift`.
    Raises: UsageError, UnknownName, BadShape, BadInput, NotEmulated, MissingPackage.

    >>> [result] = parity("hf", "meta", 1000, "bf16", heads=1, seq_len=16)
    >>> result.names, result.offset
    (('hf', 'meta'), 1000)
    """
    pair, called = subjects(a, b, changes or {}, device)
    formats, numbers = arguments.formats(dtypes), arguments.numbers(offsets)
    return run(
        arguments.cases_of(cases, case), pair, called, formats, numbers, on_progress or arguments.silent
    )


def run(
    cases: Sequence[Case],
    pair: tuple[Compared, Compared],
    called: tuple[str, str],
    dtypes: Sequence[Format],
    offsets: Sequence[int],
    on_progress: OnProgress = arguments.silent,
) -> Iterator[Parity]:
    """Check the arguments, and yield what was measured, case by case, dtype by dtype, offset by offset.

    offsets: tokens, added to every position.
    Raises: UsageError, UnknownName, BadShape, BadInput, NotEmulated.
    """
    factories = [(sides.factory(pair[0], fmt), sides.factory(pair[1], fmt)) for fmt in dtypes]
    fits(max(case.check(offsets) for case in cases))
    work = steps(on_progress, len(cases) * len(factories) * len(offsets))
    laid_out = [sides.in_layout(case, pair, dtypes[0]) for case in cases]
    return (
        _parity(given, pair, called, requested.layout is not None, two, offset, next(work))
        for requested, given in zip(cases, loaded(laid_out, offsets), strict=True)
        for two, offset in itertools.product(factories, offsets)
    )


def _parity(
    given: tuple[Case, Inputs, RopeSetting],
    pair: tuple[Compared, Compared],
    names: tuple[str, str],
    forced: bool,
    two: tuple[SubjectFactory, SubjectFactory],
    offset: int,
    on_progress: OnProgress,
) -> Parity:
    """Compare two subjects at one offset; what refuses to be called there is refused.

    forced: both get the layout of the case, whatever theirs is.
    """
    case, inputs, setting = given
    own = [setting if forced else replace(setting, layout=sides.own_layout(one, setting)) for one in pair]
    axes = case.position_axes(setting)
    first, second = (one.make(at, axes) for one, at in zip(two, own, strict=True))
    rotations = tuple(OneRotation(subject, inputs, offset, setting) for subject in (first, second))
    compared = Comparison(
        inputs,
        setting,
        case.mask,
        (rotations[0], rotations[1]),
        offset if setting.clipped else 0,
        first.dtype,
    )
    reasons = [
        f"{name} refuses: {reason}"
        for name, subject in zip(names, (first, second), strict=True)
        if (reason := subject.refusal(inputs.seq_len, offset))
    ]
    statistics, refused = PairStatistics(), next(iter(reasons), "")
    if not refused:
        try:
            statistics = compared.run(on_progress)
        except CallFailed as error:
            refused = f"a call fails: {error}"
    same_inputs = compared.formats[0] is compared.formats[1]
    return Parity(
        case=case,
        setting=setting,
        inputs=inputs,
        names=names,
        dtype=first.dtype,
        offset=offset,
        statistics=statistics,
        refused=refused,
        findings=tuple(dict.fromkeys(text for one in two for text in one.findings)),
        differences=tuple(sides.differences(names, (first, second), own, setting, same_inputs)),
        devices=(first.device, second.device),
    )
