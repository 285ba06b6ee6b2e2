"""Drift of the scores: near position 0, at the end, over a long sequence, and whether it is good enough.

Scores are formed in float64 from what the code returns. Letters: h heads, s positions, d head_dim.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ropeaudit import bounds
from ropeaudit.arithmetic.formats import FloatArray
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.audits import judging
from ropeaudit.bounds import Bound, attainable
from ropeaudit.conformance import narrow_format, score_drift
from ropeaudit.conformance.code_under_test import HEADS, CodeUnderTest
from ropeaudit.conformance.finding import Finding, judged, not_applicable
from ropeaudit.conformance.score_drift import RMS_FACTOR, ScoreDrift
from ropeaudit.conformance.yardstick import MASK, Yardstick, yardstick
from ropeaudit.inputs.qk import Inputs
from ropeaudit.subjects import Positions
from ropeaudit.subjects.calling.implementation import Rotator
from ropeaudit.subjects.emulated import Emulated
from ropeaudit.subjects.placement import verification
from ropeaudit.subjects.placement.likeness import RecipeGroup
from ropeaudit.subjects.placement.recipe_match import CalledBlock, explaining_recipe
from ropeaudit.subjects.placement.verification import GivenVectors

_SHORT, _LONG = 64, 4096  # positions of a sequence
_ROWS = 256  # of a long sequence that are compared, each with each
_MIDDLE = 1000  # an offset between the first and the last
_UNIT = "RMS, in score units"


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was measured at an offset, and what is allowed."""

    length: int
    offset: int
    drift: ScoreDrift
    reference: ScoreDrift  # of the exact scores, from 0
    error: float
    limit: Bound

    @property
    def allowed(self) -> float:
        """The RMS drift that is allowed."""
        return RMS_FACTOR * self.limit.rms + self.error

    @property
    def fails(self) -> bool:
        """Whether it is more than allowed."""
        over = self.drift.over_bound(self.limit, self.error)
        return over or self.drift.over_prediction(self.limit, self.error)

    @property
    def relative(self) -> float:
        """The RMS drift over the RMS of the exact scores."""
        return judging.ratio(self.drift.rms, self.reference.rms)

    @property
    def finite(self) -> bool:
        """Whether every score is finite."""
        return math.isfinite(self.drift.rms)


def scores(code: CodeUnderTest) -> Iterator[Finding]:
    """Yield whether scores drift as far as they may: short and long sequences, growth, tolerance."""
    heads = _Scores(code, HEADS, min(_SHORT, code.up_to))
    wanted = yardstick(code, heads.recipe())
    short = heads.seen(wanted, sorted({0, min(_MIDDLE, heads.last), heads.last}))
    behaves = heads.resembles(short)
    yield _drift("drift", short, wanted, behaves)
    if code.up_to > _SHORT:
        heads = _Scores(code, 1, min(_LONG, code.up_to))
        long = heads.seen(wanted, sorted({0, heads.last}))
        behaves = behaves or heads.resembles(long)
        yield _drift("long sequence", long, wanted, behaves)
    else:
        long = short
        yield not_applicable("long sequence", f"there are no more than {code.up_to} positions")
    yield _growth(code, heads.careful(), long, wanted, behaves)
    yield _tolerance(code, [*short, *long], behaves)


class _Scores:
    """q and k of a sequence, their exact scores, and one instance of the code."""

    def __init__(self, code: CodeUnderTest, heads: int, length: int) -> None:
        self.code, self.length, self.last = code, length, code.up_to - length
        q, k = (round_to(x, code.dtype) for x in code.vectors(heads, length))
        self.inputs = Inputs(q.astype(np.float64), k.astype(np.float64), "gaussian", code.seed)
        self.given = q.astype(code.dtype.carrier)[None], k.astype(code.dtype.carrier)[None]
        self.rows = np.arange(length, dtype=np.int64)
        if length > _ROWS:
            generator = np.random.default_rng([code.seed, length])
            self.rows = np.sort(generator.choice(length, _ROWS, replace=False))
        rows = Inputs(self.inputs.q[:, self.rows], self.inputs.k[:, self.rows], "gaussian", code.seed)
        self.exact = score_drift.exact(rows, code.setting, code.dtype, self.rows)
        self.rotator: Rotator = code.rotator()

    def _rotated(self, offset: int) -> tuple[FloatArray, FloatArray]:
        at: Positions = np.arange(self.length, dtype=np.int64) + offset
        return self.rotator.rotate_both(*self.given, at)

    def seen(self, wanted: Yardstick, offsets: Sequence[int]) -> list[_Seen]:
        """Return what is measured at each offset."""
        results = []
        size = score_drift.drift(self.exact.values, np.zeros_like(self.exact.values))
        for offset, limit in zip(offsets, wanted.limits(self.code, self.inputs, offsets), strict=True):
            q, k = (x[0][:, self.rows] for x in self._rotated(offset))
            formed = score_drift.products(q, k, self.code.setting.scale)
            drift = score_drift.drift(formed, self.exact.values)
            results.append(_Seen(self.length, offset, drift, size, self.exact.error, limit))
        return results

    def recipe(self) -> RecipeGroup | None:
        """Return the recipe that explains the last positions, where recipes differ most."""
        at: Positions = np.arange(self.length, dtype=np.int64) + self.last
        block = CalledBlock(at, self.given, self._rotated(self.last))
        return explaining_recipe(block, self.code.setting, self.code.dtype)

    def resembles(self, seen: Sequence[_Seen]) -> str:
        """Return what explains drift that is more than allowed, at the last such offset."""
        offset = max((one.offset for one in seen if one.fails), default=None)
        if offset is None:
            return ""
        code, every = self.code, np.arange(self.length, dtype=np.int64)
        vectors = GivenVectors(self.inputs.q, self.inputs.k, every, code.seed)
        places = verification.check(
            *(self.rotator, code.setting, code.dtype, vectors, offset), afresh=code.rotator, rule=code.rule
        )
        given, rotated = self.given, self._rotated(offset)
        what = "what it returns"
        return places.resembles or narrow_format.explanation(code, given, rotated, every + offset, what)

    def careful(self) -> float:
        """Return the RMS drift that careful code in the dtype has near offset 0, as `excess` counts it."""
        subject = Emulated(attainable.careful(self.code.dtype), self.code.setting)
        predicted = bounds.bound(subject, self.inputs, MASK, 0).rms
        size = float(np.sqrt(np.mean(self.exact.values**2)))
        return attainable.attainable_rms(predicted, self.code.dtype, size)


def _drift(check: str, seen: Sequence[_Seen], wanted: Yardstick, behaves: str) -> Finding:
    """Return whether drift is within the bound and the prediction of the yardstick, at all offsets."""
    worst = max(seen, key=lambda one: (one.fails, judging.ratio(one.drift.rms, one.allowed)))
    offsets = ", ".join(str(one.offset) for one in seen)
    where = f"{worst.length} tokens at offset {worst.offset}"
    yardstick_words = f"allowed: {RMS_FACTOR:g} times the predicted RMS of {wanted.text}, and its bound"
    detail = f"{worst.length} tokens at offsets {offsets}; {yardstick_words}"
    sizes = (worst.drift.rms, worst.allowed, _UNIT)
    if worst.drift.over_bound(worst.limit, worst.error) and not worst.drift.over_prediction(
        worst.limit, worst.error
    ):
        head, query, key = worst.drift.place
        where += f", head {head}, rows {query} and {key}"
        sizes = (worst.drift.largest, worst.limit.maximum + worst.error, "score units, the largest")
    measured, allowed, unit = sizes
    return judged(
        check,
        not worst.fails,
        detail,
        measured=measured,
        allowed=allowed,
        unit=unit,
        where=where,
        resembles=behaves if worst.fails else "",
    )


def _growth(
    code: CodeUnderTest, careful: float, seen: Sequence[_Seen], wanted: Yardstick, behaves: str
) -> Finding:
    """Return whether drift at the end is more than positions and angles of the yardstick explain.

    The excess over careful code near offset 0 has no constant limit: the spacing of float32 angles grows with
    the position, so that right code has an excess of 3 in float16 at 131,072 and thousands in float32,
    where everything else is finer. What is allowed is therefore what the yardstick is predicted to have at
    the same offset, and never less than what is called sound.
    """
    first, last = seen[0], seen[-1]
    excess = _excess(last.drift.rms, careful)
    allowed = max(judging.EXCESS, _excess(last.allowed, careful))
    word = judging.judge(
        nonfinite=not last.finite,
        drift_max=last.drift.largest,
        drift_rms=last.drift.rms,
        floor_rms=first.drift.rms,
        reference_rms=last.reference.rms,
        reference_error=last.error,
        excess=excess,
        misplaced=False,
    )
    growth = judging.ratio(last.drift.rms, first.drift.rms)
    passed = excess <= allowed and word not in ("broken", "overflow")
    times = f", {growth:.3g} times its drift at offset 0" if math.isfinite(growth) else ""
    reason = f", as that of {wanted.text}" if passed and word in ("growing", "coarse") else ""
    return judged(
        "growth",
        passed,
        f"against careful {code.dtype} code near offset 0; drift at offset {last.offset} is {word}{times}{reason}",
        measured=excess,
        allowed=allowed,
        unit="times that of careful code",
        where=f"{last.length} tokens at offset {last.offset}",
        resembles="" if passed else behaves,
    )


def _excess(rms: float, careful: float) -> float:
    return 0.0 if rms == 0 else rms / careful if careful else math.inf


def _tolerance(code: CodeUnderTest, seen: Sequence[_Seen], behaves: str) -> Finding:
    """Return whether drift is good enough: 1 % of the scores' RMS, at every length and offset measured."""
    share = f"{judging.TOLERANCE:.0%}"
    if code.claimed is not None:
        return not_applicable("tolerance", f"recipe {code.claimed.recipe.name} says what is allowed")
    stored = attainable.storing(code.dtype, code.setting.rotary_dim / code.setting.head_dim)
    if stored > judging.TOLERANCE:
        why = f"no code in {code.dtype} meets {share}: storing q, k and scores in it costs {stored:.2g}"
        return not_applicable("tolerance", why)
    worst = max(seen, key=lambda one: one.relative if math.isfinite(one.relative) else math.inf)
    passed = worst.relative <= judging.TOLERANCE
    return judged(
        "tolerance",
        passed,
        f"drift against {share} of the RMS of the exact scores, at {len(seen)} lengths and offsets",
        measured=worst.relative,
        allowed=judging.TOLERANCE,
        unit="of the scores' RMS",
        where=f"{worst.length} tokens at offset {worst.offset}",
        resembles="" if passed else behaves,
    )
