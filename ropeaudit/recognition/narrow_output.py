"""Whether the roundings of a narrower format explain vectors that are off by more than those of their dtype.

Letters: b batch elements, h heads of q, g of k, s positions, d head_dim.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ropeaudit.arithmetic.formats import FP32, FloatArray, Format, parse
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.recognition import allowance
from ropeaudit.recognition.diagnosis import Diagnosis
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions, exact_rotation

_DEVIATIONS = 3  # of a mean error that is one of chance
_FINEST_FIRST = (FP32, parse("fp16"), parse("bf16"))


def explanation(
    setting: RopeSetting,
    dtype: Format,
    given: tuple[FloatArray, ...],
    rotated: tuple[FloatArray, ...],
    at: Positions,
    holds: Callable[[Format], bool] = lambda fmt: True,
) -> Diagnosis | None:
    """Return the narrower format whose roundings explain vectors; None where none does.

    at: positions, or those of each batch element. holds: whether more than pairs is explained by a format.
    Shapes: given and rotated q (b, h, s, d), k (b, g, s, d), at (s,) or (b, s).
    """
    rows = np.broadcast_to(at, (len(given[0]), at.shape[-1]))
    for fmt in _FINEST_FIRST:
        if fmt.unit_roundoff <= dtype.unit_roundoff:
            continue
        sides = [one for pair in zip(given, rotated, strict=True) for one in zip(*pair, rows, strict=True)]
        if all(_explains(fmt, x, y, row, setting) for x, y, row in sides) and holds(fmt):
            stored = all(np.array_equal(round_to(x, fmt), x, equal_nan=True) for x in rotated)
            values = {"format": str(fmt)} | ({"held": str(fmt)} if stored else {})
            return Diagnosis("narrow-output", values)
    return None


def _explains(fmt: Format, x: FloatArray, y: FloatArray, at: Positions, setting: RopeSetting) -> bool:
    """Return whether right code in a format may be as far off, in all directions as roundings are.

    The mean error, in directions of the exact vectors, is compared with that of as many independent errors as
    there are pairs, for a rounding of cos or sin may be shared by positions and heads; that of a factor or a
    base is larger. Shapes: x, y (h, s, d), at (s,).
    """
    z, w = (exact_rotation.complex_pairs(vectors, setting) for vectors in (x, y))
    allowed = allowance.allowed(allowance.careful(fmt), setting, at)
    rest = np.s_[..., setting.rotary_dim :]
    rounding = allowance.rounding_error(allowance.careful(fmt), setting)
    tiny = 4 * fmt.smallest_subnormal
    with np.errstate(invalid="ignore", over="ignore"):
        exact = z * exact_rotation.rotations(setting, at, FP32)
        error = w - exact
        pairs = np.abs(error) <= allowed * np.abs(z) + tiny
        passes = np.abs(y[rest].astype(np.float64) - x[rest]) <= rounding * np.abs(x[rest]) + tiny
    if not (pairs.all() and passes.all()):
        return False
    size = float((np.abs(exact) ** 2).sum())
    mean = abs(complex((np.conj(exact) * error).sum())) / size
    rms = float(np.sqrt((np.abs(error) ** 2).sum() / size))
    return bool(mean <= _DEVIATIONS * rms / np.sqrt(setting.pairs))
