"""Drift of the scores: near position 0, at the end, over a long sequence, and whether it is good enough.

Scores are formed in float64 from what the code returns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ropeaudit.audits import judging
from ropeaudit.bounds import attainable
from ropeaudit.conformance.code_under_test import HEADS, MISPLACED, CodeUnderTest
from ropeaudit.conformance.finding import Finding, judged, not_applicable
from ropeaudit.conformance.score_drift import RMS_FACTOR
from ropeaudit.conformance.score_run import MeasuredDrift, ScoreRun
from ropeaudit.conformance.yardstick import Yardstick, yardstick

_SHORT, _LONG = 64, 4096  # positions of a sequence
_MIDDLE = 1000  # an offset between the first and the last
_UNIT = "RMS, in score units"
_WIDER = "compute positions, frequencies and angles in float64: in float32 drift is predicted to be as large"


def scores(code: CodeUnderTest) -> Iterator[Finding]:
    """Yield whether scores drift as far as they may: short and long sequences, growth, tolerance."""
    length = min(_SHORT, code.up_to)
    if HEADS * length**2 < judging.FEWEST:
        why = f"{code.up_to} positions make fewer than {judging.FEWEST} scores"
        yield from (not_applicable(name, why) for name in ("drift", "long sequence", "growth", "tolerance"))
        return
    heads = ScoreRun(code, HEADS, length)
    resembled = None if code.cached.get(MISPLACED) else heads.recipe()
    wanted = yardstick(code, resembled)
    short = heads.seen(wanted, sorted({0, min(_MIDDLE, heads.last), heads.last}))
    behaves, runs = heads.resembles(short), [(heads, short, wanted)]
    yield _drift("drift", short, wanted, behaves)
    if code.up_to > _SHORT:
        heads = ScoreRun(code, 1, min(_LONG, code.up_to))
        if resembled and not heads.follows(resembled):
            wanted = yardstick(code, None)
        long = heads.seen(wanted, sorted({0, heads.last}))
        if not any(one.fails for one in short):
            behaves = heads.resembles(long)
        yield _drift("long sequence", long, wanted, behaves)
        if heads.last:
            runs.insert(0, (heads, long, wanted))
    else:
        long = short
        yield not_applicable("long sequence", f"there are no more than {code.up_to} positions")
    growing = [_growth(code, *run, behaves) for run in runs]  # a long one may be as wrong at offset 0
    yield next((one for one in growing if one.failed), growing[0])
    yield _tolerance(code, [*short, *long], behaves)


def _drift(check: str, seen: Sequence[MeasuredDrift], wanted: Yardstick, behaves: str) -> Finding:
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
    code: CodeUnderTest, run: ScoreRun, seen: Sequence[MeasuredDrift], wanted: Yardstick, behaves: str
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
        return not_applicable(
            "growth", f"{last.length} of {code.up_to} positions leave no other offset than 0"
        )
    where = f"{last.length} tokens at offset {last.offset}"
    growth = judging.ratio(last.drift.rms, first.drift.rms)
    if growth <= judging.GROWTH:
        detail = f"drift at offset {last.offset} against that at offset 0, {last.length} tokens each"
        unit, allowed = "times that at offset 0", judging.GROWTH
        return judged("growth", True, detail, measured=growth, allowed=allowed, unit=unit, where=where)
    careful = run.careful()
    excess = _excess(last.drift.rms, careful)
    allowed = max(judging.EXCESS, _excess(last.allowed, careful))
    word = judging.judge(
        nonfinite=not last.finite,
        drift_max=last.drift.largest,
        drift_rms=last.drift.rms,
        floor_rms=first.drift.rms,
        reference_rms=last.reference_rms,
        reference_error=last.error,
        excess=excess,
        misplaced=False,
    )
    passed = excess <= allowed and word not in ("broken", "overflow")
    times = f", {growth:.3g} times its drift at offset 0" if math.isfinite(growth) else ""
    reason = f", as that of {wanted.text}" if passed and word in ("growing", "coarse") else ""
    detail = f"against careful {code.dtype} code near offset 0; at offset {last.offset} drift is {word}"
    return judged(
        "growth",
        passed,
        f"{detail}{times}{reason}",
        measured=excess,
        allowed=allowed,
        unit="times that of careful code",
        where=where,
        resembles="" if passed else behaves,
    )


def _excess(rms: float, careful: float) -> float:
    return 0.0 if rms == 0 else rms / careful if careful else math.inf


def _tolerance(code: CodeUnderTest, seen: Sequence[MeasuredDrift], behaves: str) -> Finding:
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
        remedy="" if passed or behaves or worst.fails else _WIDER,
    )
