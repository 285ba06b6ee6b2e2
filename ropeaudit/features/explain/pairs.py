"""The part of each frequency pair in a drift.

Letters: h heads, n positions, d head_dim, p pairs.
"""

from __future__ import annotations

import math
from itertools import combinations_with_replacement

import numpy as np

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import FloatArray
from ropeaudit.audits.variants import Bench
from ropeaudit.inputs import masks
from ropeaudit.recipes import Resolved
from ropeaudit.reference import exact_scores
from ropeaudit.reference.exact_scores import Factor
from ropeaudit.rope.rotation import split_pairs
from ropeaudit.runtime.threads import mapping


def parts(bench: Bench, recipe: Resolved) -> tuple[dict[str, Array], float]:
    """Return the pairs' parts in a recipe's drift, by column, and the RMS of the sums of |terms| of a score.

    With q̂ = q* + δq of a pair and k̂ alike, its part is scale·(δq·k* + q̂·δk), and its share of the drift
    Σ part·drift / Σ drift². Columns are (p + 1,): the last is what is of no pair. nan wherever a score is not
    finite.
    """
    setting, count, heads = bench.setting, max(bench.block.visible, 1), len(bench.key_of)
    q, k, drift = (x.astype(np.float64, copy=False) for x in bench.formed(recipe))
    exact = bench.factors(1.0)
    with mapping(1), np.errstate(invalid="ignore", over="ignore", under="ignore"):
        exact_k = np.stack([exact[key].whole for key in bench.key_of])
        q_error = np.stack([_error(x, one) for x, one in zip(q, exact, strict=False)])
        k_error = np.stack([_error(x, exact[key]) for x, key in zip(k, bench.key_of, strict=True)])
        # of a pair's two members, in each of its two products: four of (h, n, p)
        left = [part * setting.scale for x in (q_error, q) for part in split_pairs(x, setting)]
        right = [np.ascontiguousarray(part) for x in (exact_k, k_error) for part in split_pairs(x, setting)]
        whole = sum(a @ b.swapaxes(1, 2) for a, b in zip(left, right, strict=True))
        rest = drift - masks.hide(whole, bench.hidden)
        products = sum((a * (drift @ b)).sum(axis=(0, 1)) for a, b in zip(left, right, strict=True))
        # Σ (l·r)² over what is seen is Σ l l (Σ r r)
        seen, squares = np.ones(drift.shape[1:]), np.zeros(setting.pairs)
        masks.hide(seen, bench.hidden)
        for i, j in combinations_with_replacement(range(4), 2):
            sums = left[i] * left[j] * (seen @ (right[i] * right[j]))
            squares += (1 if i == j else 2) * sums.sum(axis=(0, 1))
        squares = np.append(np.maximum(squares, 0.0), np.vdot(rest, rest))
        share = np.append(products, np.vdot(rest, drift)) / (np.vdot(drift, drift) or math.nan)
        share[~np.isfinite(share)] = math.nan
        terms = setting.scale * (np.abs(q) @ np.abs(k).swapaxes(1, 2))
        terms = masks.hide(terms.astype(np.float64), bench.hidden)
    with np.errstate(divide="ignore"):  # inf where a pair is not rotated
        wavelength = np.append(1.0 / exact_scores.rotations_per_token(setting)[0], math.nan)
    given = bench.given[:heads], bench.given[bench.key_of]
    norms = [np.hypot(*split_pairs(x.astype(np.float64), setting)).mean(axis=(0, 1)) for x in given]
    columns = {"wavelength": wavelength, "part_rms": np.sqrt(squares / count), "share": share}
    columns |= {f"{name}_norm": np.append(norm, math.nan) for name, norm in zip("qk", norms, strict=True)}
    return columns, math.sqrt(float(np.vdot(terms, terms)) / count)


def _error(x: FloatArray, exact: Factor) -> Array:
    """Return x minus the exact vector, with its bits beyond float64."""
    if exact.head is None or exact.rest is None:
        return np.asarray(x - exact.whole)
    return np.asarray((x - exact.head) - exact.rest)
