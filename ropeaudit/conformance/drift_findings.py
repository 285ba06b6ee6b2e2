"""What drift must keep: bound and prediction of a yardstick, no more growth than its, the tolerance."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ropeaudit.arithmetic.formats import Format
from ropeaudit.audits import judging
from ropeaudit.bounds import attainable
from ropeaudit.conformance.finding import Finding, judged, not_applicable
from ropeaudit.conformance.score_drift import RMS_FACTOR, MeasuredDrift
from ropeaudit.conformance.yardstick import Yardstick
from ropeaudit.recipes import Resolved
from ropeaudit.recognition.diagnosis import Diagnosis
from ropeaudit.rope.setting import RopeSetting

_UNIT = "RMS, in score units"
_WIDER = "compute positions, frequencies and angles in float64: in float32 drift is predicted to be as large"


def drift(check: str, seen: Sequence[MeasuredDrift], wanted: Yardstick, behaves: Diagnosis | None) -> Finding:
    """Return whether drift is within the bound and the prediction of the yardstick, at all offsets."""
    worst = max(seen, key=lambda one: (one.fails, judging.ratio(one.rms, one.allowed)))
    offsets = ", ".join(str(one.offset) for one in seen)
    at = f"offset{'s' * (len(seen) > 1)} {offsets}"
    where = f"{worst.tokens} at offset {worst.offset}"
    yardstick_words = f"allowed: {RMS_FACTOR:g} times the predicted RMS of {wanted.text}, and its bound"
    detail = f"{worst.tokens} at {at}; {yardstick_words}"
    sizes = (worst.rms, worst.allowed, _UNIT)
    if worst.over_bound and not worst.over_prediction:
        head, query, key = worst.place
        where += f", head {head}, rows {query} and {key}"
        sizes = (worst.largest, worst.most, "score units, the largest")
    measured, allowed, unit = sizes
    return judged(
        check,
        not worst.fails,
        detail,
        measured=measured,
        allowed=allowed,
        unit=unit,
        where=where,
        diagnosis=behaves if worst.fails else None,
    )


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
        unit, allowed = "times that at offset 0", judging.GROWTH
        return judged("growth", True, detail, measured=grown, allowed=allowed, unit=unit, where=where)
    attained = careful(first)
    excess = _excess(last.rms, attained)
    allowed = max(judging.EXCESS, _excess(last.allowed, attained))
    word = judging.judge(
        nonfinite=not last.finite,
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
    return judged(
        "growth",
        passed,
        f"{detail}{times}{reason}",
        measured=excess,
        allowed=allowed,
        unit="times that of careful code",
        where=where,
        diagnosis=None if passed else behaves,
    )


def _excess(rms: float, careful: float) -> float:
    return 0.0 if rms == 0 else rms / careful if careful else math.inf


def tolerance(
    seen: Sequence[MeasuredDrift],
    claimed: Resolved | None,
    setting: RopeSetting,
    dtype: Format,
    behaves: Diagnosis | None = None,
) -> Finding:
    """Return whether drift is good enough: 1 % of the scores' RMS, at every length and offset measured."""
    share = f"{judging.TOLERANCE:.0%}"
    if claimed is not None:
        return not_applicable("tolerance", f"recipe {claimed.recipe.name} says what is allowed")
    stored = attainable.storing(dtype, setting.rotary_dim / setting.head_dim)
    if stored > judging.TOLERANCE:
        why = f"no code in {dtype} meets {share}: storing q, k and scores in it costs {stored:.2g}"
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
        where=f"{worst.tokens} at offset {worst.offset}",
        diagnosis=None if passed else behaves,
        remedy="" if passed or behaves or worst.fails else _WIDER,
    )
