"""Frequencies inferred from points on circles: least squares over all positions, and how uncertain they are.

Letters: n positions, c columns; theta in radians per token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.doubledouble import Array

ROUNDINGS = 3  # of a float32 angle, relative: of the frequency, of the product, of what is inferred
_UNIT = 2.0**-24  # unit roundoff of float32
_RETURNED = 2  # roundings of cos and of sin, each relative: of the value, of its product with a factor
_COUNTED = 1.0  # radians: phases that near what is predicted have lost no rotation


@dataclass(slots=True)
class Inference:
    """Frequencies (c,) that points show so far, and how far off each may be, in radians per token.

    unit: unit roundoff of the points. held: columns whose points are all where these frequencies put them,
    within rounding; of others the first positions decide, and no uncertainty is given (0).
    """

    theta: Array
    unit: float
    uncertain: Array
    held: NDArray[np.bool_]
    _moments: Array  # sums of squared positions
    _phases: Array  # sums of positions times phases
    _noises: Array  # sums of positions times what rounding may change a phase by

    @classmethod
    def of(cls, points: NDArray[np.complex128], unit: float) -> Inference:
        """Return what the points of positions 0 to n - 1 show. Shapes: (n, c), n > 1."""
        finite = np.isfinite(points).all(axis=1)
        whole = len(points) if finite.all() else max(2, int(finite.argmin()))
        theta = recovered(points[:whole])
        blank = np.zeros_like(theta)
        one = cls(theta, unit, blank, np.ones(theta.shape, np.bool_), blank, blank, blank)
        one.uncertain = one._noise(theta * (whole - 1)) / (whole - 1)
        one.take(points, 0)
        one.uncertain = np.where(one._moments > 0, one.uncertain, 0.0)
        return one

    def take(self, points: NDArray[np.complex128], start: int) -> None:
        """Refine the frequencies of columns that hold by the points of positions from `start` on."""
        at = np.arange(start, start + len(points), dtype=np.float64)[:, None]
        fine = np.isfinite(points)
        angles = at * self.theta
        off = np.where(fine, np.angle(np.where(fine, points, 1) * np.exp(-1j * angles)), 0.0)
        noise = self._noise(angles)
        may = noise + at * (self.uncertain + ROUNDINGS * _UNIT * np.abs(self.theta))
        within = np.all((np.abs(off) <= np.minimum(2 * may, _COUNTED)) | ~fine, axis=0)
        self.held = self.held & within
        used = np.where(fine, at, 0.0)
        moments = self._moments + np.sum(used**2, axis=0)
        phases = self._phases + np.sum(used * (off + angles), axis=0)
        noises = self._noises + np.sum(used * noise, axis=0)
        better = self.held & (moments > 0)
        self._moments = np.where(better, moments, self._moments)
        self._phases = np.where(better, phases, self._phases)
        self._noises = np.where(better, noises, self._noises)
        size = np.where(better, moments, 1.0)
        self.theta = np.where(better, phases / size, self.theta)
        self.uncertain = np.where(better, noises / size, self.uncertain)

    def _noise(self, angles: Array) -> Array:
        """Return what rounding of cos and sin changes a phase by at most.

        cos (1 + a) and sin (1 + b) have a phase that is sin cos (b - a) off, which is 0 on the axes.
        """
        relative = _RETURNED * self.unit * (1 + 2 * _RETURNED * self.unit)
        return np.asarray(relative * np.abs(np.sin(2 * angles)) + 4 * _UNIT)


def recovered(points: NDArray[np.complex128]) -> Array:
    """Return the frequencies that the phases show, refined from position 1 to ever later ones.

    Shapes: (n, p) -> (p,). Angles rounded coarsely lose count of rotations; early positions decide then.
    """
    phases, n = np.angle(np.nan_to_num(points)), len(points)
    theta, at = phases[1].copy(), 1
    while at < n - 1:
        at = min(2 * at, n - 1)
        rest = phases[at] - theta * at
        theta += (rest - 2 * math.pi * np.round(rest / (2 * math.pi))) / at
    return np.asarray(theta)
