"""Trace: which number formats an implementation uses, and which known recipe it behaves like.

Two ways that need not agree: its operations, where torch runs them, and its numbers, wherever it runs.
Letters: h heads, s positions, d head_dim.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Unpack

import numpy as np

from ropeaudit import bounds
from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import FloatArray, Format, round_to
from ropeaudit.audits import arguments
from ropeaudit.audits.arguments import CaseArguments, Names, OnProgress
from ropeaudit.audits.cases import Case
from ropeaudit.engine import measure
from ropeaudit.engine.plan import Plan
from ropeaudit.errors import RopeAuditError
from ropeaudit.features.trace.compare import COMPARED, LIKE, Likeness, Stage, compared, narrowest, nearest
from ropeaudit.inputs import qk
from ropeaudit.inputs.qk import Inputs
from ropeaudit.rope.setting import LARGEST_BASE, RopeSetting
from ropeaudit.runtime import run_metadata
from ropeaudit.subjects import Subject, factories
from ropeaudit.subjects.calling.implementation import Called, Implementation, error_line
from ropeaudit.subjects.calling.own_code import Own
from ropeaudit.subjects.emulated import Emulated
from ropeaudit.subjects.placement import exact_rotation, likeness
from ropeaudit.subjects.placement.likeness import Group

OFFSETS = (0, 1024, 32768, 131072)
_HEADS = 2
_LISTED = 0.9  # recipes further away explain nothing, and are not listed beside a nearer one
_EXPLAINS = 0.3  # a base explains vectors if it leaves at most this share of their error
_SAME = 0.01  # two fitted bases that differ by less are the same
_UNKNOWN = "nothing known"


@dataclass(frozen=True, slots=True)
class Traced:
    """What was found of one implementation in a dtype, on a setting.

    stages: empty where nothing of torch was seen. drifts, predicted: offset -> RMS drift, measured, and
    predicted for the nearest recipe. likely: recipes that it is like, nearest first. fault: what it does
    instead, in words, where it is like none and that is known. dropped: offset -> why it was refused there.
    refused: why nothing was found.
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

    def nearest(self) -> list[Likeness]:
        """Return the recipes that none is nearer than."""
        return nearest(self.likely)


@arguments.checked
def trace(
    implementations: Names | Sequence[Implementation],
    dtypes: Names = "bf16",
    offsets: int | Iterable[int] = OFFSETS,
    *,
    order: str | None = None,
    cases: Case | Iterable[Case] | None = None,
    on_progress: OnProgress | None = None,
    **case: Unpack[CaseArguments],
) -> Iterator[Traced]:
    """Trace implementations: their dtypes by stage, and the recipe that each behaves like.

    Yields one Traced per implementation and dtype, in that order.
    implementations: as `called` takes them, or what it returns. offsets: of the error profile.
    dtypes, order, cases, on_progress, case: as in `ropeaudit.shift`; of q and k, seed alone is looked at.
    Raises: UsageError, UnknownName, MissingPackage, BadShape, BadInput.
    """
    code = called(implementations, order)
    formats, numbers = arguments.formats(dtypes), arguments.numbers(offsets)
    return run(arguments.cases_of(cases, case), code, formats, numbers, on_progress or arguments.unheard)


def called(implementations: Names | Sequence[Implementation], order: str | None) -> list[Implementation]:
    """Return code to call, by names of `ropeaudit list impls` or as module:name. Raises: see `trace`."""
    given = [implementations] if isinstance(implementations, str) else implementations
    return [factories.implementation(one, order) if isinstance(one, str) else one for one in given]


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
        requested = case.setting(COMPARED)
        for one in implementations:
            own = one.fit(requested).layout if isinstance(one, Own) else one.layouts[0]
            setting = replace(requested, layout=case.layout or own)
            for dtype in dtypes:
                yield _one(one, dtype, setting, case.seed or 0, offsets)
                done += 1
                progress(done / total)


@dataclass(frozen=True, slots=True)
class _Known:
    """q and k, and what all recipes do to them: vectors by (group, offset), RMS drifts by offset."""

    built: Inputs
    exact: Mapping[int, FloatArray]
    subjects: Sequence[Emulated]
    vectors: Mapping[tuple[int, int], FloatArray]
    drifts: Sequence[Mapping[int, float]]


@functools.lru_cache(maxsize=4)
def _known(dtype: Format, setting: RopeSetting, seed: int, offsets: tuple[int, ...]) -> _Known:
    """Return what is compared with, once for all implementations."""
    built = qk.make("gaussian", _HEADS, _HEADS, COMPARED, setting, seed)
    at = np.arange(COMPARED, dtype=np.int64)
    subjects = [Emulated(group.resolved, setting) for group in likeness.variants(dtype)]
    vectors = {
        (number, offset): likeness.emulated(subject.recipe, setting, built.q, offset)
        for number, subject in enumerate(subjects)
        for offset in offsets
    }
    exact = {offset: exact_rotation.rotated(built.q, at + offset, setting) for offset in offsets}
    return _Known(built, exact, subjects, vectors, _drifts(subjects, built, setting, offsets))


def _one(
    one: Implementation, dtype: Format, setting: RopeSetting, seed: int, offsets: Sequence[int]
) -> Traced:
    subject, some = Called(one, setting, dtype), dict.fromkeys((0, *offsets))
    reasons = {offset: subject.refusal(COMPARED, offset) for offset in some}
    if reasons[0]:
        return Traced(one.name, dtype, setting, refused=reasons[0])
    stored = tuple(offset for offset in some if not reasons[offset])
    known = _known(dtype, setting, seed, stored)
    vectors = {offset: _rotated(subject, known.built, offset) for offset in stored}
    stages = _stages(one, dtype, setting, known.built)
    (drifts,) = _drifts([subject], known.built, setting, stored)
    results = [
        _likeness(group, known, number, vectors, drifts, stages)
        for number, group in enumerate(likeness.variants(dtype))
    ]
    results.sort(key=lambda like: (like.distance, like.profile))
    results = [*_as_seen(results, known, dtype, vectors, drifts, stages), *results]
    likely = (
        tuple(like for like in results if like.distance <= _LISTED) if results[0].distance <= LIKE else ()
    )
    fault = "" if likely else _fault(subject, known.built, setting, dtype, vectors)
    predicted = _predicted(nearest(likely)[0].group, known.built, setting, stored) if likely else {}
    dropped = {offset: reason for offset, reason in reasons.items() if reason}
    return Traced(one.name, dtype, setting, stages, drifts, predicted, likely, fault, dropped)


def _as_seen(
    results: Sequence[Likeness],
    known: _Known,
    dtype: Format,
    vectors: Mapping[int, FloatArray],
    drifts: Mapping[int, float],
    stages: Sequence[Stage],
) -> list[Likeness]:
    """Return the nearest recipe with the dtypes that were seen, where its numbers are nearer then."""
    best = nearest(results)[0]
    if not best.differing or best.distance > LIKE:
        return []
    seen = {stage.name: narrowest(stage) for stage in stages}
    changes = {
        name: f"fp32/{seen[name]}" if name in ("frequency", "angle") else seen[name]
        for name in best.differing
    }
    try:
        resolved = best.group.resolved.recipe.changed(changes).resolve(dtype)
    except RopeAuditError:  # dtypes that no recipe can name
        return []
    changed = Group((), resolved)
    setting, built = known.subjects[0].setting, known.built
    others = {offset: likeness.emulated(resolved, setting, built.q, offset) for offset in vectors}
    (other_drifts,) = _drifts([Emulated(resolved, setting)], built, setting, list(vectors))
    one = compared(changed, known.exact, vectors, others, drifts, other_drifts, stages)
    return [one] if one.distance < best.distance else []


def _fault(
    subject: Called,
    built: Inputs,
    setting: RopeSetting,
    dtype: Format,
    vectors: Mapping[int, FloatArray],
) -> str:
    """Return in words what rotated q into vectors that no recipe explains; nothing if unknown."""
    x = np.stack([round_to(head, subject.input) for head in built.q]).astype(np.float64)
    base = _base(vectors[0], x, setting)
    results: dict[str, list[int]] = {}
    for offset, seen in vectors.items():
        text = likeness.named(seen, x, setting, dtype, offset)
        if not text and base and abs(likeness.base_of(seen, x, setting) / base - 1) < _SAME:
            text = f"base {base:.3g}"
        results.setdefault(text or _UNKNOWN, []).append(offset)
    if len(results) == 1:
        return "".join(results).replace(_UNKNOWN, "")
    places = {text: f"offset{'s' * (len(at) > 1)} {', '.join(map(str, at))}" for text, at in results.items()}
    return "; ".join(f"{text} at {place}" for text, place in places.items())


def _base(seen: FloatArray, x: Array, setting: RopeSetting) -> float:
    """Return the base that explains vectors at positions from 0; 0 where none does."""
    base, at = likeness.base_of(seen, x, setting), np.arange(COMPARED, dtype=np.int64)
    if not 1 < base < LARGEST_BASE:
        return 0.0
    missed, left = (
        likeness.apart(seen, exact_rotation.rotated(x, at, other))
        for other in (setting, replace(setting, base=base))
    )
    return base if left < _EXPLAINS * missed else 0.0


def _predicted(group: Group, built: Inputs, setting: RopeSetting, offsets: Sequence[int]) -> dict[int, float]:
    subject = Emulated(group.resolved, setting)
    limits = bounds.bounds([(subject, offset) for offset in offsets], built, "causal", run_metadata.threads())
    return {offset: limit.rms for offset, limit in zip(offsets, limits, strict=True)}


def _rotated(subject: Called, built: Inputs, offset: int) -> FloatArray:
    """q as the implementation turns it. Shapes: -> (h, s, d)."""
    table = subject.table(np.arange(COMPARED, dtype=np.int64), offset)
    return np.stack([subject.rotate(round_to(head, subject.input), table) for head in built.q])


def _drifts(
    subjects: Sequence[Subject], built: Inputs, setting: RopeSetting, offsets: Sequence[int]
) -> list[dict[int, float]]:
    """RMS drift of each subject at each offset, which begin with 0; scores are formed in float64."""
    plan = Plan(subjects, [list(offsets)] * len(subjects), built, setting, "causal")
    result = measure.measure(plan, run_metadata.threads(), lambda share: None)
    return [
        {offset: result[number, offset].drift.rms for offset in offsets} for number in range(len(subjects))
    ]


def _likeness(
    group: Group,
    known: _Known,
    number: int,
    vectors: Mapping[int, FloatArray],
    drifts: Mapping[int, float],
    stages: Sequence[Stage],
) -> Likeness:
    others = {offset: known.vectors[number, offset] for offset in vectors}
    return compared(group, known.exact, vectors, others, drifts, known.drifts[number], stages)


def _stages(one: Implementation, dtype: Format, setting: RopeSetting, built: Inputs) -> tuple[Stage, ...]:
    """Run it once under a log of torch's operations. Nothing is known of what is not torch."""
    if one.engine != "torch":
        return ()
    from ropeaudit.features.trace import mode
    from ropeaudit.subjects import torch_arrays
    from ropeaudit.subjects.calling import timeout

    log = mode.Logger(1, COMPARED, setting.head_dim, setting.pairs)
    x = np.ascontiguousarray(round_to(built.q[:1], dtype), dtype=dtype.carrier)

    def traced() -> FloatArray:
        with log:
            return one.fresh(setting, dtype)(x, np.arange(COMPARED, dtype=np.int64))

    torch_arrays.listeners.append(log.on_progress)
    try:
        timeout.patiently(traced, one.name)
    except RopeAuditError:
        raise
    except Exception as error:  # a log that cannot be had is no reason to stop
        return (Stage("input", (f"not traced: {error_line(error)}",), ()),)
    finally:
        torch_arrays.listeners.remove(log.on_progress)
    return tuple(
        Stage(name, tuple(seen.dtypes), tuple(seen.operations)) for name, seen in mode.stages(log).items()
    )
