"""What all pictures share: colours, marks, titles, edges, and how they become files.

Colours are those of Okabe and Ito (jfly.uni-koeln.de/color), told apart by the colour-blind; every line has a
dash and a marker of its own too, so that a print without colours can be read.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from ropeaudit.errors import UsageError
from ropeaudit.reports import Row
from ropeaudit.reports.charts import series
from ropeaudit.reports.charts.axes import linear_part
from ropeaudit.reports.numbers import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

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
_WIDTH = 8.6  # inches
_READABLE = 5.0  # inches: texts of a narrower figure become smaller with it, or would cover each other
_TITLE = 92  # characters of a line of a title of that width
_FEW_LINES, _LINES = 4, 8  # of a title of several sentences, of one alone
_LEGEND = 150  # characters of a line of a legend of that width
_LABEL = 11  # characters of a label of an axis for each inch of it
_LEAST_AXES = 1.0  # inches of height in which lines can be told apart
_ROOM = "room for the axes; give a larger --size, or --without title,legend"
_NAME = 90  # characters of a name in a legend
_BOXES = "the font lacks some characters of a name: boxes stand for them"
SUFFIXES = ("svg", "png", "pdf")


@dataclass(slots=True)
class Picture:
    """A figure, the result that is its title, and notes of what it does not show."""

    figure: Figure
    title: str
    notes: list[str] = field(default_factory=list)


def line(number: int) -> dict[str, Any]:
    """Return colour, dash and marker of a line; 280 are different."""
    return {
        "color": _COLOURS[number % len(_COLOURS)],
        "linestyle": _DASHES[number % len(_DASHES)],
        "marker": _MARKERS[number % len(_MARKERS)],
        "markersize": 7.0 - 2.5 * number / (number + 3),  # earlier lines show under later ones
        "linewidth": 2.6 - 1.5 * number / (number + 2),
    }


def figure(
    title: str, panels: int = 1, height: float = 4.8, without: Collection[str] = (), **axes: Any
) -> tuple[Figure, list[Axes]]:
    """Return a figure with a title and panels under each other."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, height), layout="constrained", dpi=150)
    places = figure.subplots(panels, 1, squeeze=False, **axes)[:, 0]
    if "title" not in without:
        retitle(figure, _sentences(title))
    for place in places:
        place.grid(True, which="major", color="#dddddd", linewidth=0.6)
        place.set_axisbelow(True)
        place.spines[["top", "right"]].set_visible(False)
    return figure, list(places)


def retitle(figure: Figure, title: str) -> None:
    """Set the title, in as many lines as it needs; the room for them comes on top of the axes."""
    width = round(_TITLE * figure.get_figwidth() / _WIDTH)
    text = textwrap.fill(printable(title).replace("$", r"\$"), width, max_lines=_LINES, placeholder=" …")
    figure.suptitle(text, x=0.01, ha="left", fontsize=10, fontweight="bold")


def _sentences(title: str) -> str:
    """Return as many clauses of a title, from its first on, as fit into a few lines; at least one."""
    parts, shown = re.split(r"(?<=;) |(?<=\.) (?=[A-Z(])", title), ""
    for part in parts:
        if shown and len(textwrap.wrap(f"{shown} {part}", _TITLE)) > _FEW_LINES:
            return re.sub(r";$", ".", shown)
        shown = f"{shown} {part}".strip()
    return shown


def adapt(
    picture: Picture, title: str | None, size: tuple[float, float] | None, without: Collection[str]
) -> None:
    """Give a picture the title and the size (inches) that were requested, and take its title or legend."""
    figure = picture.figure
    if title is not None:
        picture.title = title
        retitle(figure, title)
    if size is not None:
        resize(figure, *size)
    if "title" in without:
        figure.suptitle("")
    if "legend" in without:
        for one in [*figure.legends, *(axes.get_legend() for axes in figure.axes)]:
            if one is not None:
                one.remove()


def resize(figure: Figure, width: float, height: float) -> None:
    """Set the size in inches; title, legend and labels are laid out anew."""
    title, legends = figure.get_suptitle(), list(figure.legends)
    figure.set_size_inches(width, height)
    if title:
        retitle(figure, " ".join(title.split()).replace(r"\$", "$"))
    share = height / max(1, len(figure.axes))
    factor = min(1.0, width / _READABLE, share / _READABLE * 2)
    for one in legends:
        one.remove()
    _shrink(figure, factor)
    for one in legends:
        texts = [text.get_text() for text in one.get_texts()]
        _add_legend(figure, one.legend_handles, texts, factor)
    for axes in figure.axes:
        axes.set_ylabel(textwrap.fill(axes.get_ylabel(), max(10, round(_LABEL * share))))


def _shrink(figure: Figure, factor: float) -> None:
    """Make all texts smaller by a factor, as they would be in a larger figure that is put in small."""
    if factor == 1.0:
        return
    from matplotlib.text import Text

    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            for label in axis.get_ticklabels()[:1]:
                axis.set_tick_params(labelsize=factor * _points(label))
    ticks = [text for axes in figure.axes for text in (*axes.get_xticklabels(), *axes.get_yticklabels())]
    for text in figure.findobj(Text):
        if text not in ticks:
            text.set_fontsize(factor * _points(text))


def _points(text: Text) -> float:
    """Return the size of a text in points."""
    return float(text.get_fontproperties().get_size_in_points())


def legend(figure: Figure, axes: Axes, without: Collection[str] = ()) -> None:
    """Add the legend beneath the axes, where it covers no line, in as many columns as its names allow."""
    handles, labels = axes.get_legend_handles_labels()
    if not labels or "legend" in without:
        return
    lines = _add_legend(figure, handles, labels)
    figure.set_figheight(figure.get_figheight() + 0.16 * lines)


def _add_legend(figure: Figure, handles: Sequence[Any], labels: Sequence[str], factor: float = 1.0) -> int:
    """Add the legend in as many columns as fit into the figure; return its lines."""
    room = _LEGEND * figure.get_figwidth() / _WIDTH / factor
    columns = max(1, min(4, len(labels), int(room // (max(map(len, labels)) + 7))))
    look: dict[str, Any] = {"fontsize": 7 * factor, "frameon": False, "handlelength": 3.5}
    figure.legend(handles, labels, loc="outside lower left", ncols=columns, **look)
    return -(-len(labels) // columns)


def offsets_axis(axes: Axes, values: Sequence[float]) -> None:
    """Make the horizontal axis logarithmic, with a place for 0 and for what is below it."""
    from matplotlib.ticker import FuncFormatter

    linear = linear_part(values)
    if linear is not None:
        axes.set_xscale("symlog", linthresh=linear, linscale=0.4)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    axes.margins(x=0.03)


def edge(axes: Axes, xs: Sequence[float], top: bool, colour: str, label: str) -> None:
    """Mark what cannot be drawn to scale at an edge: nan or infinite at the top, 0 at the bottom.

    label: in the legend, with a mark of no line's colour; empty where it stands there already.
    """
    look: dict[str, Any] = {"linestyle": "none", "marker": "X" if top else "v", "markeredgecolor": "white"}
    place: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "clip_on": False, "zorder": 5}
    axes.plot(xs, [1.0 if top else 0.0] * len(xs), markersize=8, markerfacecolor=colour, **look, **place)
    if label:
        axes.plot([], [], markersize=8, markerfacecolor=GREY, label=label, **look)


def limited(groups: Mapping[str, T], most: int, noun: str) -> tuple[dict[str, T], list[str]]:
    """Return the first `most` groups by names that fit into a picture, and a note of those left out."""
    shown: dict[str, T] = {}
    for name, group in list(groups.items())[:most]:
        shown[_fitting(name, shown)] = group
    left = len(groups) - len(shown)
    note = f"{left} of {len(groups)} {noun} are not drawn, for {most} fit: give a file with fewer of them"
    return shown, [note] if left else []


def _fitting(name: str, taken: Iterable[str]) -> str:
    """Return a name without its middle where it is too long; it stays different from those that are taken."""
    if len(name) <= _NAME:
        return name
    half, known = _NAME // 2, set(taken)
    cut = f"{name[:half]}…{name[-half:]}"
    return next(one for n in range(len(known) + 1) if (one := f"[{n + 1}] {cut}" if n else cut) not in known)


def cases(rows: Sequence[Row], most: int) -> tuple[dict[str, list[Row]], list[str]]:
    """Return rows by subject, dtype, offset and the settings that differ, and what is left out of them."""
    columns = series.varying_settings(rows)
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(f"{series.label(row, columns)} at offset {row['offset']:,}", []).append(row)
    return limited(groups, most, "cases")


def _lay_out(picture: Picture) -> None:
    """Hide labels of offsets that lie on their neighbour; note axes for which hardly any room is left.

    Raises: UsageError if there is no room at all: texts would lie on the lines.
    """
    import warnings

    figure = picture.figure
    size = f"title and legend of {figure.get_figwidth():g} x {figure.get_figheight():g} inches"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figure.draw_without_rendering()
    if any("not applied" in str(warning.message) for warning in caught):
        raise UsageError(
            f"{size} leave no room for the axes; give a larger --size, or --without title,legend"
        )
    for axes in figure.axes:
        end = -math.inf
        for tick in axes.xaxis.get_major_ticks():
            extent = tick.label1.get_window_extent()
            if tick.label1.get_text() and axes.viewLim.containsx(tick.get_loc()):
                tick.label1.set_visible(extent.x0 > end)
                end = extent.x1 if extent.x0 > end else end
        height = axes.get_position().height * figure.get_figheight()
        if height < _LEAST_AXES and f"{size} leave little {_ROOM}" not in picture.notes:
            picture.notes.append(f"{size} leave little {_ROOM}")


def encoded(picture: Picture, suffix: str) -> bytes:
    """Return the bytes of a file; the same picture gives the same bytes.

    What cannot be drawn as it is becomes a note of the picture.
    """
    import warnings

    import matplotlib

    file = io.BytesIO()
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
    with matplotlib.rc_context({"svg.hashsalt": "ropeaudit"}), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _lay_out(picture)
        picture.figure.savefig(file, format=suffix, metadata=undated[suffix])
    if _BOXES not in picture.notes and any("Glyph" in str(warning.message) for warning in caught):
        picture.notes.append(_BOXES)
    return file.getvalue()
