"""Where drift sits: by frequency pair.

A score is a sum over pairs, and so is its drift, but for what the accumulator and the score format add and
for dims without position (accumulation and output rounding). With q̂ = q* + δq of a pair and k̂ alike, its part
is scale·(δq·k* + q̂·δk). Its share is Σ part·drift / Σ drift²: the shares of all parts add up to 1, and a
part that works against the others has a negative one.
Letters: n sampled positions, d head_dim, p pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.audits.variants import Bench
from ropeaudit.inputs import masks
from ropeaudit.recipes import Resolved
from ropeaudit.reference import exact_scores
from ropeaudit.reference.exact_scores import Factor
from ropeaudit.rope.rotation import split_pairs
from ropeaudit.runtime.threads import mapping
from ropeaudit.subjects.emulated import Table


@dataclass(frozen=True, slots=True)
class Parts:
    """Sums over the visible scores of some heads; nan wherever one of them is not finite.

    squares, products: of each pair's part with itself and with the drift, that of no pair last: (p + 1,).
    norms: sums of the norms of each pair of q and of k, (2, p). whole: squared drift. terms: squares of the
    sums of |terms| of a score.
    """

    squares: Array
    products: Array
    norms: Array
    whole: float
    terms: float


def gather(bench: Bench, recipe: Resolved) -> Parts:
    """Return the parts of a recipe's drift over the sampled heads."""
    table, heads = bench.table(recipe), bench.scene.sample.heads
    with mapping(1):
        by_head = [_of_head(bench, recipe, table, head) for head in heads]
    return Parts(*(sum(getattr(one, field.name) for one in by_head) for field in fields(Parts)))


def wavelengths(bench: Bench) -> Array:
    """Return the tokens of a full rotation of every pair, inf where it is not rotated. Shapes: -> (p,)."""
    rotations: Array = exact_scores.rotations_per_token(bench.scene.setting)[0]
    with np.errstate(divide="ignore"):
        return np.asarray(1.0 / rotations)


def _of_head(bench: Bench, recipe: Resolved, table: Table, head: int) -> Parts:
    setting, exact = bench.scene.setting, bench.exact[head]
    hidden = exact.block.hidden
    sides = [np.stack(split_pairs(x, setting)).astype(np.float64) for x in (exact.q, exact.k)]
    norms = np.stack([np.hypot(a, b).sum(axis=0) for a, b in sides])
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        rotated = bench.rotated("q", head, table, recipe), bench.rotated("k", head, table, recipe)
        q, k = (x.astype(np.float64) for x in rotated)
        terms = setting.scale * (np.abs(q) @ np.abs(k).T)
        masks.hide(terms, hidden)
        drift = bench.drift(head, bench.formed(q, k, recipe))
        rest, parts = drift.copy(), []
        for left, right in _factors(bench, head, q, k):
            part = setting.scale * (left @ right.T)
            masks.hide(part, hidden)
            rest -= part
            parts.append((float(np.vdot(part, part)), float(np.vdot(part, drift))))
        parts.append((float(np.vdot(rest, rest)), float(np.vdot(rest, drift))))
        squares, products = np.array(parts).T
        return Parts(
            squares=squares,
            products=products,
            norms=norms,
            whole=float(np.einsum("rc,rc->r", drift, drift).sum()),
            terms=float(np.vdot(terms, terms)),
        )


def _factors(bench: Bench, head: int, q: Array, k: Array) -> Sequence[tuple[Array, Array]]:
    """Return, per pair, the two factors whose product is its part of the drift. Shapes: (n, 4) each."""
    setting = bench.scene.setting
    exact_q, exact_k = bench.factors(head, 1.0)
    errors = _error(q, exact_q), _error(k, exact_k)
    dims = [split_pairs(x, setting) for x in (errors[0], q, exact_k.whole, errors[1])]
    return [
        (
            np.stack([x[:, i] for side in dims[:2] for x in side], axis=1),
            np.stack([x[:, i] for side in dims[2:] for x in side], axis=1),
        )
        for i in range(setting.pairs)
    ]


def _error(x: Array, exact: Factor) -> Array:
    """Return x minus the exact vector, with the bits that float64 does not hold of the latter."""
    if exact.head is None or exact.rest is None:
        return np.asarray(x - exact.whole)
    return np.asarray((x - exact.head) - exact.rest)
