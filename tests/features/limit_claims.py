"""What a sentence of `ropeaudit limit` claims, read back from its words and held against the truth."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

TOLERANCE = r"\|?\w+\|? [≤≥] [-+\w.]+"
NONFINITE = r"[\d,]+ of [\d,]+ scores are nan or infinite"
VALUE = rf"(?:\w+ is (?:not defined|[-+\w.]*\w)|{NONFINITE})"
PLACE = r"([\d,]+) \(last position ([\d,]+)\)"


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


def check(sentence: str, who: str, reference: ReferenceTable) -> None:
    """Fail unless every claim of a sentence is true, and it consists of known claims alone."""
    assert sentence.startswith(who)
    rest = sentence.removeprefix(who)
    first: list[int] = []

    def meets(match: re.Match[str]) -> None:
        reference.free(number(match[1]))
        reference.place(number(match[1]), number(match[2]))

    def fails(match: re.Match[str]) -> None:
        first.append(number(match[1]))
        reference.failing(first[0])
        assert " seen at" in match[0] or reference.first(first[0]) is None

    def seen(match: re.Match[str]) -> None:
        reference.seen(number(match[1]), number(match[2]))
        reference.place(number(match[2]), number(match[3]))

    def bounded(match: re.Match[str]) -> None:
        assert reference.bound is not None
        assert reference.bound >= number(match[1])

    def proved(match: re.Match[str]) -> None:
        reference.free(number(match[1]))
        if match[2] == "by the bound":
            assert reference.bound is not None
            assert reference.bound >= number(match[1])
        elif reference.tested is not None:
            low = -1 if reference.bound is None else reference.bound
            assert set(range(low + 1, number(match[1]) + 1)) <= set(reference.tested)

    def through(match: re.Match[str]) -> None:
        assert number(match[1]) == reference.maximum
        reference.free(reference.maximum - reference.seq_len)
        if match[2]:
            reference.free(int(float(match[2].replace(",", "")) * reference.maximum) - reference.seq_len)

    def times(match: re.Match[str]) -> None:
        assert number(match[2]) == reference.maximum
        last = re.search(r"measured offsets? up to ([\d,]+)", sentence)
        assert number(last[1]) + reference.seq_len >= float(match[1].replace(",", "")) * reference.maximum

    def broken(match: re.Match[str]) -> None:
        assert number(match[1]) == reference.maximum
        reference.failing(number(match[2]))
        reference.place(number(match[2]), number(match[3]))
        assert number(match[3]) < reference.maximum
        first.append(number(match[2]))

    def never(match: re.Match[str]) -> None:
        reference.failing(0)

    def smaller(match: re.Match[str]) -> None:
        reference.first(first[0])

    def beyond(match: re.Match[str]) -> None:
        assert reference.seq_len > reference.maximum

    def short(match: re.Match[str]) -> None:
        assert number(match[1]) == reference.maximum
        lowest = min(reference.fails, default=reference.up_to + 1)
        last = max((offset for offset in reference.tested or () if offset < lowest), default=0)
        assert last + reference.seq_len < reference.maximum

    claims: list[tuple[str, Callable[[re.Match[str]], None]]] = [
        (rf" does not meet {TOLERANCE} at offset 0 already: {VALUE}", never),
        (rf" does not hold {TOLERANCE} through its ([\d,]+) positions: at offset {PLACE} {VALUE}", broken),
        (rf" holds {TOLERANCE} through all ([\d,]+) positions(?:, ([\d,.]+) times over)?", through),
        (rf" meets {TOLERANCE} at every offset up to {PLACE}", meets),
        (rf"(?: and|;) (?:fails|first failure seen) at offset ([\d,]+): {VALUE}", fails),
        (rf"[:;] no failure (?:of {TOLERANCE} )?seen in ([\d,]+) measured offsets? up to {PLACE}", seen),
        (r"[:;] guaranteed at offset 0 alone", lambda match: reference.free(0)),
        (r"[:;] guaranteed up to offset ([\d,]+) \((every offset measured|by the bound)\)", proved),
        (r", every later offset measured\)", lambda match: None),
        (r"[:;] guaranteed up to offset ([\d,]+) \((by the bound up to [\d,]+)", proved),
        (r"(?<=\()by the bound up to ([\d,]+)", bounded),
        (r"; every smaller offset meets it", smaller),
        (r", ([\d,.]+) times its ([\d,]+) positions", times),
        (r" \(a longer sequence than the [\d,]+ positions? that it is made for\)", beyond),
        (r" \(its ([\d,]+) positions were not measured to their end\)", short),
    ]
    for pattern, claim in claims:
        for match in re.finditer(pattern, rest):
            claim(match)
    left = rest
    for pattern, _ in claims:
        left = re.sub(pattern, "", left)
    assert left == ".", (left, sentence)
