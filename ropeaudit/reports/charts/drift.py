"""Drift against the offset: a line per subject and dtype, with what was to be expected of it."""

from __future__ import annotations

import math
import string
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ropeaudit.arithmetic.formats import Format, parse
from ropeaudit.errors import UnknownName
from ropeaudit.reports import Row, settings
from ropeaudit.reports.charts import style
from ropeaudit.reports.charts.style import Picture, Series, label
from ropeaudit.reports.numbers import short
from ropeaudit.reports.verdicts import bad, badness

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_EXPECTED = {  # column -> how it is drawn, what it is called
    "predicted_rms": ((0, (1, 1.5)), "predicted RMS"),
    "bound_max": ((0, (6, 2)), "bound of the largest |drift|"),
    "floor_rms": ("-", "floor: RMS drift at offset 0"),
}
Y = "drift_rms"  # what is drawn where nothing else is asked for
_MOST_EXPECTED = 4  # lines beside which they can be told apart


def draw(rows: Sequence[Row], y: str = Y) -> Picture:
    """Return the picture of rows of `ropeaudit shift`; drift in score units, offsets in tokens.

    y: the numeric column that is drawn over the offset.
    """
    measured, lines, columns, notes = _read(rows, y)
    title = _title(measured, [name for name in columns if name == "model"], y)
    figure, (axes,) = style.figure(title)
    _drawn(axes, lines, measured, y)
    if y == Y and len(lines) > _MOST_EXPECTED:
        notes.append(f"floors, predictions and bounds are drawn beside up to {_MOST_EXPECTED} lines")
    height = 3.8 + 0.13 * style.legend(figure, axes)  # inches
    if len(measured) < len(rows):
        notes.append(f"{len(rows) - len(measured)} rows were refused and have nothing to draw")
    return Picture(figure, title, notes, max(height, style.SIZE[1]))


def on(axes: Axes, rows: Sequence[Row]) -> Axes:
    """Draw the chart on given axes, with a legend but no title; return them."""
    measured, lines, _, _ = _read(rows, Y)
    _drawn(axes, lines, measured, Y)
    if lines:
        axes.legend(fontsize="small")
    return axes


def _read(rows: Sequence[Row], y: str) -> tuple[list[Row], dict[str, Series], Sequence[str], list[str]]:
    """Return what was measured, lines by name, the settings in which rows differ, and notes.

    Of more lines than fit those stay that drift most, in the order in which they came.
    """
    measured = [row for row in rows if row.get("verdict") != "refused"]
    columns = settings.independent(measured)
    groups: dict[str, list[Row]] = {}
    for row in sorted(measured, key=lambda row: row["offset"]):
        groups.setdefault(label(row, columns), []).append(row)
    named = {
        name: Series.of(group, "offset", y, number) for number, (name, group) in enumerate(groups.items())
    }
    sizes = {name: max(badness(row, y) for row in group) for name, group in groups.items()}
    drawn = set(sorted(named, key=sizes.__getitem__, reverse=True)[: style.MOST_LINES])
    ordered = {name: named[name] for name in sorted(named, key=lambda name: name not in drawn)}
    lines, notes = style.limited(ordered, style.MOST_LINES, "lines, those that drift least,")
    return measured, lines, columns, notes


def _drawn(axes: Axes, lines: Mapping[str, Series], measured: Sequence[Row], y: str) -> None:
    """Draw lines, the intervals of sampled values, and what goes with them.

    What is below zero somewhere stands on a linear scale; on another a line is broken where it has no place.
    """
    signed = any(value < 0 for line in lines.values() for value in line.ys)
    axes.set_yscale("linear" if signed else "log")
    for name, line in lines.items():
        look = style.line(line.style)
        axes.plot(line.xs, line.ys if signed else line.drawn, label=style.plain(name), **look)
        if sampled := [row for row in line.rows if y == Y and row.get("drift_rms_low") is not None]:
            low, high = ([float(row[f"drift_rms_{end}"]) for row in sampled] for end in ("low", "high"))
            at = [row["offset"] for row in sampled]
            axes.fill_between(at, low, high, color=look["color"], alpha=0.2, lw=0)
    if y == Y and len(lines) <= _MOST_EXPECTED:
        _expected(axes, list(lines.values()))
    _marks(axes, list(lines.values()), y, "" if signed else "no drift at all" if y == Y else "zero")
    style.offsets_axis(axes, [row["offset"] for row in measured])
    _inexact(axes, measured)
    axes.set_xlabel("offset added to every position (tokens)")
    axes.set_ylabel("RMS drift (score units)" if y == Y else y.replace("_", " "))


def _expected(axes: Axes, lines: Sequence[Series]) -> None:
    """Draw floors, predictions and bounds in the colours of their lines."""
    labels = set()
    for line in lines:
        for column, (dash, text) in _EXPECTED.items():
            points = zip(line.xs, (row.get(column) for row in line.rows), strict=True)
            on_scale = [(x, y) for x, y in points if y is not None and 0 < y < math.inf]
            if on_scale:
                xs, ys = zip(*on_scale, strict=True)
                colour = style.line(line.style)["color"]
                axes.plot(xs, ys, alpha=0.65, color=colour, linestyle=dash, linewidth=0.9)
                if text not in labels:
                    axes.plot([], [], color=style.GREY, linestyle=dash, linewidth=0.9, label=text)
                labels.add(text)


def _marks(axes: Axes, lines: Sequence[Series], y: str, zeros: str) -> None:
    """Mark what is not on the scale, in the colour of its line, and ring what is not good enough.

    The legend names each kind once. zeros: what zeros are called, empty where they are on the scale.
    """
    for top, text in ((True, "nan or infinite scores"), (False, zeros))[: 1 + bool(zeros)]:
        for line in lines:
            if xs := line.nonfinite if top else line.zeros:
                style.edge(axes, xs, top, style.line(line.style)["color"], text)
                text = ""
    drifts = [row for line in lines for row, at in zip(line.rows, line.ys, strict=True) if 0 < at < math.inf]
    ringed = [row for row in drifts if bad(row)]
    if ringed:
        look: dict[str, Any] = {"marker": "o", "markersize": 11 * style.scale(), "markerfacecolor": "none"}
        look |= {"markeredgecolor": style.RED, "linestyle": "none", "zorder": 1}
        xs, ys = [row["offset"] for row in ringed], [row[y] for row in ringed]
        axes.plot(xs, ys, label="out of tolerance", **look)


def _inexact(axes: Axes, rows: Sequence[Row]) -> None:
    """Mark the offsets at which the longest sequence reaches a position that a format cannot hold.

    A sequence of s positions reaches position p at offset p - s + 1. A letter stands above each, and the
    legend has the words: within the axes they would cross the lines.
    """
    left, right = axes.get_xlim()
    length = max((int(row.get("seq_len") or 1) for row in rows), default=1)
    positions = {fmt: fmt.first_inexact_integer for row in rows if (fmt := position_format(row)) is not None}
    within = [fmt for fmt, position in positions.items() if left <= position - length + 1 <= right]
    above: dict[str, Any] = {"xycoords": axes.get_xaxis_transform(), "ha": "center", "va": "bottom"}
    for letter, fmt in zip(string.ascii_lowercase, sorted(within, key=positions.__getitem__), strict=False):
        offset = positions[fmt] - length + 1
        words = f"{letter}: offset {offset:,}; position {positions[fmt]:,} is inexact in {fmt.name}"
        axes.axvline(offset, label=words, color=style.GREY, linewidth=0.8, linestyle=(0, (2, 2)), zorder=1)
        axes.annotate(letter, (offset, 1.0), fontsize="small", color=style.GREY, **above)


def position_format(row: Row) -> Format | None:
    """Return the format of a row's positions: its stage's, or else the dtype."""
    stages = dict(word.partition("=")[::2] for word in str(row.get("stages") or "").split())
    try:
        return parse(str(stages.get("position", row.get("dtype"))).rpartition("/")[2])
    except UnknownName:
        return None


def _title(rows: Sequence[Row], columns: Sequence[str], y: str) -> str:
    """Return what drifts most, how far above its floor, and what is nonfinite."""
    if not rows:
        return "Nothing was measured."
    nonfinite = [row for row in rows if badness(row, y) == math.inf]
    finite = [row for row in rows if badness(row, y) < math.inf]
    parts = []
    if finite:
        worst = max(finite, key=lambda row: badness(row, y))
        found = f"is worst: {y} {short(worst[y])}" if y != Y else f"drifts most: {short(worst[y])} RMS"
        if y == Y and worst.get("floor_rms") and worst[y] > 2 * worst["floor_rms"]:
            found += f", {worst[y] / worst['floor_rms']:.3g} times its floor"
        parts.append(f"{label(worst, columns)} {found}, at offset {worst['offset']:,}")
    if nonfinite:
        first = min(nonfinite, key=lambda row: abs(row["offset"]))
        parts.append(f"{label(first, columns)} has nan or infinite scores at offset {first['offset']:,}")
    return "; ".join(parts)
