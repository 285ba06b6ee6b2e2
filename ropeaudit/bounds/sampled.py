"""The predicted RMS drift of a sample: the terms of `ropeaudit.bounds`, at the sampled scores alone.

Letters: n scores of a block, p pairs.
"""

from __future__ import annotations

import math

import numpy as np

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.bounds import terms
from ropeaudit.bounds.terms import Phase
from ropeaudit.inputs.sampled_rows import SampledQK
from ropeaudit.rope.rotation import split_pairs
from ropeaudit.subjects.emulated import Emulated

_BLOCK = 2048  # scores at once


def predicted_rms(subject: Emulated, plotted: SampledQK, offset: int) -> float:
    """Predict the RMS drift of all scores from those that were sampled, each with its weight.

    What `bounds.bound(...).rms` predicts, with the phase errors of every single score instead of those of
    blocks of positions. inf where an angle or an input is not finite. Units: score units.
    """
    total = 0.0
    with np.errstate(all="ignore"):
        for start in range(0, len(plotted), _BLOCK):
            some = slice(start, start + _BLOCK)
            total += float(plotted.pairs.weight[some] @ _squares(subject, plotted, some, offset))
    mean = total / len(plotted)
    return subject.setting.scale * math.sqrt(max(mean, 0.0)) if math.isfinite(mean) else math.inf


def _squares(subject: Emulated, plotted: SampledQK, some: slice, offset: int) -> Array:
    """Return the expected squared error of each score, unscaled. Shapes: -> (n,)."""
    setting, rotated, passed = subject.setting, terms.rotated(subject), terms.passed(subject)
    later = terms.later(subject)
    exact = [round_to(rows[some], subject.input).astype(np.float64) for rows in (plotted.q, plotted.k)]
    sides = [split_pairs(x, setting) for x in exact]
    both = rotated.weight**4 * np.prod([a * a + b * b for a, b in sides], axis=0)
    rest = np.prod([x[:, setting.rotary_dim :] ** 2 for x in exact], axis=0)
    rotated_x = 2 * rotated.variance + (2 * rotated.bias) ** 2 + later
    where = plotted.pairs.query[some], plotted.pairs.key[some]
    q, k = (terms.phase(subject, at, offset) for at in where)
    phases = np.where((where[0] == where[1])[:, None], 0.0, _moved(q, k))
    return np.asarray(
        (both * (rotated_x / 2 + phases)).sum(axis=1) + (2 * passed.variance + later) * rest.sum(axis=1)
    )


def _moved(q: Phase, k: Phase) -> Array:
    """Return 1 - e^(-variance) cos(known error), which a phase error costs, without cancellation. (n, p)."""
    known, half = q.known - k.known, (q.variance + k.variance) / 2
    return np.asarray(2 * np.sin(known / 2) ** 2 - np.expm1(-half) * np.cos(known))
