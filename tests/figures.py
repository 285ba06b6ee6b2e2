"""Compare two outputs as two machines may give them: words exactly, numbers as numbers.

Tables, rotations, positions, settings and bounds must not depend on the machine. Sums do: BLAS adds in an
order of its own. So figures of what was measured move in float32 and float64, and in float16 where a score
beside a midpoint is rounded to the other side. Which ones those are, and how far they may move, is read off
the row: its dtype, the heading of the figure, and how large the row's drift is beside the roundings of a sum
(`allowance`).
"""

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal

NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?:(?=x\b)|(?!\w|\.\d))")
DTYPE = re.compile(r"\b(?:float64|float32|float16|bfloat16|float8_\w+|fp64|fp32|fp16|bf16|fp8_\w+)\b")
MEASURED = re.compile(r"\b(?:drift|change|floor|attention|parity|worst|median|measured|value)\b(?! \d)")
# moves with what was measured, but is not a drift's size
DERIVED = re.compile(r"^(?:excess|allowed|vs best|vs offset 0)$")
FACTOR = re.compile(r"^vs (?:best|offset 0)$")  # of the row's drift over a smaller one, which moves further
LARGEST = re.compile(r"\b(?:max|worst|measured|allowed)\b")
WHERE = re.compile(
    r"\b(?:where|worst (?:head|query|key)|top1 flips)\b"
)  # the largest is elsewhere, words and all
FLOOR = "floor rms"  # the drift of another row, which has its own size
CRITERION = re.compile(r"(?:tolerance|limit|allowed|[≤≥<>=]) *$")  # before a number that was requested

# By dtype: the unit in which two orders of a sum differ, and the spacing of the scores that are stored.
ORDERS = {"float64": (2.0**-52, 2.0**-52), "float32": (2.0**-23, 2.0**-23), "float16": (2.0**-23, 2.0**-10)}
ORDERS |= {name.replace("float", "fp"): order for name, order in ORDERS.items()}
FURTHEST = 0.35  # of a mean of squares over 136 scores, 4 standard deviations
EXACT = 1e-12  # sums in float64 of what is the same everywhere
NOISE = 2.0**-46  # of scores of RMS 1: what sums of 128 products in float64 leave, which is their order
ROUNDED_ALIKE = 1e-5  # scores that are stored to fewer bits than their sums differ in


def allowance(dtype: str, size: float, largest: bool = False) -> float:
    """Return how far a measured figure may move on another machine, relative to itself.

    size: of the row's drift, for scores of RMS 1; 0 where all of it may be the order of sums. largest:
    whether the figure is a maximum, which is one score and moves further than a mean.
    """
    if dtype not in ORDERS:
        return ROUNDED_ALIKE if dtype else EXACT
    order, spacing = ORDERS[dtype]
    moved = FURTHEST * min(1.0, math.sqrt(order * spacing) / size if size else 1.0)
    if not largest:
        return moved
    return min(0.9, 6 * moved) if order == spacing else ROUNDED_ALIKE  # one score beside a midpoint is rare


@dataclass(frozen=True)
class Figure:
    """A number of an output: what heads it in a table, the words before and after it, its row's dtype.

    drift: the size of the drift that its row tells of; 0: none, or all of it may be the order of sums.
    """

    text: str
    heading: str
    before: str
    after: str
    dtype: str
    drift: float = 0.0

    @property
    def moves(self) -> bool:
        """Whether it was measured, or follows from what was."""
        return "." in self.text and bool(MEASURED.search(self.heading) or DERIVED.search(self.heading))

    @property
    def ratio(self) -> bool:
        """Whether it is a factor between two drifts, of which the smaller is not known."""
        return self.after.startswith(" times")

    @property
    def size(self) -> float:
        """The size of the drift that it says, 0 if it says none."""
        if not self.moves or DERIVED.search(self.heading) or self.ratio:
            return 0.0
        return abs(float(self.text)) / (100 if self.after.startswith(" %") else 1)

    @property
    def allowed(self) -> Decimal:
        """How far it may move."""
        value = abs(Decimal(self.text))
        if not self.moves:
            share = FURTHEST if 0 < value < NOISE else EXACT
            return value * Decimal(share) if "." in self.text else Decimal(0)
        moved = value * Decimal(allowance(self.dtype, self.drift, bool(LARGEST.search(self.heading))))
        unit = Decimal(1).scaleb(int(Decimal(self.text).as_tuple().exponent))  # to which both are rounded
        return moved + (unit if moved > unit / 10 else 0)


@dataclass(frozen=True)
class Line:
    """A line of an output: its words, a # for each number, and its numbers."""

    words: str
    figures: tuple[Figure, ...] = ()


def differences(expected: str, seen: str) -> list[str]:
    """Say, line by line, what in an output is not as expected by more than another machine explains."""
    before, after = list(lines(expected)), list(lines(seen))
    if len(before) != len(after):
        return [f"{len(after)} lines instead of {len(before)}"]
    pairs = zip(itertools.count(1), before, after, strict=False)
    found = [f"line {number}: {text}" for number, one, other in pairs for text in _unlike(one, other)]
    if not found and _widths(expected) == _widths(seen) and _layout(expected) != _layout(seen):
        return ["the words are the same, the blanks between them are not"]
    return found


def _unlike(expected: Line, seen: Line) -> Iterator[str]:
    if expected.words != seen.words:
        yield f"{seen.words!r} instead of {expected.words!r}"
        return
    for one, other in zip(expected.figures, seen.figures, strict=True):
        if abs(Decimal(other.text) - Decimal(one.text)) > one.allowed:
            row = f"{one.dtype or 'no dtype'}, {one.heading or 'text'}"
            yield f"{row}: {other.text} instead of {one.text}; allowed: {float(one.allowed):.2g}"


def _widths(text: str) -> list[int]:
    return [len(number) for number in NUMBER.findall(text)]


def _layout(text: str) -> str:
    return re.sub(r"\S", "x", text)


# ---------------------------------------------------------------------------- what stands in a line


def lines(text: str) -> Iterator[Line]:
    """Read an output: cells of tables (plain, Markdown, CSV) under what heads them, all else as prose."""
    named = DTYPE.search(text)
    common = named[0] if named else ""  # of rows that name none: the first that the report names
    headings: list[re.Match[str]] = []
    cell = PROSE
    for row, after in itertools.pairwise([*text.splitlines(), ""]):
        form = next((one for one, header in TABLES.items() if not headings and header(row, after)), None)
        if form or not row.strip():
            cell = form or PROSE
            headings = list(re.finditer(cell, row)) if form else []
            yield Line(_words(row))
        elif headings:
            yield _row(headings, list(re.finditer(cell, row)), common)
        else:
            yield _prose(row)


PROSE = r".+"
# The cells of each form of table, and whether a line, with the one after it, is its header.
TABLES = {
    r"\S+(?: \S+)*": lambda row, after: re.match(r" *[a-z][^A-Z.=]* {3,}[a-z]", row) and after.strip(" '\","),
    r"[^|]+": lambda row, after: after.lstrip().startswith("| ---"),
    r"[^,]+": lambda row, after: bool(re.fullmatch(r" *\w+(?:,\w+)+", row)),
}


def _row(headings: list[re.Match[str]], cells: list[re.Match[str]], common: str) -> Line:
    """Read a row of a table. Its cells stand beneath their headings; in a file they only have their order."""
    inline = len(headings) == len(cells)
    under = [
        headings[index] if inline else min(headings, key=lambda heading: _apart(heading, cell))
        for index, cell in enumerate(cells)
    ]
    names = [re.sub(r"[\W_]+", " ", heading[0]).strip() for heading in under]
    dtype = next(
        (cell[0].strip(" '") for name, cell in zip(names, cells, strict=True) if name == "dtype"), common
    )
    figures = [
        Figure(number[0], name, cell[0][: number.start()], cell[0][number.end() :], dtype)
        for name, cell in zip(names, cells, strict=True)
        for number in NUMBER.finditer(cell[0])
    ]
    sizes = [figure.size for figure in figures if figure.size and figure.heading != FLOOR]
    drift = min(sizes, default=0.0)
    elsewhere = dtype in ORDERS and allowance(dtype, drift, largest=True) > FURTHEST
    kept = [not (elsewhere and WHERE.search(name)) for name in names]
    words = [cell[0] if keep else "elsewhere" for cell, keep in zip(cells, kept, strict=True)]
    figures = [
        replace(figure, drift=_size(figure, drift))
        for figure in figures
        if not (elsewhere and WHERE.search(figure.heading))
    ]
    return Line(_words("  ".join(words)), tuple(figures))


def _size(figure: Figure, drift: float) -> float:
    """Return the smallest drift that a figure of a row with this drift was made from."""
    if figure.heading == FLOOR:
        return figure.size
    return drift / max(1.0, float(figure.text)) if FACTOR.search(figure.heading) else drift


def _apart(heading: re.Match[str], cell: re.Match[str]) -> int:
    return min(abs(heading.start() - cell.start()), abs(heading.end() - cell.end()))


def _prose(row: str) -> Line:
    """Read a sentence: its figures are of the dtype named last before them, else of the first after them."""
    named = list(DTYPE.finditer(row))
    figures = []
    for number in NUMBER.finditer(row):
        before, after = row[: number.start()], row[number.end() :]
        nearest = [dtype for dtype in named if dtype.start() < number.start()][-1:] or named[:1]
        heading = "" if CRITERION.search(before) else "drift"
        figure = Figure(number[0], heading, before, after, nearest[0][0] if nearest else "")
        figures.append(replace(figure, drift=figure.size))
    return Line(_words(row), tuple(figures))


def _words(row: str) -> str:
    return " ".join(NUMBER.sub("#", row).split())
