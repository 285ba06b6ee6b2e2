"""A-priori bound and predicted RMS of the drift of an emulated recipe.

Letters: h heads, s positions, d head_dim, p pairs, r and c rows and columns of a tile.
Source: numerics.md, section 4.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ropeaudit import bound_terms as terms
from ropeaudit import masks
from ropeaudit.bound_terms import Pair, Phase, Score
from ropeaudit.doubledouble import Array
from ropeaudit.formats import FloatArray, round_to
from ropeaudit.inputs import Inputs
from ropeaudit.masks import Mask
from ropeaudit.rope.rotation import split_pairs
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects.emulated import Emulated

_TILE = 512  # rows and columns at once
_PAIRS = 8  # pairs at once
_SLACK = 1 + 2.0**-20  # float64 in here; the measured difference itself is rounded to float32
_SMALL = 1e-2  # phase errors below it count by their squares, for 1 - cos would cancel

_Seen = Callable[[Array, Array], Array]  # sums f(m) g(n) over the visible m, n


@dataclass(frozen=True, slots=True)
class Bound:
    """maximum: upper bound of |drift|. rms: predicted RMS of drift. Both in score units."""

    maximum: float
    rms: float


def bound(subject: Emulated, inputs: Inputs, mask: Mask, offset: int) -> Bound:
    """Bound the drift of a subject over all scores that the mask shows, and predict its RMS.

    Exact, that is computed from what the recipe does: errors of positions and frequencies. As large as they
    can be: every later rounding; half an ulp of the angle where it is inexact. Looser than
    section 4 says: each side's phase error is capped at 2, and only its difference to a middle value of
    the tile counts, which costs up to a factor of 2 near the diagonal; |score| is replaced by the
    sum of |q_i| |k_i|; a rotation costs (1 + sqrt 2) u.
    Underflow counts at its largest.
    Time: one float32 product of depth d per head, in tiles. Memory: three arrays (s, p), a head's
    q and k in float64 a few times, and a few tiles.

    Args:
        subject: A recipe on a setting; the scores are in its score format.
        inputs: q (h, s, d) and k (g, s, d), which are rounded to the input format here.
        mask: Which scores count.
        offset: Tokens added to every position.

    Returns:
        maximum and rms, in score units (scaled, before softmax). maximum is inf where a number may
        overflow; rms is that of a run without overflow, and inf where an angle or an input is not finite.
        rms assumes that the phases of q and k have nothing to do with those of the errors, as in
        gaussian inputs, and leaves out underflow.

    Raises:
        Nothing of its own; the subject and the inputs were checked when they were made.

    Source: Brent, Percival, Zimmermann, Math. Comp. 76 (2007), for bounds of this form;
    Higham, Accuracy and Stability of Numerical Algorithms, chapter 3, for sums.
    """
    with np.errstate(all="ignore"):
        return _Cell(subject, inputs.q.shape[1], mask, offset).bound(inputs)


@dataclass(frozen=True, slots=True)
class _Side:
    """q or k of a head: |pair| times the attention factor (s, p), |other dimension| (s, d - 2p)."""

    pairs: Array
    rest: Array

    def norm(self) -> Array:
        """2-norms of the rows. Shapes: -> (s,)."""
        return np.asarray(np.sqrt((self.pairs**2).sum(axis=1) + (self.rest**2).sum(axis=1)))


class _Cell:
    """One subject at one offset."""

    def __init__(self, subject: Emulated, seq_len: int, mask: Mask, offset: int) -> None:
        self.subject, self.mask, self.seq_len = subject, mask, seq_len
        self.setting: RopeSetting = subject.setting
        self.phase: Phase = terms.phase(subject, seq_len, offset)
        self.turned: Pair = terms.rotated(subject)
        self.passed: Pair = terms.passed(subject)
        self.score: Score = terms.score(subject)
        u, d = subject.accumulate.unit_roundoff, self.setting.head_dim
        self.sum_worst = math.expm1(d * math.log1p(u))
        self.sum_variance = terms.NOISE * u * u * d / 2

    def bound(self, inputs: Inputs) -> Bound:
        known, worst = self.phase.known, self.phase.worst
        if not (np.isfinite(known).all() and np.isfinite(worst).all()):
            return Bound(math.inf, math.inf)
        largest, squares = 0.0, 0.0
        for head, x in enumerate(inputs.q):
            if head % inputs.group == 0:
                k = self._side(inputs.k[head // inputs.group])
            q = self._side(x)
            largest = max(largest, self._largest(q, k))
            squares += self._squares(q, k)
        mean = squares / (masks.count(self.mask, self.seq_len) * inputs.q.shape[0])
        maximum = (self.score.grows * largest + self.score.small) * _SLACK
        if not math.isfinite(maximum + mean):
            return Bound(math.inf, self.setting.scale * math.sqrt(mean) if math.isfinite(mean) else math.inf)
        return Bound(maximum, self.setting.scale * math.sqrt(max(mean, 0.0)))

    def _side(self, x: Array) -> _Side:
        exact = round_to(x, self.subject.input).astype(np.float64)
        a, b = split_pairs(exact, self.setting)
        return _Side(self.turned.weight * np.hypot(a, b), np.abs(exact[:, self.setting.rotary_dim :]))

    def _overflows(self, q: _Side, k: _Side) -> bool:
        recipe = self.subject.recipe
        room = min(recipe.rotation.largest, recipe.output.largest)
        for side in (q, k):
            pairs, rest = (float(part.max(initial=0.0)) for part in (side.pairs, side.rest))
            if not pairs * (1 + self.turned.worst) + self.turned.small <= room:
                return True
            if not rest * (1 + self.passed.worst) <= recipe.output.largest:
                return True
        grown = (1 + max(self.turned.worst, self.passed.worst)) ** 2 * (1 + self.sum_worst)
        sums = float(q.norm().max()) * float(k.norm().max()) * grown
        stored = sums * (1 + self.subject.score.unit_roundoff) ** 2
        return not stored <= self.score.largest

    def _relative(self, pair: Pair) -> float:
        """What multiplies |q_i| |k_i|: roundings of both sides, of the sum, and of the score."""
        both = (1 + pair.worst) ** 2
        return both - 1 + self.sum_worst * both + self.score.adds / self.score.grows

    def _largest(self, q: _Side, k: _Side) -> float:
        """The largest bound of the error of an unscaled score, inf where one may overflow."""
        if self._overflows(q, k):
            return math.inf
        turned, passed = self.turned, self.passed
        small = sum(
            turned.small * (1 + turned.worst) * float(side.pairs.sum(axis=1).max())
            + passed.small * (1 + passed.worst) * float(side.rest.sum(axis=1).max())
            for side in (q, k)
        )
        d, low = self.setting.head_dim, self.subject.accumulate.smallest_subnormal
        small += d * (max(turned.small, passed.small) ** 2 + low)
        found, whole = 0.0, slice(0, self.seq_len)
        for start in range(0, self.seq_len, _TILE):
            rows = slice(start, min(start + _TILE, self.seq_len))
            for cols in masks.tiles(self.mask, rows, whole, _TILE, self.seq_len):
                found = max(found, self._tile(q, k, rows, cols))
        return found + (1 + self.sum_worst) * small

    def _tile(self, q: _Side, k: _Side, rows: slice, cols: slice) -> float:
        """The largest bound in a tile: a product, and where phases are lost not more than norms allow.

        A float32 product of positive numbers up to 1 is off by gamma: the result is made larger by that.
        """
        known, worst = self.phase.known, self.phase.worst
        middle = (known[rows.start] + known[cols.stop - 1]) / 2
        lost_q, lost_k = (
            np.minimum(2.0, np.abs(known[some] - middle) + worst[some]) for some in (rows, cols)
        )
        pairs, rest = self._relative(self.turned), self._relative(self.passed)
        a, b = q.pairs[rows], k.pairs[cols]
        left, top = _single(a * (lost_q + pairs), a, q.rest[rows] * rest)
        right, other = _single(b, b * lost_k, k.rest[cols])
        found = left @ right.T
        if max(lost_q.max(initial=0.0), lost_k.max(initial=0.0)) > 0.5:
            most = (2 + max(pairs, rest)) / top / other
            of_q, of_k = _Side(a, q.rest[rows]).norm() * most, _Side(b, k.rest[cols]).norm()
            np.minimum(found, np.outer(of_q.astype(np.float32), of_k.astype(np.float32)), out=found)
        hidden = masks.hidden(self.mask, rows, cols)
        if hidden is not None:
            found[hidden] = 0.0
        count = left.shape[1] + 8
        largest = float(found.max()) * (1 + count * 2.0**-23) + count * 2.0**-140
        return float(largest * top * other)

    def _squares(self, q: _Side, k: _Side) -> float:
        """Sum of the expected squares of all errors of a head's scores, unscaled."""
        found = 0.0
        for rows, cols in masks.bands(self.mask, self.seq_len):  # along a window, else sums would cancel
            sides = (_Side(side.pairs[cols], side.rest[cols]) for side in (q, k))
            found += self._band(rows, cols, *sides)
        return found

    def _band(self, rows: slice, cols: slice, q: _Side, k: _Side) -> float:
        """The same for some rows, a few pairs at a time. Both sides stand at `cols`, which holds `rows`.

        On the diagonal both sides make the same phase error, whose part is taken out again.
        """
        own = slice(rows.start - cols.start, rows.stop - cols.start)
        seen = functools.partial(self._visible, rows, cols)
        later = self.sum_variance + self.score.variance
        turned = 2 * self.turned.variance + (2 * self.turned.bias) ** 2 + later
        total = (2 * self.passed.variance + later) * float(seen(q.rest**2, k.rest**2).sum())
        for start in range(0, self.setting.pairs, _PAIRS):
            some = slice(start, start + _PAIRS)
            x, y = q.pairs[:, some] ** 2, k.pairs[:, some] ** 2
            known, noise = self.phase.known[cols, some], self.phase.variance[cols, some]
            known = known - (known[:1] + known[-1:]) / 2
            size = np.sqrt((known**2 + noise).max(axis=0))
            phases = np.where(
                size < _SMALL,
                _small_phases(seen, x, y, known, noise) / 2 - (x * y * noise)[own].sum(axis=0),
                _large_phases(seen, x, y, known, noise) + (x * y * np.expm1(-noise))[own].sum(axis=0),
            )
            total += float((0.5 * turned * seen(x, y) + phases).sum())
        return total

    def _visible(self, rows: slice, cols: slice, f: Array, g: Array) -> Array:
        """Sum of f(m) g(n) over the visible m in `rows`, n in `cols`. Shapes: two of (c, p) -> (p,)."""
        queries = f[rows.start - cols.start : rows.stop - cols.start]
        return np.asarray((queries * masks.sums(self.mask, rows, cols, g)).sum(axis=0))


def _small_phases(seen: _Seen, x: Array, y: Array, known: Array, noise: Array) -> Array:
    """x y ((known(m) - known(n))^2 + noise(m) + noise(n)), summed."""
    own = known**2 + noise
    return seen(x * own, y) + seen(x, y * own) - 2 * seen(x * known, y * known)


def _large_phases(seen: _Seen, x: Array, y: Array, known: Array, noise: Array) -> Array:
    """x y (1 - mean cosine of the phase error), summed: what |1 - e^(i error)|^2 / 2 is in the mean."""
    kept = np.exp(-noise / 2)
    cos, sin = kept * np.cos(known), kept * np.sin(known)
    return seen(x, y) - (seen(x * cos, y * cos) + seen(x * sin, y * sin))


def _single(*parts: Array) -> tuple[FloatArray, float]:
    """Return non-negative parts side by side, over their largest number, in float32, and that number."""
    whole = np.hstack(parts)
    top = float(whole.max(initial=0.0)) or 1.0
    return (whole / top).astype(np.float32), top
