"""Trace: which number formats an implementation uses, and which known recipe it behaves like.

Two ways that need not agree: its operations, where torch runs them, and its numbers, wherever it runs.
Letters: h heads, s positions, d head_dim.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ropeaudit import bounds, circumstances, inputs
from ropeaudit.cases import Case
from ropeaudit.errors import RopeAuditError
from ropeaudit.formats import FloatArray, Format, round_to
from ropeaudit.inputs import Inputs
from ropeaudit.measuring import measure
from ropeaudit.measuring.plan import Plan
from ropeaudit.recipes import Resolved
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Subject, likeness, right
from ropeaudit.subjects.called import Called, Implementation, said
from ropeaudit.subjects.emulated import Emulated
from ropeaudit.subjects.likeness import Group
from ropeaudit.subjects.own import Own

OFFSETS = (0, 1024, 32768, 131072)
_HEADS, _LENGTH = 2, 48
_FINEST = 2.0**-50  # float64 angles are not compared more finely than this, per token
_TIE = 0.02  # share by which two distances must differ for one recipe to be nearer


@dataclass(frozen=True, slots=True)
class Stage:
    """What was seen of one stage: dtypes in order, the operations."""

    name: str
    dtypes: tuple[str, ...]
    operations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Likeness:
    """How near a group of recipes is. profile: largest factor between RMS drifts over the offsets.

    distance: RMS of the vectors' difference over the implementation's own error, largest over the offsets.
    equal: share of the numbers that are the same. differing: stages whose dtype is another, of those seen.
    """

    group: Group
    distance: float
    equal: float
    profile: float
    differing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Traced:
    """What was found of one implementation in a dtype, on a setting.

    stages: empty where nothing of torch was seen. drifts, predicted: offset -> RMS drift, measured, and
    predicted for the nearest recipe. likely: recipes, nearest first. refused: why nothing was found.
    """

    name: str
    dtype: Format
    setting: RopeSetting
    stages: tuple[Stage, ...] = ()
    drifts: Mapping[int, float] | None = None
    predicted: Mapping[int, float] | None = None
    likely: tuple[Likeness, ...] = ()
    refused: str = ""

    def nearest(self) -> list[Likeness]:
        """Return the recipes that none is nearer than, ties included."""
        first = self.likely[0]
        return [one for one in self.likely if one.distance <= first.distance * (1 + _TIE) + 1e-12]


def run(
    cases: Sequence[Case],
    implementations: Sequence[Implementation],
    dtypes: Sequence[Format],
    offsets: Sequence[int] = OFFSETS,
    progress: Callable[[float], None] = lambda share: None,
) -> Iterator[Traced]:
    """Yield what is found, setting by setting, implementation by implementation, dtype by dtype.

    Raises: UsageError, UnknownName, BadShape, BadInput.
    """
    total, done = len(cases) * len(implementations) * len(dtypes), 0
    for case in cases:
        asked = case.setting(_LENGTH)
        for one in implementations:
            own = one.fit(asked).layout if isinstance(one, Own) else one.layouts[0]
            setting = replace(asked, layout=case.layout or own)
            for dtype in dtypes:
                yield _one(one, dtype, setting, case.seed or 0, offsets)
                done += 1
                progress(done / total)


@dataclass(frozen=True, slots=True)
class _Known:
    """q and k, and what all recipes do to them: vectors by (group, offset), RMS drifts by offset."""

    made: Inputs
    exact: Mapping[int, FloatArray]
    subjects: Sequence[Emulated]
    vectors: Mapping[tuple[int, int], FloatArray]
    drifts: Sequence[Mapping[int, float]]


@functools.lru_cache(maxsize=4)
def _known(dtype: Format, setting: RopeSetting, seed: int, offsets: tuple[int, ...]) -> _Known:
    """Return what is compared with, once for all implementations."""
    made = inputs.make("gaussian", _HEADS, _HEADS, _LENGTH, setting, seed)
    at = np.arange(_LENGTH, dtype=np.int64)
    subjects = [Emulated(group.resolved, setting) for group in likeness.groups(dtype)]
    vectors = {
        (number, offset): likeness.emulated(subject.recipe, setting, made.q, offset)
        for number, subject in enumerate(subjects)
        for offset in offsets
    }
    exact = {offset: right.rotated(made.q, at + offset, setting) for offset in offsets}
    return _Known(made, exact, subjects, vectors, _drifts(subjects, made, setting, offsets))


def _one(
    one: Implementation, dtype: Format, setting: RopeSetting, seed: int, offsets: Sequence[int]
) -> Traced:
    subject, some = Called(one, setting, dtype), dict.fromkeys((0, *offsets))
    reasons = {offset: subject.refusal(_LENGTH, offset) for offset in some}
    if reasons[0]:
        return Traced(one.name, dtype, setting, refused=reasons[0])
    kept = tuple(offset for offset in some if not reasons[offset])
    known = _known(dtype, setting, seed, kept)
    vectors = {offset: _turned(subject, known.made, offset) for offset in kept}
    stages = _stages(one, dtype, setting, known.made)
    (drifts,) = _drifts([subject], known.made, setting, kept)
    found = [
        _likeness(number, group, known, vectors, drifts, stages)
        for number, group in enumerate(likeness.groups(dtype))
    ]
    best = min(range(len(found)), key=lambda number: (found[number].distance, found[number].profile))
    cells = [(known.subjects[best], offset) for offset in kept]
    limits = bounds.bounds(cells, known.made, "causal", circumstances.threads())
    predicted = {offset: limit.rms for offset, limit in zip(kept, limits, strict=True)}
    found.sort(key=lambda like: (like.distance, like.profile))
    return Traced(one.name, dtype, setting, stages, drifts, predicted, tuple(found))


def _turned(subject: Called, made: Inputs, offset: int) -> FloatArray:
    """q as the implementation turns it. Shapes: -> (h, s, d)."""
    table = subject.table(np.arange(_LENGTH, dtype=np.int64), offset)
    return np.stack([subject.rotate(round_to(head, subject.input), table) for head in made.q])


def _drifts(
    subjects: Sequence[Subject], made: Inputs, setting: RopeSetting, offsets: Sequence[int]
) -> list[dict[int, float]]:
    """RMS drift of each subject at each offset, which begin with 0; scores are formed in float64."""
    plan = Plan(subjects, [list(offsets)] * len(subjects), made, setting, "causal")
    found = measure.measure(plan, circumstances.threads(), lambda share: None)
    return [
        {offset: found[number, offset].drift.rms for offset in offsets} for number in range(len(subjects))
    ]


def _likeness(
    number: int,
    group: Group,
    known: _Known,
    vectors: Mapping[int, FloatArray],
    drifts: Mapping[int, float],
    stages: Sequence[Stage],
) -> Likeness:
    """Compare numbers at every offset, RMS drifts, and dtypes."""
    distance, equal = 0.0, []
    for offset, seen in vectors.items():
        other = known.vectors[number, offset]
        both = np.isfinite(seen).all(axis=2) & np.isfinite(other).all(axis=2)
        alike = np.array_equal(np.isfinite(seen), np.isfinite(other))
        own = likeness.apart(seen[both], known.exact[offset][both]) if both.any() else 0.0
        missed = likeness.apart(seen[both], other[both]) if both.any() else 0.0
        missed /= max(own, _FINEST * (_LENGTH + abs(offset)))
        distance = max(distance, missed if alike else math.inf)
        equal.append(float(np.mean((seen == other) | (np.isnan(seen) & np.isnan(other)))))
    profile = max(_factor(drifts[offset], known.drifts[number][offset]) for offset in vectors)
    return Likeness(group, distance, float(np.mean(equal)), profile, _differing(group.resolved, stages))


def _factor(first: float, second: float) -> float:
    """By which factor two RMS drifts differ, at least 1; inf where only one is undefined."""
    if math.isnan(first) or math.isnan(second):
        return 1.0 if math.isnan(first) and math.isnan(second) else math.inf
    low, high = sorted((first, second))
    return high / low if low else (1.0 if not high else math.inf)


def expected(one: Resolved) -> dict[str, str]:
    """Return stage -> dtype that a recipe rounds to there."""
    before = {"position": one.position, "frequency": one.frequency[1], "angle": one.angle[1]}
    table = min(one.trig, one.table or one.trig, key=lambda fmt: fmt.precision)
    after = {"trig": one.trig, "table": table, "rotation": one.rotation, "output": one.output}
    return {stage: fmt.name for stage, fmt in (before | after).items()}


def narrowest(stage: Stage) -> str:
    """Return the narrowest dtype that a stage's numbers took: what they are rounded to."""
    real = {"complex64": "float32", "complex128": "float64", "complex32": "float16"}
    names = [real.get(name, name) for name in stage.dtypes]
    widths = ("bfloat16", "float16", "float32", "float64")
    return min(names, key=lambda name: widths.index(name) if name in widths else -1)


def _differing(one: Resolved, stages: Sequence[Stage]) -> tuple[str, ...]:
    """The stages that were seen in a dtype other than the recipe's; trig is judged as the table."""
    right, there = expected(one), {stage.name for stage in stages}
    judged = [
        stage for stage in stages if stage.name in right and (stage.name, "table" in there) != ("trig", True)
    ]
    return tuple(stage.name for stage in judged if narrowest(stage) != right[stage.name])


def _stages(one: Implementation, dtype: Format, setting: RopeSetting, made: Inputs) -> tuple[Stage, ...]:
    """Run it once under a log of torch's operations. Nothing is known of what is not torch."""
    if one.engine != "torch":
        return ()
    from ropeaudit.analyses import trace_mode
    from ropeaudit.subjects import patience, torch_arrays

    log = trace_mode.Logger(1, _LENGTH, setting.head_dim, setting.pairs)
    x = np.ascontiguousarray(round_to(made.q[:1], dtype), dtype=dtype.carrier)

    def traced() -> FloatArray:
        with log:
            return one.fresh(setting, dtype)(x, np.arange(_LENGTH, dtype=np.int64))

    torch_arrays.listeners.append(log.hear)
    try:
        patience.patiently(traced, one.name)
    except RopeAuditError:
        raise
    except Exception as error:  # a log that cannot be had is no reason to stop
        return (Stage("input", (f"not traced: {said(error)}",), ()),)
    finally:
        torch_arrays.listeners.remove(log.hear)
    return tuple(
        Stage(name, tuple(seen.dtypes), tuple(seen.operations))
        for name, seen in trace_mode.stages(log).items()
    )
