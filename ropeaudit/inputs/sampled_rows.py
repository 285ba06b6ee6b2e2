"""Sampled scores, and their rows of q and k: for sequences too long to audit all scores.

Gaussian rows are those of the whole q and k; where their stream is too long, every row has its own generator.
Letters: n pairs of a query and a key, h heads, g key-value heads, s positions, d head_dim.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import FP64, Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.errors import BadShape
from ropeaudit.inputs import masks
from ropeaudit.inputs.masks import Ints, Mask
from ropeaudit.inputs.qk import Inputs, check_kind, constant, on_16_bit_grid
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime import doing

BY_ROW = "gaussian-by-row"  # the source where every row has a generator of its own
STREAMED = 2**32  # the longest stream, in numbers: most of a minute
WEIGHED = 2**28  # the longest stream that is generated for norms too
_CHUNK = 2**18  # numbers of a stream at once
_BLOCK = 4096  # rows at once


@dataclass(frozen=True, slots=True)
class SideRows:
    """One side of pairs: `store` (r, d), rows; `index` (n,), each pair's row."""

    store: NDArray[Any]
    index: Ints

    def __getitem__(self, part: slice) -> Array:
        """Return the rows of some pairs in float64. Shapes: -> (some, d)."""
        return self.store[self.index[part]].astype(np.float64)


@dataclass(frozen=True, slots=True)
class SampledInputs:
    """The rows of q and k at the sampled pairs, and the full sizes."""

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
        """Return each format, or float64 if it leaves the rows as they are."""
        return {fmt: FP64 if self._unchanged_by(fmt) else fmt for fmt in formats}

    def _unchanged_by(self, fmt: Format) -> bool:
        parts = (rows[i : i + _BLOCK] for rows in (self.q, self.k) for i in range(0, len(self), _BLOCK))
        return all(np.array_equal(round_to(part, fmt), part) for part in parts)


def draw_by_norms(inputs: Inputs, mask: Mask, count: int, seed: int) -> Pairs:
    """Choose `count` scores of q and k that are in memory. Raises: BadShape."""
    q, k = (np.stack([_squares(head) for head in x]) for x in (inputs.q, inputs.k))
    return draw_by_size(mask, q, k, count, seed)


def take_rows(inputs: Inputs, chosen: Pairs, seed: int) -> SampledInputs:
    """Return the sampled rows of q and k that are in memory."""
    q, k = (x.reshape(-1, x.shape[2]) for x in (inputs.q, inputs.k))
    in_q, in_k = _places(chosen, inputs.group, inputs.seq_len)
    sizes = inputs.heads, inputs.kv_heads, inputs.seq_len
    return SampledInputs(
        chosen, SideRows(q, in_q), SideRows(k, in_k), *sizes, inputs.source, seed, inputs.digest
    )


def choose(
    kind: str,
    sizes: tuple[int, int, int],
    d: int,
    mask: Mask,
    count: int,
    seed: int,
) -> Pairs:
    """Choose `count` scores of synthetic q and k. sizes: h, g, s. Raises: BadShape."""
    heads, kv_heads, seq_len = sizes
    if kind != "gaussian" or (heads + kv_heads) * seq_len * d > WEIGHED:
        return draw_evenly(mask, heads, seq_len, count, seed)
    generator, norms = np.random.default_rng(seed), []
    for group in (heads, kv_heads):
        parts = [_squares(on_16_bit_grid(part)) for _, part in _stream(generator, group * seq_len, d)]
        norms.append(np.concatenate(parts).reshape(group, seq_len))
    return draw_by_size(mask, norms[0], norms[1], count, seed)


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
) -> SampledInputs:
    """Return the sampled rows of the q and k that `inputs.make` would make. sizes: h, g and s."""
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
        store = [_by_row(seed, side, x, d) for side, x in enumerate((in_q, in_k))]
    else:
        generator, split = np.random.default_rng(seed), heads / (heads + kv_heads)
        with doing.within(0.0, split):
            store = [_streamed(generator, in_q, heads * seq_len, d)]
        with doing.within(split, 1.0):
            store += [_streamed(generator, in_k, kv_heads * seq_len, d)]
    q, k = (SideRows(rows, np.arange(in_q.size)) for rows in store)
    return SampledInputs(chosen, q, k, *sizes, kind, seed)


def source(kind: str, sizes: tuple[int, int, int], d: int) -> str:
    """Return the name of the inputs: `kind`, or by row if they are long. sizes: h, g, s. See `synthetic`."""
    (heads, kv_heads, seq_len), long = sizes, kind == "gaussian"
    return BY_ROW if long and (heads + kv_heads) * seq_len * d > STREAMED else kind


def bytes_needed(count: int, sizes: tuple[int, int, int], head_dim: int) -> int:
    """Estimate the memory of `count` pairs, and of the norms of all rows. sizes: h, g and s."""
    rows = (sizes[0] + sizes[1]) * sizes[2]
    norms = 6 * 8 * rows if rows * head_dim <= WEIGHED else 0
    return count * (20 * 8 + 4 * head_dim) + norms + 256 * 2**20


def _places(chosen: Pairs, group: int, seq_len: int) -> tuple[Ints, Ints]:
    """Return the rows of q and of k, all heads below each other."""
    return chosen.head * seq_len + chosen.query, chosen.head // group * seq_len + chosen.key


def _streamed(
    generator: np.random.Generator,
    places: Ints,
    rows: int,
    d: int,
) -> NDArray[np.float16]:
    """Stream `rows` rows; return those at `places`. Shapes: (n,) -> (n, d)."""
    vectors = np.empty((places.size, d), np.float16)  # exact: on the grid of `on_16_bit_grid`
    order = np.argsort(places, kind="stable")
    step = max(1, _CHUNK // d)
    edges = np.searchsorted(places[order], range(0, rows + step, step))
    for number, (start, part) in enumerate(_stream(generator, rows, d)):
        members = order[edges[number] : edges[number + 1]]
        vectors[members] = on_16_bit_grid(part[places[members] - start])
        doing.step(start / rows)
    return vectors


def _stream(generator: np.random.Generator, rows: int, d: int) -> Iterator[tuple[int, Array]]:
    """Yield chunks of normal rows, each after the number of its first row."""
    chunk = np.empty((max(1, _CHUNK // d), d))
    for start in range(0, rows, len(chunk)):
        part = chunk[: min(len(chunk), rows - start)]
        generator.standard_normal(out=part)
        yield start, part


def _by_row(seed: int, side: int, places: Ints, d: int) -> NDArray[np.float16]:
    """Draw each row from its own generator. Shapes: places (n,) -> (n, d)."""
    key = np.random.SeedSequence([seed, side]).generate_state(2, np.uint64)
    vectors, counter = np.empty((places.size, d), np.float16), np.zeros(4, np.uint64)
    for start in range(0, places.size, _BLOCK):
        part = places[start : start + _BLOCK]
        block = np.empty((part.size, d))
        for row, number in zip(block, part.tolist(), strict=True):
            counter[3] = number  # the first words count the numbers generated
            np.random.Generator(np.random.Philox(key=key, counter=counter)).standard_normal(out=row)
        vectors[start : start + _BLOCK] = on_16_bit_grid(block)
        doing.step((side + start / places.size) / 2)
    return vectors


EVEN = 1 / 3  # share that is sampled evenly: no score counts more than 3 times
_MOST = 2**62  # scores to draw from


@dataclass(frozen=True, slots=True)
class Pairs:
    """Sampled scores: head, query, key and weight of each. Shapes: four of (n,).

    weight: 1/(M p) where p is the probability of each draw and M the number of visible scores.
    """

    head: Ints
    query: Ints
    key: Ints
    weight: Array


def check_sample(mask: Mask, heads: int, seq_len: int, count: int) -> int:
    """Return how many scores there are. Raises: BadShape if too few or many."""
    total = masks.count(mask, seq_len) * heads
    if count > total:
        raise BadShape(f"--sample {count} is more than the {total} scores there are; leave it out")
    if total > _MOST:
        raise BadShape(f"--sample draws from 2^62 scores at most; give a smaller --seq-len than {seq_len}")
    return total


def draw_evenly(
    mask: Mask,
    heads: int,
    seq_len: int,
    count: int,
    seed: int,
) -> Pairs:
    """Draw `count` of the visible scores, each as likely; one may come twice."""
    total = check_sample(mask, heads, seq_len, count)
    number = np.sort(np.random.default_rng([seed, count]).integers(total, size=count))
    return Pairs(*_numbered(mask, heads, seq_len, number), np.ones(count))


def draw_by_size(mask: Mask, q: Array, k: Array, count: int, seed: int) -> Pairs:
    """Draw `count` of the visible scores by |q|² |k|² and a share of them evenly; one may come twice.

    A query is drawn by its size times that of all keys it sees, then one of these by its size. q, k: their
    squared norms, (h, s) and (g, s).
    """
    heads, seq_len = q.shape
    total, most = check_sample(mask, heads, seq_len, count), (float(q.max()), float(k.max()))
    if not (np.isfinite(most).all() and min(most) > 0):
        return draw_evenly(mask, heads, seq_len, count, seed)
    generator = np.random.default_rng([seed, count])
    lucky = generator.random(count) >= EVEN
    head, query, key = _numbered(mask, heads, seq_len, generator.integers(total, size=count))
    sizes = _SizeSums(mask, q / most[0], k / most[1])
    places = sizes.draw(generator, int(lucky.sum()))
    for side, chosen in zip((head, query, key), places, strict=True):
        side[lucky] = chosen
    order = np.lexsort((key, query, head))
    head, query, key = head[order], query[order], key[order]
    weight = 1 / (EVEN + (1 - EVEN) * total * sizes.probability(head, query, key))
    return Pairs(head, query, key, weight)


def _numbered(mask: Mask, heads: int, seq_len: int, number: Ints) -> tuple[Ints, Ints, Ints]:
    """Return head, query, key of numbered scores. Shapes: (n,) -> three of (n,)."""
    head, rest = np.divmod(number, masks.count(mask, seq_len))
    return head, *masks.score_indices(mask, seq_len, rest)


class _SizeSums:
    """Running sums of sizes: of keys (g, s + 1), of rows of scores (h s + 1,)."""

    def __init__(self, mask: Mask, q: Array, k: Array) -> None:
        self.seq_len, self.group = q.shape[1], len(q) // len(k)
        self.first, self.last = masks.key_range(mask, np.arange(self.seq_len), self.seq_len)
        self.keys = np.zeros((len(k), self.seq_len + 1))
        np.cumsum(k, axis=1, out=self.keys[:, 1:])
        self.seen = self.keys[:, self.last + 1] - self.keys[:, self.first]
        self.queries = np.zeros(q.size + 1)
        np.cumsum(q * self.seen[np.arange(len(q)) // self.group], out=self.queries[1:])

    def draw(self, generator: np.random.Generator, count: int) -> tuple[Ints, Ints, Ints]:
        """Draw heads, queries and keys. Shapes: -> three of (n,)."""
        row, place = generator.random((2, count))
        at = _within(self.queries, row * self.queries[-1], 0, self.queries.size - 2)
        head, query = np.divmod(at, self.seq_len)
        key = np.empty_like(query)
        for index, sums in enumerate(self.keys):
            own = head // self.group == index
            first, last = self.first[query[own]], self.last[query[own]]
            key[own] = _within(sums, sums[first] + place[own] * self.seen[index][query[own]], first, last)
        return head, query, key

    def probability(self, head: Ints, query: Ints, key: Ints) -> Array:
        """Return the probability of drawing a score. Shapes: three of (n,) -> (n,)."""
        at, own = head * self.seq_len + query, head // self.group
        row = (self.queries[at + 1] - self.queries[at]) / self.queries[-1]
        size, seen = self.keys[own, key + 1] - self.keys[own, key], self.seen[own, query]
        return np.asarray(row * np.divide(size, seen, out=np.zeros(len(row)), where=seen > 0))


def _within(
    sums: Array,
    numbers: Array,
    first: Ints | int,
    last: Ints | int,
) -> Ints:
    """Return which running sums each number lies between. Shapes: (n,) -> (n,)."""
    return np.asarray(np.clip(np.searchsorted(sums, numbers, side="right") - 1, first, last))
