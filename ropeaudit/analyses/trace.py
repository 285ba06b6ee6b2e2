"""Trace: which number formats an implementation uses, and which known recipe it behaves like.

Two ways that need not agree: its operations, where torch runs them, and its numbers, wherever it runs.
Letters: h heads, s positions, d head_dim.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ropeaudit import bounds, circumstances, inputs, measure
from ropeaudit.analyses import likeness
from ropeaudit.analyses.likeness import Group
from ropeaudit.cases import Case
from ropeaudit.errors import RopeAuditError
from ropeaudit.formats import FloatArray, Format, round_to
from ropeaudit.inputs import Inputs
from ropeaudit.plan import Plan
from ropeaudit.recipes import Resolved
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import fitting
from ropeaudit.subjects.called import Called, Implementation, said
from ropeaudit.subjects.emulated import Emulated
from ropeaudit.subjects.own import Own

OFFSETS = (0, 1024, 32768, 131072)
_HEADS, _LENGTH = 2, 48
_TIE = 0.02  # share by which two distances must differ for one recipe to be nearer
_ALIKE = 1.25  # RMS drifts that differ by less than this factor at every offset belong to one profile


@dataclass(frozen=True, slots=True)
class Stage:
    """What was seen of one stage: dtypes in order, the operations."""

    name: str
    dtypes: tuple[str, ...]
    operations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Likeness:
    """How near a group of recipes is. profile: largest factor between RMS drifts over the offsets.

    distance: RMS of the vectors' difference over that of the recipe's own error, largest over the offsets.
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
            setting = asked
            if case.layout is None:
                setting = replace(
                    asked, layout=one.fit(asked).layout if isinstance(one, Own) else one.layouts[0]
                )
            made = inputs.make("gaussian", _HEADS, _HEADS, _LENGTH, setting, case.seed or 0)
            for dtype in dtypes:
                yield _one(one, dtype, setting, made, offsets)
                done += 1
                progress(done / total)


def _one(
    one: Implementation, dtype: Format, setting: RopeSetting, made: Inputs, offsets: Sequence[int]
) -> Traced:
    subject = Called(one, setting, dtype)
    some = list(dict.fromkeys((0, *offsets)))
    reasons = [reason for offset in some if (reason := subject.refusal(_LENGTH, offset))]
    kept = [offset for offset in some if not subject.refusal(_LENGTH, offset)] if reasons else some
    if 0 not in kept:
        return Traced(one.name, dtype, setting, refused=reasons[0])
    vectors = {offset: _turned(subject, made, offset) for offset in kept}
    stages = _stages(one, dtype, setting, made)
    groups = likeness.groups(dtype)
    emulated = [Emulated(group.resolved, setting) for group in groups]
    drifts = _drifts([subject, *emulated], made, setting, kept)
    found = [
        _likeness(group, made, setting, vectors, [drifts[0], drifts[number]], stages)
        for number, group in enumerate(groups, 1)
    ]
    found.sort(key=lambda like: (like.distance, like.profile))
    best = emulated[[group.names for group in groups].index(found[0].group.names)]
    limits = bounds.bounds([(best, offset) for offset in kept], made, "causal", circumstances.threads())
    expected = {offset: limit.rms for offset, limit in zip(kept, limits, strict=True)}
    return Traced(one.name, dtype, setting, stages, drifts[0], expected, tuple(found))


def _turned(subject: Called, made: Inputs, offset: int) -> FloatArray:
    """q as the implementation turns it. Shapes: -> (h, s, d)."""
    table = subject.table(np.arange(_LENGTH, dtype=np.int64), offset)
    return np.stack([subject.rotate(round_to(head, subject.input), table) for head in made.q])


def _drifts(
    subjects: Sequence[Called | Emulated], made: Inputs, setting: RopeSetting, offsets: Sequence[int]
) -> list[dict[int, float]]:
    """RMS drift of each subject at each offset; scores are formed in float64."""
    plan = Plan(subjects, [list(offsets)] * len(subjects), made, setting, "causal")
    found = measure.measure(plan, circumstances.threads(), lambda share: None)
    return [
        {offset: found[number, offset].drift.rms for offset in offsets} for number in range(len(subjects))
    ]


def _likeness(
    group: Group,
    made: Inputs,
    setting: RopeSetting,
    vectors: Mapping[int, FloatArray],
    drifts: Sequence[Mapping[int, float]],
    stages: Sequence[Stage],
) -> Likeness:
    """Compare numbers at every offset, RMS drifts, and dtypes."""
    distance, equal = 0.0, []
    for offset, seen in vectors.items():
        other = likeness.emulated(group.resolved, setting, made.q, offset)
        exact = fitting.rotated(made.q, np.arange(_LENGTH) + offset, setting)
        both = np.isfinite(seen).all(axis=2) & np.isfinite(other).all(axis=2)
        alike = np.array_equal(np.isfinite(seen), np.isfinite(other))
        size = likeness.apart(other[both], exact[both]) if both.any() else 0.0
        missed = likeness.apart(seen[both], other[both]) / (size or 1.0) if both.any() else 0.0
        distance = max(distance, missed if alike else math.inf)
        equal.append(float(np.mean((seen == other) | (np.isnan(seen) & np.isnan(other)))))
    ratios = [_factor(drifts[0][offset], drifts[1][offset]) for offset in vectors]
    return Likeness(group, distance, float(np.mean(equal)), max(ratios), _differing(group.resolved, stages))


def _factor(first: float, second: float) -> float:
    """By which factor two RMS drifts differ, at least 1; inf where only one is undefined."""
    if math.isnan(first) or math.isnan(second):
        return 1.0 if math.isnan(first) and math.isnan(second) else math.inf
    low, high = sorted((first, second))
    return high / low if low else (1.0 if not high else math.inf)


def expected(one: Resolved) -> dict[str, str]:
    """Return stage -> dtype that a recipe rounds to there."""
    before = {"position": one.position, "frequency": one.frequency[1], "angle": one.angle[1]}
    after = {"trig": one.trig, "table": one.table or one.trig, "rotation": one.rotation, "output": one.output}
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
