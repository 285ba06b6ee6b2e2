"""Which dims of q and k a layer rotates, and how fast: seen from two runs at different positions.

No model type is known here. q and k at a later position are those at an earlier one, rotated by the distance
times the frequencies: what a layer does is the arrangement of pairs for which that holds.
Letters: h heads, s positions, d head_dim, p pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.features.model import float64_mode
from ropeaudit.features.model.layers import NO_PAIRS, LayerVectors, RotatedPairs
from ropeaudit.rope.setting import LAYOUTS

DISTANCE = 64  # tokens between the two runs: the slowest pair of any known model moves by more than NEAR
NEAR = 1e-6  # of the largest element: a wrong arrangement is off by 1e-5 and more, float64 by 1e-12
Table = tuple[Array, float]


def tables(model: Any, head_dim: int | None = None) -> list[Table]:
    """Return every list of frequencies that a model holds, and what multiplies cos and sin.

    head_dim: the largest; those that do not fit into it rotate no head, such as of sines that are added to
    the embedding.
    """
    fitting = [one for one in _held(model) if head_dim is None or 2 * one[0].size <= head_dim]
    results: list[Table] = []
    for one in fitting:
        if not any(np.array_equal(one[0], other[0]) and one[1] == other[1] for other in results):
            results.append(one)
    return results


def _held(model: Any) -> Iterator[Table]:
    for module in float64_mode.rotaries(model).values():
        for key, values in module._buffers.items():
            if values is None or not key.endswith("inv_freq") or "original" in key:
                continue
            factor = getattr(module, key.replace("inv_freq", "attention_scaling"), None)
            factor = getattr(module, "attention_scaling", 1.0) if factor is None else factor
            frequencies = values.detach().double().cpu().numpy().reshape(-1)
            yield frequencies, float(factor) if isinstance(factor, (int, float)) else 1.0
    for module in float64_mode.tabled(model).values():
        for _, values in float64_mode.computed_tables(module):
            frequencies = _of_sines(values.double().cpu().numpy())
            if frequencies.size:
                yield frequencies, 1.0


def _of_sines(table: Array) -> Array:
    """Return the frequencies of a table of sines and cosines side by side, none of another table.

    Shapes: (s, 2p) -> (p,). They are the angles of position 1, which are below a half turn.
    """
    if table.ndim != 2 or len(table) < 2 or table.shape[1] % 2:
        return np.zeros(0)
    halves = np.split(table[:2], 2, axis=1)
    sin, cos = halves if not halves[0][0].any() else halves[::-1]
    if sin[0].any() or (cos[0] != 1.0).any():
        return np.zeros(0)
    return np.asarray(np.arctan2(sin[1], cos[1]))


def seen(
    base: Mapping[int, LayerVectors], other: Mapping[int, LayerVectors], distance: int, given: Sequence[Table]
) -> dict[int, RotatedPairs]:
    """Return layer -> its pairs, `NO_PAIRS` where q and k stay; layers that nothing fits are left out."""
    results = {}
    for layer, before in base.items():
        tried = [
            (_error(before, other[layer], pairs, distance), pairs)
            for pairs in _candidates(before.q.shape[-1], given)
        ]
        error, best = min(tried, key=lambda one: one[0])
        if error <= NEAR:
            results[layer] = best
    return results


def _candidates(head_dim: int, given: Sequence[Table]) -> Iterator[RotatedPairs]:
    yield NO_PAIRS
    for frequencies, factor in given:
        rotary_dim = 2 * frequencies.size
        if 0 < rotary_dim <= head_dim:
            for start in dict.fromkeys((0, head_dim - rotary_dim)):
                for layout, swapped in product(LAYOUTS, (False, True)):
                    yield RotatedPairs(start, layout, frequencies, factor, swapped)


def _error(before: LayerVectors, after: LayerVectors, pairs: RotatedPairs, distance: int) -> float:
    """Return how far q and k of one run, rotated by a distance, are from the other's, over their largest."""
    errors = []
    with np.errstate(invalid="ignore", over="ignore"):
        for x, later in ((before.q, after.q), (before.k, after.k)):
            if x.shape != later.shape:
                return np.inf
            largest = max(float(np.abs(x).max()), 1e-300)
            errors.append(float(np.abs(pairs.rotated(x, distance) - later).max()) / largest)
    return max(errors) if np.isfinite(errors).all() else np.inf
