"""Where a condition on offsets first fails, found with a limited number of tests.

Work is counted, never timed: one question has one answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

_CHUNK = 16  # offsets tested at once at first
_AT_ONCE = 128  # the most offsets tested at once
_SECTIONS = 3  # offsets tested at once between one that holds and one that fails
_BESIDE = 16  # offsets tested beside a boundary, and beside a power of two
_BELOW = 32  # offsets tested all over the binade below a boundary
_SPREAD = 24  # offsets of the list that are spread over all
WITHIN = 16  # offsets tested for the sake of those that matter most
_MANY = 2**12  # tests: so many are left for the lowest offsets alone
_LAST = 36  # tests reserved to cut the gap below a failure


@dataclass(frozen=True, slots=True)
class Boundary:
    """What tests and a proof say together of the offsets 0 ... up_to.

    proved: up to here none fails. held_up_to: the largest tested one below the first known failure; held: how
    many lie up to it. exhaustive: `proved` reaches all offsets below `failing`. -1: none.
    """

    proved: int
    held_up_to: int
    held: int
    failing: int | None
    tested: int
    exhaustive: bool


def boundary(tested: Mapping[int, bool], proved: int, up_to: int) -> Boundary:
    """Return what tests say together. tested: offset -> whether it holds. proved: see `OffsetSearch`."""
    failing = min((offset for offset, good in tested.items() if not good), default=None)
    top = up_to if failing is None else failing - 1
    held = {offset for offset, good in tested.items() if good and offset <= top}
    known = min(proved, top)
    while known + 1 in held:
        known += 1
    return Boundary(known, max(held, default=-1), len(held), failing, len(tested), known == top)


@dataclass
class OffsetSearch:
    """The search among offsets 0 ... up_to of a sequence of `seq_len` positions.

    test: offsets -> whether each holds. proved: offsets up to this one hold without a test; -1: none is known
    to. most: how many may be tested. landmarks: positions where something may change. within: the last offset
    that matters most. required: those that are tested first.
    """

    test: Callable[[Sequence[int]], Sequence[bool]]
    seq_len: int
    up_to: int
    proved: int
    most: int
    landmarks: Sequence[int] = ()
    within: int = -1
    required: Sequence[int] = ()
    tested: dict[int, bool] = field(default_factory=dict)
    failing: int | None = None

    def run(self) -> Boundary:
        """Return the boundary; the last offset without a known failure is always tested."""
        low = self.proved + 1
        self.ask([0])
        if self.failing is None:
            whole = self.up_to - max(self.proved, 0) <= self.left()  # 0 is tested already
            self.walk(range(low, self.up_to + 1) if whole else self.listed())
        known = -2
        while self.failing != 0 and known != self.top() and self.left() > 0:
            known = self.top()
            self.cut()
            if known - low < self.left() or self.left() > _MANY:
                self.walk(range(low, self.top() + 1))
                continue
            power = 1 << (self.top() + self.seq_len).bit_length() - 1
            beside = [self.top() - _BESIDE + i for i in range(_BESIDE)]
            beside += [power - _BESIDE // 2 + i for i in range(_BESIDE)]
            binade = range(max(low, self.top() // 2), self.top() + 1)
            self.ask([*beside, *thinned(binade, _BELOW)], reserved=_LAST)
            if known == self.top():
                self.ask(spread(low, self.top(), self.left(_LAST)), reserved=_LAST)
            if known == self.top():
                self.ask(thinned(binade, self.left()))
        self.cut()
        if 0 <= self.top() <= self.proved and self.top() not in self.tested:
            self.record([self.top()])
        return boundary(self.tested, self.proved, self.up_to)

    def ask(self, offsets: Iterable[int], reserved: int = 0) -> None:
        """Test offsets below the lowest failing one, as far as the budget goes."""
        low, top = self.proved if self.tested else -1, self.top()  # 0 is always tested, and first
        untested = sorted({one for one in offsets if low < one <= top} - self.tested.keys())
        self.record(untested[: max(0, self.left(reserved))])

    def record(self, offsets: Sequence[int]) -> None:
        """Test these offsets, whatever the budget says."""
        parts = [offsets[start : start + _AT_ONCE] for start in range(0, len(offsets), _AT_ONCE)]
        holds = {one: good for part in parts for one, good in zip(part, self.test(part), strict=True)}
        self.tested |= holds
        self.failing = min((offset for offset, good in holds.items() if not good), default=self.failing)

    def walk(self, offsets: Sequence[int]) -> None:
        """Test upwards, some at a time, until one fails."""
        before, start, size = self.failing, 0, _CHUNK
        while start < len(offsets) and self.failing == before and self.left() > 0:
            self.ask(offsets[start : start + size])
            start, size = start + size, min(2 * size, _AT_ONCE)

    def left(self, reserved: int = 0) -> int:
        """Return how many tests are left beside the reserved ones; may be negative."""
        return self.most - len(self.tested) - reserved

    def top(self) -> int:
        """Return the highest offset below the lowest failing one."""
        return self.up_to if self.failing is None else self.failing - 1

    def cut(self) -> None:
        """Narrow the gap below the lowest failure until its ends are neighbours."""
        while self.failing is not None and self.left() > 0:
            low = max(self.proved, max((x for x in self.tested if x < self.failing), default=-1))
            gap = self.failing - low
            if gap <= 1:
                return
            self.ask({low + max(1, gap * i // (_SECTIONS + 1)) for i in range(1, _SECTIONS + 1)})

    def listed(self) -> list[int]:
        """Return the offsets to test first, at most half of what may be tested but for the required ones."""
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
            whole = last - low < self.most - _SPREAD - _LAST
            within = range(low, last + 1) if whole else [last, *spread(low, last, WITHIN - 1)]
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
