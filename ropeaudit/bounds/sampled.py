"""The predicted RMS drift of a sample: the terms of `ropeaudit.bounds`, at the sampled scores alone.

Letters: n scores of a block, p pairs.
"""

from __future__ import annotations

import math

import numpy as np

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.bounds import phases, terms
from ropeaudit.bounds.endings import Endings
from ropeaudit.bounds.phases import Phase
from ropeaudit.inputs.sampled_rows import SampledInputs
from ropeaudit.rope.rotation import split_pairs
from ropeaudit.subjects.emulated import Emulated

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


def _squares(subject: Emulated, sample: SampledInputs, block: slice, offset: int, endings: Endings) -> Array:
    """Return the expected squared error of each score before it is summed, and of what it is summed.

    All unscaled; the latter: what rotated pairs and other dims add to its square. The last bits of these
    other dims are counted. Shapes: -> (n, 3).
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
    q, k = (phases.phase(subject, at, offset) for at in where)
    from_phases = np.where((where[0] == where[1])[:, None], 0.0, _moved(q, k))
    errors = (both * (relative / 2 + from_phases)).sum(axis=1) + (
        2 * unrotated.variance + score.variance
    ) * rest
    return np.stack([errors, both.sum(axis=1) / 2, rest], axis=1)


def _moved(q: Phase, k: Phase) -> Array:
    """Return 1 - e^(-variance) cos(known error), which a phase error costs, without cancellation. (n, p)."""
    known, half = q.known - k.known, (q.variance + k.variance) / 2
    return np.asarray(2 * np.sin(known / 2) ** 2 - np.expm1(-half) * np.cos(known))
