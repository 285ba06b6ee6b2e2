"""What careful code in a dtype attains near offset 0: the yardstick of `excess`."""

from __future__ import annotations

import functools
import math

from ropeaudit import recipes
from ropeaudit.arithmetic.formats import FP32, FP64, Format
from ropeaudit.recipes import Resolved

_CAREFUL = "meta"  # float32 positions, angles, table and rotation; q and k rounded to the dtype once
_MEAN_ROUNDING = 0.42  # RMS of a relative rounding error over the unit roundoff
_NARROW = 16  # bits: scores of wider dtypes are stored in float32 or more


@functools.lru_cache(maxsize=32)
def careful(dtype: Format) -> Resolved:
    """Return the recipe of careful code: `meta` with float32 scores; in float64 everything is float64."""
    if dtype.precision > FP32.precision:
        return recipes.named("uniform").resolve(dtype)
    return recipes.named(_CAREFUL).changed({"accumulate": "fp32", "score": "fp32"}).resolve(dtype)


def storing(dtype: Format, rotated: float) -> float:
    """Return the share of its RMS that careful code loses to storing q, k and scores of independent numbers.

    rotated: share of the dims of a head that are rotated; the others are stored as they came.
    """
    roundings = 2 * rotated + (dtype.storage_bits <= _NARROW)
    return _MEAN_ROUNDING * dtype.unit_roundoff * math.sqrt(roundings)


def attainable_rms(predicted: float, dtype: Format, reference_rms: float) -> float:
    """Return the RMS drift of careful code in a dtype: that of its rotation, and one rounding of the scores.

    Scores that the dtype holds only as subnormal numbers are rounded to a spacing, whatever their size.

    predicted: RMS drift of `careful` at offset 0. Units: score units.
    """
    if dtype is FP64 or dtype.storage_bits > _NARROW:
        return predicted
    spacing = min(dtype.smallest_subnormal / math.sqrt(12), reference_rms)
    return math.hypot(predicted, _MEAN_ROUNDING * dtype.unit_roundoff * reference_rms, spacing)
