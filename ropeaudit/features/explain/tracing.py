"""The trace of code: the number formats of its stages, and the known recipes that it resembles.

It comes from two sources that may disagree: torch's operations, and the numbers that code returns.
Letters: h heads, s positions, d head_dim.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from ropeaudit import bounds
from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.audits.cases import Case
from ropeaudit.engine import measure
from ropeaudit.engine.plan import Plan
from ropeaudit.features.explain.shares import formats
from ropeaudit.inputs import qk
from ropeaudit.inputs.qk import Inputs
from ropeaudit.recipes import Resolved
from ropeaudit.recognition import known_recipes, verification, wording
from ropeaudit.recognition.diagnosis import Diagnosis, codes
from ropeaudit.recognition.known_recipes import RecipeGroup
from ropeaudit.recognition.rotation import rms
from ropeaudit.recognition.verification import GivenVectors
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime import run_metadata
from ropeaudit.subjects import Subject, exact_rotation
from ropeaudit.subjects.calling import exposure
from ropeaudit.subjects.calling.code import Called, Code
from ropeaudit.subjects.calling.stages import StageLog
from ropeaudit.subjects.emulated import Emulated

VectorsAt: TypeAlias = Mapping[int, FloatArray]  # by offset
DriftsAt: TypeAlias = Mapping[int, float]
Known: TypeAlias = tuple[RecipeGroup, VectorsAt, DriftsAt]
LIKE = 0.5  # the largest distance of a likeness
COMPARED = 48  # positions at an offset
OFFSETS = (0, 1024, 32768, 131072)
_HEADS = 2
_TIE = 0.02  # share by which a nearer recipe is nearer
_FINEST = 2.0**-50  # of float64 angles, per token
_LISTED = 0.9  # largest distance of a listed recipe
_DEFAULT = Case()


@dataclass(frozen=True, slots=True)
class Likeness:
    """How near a group of recipes is to code. profile: largest ratio of RMS drifts over the offsets.

    distance: RMS difference of vectors over the error of the code, largest over the offsets.
    equal: share of equal numbers. differing: observed stages with another dtype.
    """

    group: RecipeGroup
    distance: float
    equal: float
    profile: float
    differing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """The trace of an implementation in a dtype, at a setting.

    stages: torch's operations in each. drifts, predicted: offset -> RMS drift, measured, and predicted for
    the nearest recipe. likely: recipes that it resembles, nearest first; faults: else, offset -> diagnosis.
    dropped: offset -> why it was refused there. refused: why there is no trace.
    """

    name: str
    dtype: Format
    setting: RopeSetting
    stages: Mapping[str, StageLog] = field(default_factory=dict)
    drifts: DriftsAt = field(default_factory=dict)
    predicted: DriftsAt = field(default_factory=dict)
    likely: tuple[Likeness, ...] = ()
    faults: Mapping[int, Diagnosis] = field(default_factory=dict)
    dropped: Mapping[int, str] = field(default_factory=dict)
    refused: str = ""
    device: str = "cpu"
    environment: str = "none"

    def narrowest(self) -> dict[str, str]:
        """Return stage -> the narrowest dtype to which its numbers are rounded."""
        return {name: exposure.narrowest(log.dtypes) for name, log in self.stages.items()}

    def fault_words(self) -> str:
        """Return the fault at the largest wrong offset in words; empty without one."""
        if not self.faults:
            return ""
        last = max(self.faults)
        everywhere = len(self.faults) >= len(self.drifts) - 1  # at 0 most are right
        return wording.sentence(self.faults[last]) + ("" if everywhere else f" at offset {last}")

    def diagnosis(self) -> str:
        """Return the codes of the nearest recipe or of the fault; empty without any."""
        if self.likely:
            found = self.nearest()[0].group.diagnosis()
            return "" if found.code == "known-recipe" else codes(found)
        return codes(self.faults[max(self.faults)]) if self.faults else ""

    def nearest(self) -> list[Likeness]:
        """Return the nearest recipes; of ties those with the most similar dtypes."""
        least = min((like.distance for like in self.likely), default=0.0)
        farthest = least * (1 + _TIE) + 1e-12
        near = [like for like in self.likely if like.distance <= farthest]
        fewest = min((len(like.differing) for like in near), default=0)
        return [like for like in near if len(like.differing) == fewest]

    def recipes(self) -> list[str]:
        """Return the names of the nearest recipes."""
        return [name for like in self.nearest() for name in like.group.names]


def expected(resolved: Resolved) -> dict[str, str]:
    """Return stage -> the dtype to which a recipe rounds."""
    seen = ("position", "frequency", "angle", "trig", "rotation", "output")
    stored = {stage: formats(resolved, stage)[-1] for stage in seen}
    both = resolved.trig, resolved.table or resolved.trig
    stored["table"] = min(both, key=lambda fmt: fmt.precision)
    return {stage: fmt.name for stage, fmt in stored.items()}


def usual_offsets(case: Case) -> tuple[int, ...]:
    """Return OFFSETS; with a maximum, those within it and its end."""
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
    """Return the trace of code, in its own layout unless the case has one.

    offsets: beside 0. case: only the seed of its q and k counts. Raises: UsageError, BadShape, BadInput.
    """
    setting = case.setting(COMPARED)
    setting = replace(setting, layout=case.layout or implementation.layout(setting))
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
    inputs, exact, known = compared(dtype, setting, case.seed or 0, usable)
    vectors = dict[int, FloatArray]()
    for offset in usable:
        table = subject.table(np.arange(COMPARED, dtype=np.int64), offset)
        vectors[offset] = np.stack(
            [subject.rotate(round_to(head, subject.input), table) for head in inputs.q]
        )
    (drifts,) = rms_drifts([subject], inputs, setting, usable)
    result = replace(result, stages=exposure.stages(implementation, setting, dtype), drifts=drifts)
    ranked = [likeness(result, vectors, exact, one) for one in known]
    ranked.sort(key=lambda like: (like.distance, like.profile))
    given, faults = GivenVectors(inputs.q, inputs.k, np.arange(COMPARED), inputs.seed or 0), {}
    for offset in usable:
        asked = subject.rotator(), setting, dtype, given, offset
        seen = verification.check(*asked, new_rotator=subject.rotator, by_batch=subject.by_batch())
        if seen.diagnosis is not None:
            faults[offset] = seen.diagnosis
    # q of one row may be a recipe's, and k, another row or another call is not
    other = any(not one.arithmetic and one.explains for one in faults.values())
    if ranked[0].distance > LIKE or other:
        return replace(result, faults=faults)
    result = replace(result, likely=tuple(like for like in ranked if like.distance <= _LISTED))
    nearest = Emulated(result.nearest()[0].group.resolved, setting)
    places = [(nearest, offset) for offset in usable]
    limits = bounds.bounds(places, inputs, "causal", run_metadata.threads())
    predicted = (limit.rms for limit in limits)
    return replace(result, predicted=dict(zip(usable, predicted, strict=True)))


@functools.lru_cache(maxsize=4)
def compared(
    dtype: Format, setting: RopeSetting, seed: int, offsets: tuple[int, ...]
) -> tuple[Inputs, VectorsAt, list[Known]]:
    """Return q and k, exact vectors, and the vectors and drifts of known recipes."""
    inputs = qk.make("gaussian", _HEADS, _HEADS, COMPARED, setting, seed)
    places = {offset: np.arange(COMPARED, dtype=np.int64) + offset for offset in offsets}
    groups, q = known_recipes.candidate_groups(dtype), inputs.q
    subjects = [Emulated(one.resolved, setting) for one in groups]
    drifts = rms_drifts(subjects, inputs, setting, offsets)
    known: list[Known] = [
        (one, {at: known_recipes.rotated(one, q, where, setting) for at, where in places.items()}, rms)
        for one, rms in zip(groups, drifts, strict=True)
    ]
    exact: VectorsAt = {at: exact_rotation.rotated(q, where, setting) for at, where in places.items()}
    return inputs, exact, known


def rms_drifts(
    subjects: Sequence[Subject],
    inputs: Inputs,
    setting: RopeSetting,
    offsets: Sequence[int],
) -> list[dict[int, float]]:
    """Return the RMS drift of float64 scores by subject and offset."""
    plan = Plan(subjects, [list(offsets)] * len(subjects), inputs, setting, "causal")
    cells = measure.measure(plan, run_metadata.threads())
    numbers = range(len(subjects))
    return [{offset: cells[number, offset].drift.rms for offset in offsets} for number in numbers]


def likeness(
    seen: Trace,
    own: VectorsAt,
    exact: VectorsAt,
    known: Known,
) -> Likeness:
    """Return how near recipes are to code. own, exact: rotated q by offset, (h, s, d)."""
    group, vectors, drifts = known
    distance, profile, equal = 0.0, 0.0, []
    for offset, mine in own.items():
        other = vectors[offset]
        finite = np.isfinite(mine), np.isfinite(other)
        both = finite[0].all(axis=2) & finite[1].all(axis=2)
        own_error = difference = 0.0
        if both.any():
            came = mine[both].astype(np.float64)
            own_error, difference = rms(came - exact[offset][both]), rms(came - other[both])
        difference /= max(own_error, _FINEST * (COMPARED + abs(offset)))
        distance = max(distance, difference if np.array_equal(*finite) else math.inf)
        equal.append(float(np.mean((mine == other) | (np.isnan(mine) & np.isnan(other)))))
        profile = max(profile, _drift_ratio(seen.drifts[offset], drifts[offset]))
    right, narrow = expected(group.resolved), seen.narrowest()
    if "table" in narrow:
        narrow.pop("trig", None)  # it is compared as the table
    differing = tuple(name for name, fmt in narrow.items() if fmt != right.get(name, fmt))
    return Likeness(group, distance, float(np.mean(equal)), profile, differing)


def _drift_ratio(first: float, second: float) -> float:
    if math.isnan(first) or math.isnan(second):
        return 1.0 if math.isnan(first) and math.isnan(second) else math.inf
    low, high = sorted((first, second))
    return high / low if low else (1.0 if not high else math.inf)
