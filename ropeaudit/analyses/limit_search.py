"""Where a condition on offsets first fails, found with a limited number of tests.

Nothing is assumed of the condition. If every offset that matters can be tested, the answer is exact.
Otherwise a grid of offsets is tested upwards to its first failure; the gap before it is cut into sections
until two neighbours remain; what lies below is then searched where failures are most likely: beside the
boundary, at the offsets that a guess names, and at spread ones. Work is counted, never timed, so that the
same question gets the same answer.
Letters: s positions of the sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

Test = Callable[[Sequence[int]], Sequence[bool]]
Guess = Callable[[int, int, int], Sequence[int]]  # lowest, highest, how many -> offsets

_CHUNK, _LARGEST_CHUNK = 16, 128  # offsets tested at once, of a list that is walked upwards
_SECTIONS = 3  # offsets tested at once between one that holds and one that fails
_BESIDE = 16  # offsets tested beside a boundary
_GUESSED = 32  # offsets that a guess names at once
_SPREAD = 24  # offsets tested all over what holds: kept back for that
_LAST = 36  # tests kept back for a failure that the spread ones find


@dataclass(frozen=True, slots=True)
class Question:
    """Offsets 0 ... up_to, those of a sequence of `seq_len` positions.

    proved: it is known without a test that offsets up to this one hold; -1: of none. most: how many may be
    tested. landmarks: positions where something may change, such as the first that a format does not hold.
    """

    seq_len: int
    up_to: int
    proved: int
    most: int
    landmarks: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Boundary:
    """safe: all that were tested up to it hold, it among them; -1: none. failing: the first found, or None.

    tested: how many were. exhaustive: every offset below `failing`, or all of them, was tested or proved.
    """

    safe: int
    failing: int | None
    tested: int
    exhaustive: bool


def search(question: Question, test: Test, guess: Guess = lambda *_: ()) -> Boundary:
    """Return the first offset that fails, as far as `question.most` tests can find it.

    test: offsets -> whether each holds. guess: offsets of a range that are the likeliest to fail.
    """
    return _Search(question, test, guess).run()


class _Search:
    def __init__(self, question: Question, test: Test, guess: Guess) -> None:
        self.question, self.test, self.guess = question, test, guess
        self.held: set[int] = set()
        self.failing: int | None = None  # the lowest known
        self.tested = 0
        self.guessed = False

    def run(self) -> Boundary:
        """Search, and make sure that the last safe offset was tested itself."""
        q = self.question
        self.ask([0])
        if self.failing is None and q.up_to - max(q.proved, 0) <= self.left():  # 0 is tested already
            self.walk(range(q.proved + 1, q.up_to + 1))
        elif self.failing is None:
            self.walk(thinned(grid(q), q.most // 2))
            self.refine()
        top = self.top()
        exhaustive = all(offset in self.held for offset in range(top, q.proved, -1))
        safe = top if top <= q.proved else max((x for x in self.held if x <= top), default=-1)
        if safe >= 0 and safe not in self.held:
            self.tested += 1
            self.test([safe])
        return Boundary(safe, self.failing, self.tested, exhaustive)

    def left(self, kept: int = 0) -> int:
        """How many tests are left, some being kept back."""
        return self.question.most - self.tested - kept

    def ask(self, offsets: Iterable[int], kept: int = 0) -> None:
        """Test offsets below the lowest failing one, as far as the tests go."""
        top = self.top() + 1
        low = self.question.proved if self.held else -1  # 0 is always tested, and first
        some = sorted({offset for offset in offsets if low < offset < top} - self.held)
        some = some[: max(0, self.left(kept))]
        if not some:
            return
        self.tested += len(some)
        results = self.test(some)
        self.held.update(offset for offset, good in zip(some, results, strict=True) if good)
        self.failing = min(
            (o for o, good in zip(some, results, strict=True) if not good), default=self.failing
        )

    def walk(self, offsets: Sequence[int]) -> None:
        """Test upwards, some at a time, until one fails."""
        before, start, size = self.failing, 0, _CHUNK
        while start < len(offsets) and self.failing == before and self.left() > 0:
            self.ask(offsets[start : start + size])
            start, size = start + size, min(2 * size, _LARGEST_CHUNK)

    def refine(self) -> None:
        """Look for failures below the lowest one, until there is no news or no test is left."""
        low, kept, known = self.question.proved + 1, _SPREAD + _LAST, -2
        while known != self.top() and self.left(kept) > 0:
            if self.failing is not None and self.failing - low <= self.left():
                self.walk(range(low, self.failing))
                return
            self.cut(kept)
            known = self.top()
            self.ask(range(known - _BESIDE, known + 1), kept)
            self.ask(self.guess(low, known, _GUESSED), kept)
            self.guessed = True
        self.ask(spread(low, self.top(), self.left(_LAST)), _LAST)
        self.cut(0)

    def top(self) -> int:
        """The highest offset below the lowest failing one."""
        return self.question.up_to if self.failing is None else self.failing - 1

    def cut(self, kept: int) -> None:
        """Narrow the gap between the lowest failure and what holds below it, until they are neighbours."""
        while self.failing is not None and self.left(kept) > 0:
            low = max(self.question.proved, max((x for x in self.held if x < self.failing), default=-1))
            gap = self.failing - low
            if gap <= 1:
                return
            parts = {low + max(1, gap * i // (_SECTIONS + 1)) for i in range(1, _SECTIONS + 1)}
            if self.guessed and gap > 4 * self.question.seq_len:  # a guess is about right: stay beside it
                parts = {low + gap // 2, *(self.failing - self.question.seq_len // i for i in (1, 4))}
            self.ask(parts, kept)


def grid(question: Question) -> list[int]:
    """Return offsets at which to look first: about six to a power of two, landmarks, and the last one.

    At a power of two and at a landmark: the last sequence before it, the first with it, and with one beyond.
    """
    s, up_to = question.seq_len, question.up_to
    found = {*question.landmarks}
    for e in range((up_to + s).bit_length() + 1):
        found.add(2**e)
    places = {p - s + i for p in found for i in (0, 1, 2)}
    places |= {offset for e in range(up_to.bit_length()) for offset in (2**e, *_between(2**e))} | {up_to}
    return sorted(offset for offset in places if question.proved < offset <= up_to)


def _between(power: int) -> tuple[int, ...]:
    return tuple((power * part // 16) | 1 for part in (20, 25))


def thinned(offsets: Sequence[int], most: int) -> list[int]:
    """Return at most `most` of the offsets, evenly chosen, the last one among them."""
    count = min(most, len(offsets))
    return [offsets[(i + 1) * len(offsets) // count - 1] for i in range(count)]


def spread(low: int, high: int, count: int) -> list[int]:
    """Return up to `count` offsets from low to high: half of them evenly, half by equal ratios."""
    if count < 2 or high <= low:
        return []
    span, half = high - low, count // 2
    even = [low + (2 * i + 1) * span // (2 * half) for i in range(half)]
    ratio = [low + int((span + 1) ** ((2 * i + 1) / (2 * half))) - 1 for i in range(count - half)]
    return sorted({min(offset, high) for offset in (*even, *ratio)})
