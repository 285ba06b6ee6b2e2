"""Which scores are sampled, and what each of them counts.

Drift grows with |q| |k|: a key that is 30 times as large as the others holds nearly all of the mean square in
a few scores, which an even choice rarely meets. So a score is sampled by |q|² |k|²; a third of them
evenly, for drift may also sit where the vectors are small. With a tenth instead the interval of 500 scores
has a factor of 1.26 where the large norms lie in dims without error, with a third 1.14; where they make the
drift, 1.06 to 1.08 become 1.08 to 1.09 (tests/coverage_of_sample.py).
Letters: n sampled scores, h heads, g key-value heads, s positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.errors import BadShape
from ropeaudit.inputs import masks
from ropeaudit.inputs.masks import Ints, Mask

EVEN = 1 / 3  # share of the scores that is sampled evenly; so no score counts more than 3 times
_MOST = 2**62  # scores to draw from


@dataclass(frozen=True, slots=True)
class Pairs:
    """Scores: the head, the query and the key of each, and what it counts. Shapes: four of (n,).

    weight: 1/(M p) where p is the probability of each draw and M the number of visible scores.
    """

    head: Ints
    query: Ints
    key: Ints
    weight: Array


def check(mask: Mask, heads: int, seq_len: int, count: int) -> int:
    """Return how many scores there are; raise BadShape if they are fewer than `count`, or too many."""
    total = masks.count(mask, seq_len) * heads
    if count > total:
        raise BadShape(f"--sample {count} is more than the {total} scores there are; leave it out")
    if total > _MOST:
        raise BadShape(f"--sample draws from 2^62 scores at most; give a smaller --seq-len than {seq_len}")
    return total


def evenly(mask: Mask, heads: int, seq_len: int, count: int, seed: int) -> Pairs:
    """Draw `count` of the visible scores, each of them equally likely every time, so that one may come twice.

    They depend on these arguments alone, and come in the order of heads, queries and keys.
    Raises: BadShape where there are fewer scores.
    """
    total = check(mask, heads, seq_len, count)
    number = np.sort(np.random.default_rng([seed, count]).integers(total, size=count))
    return Pairs(*_numbered(mask, heads, seq_len, number), np.ones(count))


def by_size(mask: Mask, q: Array, k: Array, count: int, seed: int) -> Pairs:
    """Draw `count` of the visible scores by |q|² |k|² and a share of them evenly; one may come twice.

    Draws are independent of each other, which is what makes their weights right and their variance known.
    A query is sampled by its own size times that of all keys it sees, then one of these by its size, both in
    running sums; the probability is the one with which these sums draw, roundings included.
    Evenly throughout where the sizes are all 0 or not finite.

    Args:
        mask: Which scores are visible.
        q: Squared norms of q. Shapes: (h, s).
        k: Squared norms of k. Shapes: (g, s).
        count: How many scores, n.
        seed: Fixes the choice, with the other arguments.

    Returns:
        Pairs in the order of heads, queries and keys. Memory: a few arrays of the shape of q.

    Raises:
        BadShape: there are fewer scores than `count`.
    """
    heads, seq_len = q.shape
    total, most = check(mask, heads, seq_len, count), (float(q.max()), float(k.max()))
    if not (np.isfinite(most).all() and min(most) > 0):
        return evenly(mask, heads, seq_len, count, seed)
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
    """Return the head, the query and the key of numbered scores. Shapes: (n,) -> three of (n,)."""
    head, rest = np.divmod(number, masks.count(mask, seq_len))
    return head, *masks.seen(mask, seq_len, rest)


class _SizeSums:
    """Running sums of the sizes of keys (g, s + 1), and of queries times all keys they see (h s + 1,)."""

    def __init__(self, mask: Mask, q: Array, k: Array) -> None:
        self.seq_len, self.group = q.shape[1], len(q) // len(k)
        places = np.arange(self.seq_len)
        self.first, self.last = masks.first_seen(mask, places), masks.last_seen(mask, places, self.seq_len)
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
        """Return with which probability `draw` draws each of these scores. Shapes: three of (n,) -> (n,)."""
        at, own = head * self.seq_len + query, head // self.group
        row = (self.queries[at + 1] - self.queries[at]) / self.queries[-1]
        size, seen = self.keys[own, key + 1] - self.keys[own, key], self.seen[own, query]
        return np.asarray(row * np.divide(size, seen, out=np.zeros(len(row)), where=seen > 0))


def _within(sums: Array, numbers: Array, first: Ints | int, last: Ints | int) -> Ints:
    """Return between which neighbours of the running sums each number lies. Shapes: (n,) -> (n,)."""
    return np.asarray(np.clip(np.searchsorted(sums, numbers, side="right") - 1, first, last))
