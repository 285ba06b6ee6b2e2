"""The drift that careful code in a dtype attains near offset 0, the yardstick of `excess`."""

from __future__ import annotations

import functools
import math

import numpy as np

from ropeaudit import recipes
from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import FP32, FP64, Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.bounds import terms
from ropeaudit.bounds.terms import Endings
from ropeaudit.inputs.sampled_rows import SampledInputs
from ropeaudit.recipes import Resolved
from ropeaudit.rope.rotation import split_pairs
from ropeaudit.subjects.emulated import Emulated

_CAREFUL = "meta"  # float32 positions, angles, table and rotation; q and k rounded to the dtype once
_MEAN_ROUNDING = 0.42  # RMS of a relative rounding error over the unit roundoff
_NARROW = 16  # bits: scores of wider dtypes are stored in float32 or more


@functools.lru_cache(maxsize=32)
def careful(dtype: Format) -> Resolved:
    """Return `meta` with float32 scores or, for float64, all in float64."""
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


_BLOCK = 2048  # scores at once


def predicted_rms(subject: Emulated, sample: SampledInputs, offset: int) -> float:
    """Predict the RMS drift of all scores from those that were sampled, each with its weight.

    What `bounds.bound(...).rms` predicts, with the phase errors of every single score instead of those of
    blocks of positions. inf where an angle or an input is not finite. Units: score units.
    """
    sums, endings = np.zeros(3), Endings()
    with np.errstate(all="ignore"):
        for start in range(0, len(sample), _BLOCK):
            block = slice(start, start + _BLOCK)
            sums += sample.pairs.weight[block] @ _squares(subject, sample, block, offset, endings)
    errors, rotated, rest = (sums / len(sample)).tolist()
    mean = errors + terms.accumulated(subject, rotated, rest, endings)
    return subject.setting.scale * math.sqrt(max(mean, 0.0)) if math.isfinite(mean) else math.inf


def _squares(
    subject: Emulated,
    sample: SampledInputs,
    block: slice,
    offset: int,
    endings: Endings,
) -> Array:
    """Return the expected squared error of each score before summation, and the squares of its parts.

    All unscaled; the parts are the sums over rotated pairs and over other dims. The last bits of the other
    dims are counted. Shapes: -> (n, 3).
    """
    setting, score = subject.setting, terms.score(subject)
    rotated, unrotated = terms.rotated_pair(subject), terms.unrotated_dim(subject, sample)
    exact = [round_to(rows[block], subject.input).astype(np.float64) for rows in (sample.q, sample.k)]
    sides = [split_pairs(x, setting) for x in exact]
    both = rotated.weight**4 * np.prod([a * a + b * b for a, b in sides], axis=0)
    others = [x[:, setting.rotary_dim :] for x in exact]
    for side, x in enumerate(others):
        endings.add(side, x)
    rest = np.prod([x**2 for x in others], axis=0).sum(axis=1)
    relative = 2 * rotated.variance + (2 * rotated.bias) ** 2 + score.variance
    where = sample.pairs.query[block], sample.pairs.key[block]
    q, k = (terms.phase(subject, at, offset) for at in where)
    # 1 - e^(-variance) cos(known error), which a phase error costs, without cancellation
    known, half = q.known - k.known, (q.variance + k.variance) / 2
    moved = 2 * np.sin(known / 2) ** 2 - np.expm1(-half) * np.cos(known)
    from_phases = np.where((where[0] == where[1])[:, None], 0.0, moved)
    errors = (both * (relative / 2 + from_phases)).sum(axis=1) + (
        2 * unrotated.variance + score.variance
    ) * rest
    return np.stack([errors, both.sum(axis=1) / 2, rest], axis=1)
