"""Whether what a call returned can be that of code that rotates, however wrong.

Letters: b batch, h heads, s positions, d head_dim, p pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ropeaudit.arithmetic.formats import FloatArray
from ropeaudit.rope.rotation import split_pairs
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects.exact_rotation import half_split

NEAR = 0.1  # relative RMS error of a call that is right but coarse
_STRAY = 0.03  # relative: what float32 code may leave that is wrong, but rotates


@dataclass(frozen=True, slots=True)
class Misfit:
    """Why a call does not fit at all, in words.

    rotated_dims: the first dims of the head alone are rotated, so many; 0 where that is not the reason.
    changes_rest: dims that are not to be rotated are changed.
    """

    text: str
    rotated_dims: int = 0
    changes_rest: bool = False

    def __str__(self) -> str:
        return self.text


def misfit(x: FloatArray, values: FloatArray, setting: RopeSetting, permuted: bool) -> Misfit | None:
    """Return why a call cannot be one of code that rotates, however wrong; None where it may be.

    Wrong code rotates by a wrong angle, base, direction or position, by none, forgets a sign or a pair: still
    each pair of dims goes into itself alone, by a matrix that is the same for all heads, and whose elements
    are sinusoids of the position, for angles grow evenly. What was given arguments that it does not expect
    does otherwise. A head or a batch element may be left out of the comparison.
    Shapes: x, values (b, h, s, d).
    """
    if permuted:
        values = values[..., np.argsort(half_split(setting.rotary_dim, setting.head_dim))]
    rest = values[..., setting.rotary_dim :] - x[..., setting.rotary_dim :]
    if rest.size and np.sqrt(np.mean(rest**2)) > NEAR:
        return Misfit("changes dims of the head that --rotary-dim leaves out", changes_rest=True)
    rotated_dims = int(np.flatnonzero(np.r_[True, (values != x).any(axis=(0, 1, 2))])[-1])
    if 0 < rotated_dims < setting.rotary_dim and rotated_dims % 2 == 0:
        unchanged = f"leaves dims {rotated_dims} to {setting.rotary_dim - 1} as they are"
        return Misfit(unchanged, rotated_dims=rotated_dims)
    z, w = (a + 1j * b for a, b in (split_pairs(x, setting), split_pairs(values, setting)))
    (batch, heads), everything = z.shape[:2], np.ones(z.shape[:2], bool)
    subsets = [everything]
    for index in range(heads):
        subsets.append(everything & (np.arange(heads) != index))
    for index in range(batch):
        subsets.append(everything & (np.arange(batch)[:, None] != index))
    residual = min(_sinusoid_residual(z[subset], w[subset]) for subset in subsets)
    if residual <= _STRAY or (heads > 1 and _heads_differ(z, w)):
        return None
    neither = f"{100 * residual:.0f} % is neither"
    return Misfit(f"does not rotate pairs of dims by angles that grow with the position ({neither})")


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

    w = a z + b conj(z); a and b by least squares over the vectors; then a(m+1) + a(m-1) = 2 cos(t) a(m) for
    each pair. Shapes: (n, s, p) twice.
    """
    size = np.sqrt(np.mean(np.abs(w) ** 2)) + 1e-30
    basis = np.stack([z, z.conj()])
    left = np.einsum("insp,jnsp->spij", basis.conj(), basis)
    right = np.einsum("insp,nsp->spi", basis.conj(), w)
    matrices = np.linalg.solve(left, right[..., None])[..., 0]  # (s, p, 2)
    residual = np.sqrt(np.mean(np.abs(w - np.einsum("spi,insp->nsp", matrices, basis)) ** 2)) / size
    middle, around = matrices[1:-1], matrices[2:] + matrices[:-2]
    share = (middle.conj() * around).real.sum(axis=(0, 2)) / ((np.abs(middle) ** 2).sum(axis=(0, 2)) + 1e-30)
    bent = np.sqrt(np.mean(np.abs(around - share[:, None] * middle) ** 2))
    scale = np.sqrt(np.mean(np.abs(matrices) ** 2)) + 1e-30
    return float(max(residual, bent / scale))
