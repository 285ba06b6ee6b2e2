"""How far scores are from the exact ones, how far they may be, and what that says of code.

Scores are scaled, before softmax. They may drift as far as those of the recipe that code claims to follow, or
that it resembles. A recipe that code resembles is a yardstick only where its formats are right, so that no
pair may be off by more than right code explains: a cast table is not made right by being known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from ropeaudit import bounds
from ropeaudit.arithmetic.formats import Format
from ropeaudit.audits import judging
from ropeaudit.bounds import Bound, attainable
from ropeaudit.conformance.code_under_test import HEADS, CodeUnderTest
from ropeaudit.conformance.every_position import runs_at
from ropeaudit.conformance.finding import Finding, judged, not_applicable
from ropeaudit.engine import measure
from ropeaudit.engine.plan import CellStatistics, Plan
from ropeaudit.engine.statistics import Place
from ropeaudit.inputs.qk import Inputs
from ropeaudit.recipes import Resolved
from ropeaudit.recognition import allowance, known_recipes, verification, wording
from ropeaudit.recognition.diagnosis import Diagnosis
from ropeaudit.recognition.known_recipes import CalledBlock, RecipeGroup, explaining_recipe, explains
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions
from ropeaudit.subjects.calling.called import Called
from ropeaudit.subjects.emulated import Emulated

RMS_FACTOR = 1.5  # measured RMS drift is 0.8 to 1.3 times the predicted RMS: docs/method.md
MASK = "full"
_UNIT = "RMS, in score units"
_WIDER = "compute positions, frequencies and angles in float64: in float32 drift is predicted to be as large"


@dataclass(frozen=True, slots=True)
class MeasuredDrift:
    """What was measured at an offset with so many tokens, and what is allowed.

    largest, rms: differences of scores, inf where one is not finite. place: head, query and key of the
    largest. error: of the reference. tokens: how many, and of what where that is not all that was given.
    """

    tokens: str
    offset: int
    largest: float
    rms: float
    place: Place
    reference_rms: float
    error: float
    limit: Bound

    @classmethod
    def of_cell(cls, cell: CellStatistics, tokens: str, offset: int, limit: Bound) -> Self:
        """Return what the engine measured."""
        largest, rms, place = size(cell.drift.max), size(cell.drift.rms), cell.drift.place or (0, 0, 0)
        return cls(tokens, offset, largest, rms, place, cell.reference.rms, cell.error, limit)

    @property
    def allowed(self) -> float:
        """The RMS drift that is allowed."""
        return RMS_FACTOR * self.limit.rms + self.error

    @property
    def most(self) -> float:
        """The largest drift that is allowed."""
        return self.limit.maximum + self.error

    @property
    def over_bound(self) -> bool:
        """Whether the largest is above the a-priori bound."""
        return self.largest > self.most

    @property
    def over_prediction(self) -> bool:
        """Whether the RMS is above `RMS_FACTOR` times the predicted one."""
        return self.rms > self.allowed

    @property
    def fails(self) -> bool:
        """Whether it is more than allowed."""
        return self.over_bound or self.over_prediction

    @property
    def relative(self) -> float:
        """The RMS drift over the RMS of the exact scores."""
        return judging.ratio(self.rms, self.reference_rms)


def size(value: float) -> float:
    """Return a difference of scores; inf for nan."""
    return math.inf if math.isnan(value) else value


@dataclass(frozen=True, slots=True)
class Yardstick:
    """The recipes whose largest bound and prediction count, also in words."""

    recipes: tuple[Resolved, ...]
    text: str

    def limits(
        self, setting: RopeSetting, inputs: Inputs, offsets: Sequence[int], mask: str = MASK
    ) -> list[Bound]:
        """Return bound and prediction by offset, for scores in float64."""
        subjects = [Emulated(recipe, setting) for recipe in self.recipes]
        cells = [(subject, offset) for offset in offsets for subject in subjects]
        of_cells, count = bounds.bounds(cells, inputs, mask), len(subjects)
        parts = [of_cells[start : start + count] for start in range(0, len(of_cells), count)]
        return [Bound(max(one.maximum for one in part), max(one.rms for one in part)) for part in parts]


def yardstick(
    claimed: Resolved | None, resembled: RecipeGroup | None, setting: RopeSetting, dtype: Format, up_to: int
) -> Yardstick:
    """Return what the drift of code is compared with.

    resembled: the recipe that its numbers are of; None where none is, or where pairs are out of place.
    """
    if claimed is not None:
        exact_scores = {"accumulate": "fp64", "score": "fp64"}
        recipe = claimed.recipe.changed(exact_scores).resolve(dtype)
        return Yardstick((recipe,), f"recipe {claimed.recipe.name}, as claimed")
    at, rule = np.unique([0, min(1, up_to - 1), up_to // 2, up_to - 1]), allowance.careful(dtype)
    most = allowance.allowed(rule, setting, at) * (1 + 2.0**-40)

    def right(recipe: Resolved) -> bool:
        """Return whether a recipe allows no larger error than right code does."""
        return bool((allowance.allowed(recipe, setting, at) <= most).all())

    if resembled is not None and right(resembled.resolved):
        return Yardstick(
            (resembled.resolved,), f"{wording.arithmetic(resembled.values())}, which it resembles"
        )
    every = [group.resolved for group in known_recipes.groups(dtype)]
    return Yardstick(tuple(filter(right, every)), f"the coarsest right recipe in {dtype}")


def drift(check: str, seen: Sequence[MeasuredDrift], wanted: Yardstick, behaves: Diagnosis | None) -> Finding:
    """Return whether drift is within the yardstick's limits at all offsets."""
    worst = max(seen, key=lambda one: (one.fails, judging.ratio(one.rms, one.allowed)))
    where = f"{worst.tokens} at offset {worst.offset}"
    yardstick_words = f"allowed: {RMS_FACTOR:g} times the predicted RMS of {wanted.text}, and its bound"
    offsets = ", ".join(str(one.offset) for one in seen)
    detail = f"{worst.tokens} at offsets {offsets}; {yardstick_words}" if len(seen) > 1 else yardstick_words
    measured, allowed, unit = worst.rms, worst.allowed, _UNIT
    if worst.over_bound and not worst.over_prediction:
        head, query, key = worst.place
        where += f", head {head}, rows {query} and {key}"
        measured, allowed, unit = worst.largest, worst.most, "score units, the largest"
    sizes: dict[str, Any] = {"measured": measured, "allowed": allowed, "unit": unit, "where": where}
    return judged(check, not worst.fails, detail, **sizes, diagnosis=behaves if worst.fails else None)


def growth(
    seen: Sequence[MeasuredDrift],
    wanted: Yardstick,
    dtype: Format,
    careful: Callable[[MeasuredDrift], float],
    behaves: Diagnosis | None = None,
) -> Finding:
    """Return whether drift grows up to the end by more than positions and angles of the yardstick explain.

    Drift that is at most twice that at offset 0 does not grow, however large it is: other checks say that.
    The excess over careful code near offset 0 has no constant limit: the spacing of float32 angles grows with
    the position, so that right code has an excess of 3 in float16 at 131,072, and in float32, where all else
    is finer, of 47 over 4,096 tokens and of 2,600 over 64. What is allowed is therefore what the yardstick
    is predicted to have at the same offset, and never less than what is called sound.
    """
    first, last = seen[0], seen[-1]
    if not last.offset:
        return not_applicable("growth", f"{last.tokens} were judged at no other offset than 0")
    where = f"{last.tokens} at offset {last.offset}"
    grown = judging.ratio(last.rms, first.rms)
    if grown <= judging.GROWTH:
        detail = f"drift at offset {last.offset} against that at offset 0, {last.tokens} each"
        sizes: dict[str, Any] = {
            "measured": grown,
            "allowed": judging.GROWTH,
            "unit": "times that at offset 0",
        }
        return judged("growth", True, detail, **sizes, where=where)
    attained = careful(first)
    excess = _excess(last.rms, attained)
    allowed = max(judging.EXCESS, _excess(last.allowed, attained))
    word = judging.judge(
        nonfinite=not math.isfinite(last.rms),
        drift_max=last.largest,
        drift_rms=last.rms,
        floor_rms=first.rms,
        reference_rms=last.reference_rms,
        reference_error=last.error,
        excess=excess,
        wrong_rotation=False,
    )
    passed = excess <= allowed and word not in ("broken", "overflow")
    times = f", {grown:.3g} times its drift at offset 0" if math.isfinite(grown) else ""
    reason = f", as that of {wanted.text}" if passed and word in ("growing", "coarse") else ""
    detail = f"against careful {dtype} code near offset 0; at offset {last.offset} drift is {word}"
    sizes = {"measured": excess, "allowed": allowed, "unit": "times that of careful code"}
    cause = None if passed else behaves
    return judged("growth", passed, f"{detail}{times}{reason}", **sizes, where=where, diagnosis=cause)


def _excess(rms: float, careful: float) -> float:
    return 0.0 if rms == 0 else rms / careful if careful else math.inf


def tolerance(
    seen: Sequence[MeasuredDrift],
    claimed: Resolved | None,
    setting: RopeSetting,
    dtype: Format,
    behaves: Diagnosis | None = None,
) -> Finding:
    """Return whether drift stays below 1 % of the scores' RMS everywhere."""
    share = f"{judging.TOLERANCE:.0%}"
    if claimed is not None:
        return not_applicable("tolerance", f"recipe {claimed.recipe.name} says what is allowed")
    stored = attainable.storing(dtype, setting.rotary_dim / setting.head_dim)
    if stored > judging.TOLERANCE:
        why = f"no code in {dtype} meets {share}: storing q, k and scores in it costs {stored:.2g}"
        return not_applicable("tolerance", why)
    worst = max(seen, key=lambda one: one.relative if math.isfinite(one.relative) else math.inf)
    passed = worst.relative <= judging.TOLERANCE
    detail = f"drift against {share} of the RMS of the exact scores, at {len(seen)} lengths and offsets"
    sizes: dict[str, Any] = {
        "measured": worst.relative,
        "allowed": judging.TOLERANCE,
        "unit": "of the scores' RMS",
    }
    where, cause = f"{worst.tokens} at offset {worst.offset}", None if passed else behaves
    remedy = "" if passed or behaves or worst.fails else _WIDER
    return judged("tolerance", passed, detail, **sizes, where=where, diagnosis=cause, remedy=remedy)


CHECKS = ("drift", "long sequence", "growth", "tolerance")
_SHORT, _LONG = 64, 4096  # positions of a sequence
_MIDDLE = 1000  # an offset between the first and the last
_ROWS = 256  # of a long sequence that are compared, each with each


def scores(code: CodeUnderTest) -> Iterator[Finding]:
    """Yield the checks of drift: short and long runs, growth, tolerance."""
    length = min(_SHORT, code.up_to)
    if HEADS * length**2 < judging.FEWEST:
        why = f"{code.up_to} positions make fewer than {judging.FEWEST} scores"
        yield from (not_applicable(name, why) for name in CHECKS)
        return
    run = ScoreRun(code, HEADS, length)
    resembled = None if code.seen.wrong_rotation else explaining_recipe(*run.at_the_end())
    wanted = yardstick(code.claimed, resembled, code.setting, code.dtype, code.up_to)
    short = run.measured(wanted, sorted({0, min(_MIDDLE, run.last), run.last}))
    cause, runs = run.cause(short), [(run, short, wanted)]
    yield drift("drift", short, wanted, cause)
    if code.up_to > _SHORT:
        run = ScoreRun(code, 1, min(_LONG, code.up_to))
        if resembled and not explains(resembled, *run.at_the_end()):
            wanted = yardstick(code.claimed, None, code.setting, code.dtype, code.up_to)
        long = run.measured(wanted, sorted({0, run.last}))
        if not any(drift.fails for drift in short):
            cause = run.cause(long)
        yield drift("long sequence", long, wanted, cause)
        if run.last:
            runs.insert(0, (run, long, wanted))
    else:
        long = short
        yield not_applicable("long sequence", f"there are no more than {code.up_to} positions")
    growing = [growth(drifts, limit, code.dtype, run.careful, cause) for run, drifts, limit in runs]
    # a long one may be as wrong at offset 0
    yield next((finding for finding in growing if finding.failed), growing[0])
    yield tolerance([*short, *long], code.claimed, code.setting, code.dtype, cause)


class ScoreRun:
    """The q and k of a sequence, and one instance that is called with all of it."""

    def __init__(self, code: CodeUnderTest, heads: int, length: int) -> None:
        self.code, self.length, self.last = code, length, code.up_to - length
        q, k = code.vectors(heads, length)
        self.inputs = Inputs(q.astype(np.float64), k.astype(np.float64), "gaussian", code.seed)
        self.given = q.astype(code.dtype.carrier)[None], k.astype(code.dtype.carrier)[None]
        self.rows: Positions = np.arange(length, dtype=np.int64)
        if length > _ROWS:
            generator = np.random.default_rng([code.seed, length])
            self.rows = np.sort(generator.choice(length, _ROWS, replace=False))
        self.rotator = code.rotator()
        self.called = Called(code.tested, code.setting, code.dtype, self.rotator)
        self.called.together(self.inputs.q, self.inputs.k, self.rows)

    def _block(self, offset: int) -> CalledBlock:
        at: Positions = np.arange(self.length, dtype=np.int64) + offset
        return CalledBlock(at, self.given, self.rotator.rotate_both(*self.given, at))

    def measured(self, wanted: Yardstick, offsets: Sequence[int]) -> list[MeasuredDrift]:
        """Return what is measured at each offset, the first of them 0."""
        inputs, seen = self.inputs, list[MeasuredDrift]()
        tokens = f"{self.length} tokens{' of one head' * (inputs.heads == 1)}"
        rows = Inputs(inputs.q[:, self.rows], inputs.k[:, self.rows], "gaussian", self.code.seed)
        alike: dict[RopeSetting, list[int]] = {}
        for offset in offsets:
            alike.setdefault(self._held_to(offset), []).append(offset)
        for setting, some in alike.items():
            cells = Plan([self.called], [some], rows, setting, MASK, positions=self.rows)
            results = measure.measure(cells, 1)
            seen += [
                MeasuredDrift.of_cell(results[0, offset], tokens, offset, limit)
                for offset, limit in zip(some, wanted.limits(setting, inputs, some), strict=True)
            ]
        return seen

    def _held_to(self, offset: int) -> RopeSetting:
        """Return the setting that the sequence is held to at an offset."""
        return self.code.setting_at(np.array([offset + self.length - 1]))

    def at_the_end(self) -> tuple[CalledBlock, RopeSetting, Format]:
        """Return the call of the last positions, with its setting and dtype."""
        return self._block(self.last), self._held_to(self.last), self.code.dtype

    def cause(self, drifts: Sequence[MeasuredDrift]) -> Diagnosis | None:
        """Return what explains too much drift at the last such offset."""
        failing = [drift for drift in drifts if drift.fails]
        if not failing:
            return None
        last = max(failing, key=lambda drift: drift.offset)
        offset, code = last.offset, self.code
        offsets = [offset, *(drift.offset for drift in drifts if drift.offset != offset)]
        calls = runs_at(code.batch(self.inputs.heads, self.length), offsets)
        judge = code.judge(self.rotator, calls)
        wrong = verification.with_other_side(judge(0, True), judge, range(1, len(calls)))
        found = wrong.diagnosis
        if found is not None and found.explains:
            return found
        block, setting = self._block(offset), self._held_to(offset)

        def holds(fmt: Format) -> bool:
            """Return whether drift is within the limits of right code in a format."""
            wanted = yardstick(None, None, setting, fmt, code.up_to)
            [limit] = wanted.limits(setting, self.inputs, [offset])
            return not replace(last, limit=limit).fails

        call = self.given, block.rotated, block.at
        return allowance.narrower_format(setting, code.dtype, *call, holds) or found

    def careful(self, first: MeasuredDrift) -> float:
        """Return the RMS drift of careful code at offset 0, as `excess` counts it."""
        subject = Emulated(attainable.careful(self.code.dtype), self._held_to(0))
        predicted = bounds.bound(subject, self.inputs, MASK, 0).rms
        return attainable.attainable_rms(predicted, self.code.dtype, first.reference_rms)
