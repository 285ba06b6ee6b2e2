"""Drift against the offset: a line per subject and dtype, with what was to be expected of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ropeaudit.arithmetic.formats import parse
from ropeaudit.audits.summary import severity
from ropeaudit.features.plot import style
from ropeaudit.features.plot.style import Picture
from ropeaudit.reports import settings
from ropeaudit.reports.numbers import short
from ropeaudit.reports.verdicts import bad

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]
_EXPECTED = {  # column -> how it is drawn, what it is called
    "predicted_rms": ((0, (1, 1.5)), "predicted RMS"),
    "bound_max": ((0, (6, 2)), "bound of the largest |drift|"),
    "floor_rms": ("-", "floor: RMS drift at offset 0"),
}
_MOST_EXPECTED = 4  # lines beside which they can be told apart


def draw(rows: Sequence[Row]) -> Picture:
    """Return the picture of rows of `ropeaudit shift`; drift in score units, offsets in tokens."""
    seen = [row for row in rows if row.get("verdict") != "refused"]
    several = settings.varying([{name: row.get(name) for name in settings.NAMES} for row in seen])
    groups: dict[str, list[Row]] = {}
    for row in sorted(seen, key=lambda row: row["offset"]):
        groups.setdefault(style.named(row, several), []).append(row)
    stored, notes = style.limited(groups, style.MOST_LINES, "lines")
    title = _title(seen)
    built, (axes,) = style.figure(title)
    axes.set_yscale("log")
    for number, (name, some) in enumerate(stored.items()):
        _line(axes, some, name, style.line(number))
    if len(stored) <= _MOST_EXPECTED:
        _expected(axes, stored)
    else:
        notes.append(f"floors, predictions and bounds are drawn beside up to {_MOST_EXPECTED} lines")
    _edges(axes, stored)
    _out_of_tolerance(axes, stored)
    style.offsets_axis(axes, [row["offset"] for row in seen])
    _formats(axes, seen)
    axes.set_xlabel("offset added to every position (tokens)")
    axes.set_ylabel("RMS drift (score units)")
    style.legend(axes)
    if len(seen) < len(rows):
        notes.append(f"{len(rows) - len(seen)} rows were refused and have nothing to draw")
    return Picture(built, title, notes)


def _line(axes: Axes, some: Sequence[Row], name: str, look: Mapping[str, Any]) -> None:
    values = [row["drift_rms"] if row["drift_rms"] > 0 else math.nan for row in some]  # nan breaks the line
    axes.plot([row["offset"] for row in some], values, label=name, **look)
    sampled = [row for row in some if row.get("drift_rms_low") is not None]
    if sampled:
        low, high = ([float(row[f"drift_rms_{end}"]) for row in sampled] for end in ("low", "high"))
        axes.fill_between([row["offset"] for row in sampled], low, high, color=look["color"], alpha=0.2, lw=0)


def _expected(axes: Axes, groups: Mapping[str, Sequence[Row]]) -> None:
    """Draw floors, predictions and bounds in the colour of their line; the legend names them once."""
    reported = set()
    for number, some in enumerate(groups.values()):
        for column, (dash, label) in _EXPECTED.items():
            points = [(row["offset"], row.get(column)) for row in some]
            stored = [(x, y) for x, y in points if y is not None and 0 < y < math.inf]
            if stored:
                xs, ys = zip(*stored, strict=True)
                look = {"color": style.line(number)["color"], "linestyle": dash, "linewidth": 0.9}
                axes.plot(xs, ys, alpha=0.65, label=None if label in reported else label, **look)
                reported.add(label)


def _edges(axes: Axes, groups: Mapping[str, Sequence[Row]]) -> None:
    """Mark what is not on the scale, in the colour of its line; the legend names each kind once."""
    kinds: tuple[tuple[bool, str, Callable[[float], bool]], ...] = (
        (True, "nan or infinite scores", math.isnan),
        (False, "no drift at all", lambda value: value == 0),
    )
    for top, label, holds in kinds:
        reported = False
        for number, some in enumerate(groups.values()):
            if xs := [row["offset"] for row in some if holds(row["drift_rms"])]:
                style.edge(axes, xs, top, style.line(number)["color"], "_" if reported else label)
                reported = True


def _out_of_tolerance(axes: Axes, groups: Mapping[str, Sequence[Row]]) -> None:
    """Ring the points that are not good enough; the legend says so once."""
    rows = [row for some in groups.values() for row in some if bad(row) and 0 < row["drift_rms"] < math.inf]
    if rows:
        look: dict[str, Any] = {
            "marker": "o",
            "markersize": 11,
            "markerfacecolor": "none",
            "markeredgecolor": style.RED,
        }
        places = [row["offset"] for row in rows], [row["drift_rms"] for row in rows]
        axes.plot(*places, linestyle="none", zorder=1, label="out of tolerance", **look)


def _formats(axes: Axes, rows: Sequence[Row]) -> None:
    """Mark the offset at which the sequence reaches a position that a format cannot hold."""
    names = dict.fromkeys(name for row in rows if (name := _position_format(row)))
    length = max((row.get("seq_len") or 1 for row in rows), default=1)
    left, right = axes.get_xlim()
    for name in names:
        position = parse(name).first_inexact_integer
        at = position - length + 1
        if left <= at <= right:
            axes.axvline(at, color=style.GREY, linewidth=0.8, linestyle=(0, (2, 2)))
            axes.annotate(
                f"{name}: first inexact\nposition {position:,}",
                (at, 0.02),
                xycoords=axes.get_xaxis_transform(),
                xytext=(3, 0),
                textcoords="offset points",
                fontsize=6.5,
                color=style.GREY,
                rotation=90,
                va="bottom",
                zorder=1,  # no text hides a line
                bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5},
            )


def _position_format(row: Row) -> str | None:
    """The format in which a row's positions are stored, the model's where nothing else is known."""
    stages = dict(word.partition("=")[::2] for word in (row.get("stages") or "").split())
    name = stages.get("position", row.get("dtype"))
    return str(name).rpartition("/")[2] if name else None


def _title(rows: Sequence[Row]) -> str:
    """The finding: what drifts most, how much more than at its floor, and what is lost."""
    if not rows:
        return "Nothing was measured."
    nonfinite = [row for row in rows if severity(row, "drift_rms") == math.inf]
    left = [row for row in rows if severity(row, "drift_rms") < math.inf]
    message = []
    if left:
        worst = max(left, key=lambda row: severity(row, "drift_rms"))
        times = f"{short(worst['drift_rms'])} RMS"
        if worst.get("floor_rms") and worst["drift_rms"] > 2 * worst["floor_rms"]:
            times += f", {worst['drift_rms'] / worst['floor_rms']:.3g} times its floor"
        message.append(f"{style.named(worst, ())} drifts most: {times}, at offset {worst['offset']:,}")
    if nonfinite:
        first = min(nonfinite, key=lambda row: abs(row["offset"]))
        message.append(f"{style.named(first, ())} has nan or infinite scores at offset {first['offset']:,}")
    return "; ".join(message)
