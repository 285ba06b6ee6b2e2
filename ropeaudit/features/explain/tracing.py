"""Trace: which number formats an implementation uses, and which known recipe it behaves like.

Two ways that need not agree: its operations, where torch runs them, and its numbers, wherever it runs.
Letters: h heads, s positions, d head_dim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ropeaudit import bounds
from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.audits.cases import Case
from ropeaudit.errors import RopeAuditError, one_line
from ropeaudit.features.explain.known_recipes import (
    COMPARED,
    LIKE,
    Likeness,
    Observed,
    Stage,
    compared,
    likenesses,
    nearest,
    rms_drifts,
)
from ropeaudit.inputs.qk import Inputs
from ropeaudit.recognition import verification, wording
from ropeaudit.recognition.diagnosis import Diagnosis, codes
from ropeaudit.recognition.verification import GivenVectors, Places
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime import run_metadata
from ropeaudit.subjects.calling.called import Called
from ropeaudit.subjects.calling.code import Code
from ropeaudit.subjects.emulated import Emulated

OFFSETS = (0, 1024, 32768, 131072)
_LISTED = 0.9  # recipes further away explain nothing, and are not listed beside a nearer one
_DEFAULT = Case()


@dataclass(frozen=True, slots=True)
class Trace:
    """What is known of one implementation in a dtype, on a setting.

    stages: empty where nothing of torch was seen. drifts, predicted: offset -> RMS drift, measured, and
    predicted for the nearest recipe. likely: recipes that it is like, nearest first. faults: offset ->
    what explains what it does there, where it is like none. dropped: offset -> why it was refused there.
    refused: why nothing is known. device: where it was called. environment: in which; none for the clean one.
    """

    name: str
    dtype: Format
    setting: RopeSetting
    stages: tuple[Stage, ...] = ()
    drifts: Mapping[int, float] | None = None
    predicted: Mapping[int, float] | None = None
    likely: tuple[Likeness, ...] = ()
    faults: Mapping[int, Diagnosis] = field(default_factory=dict)
    dropped: Mapping[int, str] = field(default_factory=dict)
    refused: str = ""
    device: str = "cpu"
    environment: str = "none"

    def told(self) -> str:
        """Return what explains it where it is like no recipe, with the offsets, in words."""
        offsets: dict[str, list[int]] = {}
        for offset, found in self.faults.items():
            offsets.setdefault(wording.sentence(found), []).append(offset)
        if len(offsets) == 1 and len(self.faults) >= len(self.drifts or {}) - 1:  # at 0 most are right
            return "".join(offsets)
        return "; ".join(
            f"{text} at offset{'s' * (len(at) > 1)} {', '.join(map(str, at))}" for text, at in offsets.items()
        )

    def diagnosis(self) -> str:
        """Return the codes of what explains it at the largest offset where it is wrong; "" for none."""
        if self.likely:
            found = self.nearest()[0].group.diagnosis()
            return "" if found.code == "known-recipe" else codes(found)
        return codes(self.faults[max(self.faults)]) if self.faults else ""

    def nearest(self) -> list[Likeness]:
        """Return the recipes that none is nearer than."""
        return nearest(self.likely)

    def recipes(self) -> list[str]:
        """Return the names of the recipes that none is nearer than."""
        return [name for like in self.nearest() for name in like.group.names] if self.likely else []


def usual_offsets(case: Case) -> tuple[int, ...]:
    """Return the offsets at which code is compared: OFFSETS, of a known range those within it and its end."""
    if case.maximum is None:
        return OFFSETS
    last = max(0, case.maximum - COMPARED)
    return (*(offset for offset in OFFSETS if offset < last), last)


def trace(
    implementation: Code,
    dtype: Format,
    case: Case = _DEFAULT,
    offsets: Sequence[int] = OFFSETS,
) -> Trace:
    """Return dtypes by stage and the closest known recipes of an implementation, in its layout unless given.

    offsets: at which they are compared, beside 0. case: of q and k its seed alone is looked at.
    Raises: UsageError, BadShape, BadInput.
    """
    setting = case.setting(COMPARED)
    own = implementation.layout(setting)
    setting = replace(setting, layout=case.layout or own)
    subject, all_offsets = Called(implementation, setting, dtype), dict.fromkeys((0, *offsets))
    reasons = {offset: subject.refusal(COMPARED, offset) for offset in all_offsets}
    result = Trace(
        *(implementation.name, dtype, setting),
        dropped={offset: reason for offset, reason in reasons.items() if reason},
        device=subject.device,
        environment=implementation.environment_label,
    )
    if reasons[0]:
        return replace(result, refused=reasons[0], dropped={})
    usable = tuple(offset for offset in all_offsets if not reasons[offset])
    known = compared(dtype, setting, case.seed or 0, usable)
    vectors = {offset: _rotated(subject, known.inputs, offset) for offset in usable}
    stages = _stages(implementation, dtype, setting, known.inputs)
    (drifts,) = rms_drifts([subject], known.inputs, setting, usable)
    result = replace(result, stages=stages, drifts=drifts, predicted={})
    ranked = likenesses(Observed(vectors, drifts, stages), known, dtype)
    faults = _faults(subject, known.inputs, setting, usable)
    # q of one row may be a recipe's, and k, another row or another call is not
    other = any(not one.arithmetic and one.explains for one in faults.values())
    if ranked[0].distance > LIKE or other:
        return replace(result, faults=faults)
    likely = tuple(like for like in ranked if like.distance <= _LISTED)
    nearest_one = Emulated(nearest(likely)[0].group.resolved, setting)
    places = [(nearest_one, offset) for offset in usable]
    limits = bounds.bounds(places, known.inputs, "causal", run_metadata.threads())
    predicted = {offset: limit.rms for offset, limit in zip(usable, limits, strict=True)}
    return replace(result, likely=likely, predicted=predicted)


def _faults(
    subject: Called, inputs: Inputs, setting: RopeSetting, offsets: Sequence[int]
) -> dict[int, Diagnosis]:
    """Return what explains vectors at each offset where they are wrong, as no recipe does."""
    vectors = GivenVectors(inputs.q, inputs.k, np.arange(COMPARED, dtype=np.int64), inputs.seed or 0)
    found = {}
    for offset in offsets:

        def check(step: int, offset: int = offset) -> Places:
            given = subject.rotator(), setting, subject.dtype, vectors, offset
            return verification.check(*given, afresh=subject.afresh, batch_step=step)

        seen = verification.with_rows(check, subject.by_batch(), offset)
        if seen.diagnosis is not None:
            found[offset] = seen.diagnosis
    return found


def _rotated(subject: Called, inputs: Inputs, offset: int) -> FloatArray:
    """Return q as the implementation rotates it. Shapes: -> (h, s, d)."""
    table = subject.table(np.arange(COMPARED, dtype=np.int64), offset)
    return np.stack([subject.rotate(round_to(head, subject.input), table) for head in inputs.q])


def _stages(implementation: Code, dtype: Format, setting: RopeSetting, inputs: Inputs) -> tuple[Stage, ...]:
    """Return the stages that torch's operations show in one run; none where it does not run in torch."""
    if implementation.engine != "torch":
        return ()
    from ropeaudit.subjects.calling import dispatch_log

    x = np.ascontiguousarray(round_to(inputs.q[:1], dtype), dtype=dtype.carrier)
    try:
        stages = dispatch_log.logged(implementation, setting, dtype, x, COMPARED)
    except RopeAuditError:
        raise
    except Exception as error:  # a log that cannot be had is no reason to stop
        return (Stage("input", (f"not traced: {one_line(error)}",), ()),)
    return tuple(Stage(name, tuple(stage.dtypes), tuple(stage.operations)) for name, stage in stages.items())
