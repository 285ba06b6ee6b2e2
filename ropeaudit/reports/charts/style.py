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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ropeaudit.errors import UsageError
from ropeaudit.reports import Row
from ropeaudit.reports.charts import series
from ropeaudit.reports.numbers import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

T = TypeVar("T")
BLACK, ORANGE, SKY, GREEN, RED, BLUE, PURPLE = (
    "#000000",
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#D55E00",
    "#0072B2",
    "#CC79A7",
)
GREY = "#666666"
_COLOURS = (BLUE, RED, GREEN, PURPLE, ORANGE, SKY, BLACK)
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
_STYLE: dict[Any, Any] = {  # of matplotlib's rcParams
    "figure.dpi": 150,
    "figure.titlesize": "medium",
    "figure.titleweight": "bold",
    "axes.titlesize": "small",
    "axes.titlelocation": "left",
    "axes.labelsize": "medium",
    "axes.grid": True,
    "axes.grid.which": "major",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "xtick.labelsize": "small",
    "ytick.labelsize": "small",
    "legend.fontsize": "x-small",
    "legend.frameon": False,
    "legend.handlelength": 3.0,
    "legend.labelspacing": 0.3,
    "legend.columnspacing": 1.2,
    "svg.hashsalt": "ropeaudit",
}


@dataclass(slots=True)
class Picture:
    """A figure, the finding that is its title, and notes of what it does not show.

    height: inches that the content needs at the default width.
    """

    figure: Figure
    title: str
    notes: list[str] = field(default_factory=list)
    height: float = SIZE[1]


@contextlib.contextmanager
def sized(size: tuple[float, float] | None) -> Iterator[None]:
    """Give figures that are drawn and written within it a size in inches, and texts that fit it."""
    import matplotlib

    width, height = size or SIZE
    scale = min(1.0, max(0.6, min(width / _FULL[0], height / _FULL[1])))
    with matplotlib.rc_context(_STYLE | {"figure.figsize": (width, height), "font.size": _POINTS * scale}):
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
    columns = next((count for count in (4, 3, 2) if _width(list(once), count) < 1.6 * across()), 1)
    figure.legend(once.values(), once.keys(), loc="outside lower left", ncols=columns)
    return -(-len(once) // columns)


def _width(labels: Sequence[str], columns: int) -> int:
    """Return how many characters of a legend the columns take, each with its marks."""
    return sum(8 + max(map(len, part)) for part in np.array_split(labels, columns) if len(part))


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


def _linear_part(xs: Iterable[float]) -> float | None:
    """Return up to which |x| an axis with a logarithmic part is linear, None where all of it should be.

    >>> _linear_part([0, 64, -4096]), _linear_part([50, 1000])
    (64, None)
    """
    sizes = sorted({abs(x) for x in xs if x})
    return sizes[0] if sizes and sizes[-1] > _WIDE * sizes[0] else None


def offsets_axis(axes: Axes, values: Sequence[float]) -> None:
    """Make the horizontal axis logarithmic, with a place for 0 and for what is below it."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator, SymmetricalLogLocator

    linear = _linear_part(values)
    if linear is not None:
        power = 10 ** math.ceil(math.log10(linear))
        axes.set_xscale("symlog", linthresh=power * (1 + 1e-9), linscale=0.7)  # no tick but 0 below it
        ticks = SymmetricalLogLocator(base=10, linthresh=power * (1 + 1e-9))
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
    """Return the first `most` groups by names that fit into a picture, and a note of those left out."""
    shown: dict[str, T] = {}
    for name, group in list(groups.items())[:most]:
        shown[_fitting(name, shown)] = group
    left = len(groups) - len(shown)
    note = f"{left} of {len(groups)} {noun} are not drawn, for {most} fit: give a file with fewer of them"
    return shown, [note] if left else []


def _fitting(name: str, others: Iterable[str]) -> str:
    """Return a name without its middle where it is too long; it stays different from the others."""
    most = min(_NAME, across())
    if len(name) <= most:
        return name
    half, known = most // 2, set(others)
    cut = f"{name[:half]}…{name[-half:]}"
    return next(one for n in range(len(known) + 1) if (one := f"[{n + 1}] {cut}" if n else cut) not in known)


def cases(rows: Sequence[Row], most: int) -> tuple[dict[str, list[Row]], list[str]]:
    """Return rows by implementation, dtype, offset and the settings that differ, and what is left out."""
    columns = series.varying_settings(rows)
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(f"{series.label(row, columns)} at offset {row['offset']:,}", []).append(row)
    return limited(groups, most, "cases")


def _crowded(axes: Axes, inches: float) -> bool:
    """Return whether axes that are laid out are too low for their lines, or for the names of their bars.

    inches: height of the figure.
    """
    from matplotlib.ticker import FixedLocator

    points = axes.get_position().height * inches * 72
    names = axes.get_yticklabels() if isinstance(axes.yaxis.get_major_locator(), FixedLocator) else []
    lines = sum(name.get_text().count("\n") + 1 for name in names)
    return points < _POINTS * scale() * max(2.0, 0.8 * lines)


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
    crowded = any(_crowded(axes, height) for axes in picture.figure.axes)
    if crowded or any("not applied" in text for text in said):
        raise UsageError(
            f"names, title and legend leave no room for the axes in {width:g} x {height:g} inches; give a "
            "larger --size, or --title ''"
        )
    if _BOXES not in picture.notes and any("Glyph" in text for text in said):
        picture.notes.append(_BOXES)
    return file.getvalue()
