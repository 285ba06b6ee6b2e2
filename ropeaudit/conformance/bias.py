"""Whether errors cancel out: those of rounding to nearest do, and leave no mean.

Each pair may be off by its allowance; a length, a phase or a delay that all of them share hides below it.
Letters: h heads, s positions, p pairs.
"""

from __future__ import annotations

import numpy as np

from ropeaudit.conformance.code_under_test import HEADS, Both, CodeUnderTest
from ropeaudit.conformance.finding import PAIR, Finding, judged
from ropeaudit.recognition import allowance
from ropeaudit.recognition.diagnosis import Diagnosis, Where
from ropeaudit.subjects import Positions, exact_rotation

_POSITIONS = 1024  # of the call
# Means over some 10^5 pairs, in u of the dtype: at most 0.03 of code that rounds cos and sin to it, few of
# which stand still; 0.5 of vectors that are 0.2 % too long in bfloat16, 0.7 of numbers that are cut off.
_UNITS = 0.25


def biased(code: CodeUnderTest) -> Finding | None:
    """Return that rotated q or k have a mean error; None where they have none, as errors of roundings have.

    For code whose every pair is within its allowance. Raises: ForeignError.
    """
    q, k = (x.astype(code.dtype.carrier)[None] for x in code.vectors(HEADS, min(_POSITIONS, code.up_to)))
    at = np.arange(q.shape[2], dtype=np.int64)
    rotated = code.rotator().rotate_both(q, k, at)
    found = {side: _means(code, (x[0], y[0]), at) for side, x, y in zip("qk", (q, k), rotated, strict=True)}
    worst = max(found, key=lambda side: max(abs(mean) / limit for mean, limit in found[side].values()))
    mean, limit = max(found[worst].values(), key=lambda one: abs(one[0]) / one[1])
    if not abs(mean) > limit:  # nan is for others to find
        return None
    sides = tuple(side for side in "qk" if any(abs(one) > most for one, most in found[side].values()))
    values = {name: float(f"{mean:.2g}") for name, (mean, _) in found[worst].items()}
    where = Where(sides=() if len(sides) == 2 else sides)
    text = f"every pair is within its allowance, and their mean error is no rounding: {worst}"
    sizes = {"measured": abs(mean), "allowed": limit, "unit": PAIR}
    place = f"{worst}, the mean of all pairs at positions 0 to {at[-1]}"
    told = Diagnosis("bias", values, where, certainty="measured")
    return judged("rotation", False, text, where=place, diagnosis=told, **sizes)


def _means(code: CodeUnderTest, given: Both, at: Positions) -> dict[str, tuple[float, float]]:
    """Return the mean errors of length, phase and position, each with the most that roundings leave.

    The last is the phase over the frequency, in tokens, by least squares. Frequencies and angles in float32
    leave a phase, which is allowed for each pair. Shapes: x and rotated y (h, s, d).
    """
    setting, frequencies = code.setting_at(at), allowance.frequencies(code.setting_at(at))
    turns = exact_rotation.rotations(setting, at, code.dtype)
    x, y = (exact_rotation.complex_pairs(one.astype(np.float64), setting) for one in given)
    exact = x * turns
    with np.errstate(invalid="ignore", over="ignore"):
        moments, sizes = (y * exact.conj()).sum(axis=(0, 1)), (np.abs(exact) ** 2).sum(axis=(0, 1))  # (p,)
    of_pairs = allowance.phase(code.rule, setting, at).mean(axis=0)
    rounding, weight = _UNITS * code.dtype.unit_roundoff, max(float((frequencies**2).sum()), 1e-300)
    phases = moments.imag / sizes
    return {
        "length": (float(moments.real.sum() / sizes.sum() - 1), rounding),
        "phase": (float(moments.imag.sum() / sizes.sum()), rounding + float(of_pairs.mean())),
        "late": (
            float(-(frequencies * phases).sum() / weight),
            rounding + float((frequencies * of_pairs).sum() / weight),
        ),
    }
