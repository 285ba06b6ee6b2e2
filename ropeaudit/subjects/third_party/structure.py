"""Which dims a rotation pairs, how fast each pair rotates, and where it returns them: measured, not assumed.

A rotation is linear, so that unit vectors at a few positions show all of it.
Letters: d head_dim, p pairs, n positions; theta in radians per token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.formats import FloatArray
from ropeaudit.rope.setting import Layout
from ropeaudit.subjects import Positions

PROBE: Positions = np.array([0, 1, 2, 3, 5, 7, 11])
_ZERO = 1e-7  # below it a component is not there: others are exactly 0 or at least a frequency times 11
_UNIT = 0.05  # by which lengths may be off 1
_NEAR = 0.02  # by which frequencies may be off, relative: a rounded one is known, another base is not
_BELOW = 1e-6  # radians by which small frequencies may be off, whatever their size


class NoRotation(ValueError):
    """What a function does to unit vectors is no rotation of pairs, with the reason in words."""


@dataclass(frozen=True, slots=True)
class Structure:
    """Pairs of dims that rotate: the first and the second of each, (p,), frequencies (p,), of how many dims.

    output: for each dim (d,), the one in which it is returned.
    """

    first: NDArray[np.int64]
    second: NDArray[np.int64]
    theta: FloatArray
    output: NDArray[np.int64]

    @property
    def dims(self) -> int:
        """How many dims the function takes."""
        return int(self.output.size)

    def chosen(self, expected: FloatArray) -> Structure:
        """Return the pairs that rotate with these frequencies, in their order, each once.

        Raises: NoRotation where one has no pair.
        """
        allowed = _NEAR * expected + _BELOW
        if (np.abs(self.theta[:, None] - expected) > allowed).all(axis=1).any():
            raise NoRotation(self._misfit(expected))
        free = np.ones(self.theta.size, dtype=bool)
        picked = []
        for theta, most in zip(expected, allowed, strict=True):
            off = np.where(free, np.abs(self.theta - theta), np.inf)
            best = int(off.argmin()) if off.size else -1
            if best < 0 or not off[best] <= most:
                raise NoRotation(self._misfit(expected))
            free[best] = False
            picked.append(best)
        return Structure(self.first[picked], self.second[picked], self.theta[picked], self.output)

    def _misfit(self, expected: FloatArray) -> str:
        if not self.theta.size:
            return "it leaves every vector as it is"
        shown = np.sort(self.theta)[::-1]
        return (
            f"it rotates {shown.size} pairs by {shown[0]:.4g} to {shown[-1]:.4g} radians a token, and "
            f"{expected.size} by {expected[0]:.4g} to {expected[-1]:.4g} are requested"
        )

    @property
    def layout(self) -> Layout:
        """Whether the dims of a pair stand beside each other."""
        return "interleaved" if (self.second == self.first + 1).all() else "half"

    @property
    def plain(self) -> bool:
        """Whether all of the dims rotate, in the layout's usual order."""
        p = self.first.size
        usual = np.arange(p) if self.layout == "half" else 2 * np.arange(p)
        step = p if self.layout == "half" else 1
        return bool(
            2 * p == self.dims and (self.first == usual).all() and (self.second == self.first + step).all()
        )


def measured(rotate: Callable[[FloatArray, Positions], FloatArray], dims: int) -> Structure:
    """Return what a function rotates. Raises: NoRotation; whatever the function raises.

    rotate: x (d, n, d) of d heads, positions (n,) -> (d, n, d).
    """
    units = np.repeat(np.eye(dims)[:, None], PROBE.size, axis=1)
    returned = np.asarray(rotate(units, PROBE), dtype=np.float64)
    if returned.shape != units.shape:
        raise NoRotation(f"it returns the shape {returned.shape} for {units.shape}")
    if not np.isfinite(returned).all():
        raise NoRotation("what it returns is not finite")
    still = returned[:, 0]
    output = np.abs(still).argmax(axis=1)
    lengths = np.linalg.norm(returned, axis=2)
    if np.unique(output).size != dims or np.abs(lengths - 1).max() > _UNIT:
        raise NoRotation(f"it does not keep lengths: they are {lengths.min():.3g} to {lengths.max():.3g}")
    by_input = returned[:, :, output]  # of unit vector i, in the dim to which j goes
    there = np.abs(by_input).max(axis=1) > _ZERO
    np.fill_diagonal(there, False)
    if there.sum(axis=1).max() > 1:
        raise NoRotation(f"it mixes up to {there.sum(axis=1).max() + 1} dims")
    pairs: list[tuple[int, int, float]] = []
    for i in np.flatnonzero(there.any(axis=1)):
        j = int(there[i].argmax())
        angle = float(np.arctan2(by_input[i, 1, j], by_input[i, 1, i]))
        if angle > 0:
            pairs.append((int(i), j, angle))
    first, second = (np.array([pair[n] for pair in pairs], dtype=np.int64) for n in (0, 1))
    return Structure(first, second, np.array([theta for _, _, theta in pairs]), output)
