"""Checks of the drift of scores: measured, and compared with the drift that is allowed.

Scores are scaled, before softmax. Allowed is the drift of the recipe that code claims to follow, or that it
resembles, if this allows no pair more than correct code: a cast table is not right because it is known.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ropeaudit import bounds
from ropeaudit.arithmetic.formats import Format
from ropeaudit.audits import judging
from ropeaudit.bounds import Bound, attainable
from ropeaudit.conformance.code_under_test import HEADS, CodeUnderTest, calls_from, make_call
from ropeaudit.conformance.finding import Finding, not_applicable
from ropeaudit.engine import measure
from ropeaudit.engine.plan import CellStatistics, Plan
from ropeaudit.engine.statistics import Place
from ropeaudit.inputs.masks import Mask
from ropeaudit.inputs.qk import Inputs
from ropeaudit.recipes import Resolved
from ropeaudit.recognition import allowance, known_recipes, wording
from ropeaudit.recognition.diagnosis import Diagnosis
from ropeaudit.recognition.known_recipes import CalledBlock, RecipeGroup
from ropeaudit.recognition.rotation import explaining_recipe, held_to
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions
from ropeaudit.subjects.calling.code import Called, Rotator
from ropeaudit.subjects.emulated import Emulated

RMS_FACTOR = 1.5  # measured RMS drift is 0.8 to 1.3 times the predicted RMS: docs/method.md
MASK: Mask = "full"
CHECKS = ("score-error", "score-error-long", "score-error-growth", "score-error-limit")
_SHORT, _LONG = 64, 4096  # positions of a sequence
_MIDDLE = 1000  # an offset between the first and the last
_ROWS = 256  # of a long sequence that are compared, each with each
_WIDER = "compute positions, frequencies and angles in float64: in float32 drift is predicted to be as large"


@dataclass(frozen=True, slots=True)
class MeasuredDrift:
    """The drift of the scores of some tokens at an offset, and its limit.

    tokens: their number, in words. A score that is not finite drifts by inf.
    """

    cell: CellStatistics
    tokens: str
    offset: int
    limit: Bound

    @property
    def largest(self) -> float:
        """The largest drift."""
        return math.inf if math.isnan(self.cell.drift.max) else self.cell.drift.max

    @property
    def rms(self) -> float:
        """The RMS drift."""
        return math.inf if math.isnan(self.cell.drift.rms) else self.cell.drift.rms

    @property
    def place(self) -> Place:
        """Head, query and key of the largest drift."""
        return self.cell.drift.place or (0, 0, 0)

    @property
    def allowed(self) -> float:
        """The allowed RMS drift."""
        return RMS_FACTOR * self.limit.rms + self.cell.error

    @property
    def most(self) -> float:
        """The allowed largest drift."""
        return self.limit.maximum + self.cell.error

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
        """Whether the drift is larger than allowed."""
        return self.over_bound or self.over_prediction

    @property
    def where(self) -> str:
        """The tokens and the offset, in words."""
        return f"{self.tokens} at offset {self.offset}"

    @property
    def relative(self) -> float:
        """The RMS drift over the RMS of the exact scores."""
        return judging.ratio(self.rms, self.cell.reference.rms)


@dataclass(frozen=True, slots=True)
class Yardstick:
    """The recipes whose largest bound and prediction are the limit, also in words."""

    recipes: tuple[Resolved, ...]
    text: str

    def limits(
        self,
        setting: RopeSetting,
        inputs: Inputs,
        offsets: Sequence[int],
        mask: Mask = MASK,
    ) -> list[Bound]:
        """Return bound and prediction by offset, for scores in float64."""
        subjects = [Emulated(recipe, setting) for recipe in self.recipes]
        cells = [(subject, offset) for offset in offsets for subject in subjects]
        of_cells, count = bounds.bounds(cells, inputs, mask), len(subjects)
        parts = [of_cells[start : start + count] for start in range(0, len(of_cells), count)]
        return [Bound(max(one.maximum for one in part), max(one.rms for one in part)) for part in parts]


def yardstick(
    claimed: Resolved | None,
    resembled: RecipeGroup | None,
    setting: RopeSetting,
    dtype: Format,
    up_to: int,
) -> Yardstick:
    """Return the recipes with which the drift of code is compared.

    resembled: the recipe with the same numbers; None if there is none, or pairs are wrong.
    """
    if claimed is not None:
        exact_scores = {"accumulate": "fp64", "score": "fp64"}
        recipe = claimed.recipe.changed(exact_scores).resolve(dtype)
        return Yardstick((recipe,), f"recipe {claimed.recipe.name}, as claimed")
    at = np.array(sorted({0, min(1, up_to - 1), up_to // 2, up_to - 1}))
    rule = allowance.careful(dtype)
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


@dataclass(frozen=True, slots=True)
class ScoreRun:
    """A sequence of q and k, and one instance that is called with all of it.

    held_to: returns the setting at an offset. rows: the compared tokens. tokens: their number, in words.
    """

    rotator: Rotator
    called: Called
    inputs: Inputs
    held_to: Callable[[int], RopeSetting]
    rows: Positions
    mask: Mask
    tokens: str

    def measured(self, wanted: Yardstick, offsets: Sequence[int]) -> list[MeasuredDrift]:
        """Measure the drift at each offset, the first of them 0."""
        inputs, seen = self.inputs, list[MeasuredDrift]()
        self.called.together(inputs.q, inputs.k, self.rows)
        rows = replace(inputs, q=inputs.q[:, self.rows], k=inputs.k[:, self.rows])
        for setting, group in itertools.groupby(offsets, self.held_to):
            some = list(group)
            cells = Plan([self.called], [some], rows, setting, self.mask, positions=self.rows)
            results = measure.measure(cells, 1)
            limits = wanted.limits(setting, inputs, some, self.mask)
            seen += [
                MeasuredDrift(results[0, offset], self.tokens, offset, limit)
                for offset, limit in zip(some, limits, strict=True)
            ]
        return seen


def drift(
    check: str,
    seen: Sequence[MeasuredDrift],
    wanted: Yardstick,
    behaves: Diagnosis | None,
) -> Finding:
    """Judge whether drift is within the yardstick's limits at all offsets."""
    worst = max(seen, key=lambda one: (one.fails, judging.ratio(one.rms, one.allowed)))
    detail = f"allowed: {RMS_FACTOR:g} times the predicted RMS of {wanted.text}, and its bound"
    if len(seen) > 1:
        detail = f"{worst.tokens} at offsets {', '.join(str(one.offset) for one in seen)}; {detail}"
    sizes, where = (worst.rms, worst.allowed, "RMS, in score units"), worst.where
    if worst.over_bound and not worst.over_prediction:
        where += ", head {}, rows {} and {}".format(*worst.place)
        sizes = worst.largest, worst.most, "score units, the largest"
    cause = behaves if worst.fails else None
    return Finding(check, "fail" if worst.fails else "pass", detail, *sizes, where, cause)


def growth(
    run: ScoreRun,
    seen: Sequence[MeasuredDrift],
    wanted: Yardstick,
    behaves: Diagnosis | None = None,
) -> Finding:
    """Judge whether drift grows with the offset by more than the yardstick's positions and angles explain.

    Drift of at most twice that at offset 0 does not grow; other checks judge its size.
    The excess over careful code near offset 0 has no constant limit: the spacing of float32 angles grows with
    the position, so that right code has an excess of 3 in float16 at 131,072, and in float32, where all else
    is finer, of 47 over 4,096 tokens and of 2,600 over 64. What is allowed is therefore what the yardstick
    is predicted to have at the same offset, and never less than what is called sound.
    """
    first, last = seen[0], seen[-1]
    if not last.offset:
        return not_applicable("score-error-growth", f"{last.tokens} were judged at no other offset than 0")
    if (grown := judging.ratio(last.rms, first.rms)) <= judging.GROWTH:
        detail = f"drift at offset {last.offset} against that at offset 0, {last.tokens} each"
        sizes = grown, judging.GROWTH, "times that at offset 0"
        return Finding("score-error-growth", "pass", detail, *sizes, last.where)
    dtype = run.called.dtype
    subject = Emulated(attainable.careful(dtype), run.held_to(0))
    predicted = bounds.bound(subject, run.inputs, run.mask, 0).rms
    attained = attainable.attainable_rms(predicted, dtype, first.cell.reference.rms)
    excess, by_prediction = (
        one / attained if attained else math.inf if one else 0.0 for one in (last.rms, last.allowed)
    )
    allowed = max(judging.EXCESS, by_prediction)
    row = {
        "nonfinite": not math.isfinite(last.rms),
        "drift_max": last.largest,
        "drift_rms": last.rms,
        "floor_rms": first.rms,
        "reference_rms": last.cell.reference.rms,
        "reference_error": last.cell.error,
        "excess": excess,
    }
    word = judging.judge(row, wrong_rotation=False)
    passed = excess <= allowed and word not in ("broken", "overflow")
    times = f", {grown:.3g} times its drift at offset 0" if math.isfinite(grown) else ""
    reason = f", as that of {wanted.text}" if passed and word in ("growing", "coarse") else ""
    detail = f"against careful {dtype} code near offset 0; at offset {last.offset} drift is {word}"
    sizes = excess, allowed, "times that of careful code"
    rest = f"{detail}{times}{reason}", *sizes, last.where, None if passed else behaves
    return Finding("score-error-growth", "pass" if passed else "fail", *rest)


def tolerance(
    called: Called,
    seen: Sequence[MeasuredDrift],
    claimed: Resolved | None,
    behaves: Diagnosis | None = None,
) -> Finding:
    """Judge whether drift stays below 1 % of the scores' RMS everywhere."""
    most, setting, dtype = judging.TOLERANCE, called.setting, called.dtype
    if claimed is not None:
        return not_applicable("score-error-limit", f"recipe {claimed.recipe.name} says what is allowed")
    stored = attainable.storing(dtype, setting.rotary_dim / setting.head_dim)
    if stored > most:
        why = f"no code in {dtype} meets {most:.0%}: storing q, k and scores in it costs {stored:.2g}"
        return not_applicable("score-error-limit", why)
    worst = max(seen, key=lambda one: one.relative if math.isfinite(one.relative) else math.inf)
    passed = worst.relative <= most
    detail = f"drift against {most:.0%} of the RMS of the exact scores, at {len(seen)} lengths and offsets"
    sizes = worst.relative, most, "of the scores' RMS"
    remedy = "" if passed or behaves or worst.fails else _WIDER
    rest = detail, *sizes, worst.where, None if passed else behaves
    return Finding("score-error-limit", "pass" if passed else "fail", *rest, remedy=remedy)


def scores(code: CodeUnderTest) -> Iterator[Finding]:
    """Yield the checks of drift: short and long runs, growth, tolerance."""
    up_to, sizes = code.up_to, {"score-error": (HEADS, _SHORT), "score-error-long": (1, _LONG)}
    if HEADS * min(_SHORT, up_to) ** 2 < judging.FEWEST:
        why = f"{up_to} positions make fewer than {judging.FEWEST} scores"
        yield from (not_applicable(name, why) for name in CHECKS)
        return
    every, cause, resembled = list[MeasuredDrift](), None, None
    runs: list[tuple[ScoreRun, list[MeasuredDrift], Yardstick]] = []
    for check, (heads, most) in sizes.items():
        if every and up_to <= _SHORT:
            yield not_applicable(check, f"there are no more than {up_to} positions")
            continue
        run = _run(code, heads, min(most, up_to))
        last = up_to - run.inputs.seq_len
        if not every and not code.shared.wrong_rotation:
            resembled = explaining_recipe(*_call_at(code, run, last))
        elif resembled and held_to(resembled, *_call_at(code, run, last)) == math.inf:
            resembled = None
        wanted = yardstick(code.claimed, resembled, code.setting, code.dtype, up_to)
        drifts = run.measured(wanted, sorted({0, min(_MIDDLE, last) if heads > 1 else 0, last}))
        if not any(drift.fails for drift in every):
            cause = _drift_cause(code, run, drifts)
        yield drift(check, drifts, wanted, cause)
        if last or not every:
            runs.insert(0, (run, drifts, wanted))
        every += drifts
    growing = [growth(*run, cause) for run in runs]
    # a long one may be as wrong at offset 0
    yield next((finding for finding in growing if finding.failed), growing[0])
    yield tolerance(run.called, every, code.claimed, cause)


def _run(code: CodeUnderTest, heads: int, length: int) -> ScoreRun:
    """Return a sequence and a new instance; of a long sequence only some tokens are compared."""
    q, k = (x.astype(np.float64) for x in code.vectors(heads, length))
    rows: Positions = np.arange(length, dtype=np.int64)
    if length > _ROWS:
        generator = np.random.default_rng([code.seed, length])
        rows = np.sort(generator.choice(length, _ROWS, replace=False))

    def held_to(offset: int) -> RopeSetting:
        return code.setting_at(np.array([offset + length - 1]))

    rotator = code.rotator()
    called = Called(code.tested, code.setting, code.dtype, rotator)
    tokens = f"{length} tokens{' of one head' * (heads == 1)}"
    return ScoreRun(rotator, called, Inputs(q, k, "gaussian", code.seed), held_to, rows, MASK, tokens)


def _call_at(
    code: CodeUnderTest,
    run: ScoreRun,
    offset: int,
) -> tuple[CalledBlock, RopeSetting, Format]:
    """Return the call of a sequence at an offset, with its setting and dtype."""
    [call] = calls_from(code.random_batch(run.inputs.heads, run.inputs.seq_len, rows=1), [offset])
    return make_call(run.rotator, call), run.held_to(offset), code.dtype


def _drift_cause(code: CodeUnderTest, run: ScoreRun, drifts: Sequence[MeasuredDrift]) -> Diagnosis | None:
    """Diagnose too large drift, at the last offset that has it."""
    failing = [drift for drift in drifts if drift.fails]
    if not failing or code.shared.cause:
        return code.shared.cause
    last = max(failing, key=lambda drift: drift.offset)
    offsets = [last.offset, *(drift.offset for drift in drifts if drift is not last)]
    calls = calls_from(code.random_batch(run.inputs.heads, run.inputs.seq_len), offsets)
    wrong, _ = code.judge_until_wrong(run.rotator, calls, 1)
    if wrong.diagnosis is not None and wrong.diagnosis.explains:
        return wrong.diagnosis
    block, setting, dtype = _call_at(code, run, last.offset)

    def holds(fmt: Format) -> bool:
        """Return whether drift is within the limits of correct code in a format."""
        wanted = yardstick(None, None, setting, fmt, code.up_to)
        [limit] = wanted.limits(setting, run.inputs, [last.offset])
        return not replace(last, limit=limit).fails

    call = block.given, block.rotated, block.at
    return allowance.narrower_format(setting, dtype, *call, holds) or wrong.diagnosis
