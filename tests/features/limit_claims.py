"""What a sentence of `ropeaudit limit` claims, read back from its words and held against the truth."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

NONFINITE = r"[\d,]+ of [\d,]+ scores are nan or infinite"
VALUE = rf"(?:[-+\w.]+ %|\w+ (?:is not defined|[-+\w.]+)|{NONFINITE})"
HOW = r"(all measured|by bound(?: to ([\d,]*\d), later ones measured)?)"
PLACE = r"([\d,]*\d) \(last position ([\d,]*\d)\)"


@dataclass
class ReferenceTable:
    """fails: the offsets that fail, all of 0 ... up_to. tested: those that were measured, if known."""

    fails: Collection[int]
    up_to: int
    seq_len: int
    maximum: int | None
    tested: Collection[int] | None
    bound: int | None

    def free(self, offset: int) -> None:
        """No offset up to this one fails."""
        assert offset <= self.up_to
        assert min(self.fails, default=self.up_to + 1) > offset

    def failing(self, offset: int) -> None:
        assert offset in self.fails

    def first(self, offset: int) -> None:
        assert min(self.fails) == offset

    def place(self, offset: int, position: int) -> None:
        assert position == offset + self.seq_len - 1

    def seen(self, count: int, offset: int) -> None:
        """So many were measured up to this one, and none of them fails."""
        assert count >= 1
        assert offset not in self.fails
        if self.tested is not None:
            below = [one for one in self.tested if one <= offset]
            assert offset in below
            assert len(below) == count
            assert not set(below) & set(self.fails)


def number(text: str) -> int:
    return int(text.replace(",", ""))


def check(sentence: str, reference: ReferenceTable) -> None:
    """Fail unless every claim of a sentence is true, and it consists of known claims alone."""

    def fails(match: re.Match[str]) -> None:
        reference.failing(number(match[1]))

    def at(match: re.Match[str]) -> None:
        fails(match)
        if match[2]:
            assert number(match[2]) == reference.maximum >= number(match[1]) + reference.seq_len

    def later(match: re.Match[str]) -> None:
        fails(match)
        if "within tolerance at every" in sentence:
            reference.first(number(match[1]))

    def failed(match: re.Match[str]) -> None:
        reference.place(number(match[2]), number(match[3]))
        if match[1] == "first failure":
            reference.first(number(match[2]))
        reference.failing(number(match[2]))

    def through(match: re.Match[str]) -> None:
        assert number(match[1]) == reference.maximum
        times = float((match[2] or "1").replace(",", ""))
        reference.free(int(times * reference.maximum) - reference.seq_len)

    def times(match: re.Match[str]) -> None:
        assert number(match[3]) == reference.maximum
        reached = number(match[1]) + reference.seq_len
        assert reached >= float(match[2].replace(",", "")) * reference.maximum
        assert number(match[1]) not in reference.fails

    def seen(match: re.Match[str]) -> None:
        reference.seen(number(match[1]), number(match[2]))

    def short(match: re.Match[str]) -> None:
        assert number(match[1]) == reference.maximum
        lowest = min(reference.fails, default=reference.up_to + 1)
        last = max((offset for offset in reference.tested or () if offset < lowest), default=0)
        assert last + reference.seq_len < reference.maximum

    def served(match: re.Match[str]) -> None:
        assert max(reference.tested) + reference.seq_len >= reference.maximum

    def placed(match: re.Match[str]) -> None:
        seen(match)
        reference.place(number(match[2]), number(match[3]))

    def proved(match: re.Match[str]) -> None:
        reference.free(number(match[1]))
        if match[2] == "by bound":
            assert reference.bound >= number(match[1])
        else:
            low = number(match[3]) if match[3] else -1
            assert low == (-1 if reference.bound is None else reference.bound)
            assert set(range(low + 1, number(match[1]) + 1)) <= set(reference.tested)

    claims: list[tuple[str, Callable[[re.Match[str]], None]]] = [
        (rf"^{VALUE} at offset ([\d,]*\d)(?:, of ([\d,]*\d) positions)?", at),
        (r"^within tolerance through all ([\d,]*\d) positions(?:, ([\d,.]+) times over)?", through),
        (r"^within tolerance at every offset to ([\d,]*\d)", lambda match: reference.free(number(match[1]))),
        (r"^no failure seen to offset ([\d,]*\d), ([\d,.]+) times its ([\d,]*\d) positions", times),
        (r"^no failure in ([\d,]*\d) tested offsets? to ([\d,]*\d)", seen),
        (r", short of its ([\d,]*\d) positions", short),
        (r", all it serves", served),
        (r"; fails at ([\d,]*\d)", later),
        (rf"; tested ([\d,]*\d) offsets? to {PLACE}: none fails", placed),
        (rf"; (first failure|failure seen) offset {PLACE}: {VALUE}", failed),
        (r"; proven offset 0 only", lambda match: reference.free(0)),
        (rf"; proven every offset to ([\d,]*\d) \({HOW}\)", proved),
    ]
    left = sentence
    for pattern, claim in claims:
        for match in re.finditer(pattern, sentence):
            claim(match)
        left = re.sub(pattern, "", left)
    assert left == "", (left, sentence)
