"""Whether errors cancel out: those of rounding to nearest do, and leave no mean.

Each pair may be off by its allowance; a length, a phase or a delay that all of them share hides below it.
Letters: h heads, s positions, p pairs.
"""

from __future__ import annotations

import numpy as np

from ropeaudit.arithmetic.formats import FP64
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

    For code whose every pair is within its allowance. Float64 is not judged: means are computed in it.
    Raises: ForeignError.
    """
    if code.dtype is FP64:
        return None
    q, k = (x.astype(code.dtype.carrier)[None] for x in code.vectors(HEADS, min(_POSITIONS, code.up_to)))
    at = np.arange(q.shape[2], dtype=np.int64)
    rotated = code.rotator().rotate_both(q, k, at)
    found = list[tuple[str, int, str, float, float]]()
    for side, x, y in zip("qk", (q, k), rotated, strict=True):
        for head, means in enumerate(_means(code, (x[0], y[0]), at)):
            found += [(side, head, name, *mean) for name, mean in means.items()]
    side, head, _, mean, limit = max(found, key=lambda one: abs(one[3]) / one[4])
    if not abs(mean) > limit:  # nan is for others to find
        return None
    sides = tuple(dict.fromkeys(one[0] for one in found if abs(one[3]) > one[4]))
    values = {name: float(f"{mean:.2g}") for *at_it, name, mean, _ in found if at_it == [side, head]}
    where = Where(sides=() if len(sides) == 2 else sides)
    text = f"every pair is within its allowance, and their mean error is no rounding: {side}"
    sizes = {"measured": abs(mean), "allowed": limit, "unit": PAIR}
    place = f"{side}, head {head}, the mean of all pairs at positions 0 to {at[-1]}"
    told = Diagnosis("bias", values, where, certainty="measured")
    return judged("rotation", False, text, where=place, diagnosis=told, **sizes)


def _means(code: CodeUnderTest, given: Both, at: Positions) -> list[dict[str, tuple[float, float]]]:
    """Return the mean errors of length, phase and position of each head, with the most that roundings leave.

    The phase of a pair is fitted by a constant and a delay in tokens times its frequency. Frequencies and
    angles in float32 leave a phase, which is allowed for each pair. Shapes: x and rotated y (h, s, d).
    """
    setting, rounding = code.setting_at(at), _UNITS * code.dtype.unit_roundoff
    turns = exact_rotation.rotations(setting, at, code.dtype)
    x, y = (exact_rotation.complex_pairs(one.astype(np.float64), setting) for one in given)
    exact = x * turns
    with np.errstate(invalid="ignore", over="ignore"):
        moments, sizes = (y * exact.conj()).sum(axis=1), (np.abs(exact) ** 2).sum(axis=1)  # (h, p)
    fit = np.linalg.pinv(np.stack([np.ones(setting.pairs), allowance.frequencies(setting)], axis=1))  # (2, p)
    phases = (moments.imag / sizes) @ fit.T  # (h, 2)
    most = rounding + np.abs(fit) @ allowance.phase(code.rule, setting, at).mean(axis=0)
    lengths = moments.real.sum(axis=1) / sizes.sum(axis=1) - 1
    return [
        {
            "length": (float(length), rounding),
            "phase": (float(phase), float(most[0])),
            "late": (-float(turned), float(most[1])),
        }
        for length, (phase, turned) in zip(lengths, phases, strict=True)
    ]
