"""The search for the first offset, or distance, that fails a condition, in a limited number of tests.

Tests are counted, not timed, so that results are reproducible.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

_CHUNK = 16  # offsets in the first batch
_AT_ONCE = 128  # offsets in a batch at most
_SECTIONS = 3  # offsets tested at once between a good and a failing one
_BESIDE = 16  # offsets tested beside a boundary, and beside a power of two
_BELOW = 32  # offsets spread over the binade below a boundary
_SPREAD = 24  # offsets spread over the whole range
WITHIN = 16  # offsets tested within the model's positions
_MANY = 2**12  # tests left, above which the lowest offsets are tested one by one
_LAST = 36  # tests reserved to narrow the gap below a failure


@dataclass(frozen=True, slots=True)
class Boundary:
    """The result of tests and a proof for the offsets 0 ... up_to.

    proved: none fails up to it. held_up_to: the largest tested offset below the first failure; held: the
    number of these. exhaustive: whether `proved` reaches all offsets below `failing`. -1: none.
    """

    proved: int
    held_up_to: int
    held: int
    failing: int | None
    tested: int
    exhaustive: bool


def boundary(tested: Mapping[int, bool], proved: int, up_to: int) -> Boundary:
    """Return the boundary. tested: offset -> whether it is good. proved: see `Search`."""
    failing = min((offset for offset, good in tested.items() if not good), default=None)
    top = up_to if failing is None else failing - 1
    held = {offset for offset, good in tested.items() if good and offset <= top}
    known = min(proved, top)
    while known + 1 in held:
        known += 1
    return Boundary(known, max(held, default=-1), len(held), failing, len(tested), known == top)


@dataclass
class Search:
    """The search among offsets 0 ... up_to of `seq_len` positions, or among distances.

    Iterating yields batches of offsets to test; `take` gets the results.
    proved: offsets up to this one are good without a test; -1: none.
    most: number of tests. landmarks: positions at which something may change.
    within: the last offset within the model's positions. required: offsets that are tested first.

    >>> search = Search(seq_len=1, up_to=99, proved=-1, most=64)
    >>> for offsets in search:
    ...     search.take({offset: offset < 42 for offset in offsets})
    >>> search.failing, len(search.tested)
    (42, 48)
    """

    seq_len: int
    up_to: int
    proved: int
    most: int
    landmarks: Sequence[int] = ()
    within: int = -1
    required: Sequence[int] = ()
    tested: dict[int, bool] = field(default_factory=dict)
    failing: int | None = None

    def take(self, found: Mapping[int, bool]) -> None:
        """Record the results of tests: offset -> whether it is good."""
        self.tested |= found
        failures = [offset for offset, good in found.items() if not good]
        lowest = [] if self.failing is None else [self.failing]
        self.failing = min([*lowest, *failures], default=None)

    def __iter__(self) -> Iterator[list[int]]:
        """Yield batches of offsets; the last offset without a known failure is in one of them."""
        low, highest = self.proved + 1, -2
        yield [0]
        if self.failing is None:
            every = self.up_to - max(self.proved, 0) <= self._budget_left()  # 0 is tested already
            yield from self._ascending_batches(
                range(low, self.up_to + 1) if every else self._initial_offsets()
            )
        while self.failing != 0 and highest != self._highest_open() and self._budget_left() > 0:
            highest = self._highest_open()
            yield from self._narrowing_batches()
            if highest - low < self._budget_left() or self._budget_left() > _MANY:
                yield from self._ascending_batches(range(low, self._highest_open() + 1))
                continue
            power = 1 << (self._highest_open() + self.seq_len).bit_length() - 1
            binade = range(max(low, self._highest_open() // 2), self._highest_open() + 1)
            ends = self._highest_open(), power + _BESIDE // 2
            near = [end - i for end in ends for i in range(1, _BESIDE + 1)]
            yield self._untested([*near, *thinned(binade, _BELOW)], _LAST)
            if highest == self._highest_open():
                yield self._untested(spread(low, highest, self._budget_left(_LAST)), _LAST)
            if highest == self._highest_open():
                yield self._untested(thinned(binade, self._budget_left()))
        yield from self._narrowing_batches()
        if 0 <= self._highest_open() <= self.proved and self._highest_open() not in self.tested:
            yield [self._highest_open()]

    def _untested(self, offsets: Iterable[int], reserved: int = 0) -> list[int]:
        """Return unknown offsets, as many as the budget allows."""
        top = self._highest_open()
        new = {offset for offset in offsets if self.proved < offset <= top and offset not in self.tested}
        return sorted(new)[: max(0, self._budget_left(reserved))]

    def _ascending_batches(self, offsets: Sequence[int]) -> Iterator[list[int]]:
        """Yield offsets in batches, until one fails."""
        before, start, size = self.failing, 0, _CHUNK
        while start < len(offsets) and self.failing == before and self._budget_left() > 0:
            yield self._untested(offsets[start : start + size])
            start, size = start + size, min(2 * size, _AT_ONCE)

    def _narrowing_batches(self) -> Iterator[list[int]]:
        """Yield offsets that narrow the gap below the lowest failure, until it is closed."""
        while self.failing is not None and self._budget_left() > 0:
            low = max(self.proved, max((x for x in self.tested if x < self.failing), default=-1))
            gap = self.failing - low
            if gap <= 1:
                return
            steps = range(1, _SECTIONS + 1)
            yield self._untested(low + max(1, gap * i // (_SECTIONS + 1)) for i in steps)

    def _budget_left(self, reserved: int = 0) -> int:
        """Return the number of tests left; may be negative."""
        return self.most - len(self.tested) - reserved

    def _highest_open(self) -> int:
        """Return the highest offset below the lowest failure."""
        return self.up_to if self.failing is None else self.failing - 1

    def _initial_offsets(self) -> list[int]:
        """Return the offsets to test first: half of the budget, and the required ones."""
        low, last = self.proved + 1, min(self.within, self.up_to)
        powers = [2**e for e in range((self.up_to + self.seq_len).bit_length() + 1)]
        # the last sequence before such a position, the first with it, and with one beyond
        places = {at - self.seq_len + i for at in {*powers, *self.landmarks} for i in (0, 1, 2)}
        for power in (2**e for e in range(self.up_to.bit_length())):
            places |= {power, (power * 20 // 16) | 1, (power * 25 // 16) | 1}
        grid = sorted(offset for offset in places | {self.up_to} if low <= offset <= self.up_to)
        required = [offset for offset in self.required if low <= offset <= self.up_to]
        room = max(0, self.most // 2 - len(required))
        within: Iterable[int] = ()
        if last >= low:
            every = last - low < self.most - _SPREAD - _LAST
            within = range(low, last + 1) if every else [last, *spread(low, last, WITHIN - 1)]
        some = spread(low, self.up_to, min(_SPREAD, room // 3))
        chosen = thinned(grid, max(0, room - len(some) - WITHIN * (last >= low)))
        return sorted({*required, *within, *some, *chosen})


def thinned(offsets: Sequence[int], most: int) -> list[int]:
    """Return at most `most` of the offsets, evenly chosen, the last one among them."""
    count = min(most, len(offsets))
    return [offsets[(i + 1) * len(offsets) // count - 1] for i in range(count)]


def spread(low: int, high: int, count: int) -> list[int]:
    """Return up to `count` offsets: half evenly spaced, half by equal ratios."""
    if count < 2 or high <= low:
        return []
    span, half = high - low, count // 2
    even = [low + (2 * i + 1) * span // (2 * half) for i in range(half)]
    ratio = [low + int((span + 1) ** ((2 * i + 1) / (2 * half))) - 1 for i in range(count - half)]
    return sorted({min(offset, high) for offset in (*even, *ratio)})
