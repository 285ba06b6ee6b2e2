"""The rows of q and k that form sampled scores: for sequences too long to audit whole.

Gaussian rows are those of the whole q and k: the same stream is generated and the rest of it dropped. Where
that stream is too long, every row has a generator of its own.
Scores are sampled by the norms of q and k as they are given, before the input stage rounds them; evenly where
all tokens of a head are alike, and where the Gaussian stream is too long to be generated twice.
Letters: n pairs of a query and a key, h heads, g key-value heads, s positions, d head_dim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import FP64, Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.inputs import sample_choice as pairs
from ropeaudit.inputs.masks import Ints, Mask
from ropeaudit.inputs.qk import Inputs, check_kind, constant, on_16_bit_grid
from ropeaudit.inputs.sample_choice import Pairs
from ropeaudit.rope.setting import RopeSetting

BY_ROW = "gaussian-by-row"  # the source where every row has a generator of its own
STREAMED = 2**32  # the longest stream, in numbers: most of a minute
WEIGHED = 2**28  # the longest stream that is generated twice: for the norms, then for the rows
_CHUNK = 2**18  # numbers of a stream at once
_BLOCK = 4096  # rows at once


@dataclass(frozen=True, slots=True)
class SideRows:
    """One side of the pairs: `store` (r, d) holds rows, `index` (n,) is the row of each pair."""

    store: NDArray[Any]
    index: Ints

    def __getitem__(self, part: slice) -> Array:
        """Return the rows of some pairs in float64. Shapes: -> (some, d)."""
        return self.store[self.index[part]].astype(np.float64)


@dataclass(frozen=True, slots=True)
class SampledInputs:
    """The rows of q and k at the sampled pairs, and the sizes of what they were sampled from."""

    pairs: Pairs
    q: SideRows
    k: SideRows
    heads: int
    kv_heads: int
    seq_len: int
    source: str
    seed: int
    digest: str = ""

    def __len__(self) -> int:
        return int(self.pairs.query.size)

    def distinct(self, formats: Iterable[Format]) -> dict[Format, Format]:
        """Return each format, or float64 in the place of one that leaves the sampled rows as they are."""
        return {fmt: FP64 if self._unchanged_by(fmt) else fmt for fmt in formats}

    def _unchanged_by(self, fmt: Format) -> bool:
        parts = (rows[i : i + _BLOCK] for rows in (self.q, self.k) for i in range(0, len(self), _BLOCK))
        return all(np.array_equal(round_to(part, fmt), part) for part in parts)


def by_norms(inputs: Inputs, mask: Mask, count: int, seed: int) -> Pairs:
    """Choose `count` scores of q and k that are in memory. Raises: BadShape."""
    pairs.check(mask, inputs.heads, inputs.seq_len, count)
    q, k = (np.stack([_squares(head) for head in x]) for x in (inputs.q, inputs.k))
    return pairs.by_size(mask, q, k, count, seed)


def of(inputs: Inputs, chosen: Pairs, seed: int) -> SampledInputs:
    """Return the sampled rows of q and k that are in memory."""
    q, k = (x.reshape(-1, x.shape[2]) for x in (inputs.q, inputs.k))
    in_q, in_k = _places(chosen, inputs.group, inputs.seq_len)
    sizes = inputs.heads, inputs.kv_heads, inputs.seq_len
    return SampledInputs(
        chosen, SideRows(q, in_q), SideRows(k, in_k), *sizes, inputs.source, seed, inputs.digest
    )


def choose(kind: str, sizes: tuple[int, int, int], d: int, mask: Mask, count: int, seed: int) -> Pairs:
    """Choose `count` scores of the q and k that `synthetic` makes. sizes: h, g and s. Raises: BadShape."""
    heads, kv_heads, seq_len = sizes
    pairs.check(mask, heads, seq_len, count)
    if kind != "gaussian" or (heads + kv_heads) * seq_len * d > WEIGHED:
        return pairs.evenly(mask, heads, seq_len, count, seed)
    generator, norms = np.random.default_rng(seed), []
    for group in (heads, kv_heads):
        parts = [_squares(on_16_bit_grid(part)) for _, part in _stream(generator, group * seq_len, d)]
        norms.append(np.concatenate(parts).reshape(group, seq_len))
    return pairs.by_size(mask, norms[0], norms[1], count, seed)


def _squares(rows: Array) -> Array:
    """Return the squared 2-norm of each row. Shapes: (r, d) -> (r,)."""
    with np.errstate(over="ignore"):
        return np.asarray(np.einsum("rd,rd->r", rows, rows))


def synthetic(
    kind: str,
    sizes: tuple[int, int, int],
    setting: RopeSetting,
    chosen: Pairs,
    seed: int,
    progress: Callable[[float], None] = lambda share: None,
) -> SampledInputs:
    """Return the rows that `inputs.make` makes, without making the others.

    sizes: h, g and s. progress gets the share done, from 0 to 1. Raises: UnknownName.
    """
    check_kind(kind)
    (heads, kv_heads, seq_len), d = sizes, setting.head_dim
    in_q, in_k = _places(chosen, heads // kv_heads, seq_len)
    if kind != "gaussian":
        q, k = (
            SideRows(rows, chosen.head // (heads // kv_heads))
            for rows in constant(kind, kv_heads, seq_len, setting, seed)
        )
        return SampledInputs(chosen, q, k, *sizes, kind, seed)
    if (kind := source(kind, sizes, d)) == BY_ROW:
        store = [_by_row(seed, side, x, d, progress) for side, x in enumerate((in_q, in_k))]
    else:
        generator, split = np.random.default_rng(seed), heads / (heads + kv_heads)
        store = [
            _streamed(generator, in_q, heads * seq_len, d, lambda share: progress(split * share)),
            _streamed(
                generator, in_k, kv_heads * seq_len, d, lambda share: progress(split + (1 - split) * share)
            ),
        ]
    q, k = (SideRows(rows, np.arange(in_q.size)) for rows in store)
    return SampledInputs(chosen, q, k, *sizes, kind, seed)


def source(kind: str, sizes: tuple[int, int, int], d: int) -> str:
    """Return what q and k are called; sizes: h, g and s. See `synthetic`."""
    (heads, kv_heads, seq_len), long = sizes, kind == "gaussian"
    return BY_ROW if long and (heads + kv_heads) * seq_len * d > STREAMED else kind


def bytes_needed(count: int, sizes: tuple[int, int, int], head_dim: int) -> int:
    """Estimate the memory of `count` pairs: their places, their order, rows in float16, and the blocks.

    Beside them a few arrays of the norms of all rows of q and k; sizes: h, g and s.
    """
    rows = (sizes[0] + sizes[1]) * sizes[2]
    norms = 6 * 8 * rows if rows * head_dim <= WEIGHED else 0
    return count * (20 * 8 + 4 * head_dim) + norms + 256 * 2**20


def _places(chosen: Pairs, group: int, seq_len: int) -> tuple[Ints, Ints]:
    """Return the rows of q and of k, all heads below each other."""
    return chosen.head * seq_len + chosen.query, chosen.head // group * seq_len + chosen.key


def _streamed(
    generator: np.random.Generator, places: Ints, rows: int, d: int, progress: Callable[[float], None]
) -> NDArray[np.float16]:
    """Draw `rows` rows in a stream and return those at `places`. Shapes: places (n,) -> (n, d)."""
    vectors = np.empty((places.size, d), np.float16)  # exact: on the grid of `on_16_bit_grid`
    order = np.argsort(places, kind="stable")
    step = _step(d)
    edges = np.searchsorted(places[order], range(0, rows + step, step))
    for number, (start, part) in enumerate(_stream(generator, rows, d)):
        members = order[edges[number] : edges[number + 1]]
        vectors[members] = on_16_bit_grid(part[places[members] - start])
        progress(start / rows)
    return vectors


def _stream(generator: np.random.Generator, rows: int, d: int) -> Iterator[tuple[int, Array]]:
    """Yield `rows` rows of normal numbers, a chunk at a time, with the number of the first of them."""
    chunk = np.empty((_step(d), d))
    for start in range(0, rows, len(chunk)):
        part = chunk[: min(len(chunk), rows - start)]
        generator.standard_normal(out=part)
        yield start, part


def _step(d: int) -> int:
    """Return how many rows are generated at once."""
    return max(1, _CHUNK // d)


def _by_row(
    seed: int, side: int, places: Ints, d: int, progress: Callable[[float], None]
) -> NDArray[np.float16]:
    """Draw every row at `places` from a generator that is its own. Shapes: places (n,) -> (n, d)."""
    key = np.random.SeedSequence([seed, side]).generate_state(2, np.uint64)
    vectors, counter = np.empty((places.size, d), np.float16), np.zeros(4, np.uint64)
    for start in range(0, places.size, _BLOCK):
        part = places[start : start + _BLOCK]
        block = np.empty((part.size, d))
        for row, number in zip(block, part.tolist(), strict=True):
            counter[3] = number  # the first words count the numbers generated
            np.random.Generator(np.random.Philox(key=key, counter=counter)).standard_normal(out=row)
        vectors[start : start + _BLOCK] = on_16_bit_grid(block)
        progress((side + start / places.size) / 2)
    return vectors
