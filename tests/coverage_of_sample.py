"""How often the interval of --sample holds the true RMS drift, and how wide it is.

Usage: python tests/coverage_of_sample.py [--seeds 1000] [--counts 500,1000,4000]
The drift of all scores is formed once per distribution of q and k; then the package's own choice of scores,
estimate and interval are used on it, with one seed after the other.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ropeaudit import parse, recipes
from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.engine import kernel
from ropeaudit.engine.statistics import Block, Statistics
from ropeaudit.inputs import masks, qk, sampled_rows
from ropeaudit.inputs.qk import Inputs
from ropeaudit.reference import exact_scores
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects.emulated import Emulated

HEADS, KV_HEADS, SEQ_LEN, HEAD_DIM, ROTARY_DIM = 4, 2, 256, 64, 48
COUNTS = (500, 1000, 4000)
SINK = 3  # the token that is large


class Cell(NamedTuple):
    """coverage: share of the intervals that hold the truth. factor: median of upper end over estimate."""

    coverage: float
    factor: float


def _key(times: float) -> Callable[[Array, Array], None]:
    def grow(q: Array, k: Array) -> None:
        k[:, SINK] *= times

    return grow


def _query(q: Array, k: Array) -> None:
    q[:, 200] *= 100


def _lognormal(q: Array, k: Array) -> None:
    generator = np.random.default_rng(7)
    for x in (q, k):
        x *= np.exp(generator.standard_normal(x.shape[:2]))[:, :, None]


def _dim(q: Array, k: Array) -> None:
    for x in (q, k):
        x[:, :, 5] *= 30


def _without_error(q: Array, k: Array) -> None:
    """Large in dims that are not rotated, where nothing is rounded."""
    for x in (q, k):
        x[:, ::7, ROTARY_DIM:] *= 100


DISTRIBUTIONS: dict[str, Callable[[Array, Array], None]] = {
    "gaussian": lambda q, k: None,
    "one key x 30": _key(30),
    "one key x 100": _key(100),
    "one query x 100": _query,
    "lognormal norms": _lognormal,
    "one outlier dim": _dim,
    "large where exact": _without_error,
}


def built(name: str) -> Inputs:
    """Return the q and k of a distribution."""
    result = qk.make("gaussian", HEADS, KV_HEADS, SEQ_LEN, RopeSetting.of(HEAD_DIM), 0)
    DISTRIBUTIONS[name](result.q, result.k)
    return Inputs(*(round_to(x, parse("bf16")).astype(np.float64) for x in (result.q, result.k)), name, None)


def subject(dtype: str = "bf16") -> Emulated:
    """Return what is sampled: bfloat16 as deployed code has it, but for wide sums."""
    setting = RopeSetting.of(HEAD_DIM, rotary_dim=ROTARY_DIM)
    recipe = recipes.named("hf").changed({"accumulate": "fp64", "score": "fp64"})
    return Emulated(recipe.resolve(parse(dtype)), setting)


def all_drifts(who: Emulated, given: Inputs, offset: int = 0) -> Array:
    """Return the drift of every score. Shapes: -> (h, s, s)."""
    results, size = [], given.seq_len
    table = who.table(np.arange(size), offset)
    rotations = exact_scores.distance_table(np.arange(float(size)), who.setting)
    for head in range(given.heads):
        x = [round_to(part, who.input) for part in (given.q[head], given.k[head // given.group])]
        q, k = (kernel.operand(who.rotate(part, table), who) for part in x)
        out = kernel.formed(q, np.ascontiguousarray(k.T), who, who.setting.scale)
        exact = [
            exact_scores.rotated(part.astype(float), rotations, who.setting, "double", scale)
            for part, scale in zip(x, (who.setting.scale, 1.0), strict=True)
        ]
        results.append(out - exact_scores.product(*exact)[0])
    return np.stack(results)


def true_rms(drifts: Array, mask: str) -> float:
    """Return the RMS over all visible scores."""
    size = drifts.shape[1]
    hidden = masks.hidden(mask, slice(0, size), slice(0, size))
    seen = drifts if hidden is None else drifts[:, ~hidden]
    return float(np.sqrt(np.mean(seen**2)))


def cell(given: Inputs, drifts: Array, mask: str, count: int, seeds: range) -> Cell:
    """Sample `count` scores with one seed after the other."""
    reference, held, factors = true_rms(drifts, mask), 0, []
    for seed in seeds:
        some, result = sampled_rows.draw_by_norms(given, mask, count, seed), Statistics(weighted=True)
        result.add(drifts[some.head, some.query, some.key], Block.pairs(0, some.weight))
        low, high = result.interval()
        held += low <= reference <= high
        factors.append(high / result.rms)
    return Cell(held / len(seeds), float(np.median(factors)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--counts", default=",".join(map(str, COUNTS)))
    parser.add_argument("--mask", default="causal")
    options = parser.parse_args()
    counts = [int(count) for count in options.counts.split(",")]
    print("q and k".ljust(20) + "".join(f"N = {count}".rjust(18) for count in counts))
    for name in DISTRIBUTIONS:
        given = built(name)
        drifts = all_drifts(subject(), given)
        row = [cell(given, drifts, options.mask, count, range(options.seeds)) for count in counts]
        print(
            name.ljust(20) + "".join(f"{100 * one.coverage:.1f} %, {one.factor:.3f}".rjust(18) for one in row)
        )


if __name__ == "__main__":
    main()
