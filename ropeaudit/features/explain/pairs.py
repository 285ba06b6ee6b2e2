"""The part of each frequency pair in the drift of a recipe.

Letters: h heads, n positions, d head_dim, p pairs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import combinations_with_replacement

import numpy as np

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.audits.variants import Bench
from ropeaudit.inputs import masks
from ropeaudit.recipes import Resolved
from ropeaudit.reference import exact_scores
from ropeaudit.reference.exact_scores import Factor
from ropeaudit.rope.rotation import split_pairs
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime.threads import mapping


def parts(bench: Bench, recipe: Resolved) -> tuple[dict[str, Array], float]:
    """Return each pair's part in a drift, by column, and the RMS of the sums of |terms| of a score.

    With q̂ = q* + δq of a pair and k̂ alike, its part is scale·(δq·k* + q̂·δk), and its share of the drift
    Σ part·drift / Σ drift². Columns are (p + 1,): the last is what is of no pair. nan wherever a score is not
    finite.
    """
    setting, hidden = bench.setting, bench.hidden
    q, k, drift = (x.astype(np.float64, copy=False) for x in bench.rotated_and_drift(recipe))
    factors = bench.factors(1.0)
    exact_q = factors[: len(bench.key_of)]
    exact_k = [factors[key] for key in bench.key_of]
    inputs = bench.vectors[: len(exact_q)], bench.vectors[bench.key_of]
    with mapping(1), np.errstate(invalid="ignore", over="ignore", under="ignore"):
        whole_k = np.stack([one.whole for one in exact_k])
        # of a pair's two members, in each of its two products: four of (h, n, p)
        left = _members([_errors(q, exact_q) * setting.scale, q * setting.scale], setting)
        right = _members([whole_k, _errors(k, exact_k)], setting)
        four = list(zip(left, right, strict=True))
        whole = np.sum([a @ b.swapaxes(1, 2) for a, b in four], axis=0)
        rest = drift - masks.hide(whole, hidden)
        products = sum((a * (drift @ b)).sum(axis=(0, 1)) for a, b in four)
        # Σ (l·r)² over what is seen is Σ l l (Σ r r)
        seen = masks.hide(np.ones(drift.shape[1:]), hidden)
        squares = np.zeros(setting.pairs)
        for (a, b), (c, d) in combinations_with_replacement(four, 2):
            sums = (a * c * (seen @ (b * d))).sum(axis=(0, 1))
            squares += sums if a is c else 2 * sums
        squares = np.append(np.maximum(squares, 0.0), np.vdot(rest, rest))
        share = np.append(products, np.vdot(rest, drift))
        share /= np.vdot(drift, drift) or math.nan
        share[~np.isfinite(share)] = math.nan
        terms = masks.hide(np.abs(q) @ np.abs(k).swapaxes(1, 2), hidden)
    with np.errstate(divide="ignore"):  # inf where a pair is not rotated
        wavelength = 1.0 / exact_scores.rotations_per_token(setting)[0]
    count = max(bench.block.visible, 1)
    columns = {
        "wavelength": np.append(wavelength, math.nan),
        "part_rms": np.sqrt(squares / count),
        "share": share,
    }
    for name, x in zip(("q_norm", "k_norm"), inputs, strict=True):
        norms = np.hypot(*split_pairs(x.astype(np.float64), setting))
        columns[name] = np.append(norms.mean(axis=(0, 1)), math.nan)
    return columns, setting.scale * math.sqrt(float(np.vdot(terms, terms)) / count)


def _members(sides: Iterable[Array], setting: RopeSetting) -> list[Array]:
    """Return the two members of the pairs of each side. Shapes: (h, n, d) -> (h, n, p)."""
    return [np.ascontiguousarray(part) for x in sides for part in split_pairs(x, setting)]


def _errors(x: Array, exact: Sequence[Factor]) -> Array:
    """Return x minus exact vectors, with their bits beyond float64. Shapes: (h, n, d)."""
    return np.stack([_error(own, one) for own, one in zip(x, exact, strict=True)])


def _error(x: Array, exact: Factor) -> Array:
    if exact.head is None or exact.rest is None:
        return np.asarray(x - exact.whole)
    return np.asarray((x - exact.head) - exact.rest)
