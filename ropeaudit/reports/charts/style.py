"""What all pictures share: colours, marks, sizes of texts, titles, edges, and how they become files.

Colours are those of Okabe and Ito (jfly.uni-koeln.de/color), told apart by the colour-blind; every line has a
dash and a marker of its own too, so that a print without colours can be read. Matplotlib's constrained layout
places the parts of a figure.
"""

from __future__ import annotations

import contextlib
import io
import math
import re
import textwrap
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ropeaudit import data
from ropeaudit.audits.comparison import value
from ropeaudit.errors import UsageError
from ropeaudit.reports import Row, settings
from ropeaudit.reports.numbers import printable, setting

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

T = TypeVar("T")
ORANGE, GREEN, RED, BLUE, PURPLE, GREY = "#E69F00", "#009E73", "#D55E00", "#0072B2", "#CC79A7", "#666666"
_COLOURS = (BLUE, RED, GREEN, PURPLE, ORANGE, "#56B4E9", "#000000")
_DASHES = ("-", "--", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)))
_MARKERS = "osD^vP*X"
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "ooo", "++")
MOST_LINES = 24
SIZE = (8.6, 4.8)  # inches
_WIDE = 20  # largest over smallest from which on an axis is logarithmic
_FULL = (5.0, 3.5)  # inches: in a smaller figure texts and lines are smaller
_POINTS = 10.0  # size of a text in a figure that is not small
_TITLE_LINES = 3
_NAME = 90  # characters of a name in a legend
_BOXES = "the font lacks some characters of a name: boxes stand for them"


@dataclass(slots=True)
class Picture:
    """A figure, the finding that is its title, and notes of what it does not show.

    height: inches that the content needs at the default width.
    """

    figure: Figure
    title: str
    notes: list[str] = field(default_factory=list)
    height: float = SIZE[1]


@dataclass(frozen=True, slots=True)
class Series:
    """A line: rows, ascending xs, and ys, nan where missing. style: its look."""

    rows: Sequence[Row]
    xs: Sequence[float]
    ys: Sequence[float]
    style: int = 0

    @classmethod
    def of(cls, rows: Iterable[Row], x: str, y: str, style: int = 0) -> Series:
        """Return the line of two columns of rows."""
        ordered = sorted(rows, key=lambda row: row[x])
        return cls(ordered, [row[x] for row in ordered], [value(row, y) for row in ordered], style)

    @property
    def drawn(self) -> list[float]:
        """The ys that have a place on a logarithmic axis; the others are nan."""
        return [y if y > 0 else math.nan for y in self.ys]

    @property
    def nonfinite(self) -> list[float]:
        """The xs of what is nan or infinite."""
        return [x for x, y in zip(self.xs, self.ys, strict=True) if not math.isfinite(y)]

    @property
    def zeros(self) -> list[float]:
        """The xs of what is 0."""
        return [x for x, y in zip(self.xs, self.ys, strict=True) if y == 0]


def label(row: Row, columns: Iterable[str]) -> str:
    """Return the name of a row's line: subject, dtype and these columns."""
    words = [str(row[name]) for name in ("implementation", "dtype") if row.get(name) is not None]
    for name in columns:
        value = setting(row.get(name))
        words.append(value if name == "model" else f"{name}={value}")
    return printable(" ".join(words)) or "exact"


@contextlib.contextmanager
def sized(size: tuple[float, float] | None) -> Iterator[None]:
    """Give figures that are drawn and written within it a size in inches, and texts that fit it."""
    import matplotlib

    width, height = size or SIZE
    scale = min(1.0, max(0.6, min(width / _FULL[0], height / _FULL[1])))
    parameters: dict[Any, Any] = tomllib.loads(data.text("picture.toml"))
    parameters |= {"figure.figsize": (width, height), "font.size": _POINTS * scale}
    with matplotlib.rc_context(parameters):
        yield


def scale() -> float:
    """Return how large texts, lines and marks are: 1 unless the figure is small."""
    import matplotlib

    return float(matplotlib.rcParams["font.size"]) / _POINTS


def across() -> int:
    """Return how many characters of a title fit across a figure."""
    import matplotlib

    return int(72 * matplotlib.rcParams["figure.figsize"][0] / (0.65 * _POINTS * scale()))


def line(number: int) -> dict[str, Any]:
    """Return colour, dash and marker of a line; 280 are different."""
    return {
        "color": _COLOURS[number % len(_COLOURS)],
        "linestyle": _DASHES[number % len(_DASHES)],
        "marker": _MARKERS[number % len(_MARKERS)],
        "markersize": scale() * (7.0 - 2.5 * number / (number + 3)),  # earlier lines show under later ones
        "linewidth": scale() * (2.6 - 1.5 * number / (number + 2)),
    }


def figure(title: str, panels: int = 1, **axes: Any) -> tuple[Figure, list[Axes]]:
    """Return a figure with the first clause of a title, and panels under each other."""
    from matplotlib.figure import Figure

    figure = Figure(layout="constrained")
    places = figure.subplots(panels, 1, squeeze=False, **axes)[:, 0]
    retitle(figure, re.split(r"(?<=;) |(?<=\.) (?=[A-Z(])", title)[0].rstrip(";"))
    return figure, list(places)


def retitle(figure: Figure, title: str) -> None:
    """Set the title, in as many lines as it needs, up to a few; none if it is empty."""
    lines = textwrap.fill(plain(printable(title)), across(), max_lines=_TITLE_LINES, placeholder=" …")
    figure.suptitle(lines, x=0.01, ha="left")


def plain(text: str) -> str:
    """Return a text in which matplotlib sees no formula."""
    return text.replace("$", r"\$")


def legend(figure: Figure, axes: Axes) -> int:
    """Add the legend beneath the axes, where it covers no line, in as many columns as its names allow.

    Return how many lines it takes.
    """
    handles, labels = axes.get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    if not once:
        return 0
    for columns in (4, 3, 2, 1):
        parts = [part for part in np.array_split(list(once), columns) if len(part)]
        if sum(8 + max(map(len, part)) for part in parts) < 1.6 * across():  # each with its marks
            break
    figure.legend(once.values(), once.keys(), loc="outside lower left", ncols=columns)
    return -(-len(once) // columns)


def bars(axes: Axes, names: Sequence[str], words: Sequence[str]) -> int:
    """Put names to the left of horizontal bars, the first on top, and words to their right.

    Return how many lines the names take.
    """
    wrapped = [textwrap.fill(name, int(0.6 * across()), break_on_hyphens=False) for name in names]
    axes.set_yticks(range(len(names)), wrapped)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(False, axis="y")
    right = axes.secondary_yaxis("right")
    right.set_yticks(range(len(words)), words)
    right.tick_params(length=0)
    right.spines["right"].set_visible(False)
    return sum(text.count("\n") + 1 for text in wrapped)


def offsets_axis(axes: Axes, values: Sequence[float]) -> None:
    """Make the horizontal axis logarithmic on both sides of 0 for wide ranges."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator, SymmetricalLogLocator

    sizes = sorted({abs(x) for x in values if x})
    if sizes and sizes[-1] > _WIDE * sizes[0]:
        linear = 10 ** math.ceil(math.log10(sizes[0])) * (1 + 1e-9)  # no tick but 0 below it
        axes.set_xscale("symlog", linthresh=linear, linscale=0.7)
        ticks = SymmetricalLogLocator(base=10, linthresh=linear)
        ticks.set_params(numticks=8)
        axes.xaxis.set_major_locator(ticks)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    axes.margins(x=0.03)


def edge(axes: Axes, xs: Sequence[float], top: bool, colour: str, label: str) -> None:
    """Mark what cannot be drawn to scale at an edge: nan or infinite at the top, 0 at the bottom.

    label: in the legend, with a mark of no line's colour; empty where it stands there already.
    """
    look: dict[str, Any] = {"linestyle": "none", "marker": "X" if top else "v", "markeredgecolor": "white"}
    look["markersize"] = 8 * scale()
    place: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "clip_on": False, "zorder": 5}
    axes.plot(xs, [1.0 if top else 0.0] * len(xs), markerfacecolor=colour, **look, **place)
    if label:
        axes.plot([], [], markerfacecolor=GREY, label=label, **look)


def limited(groups: Mapping[str, T], most: int, noun: str) -> tuple[dict[str, T], list[str]]:
    """Return the first `most` groups by names that fit into a picture, and a note of those left out.

    A name is without its middle where it is too long; it stays different from the others.
    """
    shown: dict[str, T] = {}
    longest = min(_NAME, across())
    for name, group in list(groups.items())[:most]:
        if len(name) > longest:
            cut, number = f"{name[: longest // 2]}…{name[-(longest // 2) :]}", 1
            name = cut
            while name in shown:
                number += 1
                name = f"[{number}] {cut}"
        shown[name] = group
    left = len(groups) - len(shown)
    note = f"{left} of {len(groups)} {noun} are not drawn, for {most} fit: give a file with fewer of them"
    return shown, [note] if left else []


def cases(rows: Sequence[Row], most: int) -> tuple[dict[str, list[Row]], list[str]]:
    """Return the rows of each case by its name, and what is left out."""
    columns = settings.independent(rows)
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(f"{label(row, columns)} at offset {row['offset']:,}", []).append(row)
    return limited(groups, most, "cases")


def encoded(picture: Picture, suffix: str) -> bytes:
    """Return the bytes of a file; the same picture gives the same bytes.

    Raises: UsageError if title and legend leave no room for the axes.
    """
    import warnings

    file = io.BytesIO()
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        picture.figure.savefig(file, format=suffix, metadata=undated[suffix])
    said = [str(warning.message) for warning in caught]
    width, height = picture.figure.get_size_inches()
    least = 2 * _POINTS * scale() / 72 / height  # of the figure: axes that are lower show nothing
    crowded = any(axes.get_position().height < least for axes in picture.figure.axes)
    if crowded or any("not applied" in text for text in said):
        raise UsageError(
            f"names, title and legend leave no room for the axes in {width:g} x {height:g} inches; give a "
            "larger --size, or --title ''"
        )
    if _BOXES not in picture.notes and any("Glyph" in text for text in said):
        picture.notes.append(_BOXES)
    return file.getvalue()
