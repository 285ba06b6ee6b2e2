"""The reference: exact scores from q, k and distances, with a certificate of error.

    s(m, n) = scale * sum_i Re(q_i conj(k_i) e^{j (m-n) theta_i}) + scale * (dims without position)

The offset never enters. q_m is rotated by its distance from an origin token, k_n by its own, so
that their product holds m - n; the rotating is done in double-double arithmetic with frequencies
from 60-digit decimals, and the product is formed from slices whose leading part is exact. No code
that computes or applies a rotation is shared with what is audited.

Letters: s positions, d head_dim, p = rotary_dim/2 pairs. Distances in tokens, frequencies in rotations
per token, scores in score units (scaled, before softmax).
Source: RoFormer, arXiv 2104.09864, section 3.2.2; slices: Ozaki et al., Numer. Algorithms 59 (2012).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal, TypeAlias

import numpy as np

from ropeaudit.arithmetic import doubledouble as dd
from ropeaudit.arithmetic.doubledouble import Array, Pair, Words
from ropeaudit.reference import exact_frequencies
from ropeaudit.rope.setting import RopeSetting

# "double": one float64 product, error about 1e-13. "extended": sliced, error about 1e-19.
Precision: TypeAlias = Literal["double", "extended"]

_U = 2.0**-53
_ROWS = 512  # rows rotated at once: few hand-overs between threads, still in cache


@functools.lru_cache(maxsize=64)
def rotations_per_token(setting: RopeSetting) -> Words:
    """Return theta_i / (2 pi), each as three float64 words.

    Shapes: -> three of (p,). Units: rotations per token. Relative error 2^-158.
    """
    words = np.empty((3, setting.pairs))
    thetas = exact_frequencies.frequencies(setting)
    with dd.precise():
        for i, theta in enumerate(thetas):
            words[:, i] = dd.words(theta / (2 * dd.PI))
    words.setflags(write=False)
    return words[0], words[1], words[2]


def fastest(setting: RopeSetting) -> float:
    """Return the largest frequency, radians per token; 0 where nothing rotates."""
    return float(2 * np.pi * np.max(rotations_per_token(setting)[0], initial=0.0))


def distance_table(distances: Array, setting: RopeSetting) -> tuple[Pair, Pair]:
    """Return cos and sin of distance * theta_i as double-doubles, within `dd.CIRCLE_ERROR`.

    On a grid the numbers are places of tokens, and each pair has the distance of its own axis: the token's
    position, an exact float64 number, from the origin. Scores hold differences of these as real numbers: no
    difference is rounded. Both results are multiplied by the attention factor, and so is the error. With
    clipped angles the numbers are positions rather than distances, for the exact scores depend on them.
    Shapes: distances (s,), integers held in float64 -> four arrays (s, p).
    """
    words, grid = rotations_per_token(setting), setting.grid
    x = distances[:, None] if grid is None else grid.per_pair(distances.astype(np.int64))
    cos, sin = dd.unit_circle(x, words)
    if setting.clipped:
        # at angles beyond +-clip radians stand the values at +-clip
        with dd.precise():
            radian = dd.words(1 / (2 * dd.PI))
            limit = float(Decimal(setting.clip) / (2 * dd.PI))
        at_cos, at_sin = dd.unit_circle(np.full((1, 1), setting.clip), radian)
        rotations = distances[:, None] * words[0]
        beyond, sign = np.abs(rotations) > limit, np.sign(rotations)
        cos = np.where(beyond, at_cos[0], cos[0]), np.where(beyond, at_cos[1], cos[1])
        sin = np.where(beyond, sign * at_sin[0], sin[0]), np.where(beyond, sign * at_sin[1], sin[1])
    factor = exact_frequencies.attention_factor(setting.scaling)
    if factor == 1:
        return cos, sin
    high, low, _ = (np.float64(word) for word in dd.words(factor))
    return dd.multiply(cos, (high, low)), dd.multiply(sin, (high, low))


@dataclass(frozen=True, slots=True)
class Factor:
    """One side of the product, rotated: `head` is its leading slice, `rest` all that is left.

    whole = head + rest to 2^-76 of the largest element of the row. norm and rest_norm: the largest
    2-norms of a row of `whole` and of `rest`.
    In "double" precision only `whole` is there.
    """

    whole: Array
    head: Array | None
    rest: Array | None
    norm: float
    rest_norm: float = 0.0

    def rows(self, rows: slice) -> Factor:
        """Return some of the rows, under the norm of all."""
        if self.head is None or self.rest is None:
            return Factor(self.whole[rows], None, None, self.norm)
        head, rest = self.head[rows], self.rest[rows]
        return Factor(self.whole[rows], head, rest, self.norm, self.rest_norm)


def rotated(
    x: Array,
    table: tuple[Pair, Pair],
    setting: RopeSetting,
    precision: Precision,
    scale: float = 1.0,
) -> Factor:
    """Return the rows of x rotated by the angles of `table` and multiply them by `scale`.

    Shapes: x (s, d), table of four (s, p) -> Factor of (s, d).
    """
    (cos, sin), members = table, _dims_of_pairs(setting)
    if precision == "double":
        a, b = (x[:, dims] for dims in members)
        whole = np.array(x)
        whole[:, members[0]] = a * cos[0] - b * sin[0]
        whole[:, members[1]] = b * cos[0] + a * sin[0]
        whole *= scale
        return Factor(whole, None, None, _norm(whole))
    whole, head, rest = (np.empty(x.shape) for _ in range(3))
    bits = (53 - math.ceil(math.log2(x.shape[1]))) // 2
    for start in range(0, len(x), _ROWS):
        rows = slice(start, start + _ROWS)
        high, low = x[rows].copy(), np.zeros(x[rows].shape)
        a, b = (x[rows][:, dims] for dims in members)
        at_cos, at_sin = (cos[0][rows], cos[1][rows]), (sin[0][rows], sin[1][rows])
        first = dd.subtract(dd.multiply(at_cos, a), dd.multiply(at_sin, b))
        second = dd.add(dd.multiply(at_cos, b), dd.multiply(at_sin, a))
        for dims, (above, below) in zip(members, (first, second), strict=True):
            high[:, dims], low[:, dims] = above, below
        if scale != 1.0:
            high, low = dd.multiply((high, low), float(scale))
        # the multiple of 2^-bits times the row's largest power of two that is nearest to each
        _, exponent = np.frexp(np.max(np.abs(high), axis=1, keepdims=True, initial=0.0))
        sigma = np.ldexp(1.5, exponent + 52 - bits)
        whole[rows], head[rows] = high, (high + sigma) - sigma
        rest[rows] = (high - head[rows]) + low
    return Factor(whole, head, rest, _norm(whole), _norm(rest))


def _norm(x: Array) -> float:
    """Return the largest 2-norm of a row. Shapes: (s, d)."""
    return float(np.sqrt(np.max(np.einsum("sd,sd->s", x, x), initial=0.0)))


def product(
    q: Factor, k: Factor, out: Array | None = None, scratch: Array | None = None
) -> tuple[Array, Array | None]:
    """Return q·k as two arrays to be added; in "double" precision the second is None.

    The product of the leading slices is exact, for they have too few bits to need rounding; the rest is
    2^22 times smaller, and its one float64 product small enough an error. Subtract the first
    array, then the second: the difference to a float64 score loses nothing that matters.
    Shapes: q (r, d), k (c, d), out and scratch (r, c), overwritten where they are given -> two of (r, c).
    """
    if q.head is None or k.head is None or q.rest is None or k.rest is None:
        return np.matmul(q.whole, k.whole.T, out=out), None
    rest: Array = np.matmul(q.head, k.rest.T, out=out)
    rest += np.matmul(q.rest, k.whole.T, out=scratch)
    return np.matmul(q.head, k.head.T, out=scratch), rest


def paired(q: Factor, k: Factor) -> tuple[Array, Array | None]:
    """Return products of equal rows of q and k, as `product` does. Shapes: -> two of (n,)."""
    if q.head is None or k.head is None or q.rest is None or k.rest is None:
        return _rowwise(q.whole, k.whole), None
    return _rowwise(q.head, k.head), _rowwise(q.head, k.rest) + _rowwise(q.rest, k.whole)


def _rowwise(a: Array, b: Array) -> Array:
    return np.asarray(np.einsum("nd,nd->n", a, b))


def joined(high: Array, low: Array | None, out: Array | None = None) -> Array:
    """Return the arrays of `product` or `paired` as one of float64; one alone as it is."""
    return high if low is None else np.add(high, low, out=out)


def certificate(q: Factor, k: Factor) -> float:
    """Bound |product - exact score| over all rows of q and k. Units: score units.

    Table: each rotated vector is off by at most sqrt(2)·CIRCLE_ERROR of its norm, on both sides, and
    double-double operations by far less. Product: gamma_n times the product of norms (Cauchy-Schwarz),
    n = d for one float64 product, and 9 roundings more for rotating and scaling in float64; n = 2d for the
    product of the rests, which is that of shorter vectors.
    """
    d: int = q.whole.shape[1]
    norms = q.norm * k.norm
    table = 3.0 * dd.CIRCLE_ERROR * norms
    if q.head is None or k.head is None:
        n = d + 12
        return table + n * _U / (1 - n * _U) * norms
    rests = q.rest_norm * k.norm + q.norm * k.rest_norm
    return table + (2 * d + 4) * _U * rests * 1.01 + 2.0**-104 * norms


def _dims_of_pairs(setting: RopeSetting) -> tuple[slice, slice]:
    """Return the dims that are the real and the imaginary parts of the pairs."""
    d = setting.rotary_dim
    if setting.layout == "interleaved":
        return slice(0, d, 2), slice(1, d, 2)
    return slice(0, d // 2), slice(d // 2, d)
