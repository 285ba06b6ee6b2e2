"""Trace: which number formats an implementation uses, and which known recipe it behaves like.

Two ways that need not agree: its operations, where torch runs them, and its numbers, wherever it runs.
Letters: h heads, s positions, d head_dim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ropeaudit import bounds
from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.audits.cases import Case
from ropeaudit.errors import RopeAuditError
from ropeaudit.features.explain.known_recipes import (
    COMPARED,
    LIKE,
    Likeness,
    Observed,
    Stage,
    known_recipes,
    likenesses,
    nearest,
    rms_drifts,
)
from ropeaudit.inputs.qk import Inputs
from ropeaudit.rope.setting import LARGEST_BASE, RopeSetting
from ropeaudit.runtime import run_metadata
from ropeaudit.subjects.calling.implementation import Called, Implementation, environment_of, one_line
from ropeaudit.subjects.calling.own_code import Own
from ropeaudit.subjects.emulated import Emulated
from ropeaudit.subjects.placement import exact_rotation, likeness
from ropeaudit.subjects.placement.likeness import RecipeGroup

OFFSETS = (0, 1024, 32768, 131072)
_LISTED = 0.9  # recipes further away explain nothing, and are not listed beside a nearer one
_EXPLAINS = 0.3  # a base explains vectors if it leaves at most this share of their error
_SAME = 0.01  # two fitted bases that differ by less are the same
_UNKNOWN = "nothing known"
_DEFAULT = Case()


@dataclass(frozen=True, slots=True)
class Trace:
    """What is known of one implementation in a dtype, on a setting.

    stages: empty where nothing of torch was seen. drifts, predicted: offset -> RMS drift, measured, and
    predicted for the nearest recipe. likely: recipes that it is like, nearest first. fault: what it does
    instead, in words, where it is like none and that is known. dropped: offset -> why it was refused there.
    refused: why nothing is known. device: where it was called. environment: in which; none for the clean one.
    """

    name: str
    dtype: Format
    setting: RopeSetting
    stages: tuple[Stage, ...] = ()
    drifts: Mapping[int, float] | None = None
    predicted: Mapping[int, float] | None = None
    likely: tuple[Likeness, ...] = ()
    fault: str = ""
    dropped: Mapping[int, str] = field(default_factory=dict)
    refused: str = ""
    device: str = "cpu"
    environment: str = "none"

    def nearest(self) -> list[Likeness]:
        """Return the recipes that none is nearer than."""
        return nearest(self.likely)


def trace(
    implementation: Implementation,
    dtype: Format,
    case: Case = _DEFAULT,
    offsets: Sequence[int] = OFFSETS,
) -> Trace:
    """Return dtypes by stage and the closest known recipes of an implementation, in its layout unless given.

    offsets: at which they are compared, beside 0. case: of q and k its seed alone is looked at.
    Raises: UsageError, BadShape, BadInput.
    """
    setting = case.setting(COMPARED)
    own = implementation.fit(setting).layout if isinstance(implementation, Own) else implementation.layouts[0]
    setting = replace(setting, layout=case.layout or own)
    traced = _trace(implementation, dtype, setting, case.seed or 0, offsets)
    return replace(traced, environment=environment_of(implementation))


def _trace(
    implementation: Implementation, dtype: Format, setting: RopeSetting, seed: int, offsets: Sequence[int]
) -> Trace:
    """Return what is known of an implementation in a dtype, on a setting."""
    subject, all_offsets = Called(implementation, setting, dtype), dict.fromkeys((0, *offsets))
    reasons = {offset: subject.refusal(COMPARED, offset) for offset in all_offsets}
    if reasons[0]:
        return Trace(implementation.name, dtype, setting, refused=reasons[0], device=subject.device)
    usable = tuple(offset for offset in all_offsets if not reasons[offset])
    known = known_recipes(dtype, setting, seed, usable)
    vectors = {offset: _rotated(subject, known.inputs, offset) for offset in usable}
    stages = _stages(implementation, dtype, setting, known.inputs)
    (drifts,) = rms_drifts([subject], known.inputs, setting, usable)
    ranked = likenesses(Observed(vectors, drifts, stages), known, dtype)
    likely: tuple[Likeness, ...] = ()
    if ranked[0].distance <= LIKE:
        likely = tuple(like for like in ranked if like.distance <= _LISTED)
    fault = "" if likely else _fault(subject, known.inputs, setting, dtype, vectors)
    predicted = _predicted(nearest(likely)[0].group, known.inputs, setting, usable) if likely else {}
    dropped = {offset: reason for offset, reason in reasons.items() if reason}
    return Trace(
        *(implementation.name, dtype, setting, stages, drifts, predicted, likely, fault, dropped),
        device=subject.device,
    )


def _fault(
    subject: Called,
    inputs: Inputs,
    setting: RopeSetting,
    dtype: Format,
    vectors: Mapping[int, FloatArray],
) -> str:
    """Return the fault that explains vectors as no recipe does, in words; empty where none is known."""
    x = np.stack([round_to(head, subject.input) for head in inputs.q]).astype(np.float64)
    base = _base(vectors[0], x, setting)
    offsets: dict[str, list[int]] = {}
    for offset, seen in vectors.items():
        text = likeness.named(seen, x, setting, dtype, offset)
        if not text and base and abs(likeness.base_of(seen, x, setting) / base - 1) < _SAME:
            text = f"base {base:.3g}"
        offsets.setdefault(text or _UNKNOWN, []).append(offset)
    if len(offsets) == 1:
        return "".join(offsets).replace(_UNKNOWN, "")
    places = {text: f"offset{'s' * (len(at) > 1)} {', '.join(map(str, at))}" for text, at in offsets.items()}
    return "; ".join(f"{text} at {place}" for text, place in places.items())


def _base(seen: FloatArray, x: Array, setting: RopeSetting) -> float:
    """Return the base that explains vectors at positions from 0; 0 where none does."""
    base, at = likeness.base_of(seen, x, setting), np.arange(COMPARED, dtype=np.int64)
    if not 1 < base < LARGEST_BASE:
        return 0.0
    plain, fitted = (
        likeness.rms_difference(seen, exact_rotation.rotated(x, at, other))
        for other in (setting, replace(setting, base=base))
    )
    return base if fitted < _EXPLAINS * plain else 0.0


def _predicted(
    group: RecipeGroup, inputs: Inputs, setting: RopeSetting, offsets: Sequence[int]
) -> dict[int, float]:
    subject = Emulated(group.resolved, setting)
    limits = bounds.bounds(
        [(subject, offset) for offset in offsets], inputs, "causal", run_metadata.threads()
    )
    return {offset: limit.rms for offset, limit in zip(offsets, limits, strict=True)}


def _rotated(subject: Called, inputs: Inputs, offset: int) -> FloatArray:
    """Return q as the implementation rotates it. Shapes: -> (h, s, d)."""
    table = subject.table(np.arange(COMPARED, dtype=np.int64), offset)
    return np.stack([subject.rotate(round_to(head, subject.input), table) for head in inputs.q])


def _stages(
    implementation: Implementation, dtype: Format, setting: RopeSetting, inputs: Inputs
) -> tuple[Stage, ...]:
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
