"""The exact rotation, in float64, with which code is compared.

Letters: s positions, d head_dim.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropeaudit import __version__, recipes
from ropeaudit.arithmetic.formats import FP32, FP64, FloatArray, Format
from ropeaudit.reference import exact_scores
from ropeaudit.rope.rotation import split_pairs
from ropeaudit.rope.scaled import attention_factor
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions, Subject
from ropeaudit.subjects.emulated import Emulated


@functools.lru_cache(maxsize=64)
def exact(setting: RopeSetting) -> Emulated:
    """Return the rotation in float64."""
    return Emulated(recipes.named("fp64-angles").resolve(FP64), setting)


def rotated(x: FloatArray, positions: Positions, setting: RopeSetting) -> FloatArray:
    """Return x rotated in float64. Shapes: (..., s, d) -> (..., s, d)."""
    subject, flat = exact(setting), x.astype(np.float64).reshape(-1, *x.shape[-2:])
    table = subject.table(positions, 0)
    return np.stack([subject.rotate(vectors, table) for vectors in flat]).reshape(x.shape)


def half_split(rotary_dim: int, head_dim: int) -> NDArray[np.int64]:
    """Return the dims of interleaved pairs in the order of half-split ones."""
    first = np.arange(rotary_dim).reshape(-1, 2).T.reshape(-1)
    return np.concatenate([first, np.arange(rotary_dim, head_dim)])


def rotations(setting: RopeSetting, positions: Positions, dtype: Format) -> NDArray[np.complex128]:
    """Return e^(i angle) times the attention factor, far more precise than `dtype`. (s,) -> (s, p)."""
    if dtype.precision <= FP32.precision:  # plain float64 is far better than that
        even = not setting.clipped and setting.grid is None
        if even and len(positions) > 1 and (np.diff(positions) == 1).all():
            return _turns(setting, positions[:1]) * _run(setting, len(positions))
        return _turns(setting, positions) * attention_factor(setting.scaling)
    cos, sin = exact(setting).table(positions, 0)
    table: NDArray[np.complex128] = cos + 1j * sin
    return table


def _turns(setting: RopeSetting, positions: Positions) -> NDArray[np.complex128]:
    """Return cos + i sin of the angles. Shapes: (s,) -> (s, p)."""
    angles = exact(setting).angles(positions)
    if setting.grid is not None:
        angles = setting.grid.per_pair(positions) * exact(setting).angles(np.ones(1, np.int64))
    points = np.empty(angles.shape, np.complex128)
    np.cos(angles, out=points.real)
    np.sin(angles, out=points.imag)
    return points


@functools.lru_cache(maxsize=2)
def _run(setting: RopeSetting, length: int) -> NDArray[np.complex128]:
    """Return the factors of positions from 0, with the attention factor. Shapes: -> (s, p)."""
    return _turns(setting, np.arange(length, dtype=np.int64)) * attention_factor(setting.scaling)


def complex_pairs(x: FloatArray, setting: RopeSetting) -> NDArray[np.complex128]:
    """Return the pairs as complex numbers. Shapes: (..., d) -> (..., p)."""
    a, b = split_pairs(x, setting)
    pairs = np.empty(a.shape, np.complex128)
    pairs.real, pairs.imag = a, b  # infinities stay: times 1j they are nan
    return pairs


class Exact(Subject):
    """The exact rotation as a subject, so that two settings can be compared."""

    name, backend, device = "exact", "numpy", "cpu"
    dtype = accumulate = score = softmax = output = FP64
    version = __version__
    scale_after_store = False
    narrowest = 24  # a float64 reference is what it can be compared with

    def __init__(self, setting: RopeSetting, input_format: Format) -> None:
        """Store the setting. input_format: q and k are rounded to it."""
        self.setting, self.input = setting, input_format

    def table(self, positions: Positions, offset: int) -> Any:
        """Return cos and sin at positions + offset, in double-double."""
        return exact_scores.distance_table((positions + offset).astype(np.float64), self.setting)

    def rotate(self, x: FloatArray, table: Any) -> FloatArray:
        """Return x rotated exactly, rounded to float64. Shapes: (s, d) -> (s, d)."""
        return exact_scores.rotated(x.astype(np.float64, copy=False), table, self.setting, "double").whole

    def distinct_positions(self, positions: Positions) -> int:
        """Return how many positions there are."""
        return int(positions.size)

    def stages(self) -> dict[str, str]:
        """Return nothing: no stage rounds."""
        return {}
