"""Drift against the offset: a line per subject and dtype, with what was to be expected of it."""

from __future__ import annotations

import math
import string
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ropeaudit.reports import Row
from ropeaudit.reports.charts import style
from ropeaudit.reports.charts.series import Mark, Series, drift_series, inexact_marks, label, varying_settings
from ropeaudit.reports.charts.style import Picture
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
    notes += _drawn(axes, lines, measured, y)
    height = 3.8 + 0.13 * style.legend(figure, axes)  # inches
    if len(measured) < len(rows):
        notes.append(f"{len(rows) - len(measured)} rows were refused and have nothing to draw")
    return Picture(figure, title, notes, max(height, style.SIZE[1]))


def svg(rows: Sequence[Row]) -> tuple[str, Picture]:
    """Return the picture of rows as the text of an .svg file, which equal rows give again, and as it is.

    Raises: UsageError.
    """
    with style.sized(None):
        picture = draw(rows)
        picture.figure.set_figheight(picture.height)
        return style.encoded(picture, "svg").decode(), picture


def on(axes: Axes, rows: Sequence[Row]) -> Axes:
    """Draw the same on axes that are there, with a legend in them and without a title; return them."""
    measured, lines, _, _ = _read(rows, Y)
    _drawn(axes, lines, measured, Y)
    if lines:
        axes.legend(fontsize="small")
    return axes


def _read(rows: Sequence[Row], y: str) -> tuple[list[Row], list[Series], Sequence[str], list[str]]:
    """Return what was measured, the lines to draw, the settings in which rows differ, and notes."""
    measured = [row for row in rows if row.get("verdict") != "refused"]
    columns = varying_settings(measured)
    by_offset = sorted(measured, key=lambda row: row["offset"])
    named = {line.label: line for line in drift_series(by_offset, lambda row: label(row, columns), y)}
    shown, notes = style.limited(_worst(named, y), style.MOST_LINES, "lines, those that drift least,")
    lines = [replace(line, label=name) for name, line in shown.items()]
    return measured, lines, columns, notes


def _drawn(axes: Axes, lines: Sequence[Series], measured: Sequence[Row], y: str) -> list[str]:
    """Draw lines and what goes with them; return notes."""
    notes = []
    signed = any(point.y < 0 for line in lines for point in line.points)
    axes.set_yscale("linear" if signed else "log")
    for line in lines:
        _line(axes, line, signed)
    if y == Y:
        _sampled(axes, lines)
    if y == Y and len(lines) <= _MOST_EXPECTED:
        _expected(axes, lines)
    elif y == Y:
        notes.append(f"floors, predictions and bounds are drawn beside up to {_MOST_EXPECTED} lines")
    _edges(axes, lines, "" if signed else "no drift at all" if y == Y else "zero")
    _out_of_tolerance(axes, lines)
    style.offsets_axis(axes, [row["offset"] for row in measured])
    _marks(axes, inexact_marks(measured))
    axes.set_xlabel("offset added to every position (tokens)")
    axes.set_ylabel("RMS drift (score units)" if y == Y else y.replace("_", " "))
    return notes


def _worst(named: Mapping[str, Series], y: str) -> dict[str, Series]:
    """Return the lines that drift most, as many as fit, in the order in which they came; then the rest."""

    def size(name: str) -> float:
        return max(badness(point.row, y) for point in named[name].points)

    drawn = set(sorted(named, key=size, reverse=True)[: style.MOST_LINES])
    return {name: named[name] for name in sorted(named, key=lambda name: name not in drawn)}


def _line(axes: Axes, line: Series, signed: bool) -> None:
    """Draw a line, broken where a value has no place on the axis."""
    look = style.line(line.style)
    values = [point.y if signed or point.y > 0 else math.nan for point in line.points]
    axes.plot([point.x for point in line.points], values, label=style.plain(line.label), **look)


def _sampled(axes: Axes, lines: Sequence[Series]) -> None:
    """Draw the intervals of sampled values, in the colour of their line."""
    for line in lines:
        sampled = [point for point in line.points if point.row.get("drift_rms_low") is not None]
        if sampled:
            low, high = ([float(at.row[f"drift_rms_{end}"]) for at in sampled] for end in ("low", "high"))
            colour = style.line(line.style)["color"]
            axes.fill_between([point.x for point in sampled], low, high, color=colour, alpha=0.2, lw=0)


def _expected(axes: Axes, lines: Sequence[Series]) -> None:
    """Draw floors, predictions and bounds in the colour of their line; the legend names them once."""
    labels = set()
    for line in lines:
        for column, (dash, text) in _EXPECTED.items():
            points = [(point.x, point.row.get(column)) for point in line.points]
            on_scale = [(x, y) for x, y in points if y is not None and 0 < y < math.inf]
            if on_scale:
                xs, ys = zip(*on_scale, strict=True)
                colour = style.line(line.style)["color"]
                axes.plot(xs, ys, alpha=0.65, color=colour, linestyle=dash, linewidth=0.9)
                if text not in labels:
                    axes.plot([], [], color=style.GREY, linestyle=dash, linewidth=0.9, label=text)
                labels.add(text)


def _edges(axes: Axes, lines: Sequence[Series], zeros: str) -> None:
    """Mark what is not on the scale, in the colour of its line; the legend names each kind once.

    zeros: what zeros are called there, empty where they are on the scale.
    """
    for top, text in ((True, "nan or infinite scores"), (False, zeros))[: 1 + bool(zeros)]:
        for line in lines:
            if xs := line.nonfinite() if top else line.zeros():
                style.edge(axes, xs, top, style.line(line.style)["color"], text)
                text = ""


def _out_of_tolerance(axes: Axes, lines: Sequence[Series]) -> None:
    """Ring the points that are not good enough; the legend says so once."""
    points = [point for line in lines for point in line.points if bad(point.row) and 0 < point.y < math.inf]
    if points:
        look: dict[str, Any] = {
            "marker": "o",
            "markersize": 11 * style.scale(),
            "markerfacecolor": "none",
            "markeredgecolor": style.RED,
        }
        places = [point.x for point in points], [point.y for point in points]
        axes.plot(*places, linestyle="none", zorder=1, label="out of tolerance", **look)


def _marks(axes: Axes, marks: Sequence[Mark]) -> None:
    """Mark the offsets at which the sequence reaches a position that a format cannot hold.

    A letter stands above each, and the legend has the words: within the axes they would cross the lines.
    """
    left, right = axes.get_xlim()
    within = sorted((mark for mark in marks if left <= mark.offset <= right), key=lambda mark: mark.offset)
    for letter, mark in zip(string.ascii_lowercase, within, strict=False):
        words = f"{letter}: offset {mark.offset:,}; position {mark.position:,} is inexact in {mark.format}"
        look: dict[str, Any] = {"color": style.GREY, "linewidth": 0.8, "linestyle": (0, (2, 2)), "zorder": 1}
        axes.axvline(mark.offset, label=words, **look)
        axes.annotate(
            letter,
            (mark.offset, 1.0),
            xycoords=axes.get_xaxis_transform(),
            fontsize="small",
            color=style.GREY,
            ha="center",
            va="bottom",
        )


def _title(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], y: str) -> str:
    """Return what drifts most, how much more than at its floor, and where scores are not finite."""
    if not rows:
        return "Nothing was measured."
    nonfinite = [row for row in rows if badness(row, y) == math.inf]
    finite = [row for row in rows if badness(row, y) < math.inf]
    parts = []
    if finite and y != Y:
        worst = max(finite, key=lambda row: badness(row, y))
        parts.append(
            f"{label(worst, columns)} is worst: {y} {short(worst[y])}, at offset {worst['offset']:,}"
        )
    elif finite:
        worst = max(finite, key=lambda row: badness(row, y))
        size = f"{short(worst['drift_rms'])} RMS"
        if worst.get("floor_rms") and worst["drift_rms"] > 2 * worst["floor_rms"]:
            size += f", {worst['drift_rms'] / worst['floor_rms']:.3g} times its floor"
        parts.append(f"{label(worst, columns)} drifts most: {size}, at offset {worst['offset']:,}")
    if nonfinite:
        first = min(nonfinite, key=lambda row: abs(row["offset"]))
        parts.append(f"{label(first, columns)} has nan or infinite scores at offset {first['offset']:,}")
    return "; ".join(parts)
