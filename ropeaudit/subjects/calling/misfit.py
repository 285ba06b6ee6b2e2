"""Whether what a call returned can be that of code that rotates, however wrong.

Letters: b batch, h heads, s positions, d head_dim, p pairs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ropeaudit.arithmetic.formats import FloatArray
from ropeaudit.rope.rotation import split_pairs
from ropeaudit.rope.scaling import DEFAULT
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects.exact_rotation import half_split

NEAR = 0.1  # relative RMS error of a call that is right but coarse
_STRAY = 0.03  # relative: what float32 code may leave that is wrong, but rotates


def misfit(x: FloatArray, values: FloatArray, setting: RopeSetting, permuted: bool) -> str:
    """Return why what a call returned cannot be that of code that rotates, however wrong; empty if it can.

    Wrong code rotates by a wrong angle, base, direction or position, by none, other dims, forgets a sign or a
    pair: still each pair of dims goes into itself alone, by a matrix that is the same for all heads, and each
    row of it is a sinusoid of the position, for angles grow evenly. What was given arguments that it does not
    expect does otherwise. A head or a batch element may be left out of the comparison.
    Shapes: x, values (b, h, s, d).
    """
    changed = int(np.flatnonzero(np.r_[True, (values != x).any(axis=(0, 1, 2))])[-1])
    dims = dict.fromkeys((setting.rotary_dim, changed + changed % 2))
    plain = replace(setting, scaling=DEFAULT)  # a scaling may have numbers for each pair
    strays = [_stray(x, values, replace(plain, rotary_dim=some), permuted) for some in dims if some]
    if min(strays) <= _STRAY:
        return ""
    neither = f"{100 * min(strays):.0f} % is neither"
    return f"does not rotate pairs of dims by angles that grow with the position ({neither})"


def _stray(x: FloatArray, values: FloatArray, setting: RopeSetting, permuted: bool) -> float:
    """Return which share of the vectors no rotation of the first `rotary_dim` dims explains."""
    if permuted:
        values = values[..., np.argsort(half_split(setting.rotary_dim, setting.head_dim))]
    rest = values[..., setting.rotary_dim :] - x[..., setting.rotary_dim :]
    if rest.size and np.sqrt(np.mean(rest**2)) > NEAR:
        return 1.0
    z, w = (a + 1j * b for a, b in (split_pairs(x, setting), split_pairs(values, setting)))
    (batch, heads), everything = z.shape[:2], np.ones(z.shape[:2], bool)
    subsets = [everything]
    for index in range(heads):
        subsets.append(everything & (np.arange(heads) != index))
    for index in range(batch):
        subsets.append(everything & (np.arange(batch)[:, None] != index))
    stray = min(_sinusoid_residual(z[subset], w[subset]) for subset in subsets)
    return 0.0 if heads > 1 and stray > _STRAY and _heads_differ(z, w) else stray


def _heads_differ(z: Any, w: Any) -> bool:
    """Return whether each head has angles of its own, which grow with the position. Shapes: (b, h, s, p).

    Where axes are mixed up they do not: then a head counts as a position, and its angles stand still.
    """
    if max(_sinusoid_residual(z[:, head], w[:, head]) for head in range(z.shape[1])) > _STRAY:
        return False
    rotations = (w * z.conj()).sum(axis=0) / (np.abs(z) ** 2).sum(axis=0)  # (h, s, p)
    return bool((np.abs(rotations[:, 1:] - rotations[:, :-1]).mean(axis=(1, 2)) > _STRAY).all())


def _sinusoid_residual(z: Any, w: Any) -> float:
    """Return what a matrix on each pair that is a sinusoid of the position leaves of w: a relative RMS.

    w = a z + b conj(z); a and b by least squares over the vectors. Its rows are a + conj(b), for the real
    part, and a - conj(b); then row(m+1) + row(m-1) = 2 cos(t) row(m) for each row of each pair.
    Shapes: (n, s, p) twice.
    """
    size = np.sqrt(np.mean(np.abs(w) ** 2)) + 1e-30
    basis = np.stack([z, z.conj()])
    left = np.einsum("insp,jnsp->spij", basis.conj(), basis)
    right = np.einsum("insp,nsp->spi", basis.conj(), w)
    matrices = np.linalg.solve(left, right[..., None])[..., 0]  # (s, p, 2)
    residual = np.sqrt(np.mean(np.abs(w - np.einsum("spi,insp->nsp", matrices, basis)) ** 2)) / size
    conj = matrices[..., 1].conj()
    rows = np.stack([matrices[..., 0] + conj, matrices[..., 0] - conj])  # (2, s, p)
    middle, around = rows[:, 1:-1], rows[:, 2:] + rows[:, :-2]
    share = (middle.conj() * around).real.sum(axis=1) / ((np.abs(middle) ** 2).sum(axis=1) + 1e-30)
    bent = np.sqrt(np.mean(np.abs(around - share[:, None] * middle) ** 2))
    scale = np.sqrt(np.mean(np.abs(rows) ** 2)) + 1e-30
    return float(max(residual, bent / scale))
