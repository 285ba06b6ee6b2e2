"""Pictures of reports, a function for each kind; matplotlib is imported only to draw.

Colours are those of Okabe and Ito (jfly.uni-koeln.de/color) for the colour-blind; every line also has a dash
and a marker of its own, for prints without colours.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import math
import re
import string
import textwrap
import tomllib
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ropeaudit import data
from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.audits.comparison import value
from ropeaudit.errors import UsageError
from ropeaudit.recipes import STAGES
from ropeaudit.reports import Row, settings
from ropeaudit.reports.numbers import part, printable, setting
from ropeaudit.reports.verdicts import bad, badness, stored

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ORANGE, GREEN, RED, BLUE, PURPLE, GREY = "#E69F00", "#009E73", "#D55E00", "#0072B2", "#CC79A7", "#666666"
_COLOURS = (BLUE, RED, GREEN, PURPLE, ORANGE, "#56B4E9", "#000000")
_DASHES = ("-", "--", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)))
_MARKERS = "osD^vP*X"
_HATCHES = ("", "///", "...", "xxx", "\\\\\\", "ooo", "++")
_THIN: dict[str, Any] = {"color": GREY, "linewidth": 0.8, "linestyle": (0, (2, 2))}
MOST_LINES, _MOST_BARS, _MOST_PANELS = 24, 48, 6
SIZE = (8.6, 4.8)  # inches
_FULL = (5.0, 3.5)  # inches: in a smaller figure texts and lines are smaller
_WIDE_RANGE = 20  # largest over smallest from which on an axis is logarithmic


@dataclass(slots=True)
class Picture:
    """A figure, its title, and notes on what it leaves out.

    height: inches that the content needs at the default width.
    """

    figure: Figure
    title: str
    notes: list[str] = field(default_factory=list)
    height: float = SIZE[1]


class Line(NamedTuple):
    """A line of a chart: rows in ascending order of xs, ys (nan where missing), and its look."""

    rows: Sequence[Row]
    xs: Array
    ys: Array
    look: dict[str, Any]

    @property
    def above_zero(self) -> Array:
        """The ys above zero; the others are nan, as a logarithmic axis has no place for them."""
        return np.where(self.ys > 0, self.ys, np.nan)


# --- drift against the offset


DRIFT = "drift_rms"  # the default of the drawn column
_EXPECTED: dict[str, dict[str, Any]] = {
    "predicted_rms": {"linestyle": (0, (1, 1.5)), "label": "predicted RMS"},
    "bound_max": {"linestyle": (0, (6, 2)), "label": "bound of the largest |drift|"},
    "floor_rms": {"linestyle": "-", "label": "floor: RMS drift at offset 0"},
}
_MOST_EXPECTED = 4  # lines beside which these are legible


def drift(rows: Sequence[Row], headline: str, y: str = DRIFT) -> Picture:
    """Draw rows of `ropeaudit shift`; drift in score units, offsets in tokens.

    y: the numeric column that is drawn over the offset.
    """
    measured = [row for row in rows if row.get("verdict") != "refused"]
    figure, (axes,) = new_figure(headline)
    notes = draw_drift(axes, measured, y)
    if len(measured) < len(rows):
        notes.append(f"{len(rows) - len(measured)} rows were refused and have nothing to draw")
    return Picture(figure, headline, notes, max(3.8 + 0.13 * _legend(figure, axes), SIZE[1]))


def draw_drift(axes: Axes, rows: Sequence[Row], y: str = DRIFT) -> list[str]:
    """Draw rows of `ropeaudit shift` on axes, the lines that drift most if there are too many; return notes.

    The scale is linear if some value is negative, else logarithmic, with gaps at zeros.
    """
    columns = settings.independent(rows)
    shown, notes = _grouped(
        rows,
        lambda row: _line_name(row, columns),
        MOST_LINES,
        "lines, those that drift least,",
        size=lambda group: max(badness(row, y) for row in group),
    )
    lines = [_line(group, "offset", y, number) for number, group in enumerate(shown.values())]
    signed = any((line.ys < 0).any() for line in lines)
    axes.set_yscale("linear" if signed else "log")
    for name, line in zip(shown, lines, strict=True):
        axes.plot(line.xs, line.ys if signed else line.above_zero, label=_without_formulas(name), **line.look)
        # the interval of a sample, and rings around values out of tolerance
        if sampled := [row for row in line.rows if y == DRIFT and row.get("drift_rms_low") is not None]:
            low, high = ([float(row[f"drift_rms_{end}"]) for row in sampled] for end in ("low", "high"))
            at = [row["offset"] for row in sampled]
            axes.fill_between(at, low, high, color=line.look["color"], alpha=0.2, lw=0)
        if ringed := [row for row in line.rows if bad(row) and 0 < value(row, y) < math.inf]:
            at, sizes = [row["offset"] for row in ringed], [row[y] for row in ringed]
            axes.plot(at, sizes, "o", label="out of tolerance", ms=11, mfc="none", mec=RED, zorder=1)
    nothing = "no drift at all" if y == DRIFT else "zero"
    _mark_off_scale(axes, lines, "nan or infinite scores", "" if signed else nothing)
    if y == DRIFT and len(lines) <= _MOST_EXPECTED:
        for line, (column, look) in itertools.product(lines, _EXPECTED.items()):
            ys = np.array([value(row, column) for row in line.rows])
            on_scale = (ys > 0) & np.isfinite(ys)
            look = look | {"color": line.look["color"], "alpha": 0.65, "lw": 0.9}
            if on_scale.any():
                axes.plot(line.xs[on_scale], ys[on_scale], **look)
    elif y == DRIFT:
        notes.append(f"floors, predictions and bounds are drawn beside up to {_MOST_EXPECTED} lines")
    _scale_offsets(axes, [row["offset"] for row in rows])
    _draw_inexact(axes, rows)
    axes.set_xlabel("offset added to every position (tokens)")
    axes.set_ylabel("RMS drift (score units)" if y == DRIFT else y.replace("_", " "))
    return notes


def _draw_inexact(axes: Axes, rows: Sequence[Row]) -> None:
    """Mark the offsets at which the longest sequence reaches a position that a format cannot hold.

    A sequence of s positions reaches position p at offset p - s + 1. The legend explains the letters.
    """
    left, right = axes.get_xlim()
    length = max((int(row.get("seq_len") or 1) for row in rows), default=1)
    # in a row without stages, positions have the dtype
    stages = {f"position={row.get('dtype')} {row.get('stages') or ''}" for row in rows}
    formats = {known["position"] for known in map(stored, stages) if "position" in known}
    reached = sorted((fmt.first_inexact_integer - length + 1, fmt.name) for fmt in formats)
    within = [(offset, name) for offset, name in reached if left <= offset <= right]
    for letter, (offset, name) in zip(string.ascii_lowercase, within, strict=False):
        words = f"offset {offset:,}; position {offset + length - 1:,} is inexact in {name}"
        axes.axvline(offset, label=f"{letter}: {words}", zorder=1, **_THIN)
        _write_above(axes, offset, letter)


# --- explain: stages and frequencies


_LEAST = 0.0005  # of the mean square drift: a smaller share reads 0.0 % and has no bar to be seen
_CAUSES = ("aliasing", "sensitivity", "quantisation", "cancellation", "overflow")
_LOOKS = zip((RED, BLUE, GREEN, PURPLE, ORANGE), _HATCHES, strict=False)
_OF_CAUSE = dict(zip(_CAUSES, _LOOKS, strict=True))


def stages(rows: Sequence[Row], headline: str) -> Picture:
    """Draw rows by stage; `headline` is the finding of their report."""
    visible = [row for row in rows if not math.isfinite(value(row, "share")) or abs(row["share"]) >= _LEAST]
    cases, notes = _grouped_by_case(visible, _MOST_PANELS)
    if len(visible) < len(rows):
        notes.append("stages that hold less than 0.05 % of the mean square drift are left out")
    most = max(map(len, cases.values()), default=1)
    figure, panels = new_figure(headline, len(cases), sharex=True)
    for axes, (name, group) in zip(panels, cases.items(), strict=True):
        order = sorted(group, key=lambda row: (*STAGES, row["stage"]).index(row["stage"]))
        words = []
        for place, row in enumerate(order):
            cause, known = str(row.get("cause")), math.isfinite(value(row, "share"))
            colour, hatch = _OF_CAUSE.get(cause, (GREY, ""))
            width = 100 * row["share"] if known else 0.0
            axes.barh(place, width, edgecolor="white", color=colour, hatch=hatch)
            words.append(f"{part(row['share'])} {cause}" if known else f"not defined: {cause}")
            if not known:
                axes.plot([0], [place], marker="X", color=RED, clip_on=False)
        _bars(axes, [f"{row['stage']} ({row['format']})" for row in order], words)
        axes.set_title(name)
    panels[-1].set_xlabel("share of the mean square drift (%, Shapley)")
    return Picture(figure, headline, notes, height=1.3 + len(cases) * (0.6 + 0.2 * most))


def frequencies(rows: Sequence[Row], headline: str, length: int) -> Picture:
    """Draw rows by pair. length: positions of the sequence."""
    cases, notes = _grouped_by_case(rows, MOST_LINES)
    figure, (axes,) = new_figure(headline)
    axes.set(xscale="log", xlabel="wavelength of the frequency pair (tokens of a full turn)")
    axes.set(yscale="log", ylabel="RMS drift (score units)")
    lines, of_no_pair = list[Line](), dict[str, None]()
    for number, (name, group) in enumerate(cases.items()):
        line = _line(
            [row for row in group if math.isfinite(value(row, "wavelength"))],
            "wavelength",
            "part_rms",
            number,
        )
        lines.append(line)
        axes.plot(line.xs, line.above_zero, label=name, ms=3, **line.look)
        for row in group:
            if isinstance(row["pair"], str) and row["part_rms"]:
                axes.axhline(row["part_rms"], **_THIN | {"color": line.look["color"]})
                of_no_pair[row["pair"]] = None
    for text in of_no_pair:
        axes.plot([], [], label=text, **_THIN)
    _mark_off_scale(axes, lines, "nan or infinite", "no drift at all")
    if length:
        axes.axvline(length, **_THIN)
        _write_above(axes, length, f"← fast   {length:,} positions   slow →")
    _legend(figure, axes)
    return Picture(figure, headline, notes)


# --- decay and limit


_PANELS = {
    "rms_relative": "RMS score / that at distance 0",
    "bound": "RoFormer's bound (§3.4.3)",
    "men_sum": "Σ cos(distance·θ) (Men et al.); ●: first negative",
}
_FEW = 40  # points of a line, each of which has a marker


def decay(rows: Sequence[Row], headline: str) -> Picture:
    """Draw rows of `ropeaudit decay`; distances in tokens."""
    figure, panels = new_figure(headline, len(_PANELS), sharex=True)
    several, notes = len({row["setting"] for row in rows}) > 1, dict[str, None]()
    for axes, (column, title) in zip(panels, _PANELS.items(), strict=True):
        names = ["setting"] * several + ["source"] * (column == "rms_relative")

        def words(row: Row, names: Sequence[str] = names) -> str:
            return printable(" ".join(str(row[name]) for name in names)) or "exact"

        groups, left_out = _grouped(rows, words, MOST_LINES, "lines")
        notes |= dict.fromkeys(left_out)
        lines = []
        for number, (name, group) in enumerate(groups.items()):
            unique = {row["distance"]: row for row in group}  # some columns do not depend on the source
            line = _line(unique.values(), "distance", column, number)
            look = line.look if len(line.xs) <= _FEW else line.look | {"marker": ""}
            axes.plot(line.xs, line.ys, label=name, **look)
            lines.append(line)
        _mark_off_scale(axes, lines, "undefined")
        _scale_offsets(axes, [row["distance"] for row in rows])
        axes.axhline(0, color="black", linewidth=0.6)
        axes.set_title(title)
    for first in {row["first_failing"] for row in rows if row.get("first_failing")}:
        panels[-1].plot([first], [0], "o", color=RED, mec="white", zorder=6)
    _legend(figure, panels[0])
    panels[-1].set_xlabel("distance between query and key (tokens)")
    return Picture(figure, headline, list(notes), height=8.0)


def limit(rows: Sequence[Row], headline: str) -> Picture:
    """Draw rows of `ropeaudit limit`; positions in tokens."""
    telling, shown = settings.independent(rows), rows[:_MOST_BARS]
    bounds = {(row["tolerance_column"], setting(row["tolerance"])) for row in rows}
    tolerances = "the tolerance"
    if len(bounds) == 1:
        [(column, bound)] = bounds
        tolerances = f"{column} {'≥' if column == 'distinct_positions' else '≤'} {bound}"
    figure, (axes,) = new_figure(headline)
    axes.set_xscale("log")
    dtypes, names, words = list(dict.fromkeys(row["dtype"] for row in shown)), [], []
    for place, row in enumerate(shown):
        number, proved = dtypes.index(row["dtype"]), row["proved_position"]
        own = f" {row['tolerance_column']}={setting(row['tolerance'])}" if len(bounds) > 1 else ""
        names.append(_shorten(f"{_line_name(row, telling)}{own}", place))
        guaranteed = proved or 1
        tested = max(guaranteed, row["measured_position"] or 1)
        look = {"color": line_look(number)["color"], "hatch": _HATCHES[number % len(_HATCHES)]}
        look |= {"edgecolor": "white", "label": f"{row['dtype']}: guaranteed"}
        axes.barh(place, guaranteed - 0.999, left=0.999, **look)
        if tested > guaranteed:
            look = {"color": "#dddddd", "label": "tested without a failure, not guaranteed"}
            axes.barh(place, tested - guaranteed, left=guaranteed, edgecolor="white", **look)
        if row["first_failure_seen"] is not None:
            at, look = max(1, row["failure_position"]), {"color": RED, "label": "first failure"}
            axes.plot([at], [place], "X", clip_on=False, **look)
        if row["maximum"]:
            look = {"color": "black", "linewidth": 2, "label": "the model's maximum"}
            axes.plot([row["maximum"]] * 2, [place - 0.45, place + 0.45], **look)
        nothing = "fails at offset 0" if row["measured_position"] is None else "nothing guaranteed"
        words.append(nothing if proved is None else f"guaranteed up to {proved:,}")
    lines = _bars(axes, names, words)
    axes.set_xlim(left=1)
    axes.set_xlabel(f"last position that meets {tolerances} (tokens)")
    _legend(figure, axes)
    notes = _left_out_note(len(rows), _MOST_BARS, "rows")
    return Picture(figure, headline, notes, height=1.8 + 0.24 * lines)


# --- one case by query and key


def scores(drifts: Array, hidden: NDArray[np.bool_], title: str, over: str) -> Picture:
    """Draw a value by query and key."""
    from matplotlib.colors import ListedColormap, LogNorm

    figure, (axes,) = new_figure(title)
    finite = np.isfinite(drifts)
    shown = drifts[~hidden & finite & (drifts > 0)]
    low, high = (float(shown.min()), float(shown.max())) if shown.size else (1.0, 1.0)
    low = max(low, high * 1e-4, float(np.percentile(shown, 2)) if shown.size else 0.0)
    visible = np.ma.masked_array(np.maximum(drifts, low), hidden | ~finite)
    norm = LogNorm(low, max(high, low * 1.001))
    image = axes.imshow(visible, norm=norm, cmap="cividis", interpolation="nearest")
    lost = ~hidden & ~finite
    if lost.any():
        red = ListedColormap([RED])
        axes.imshow(np.ma.masked_array(lost, ~lost), cmap=red, interpolation="nearest")
        axes.plot([], [], "s", color=RED, label="nan or infinite scores")
        _legend(figure, axes)
    axes.grid(False)
    axes.set(xlabel="key n (index before the shift)", ylabel="query m (index before the shift)")
    if shown.size:
        figure.colorbar(image, ax=axes, label=over, extend="min")
    return Picture(figure, title, height=6.4)


# --- parts of all pictures


@contextlib.contextmanager
def sized(size: tuple[float, float] | None) -> Iterator[None]:
    """Within the block, give figures a size in inches, with texts and lines to fit."""
    import matplotlib

    width, height = size or SIZE
    scale = min(1.0, max(0.6, min(width / _FULL[0], height / _FULL[1])))
    parameters: dict[Any, Any] = tomllib.loads(data.text("picture.toml"))
    parameters |= {"figure.figsize": (width, height), "font.size": 10.0 * scale}
    parameters |= {"lines.linewidth": 1.6 * scale, "lines.markersize": 6.0 * scale}
    with matplotlib.rc_context(parameters):
        yield


def _title_characters() -> int:
    import matplotlib

    return int(72 * matplotlib.rcParams["figure.figsize"][0] / (0.65 * matplotlib.rcParams["font.size"]))


def new_figure(title: str, panels: int = 1, **axes: Any) -> tuple[Figure, list[Axes]]:
    """Return a figure titled with the first clause of a text, and its panels, top to bottom."""
    from matplotlib.figure import Figure

    figure = Figure(layout="constrained")
    places = figure.subplots(panels, 1, squeeze=False, **axes)[:, 0]
    retitle(figure, re.split(r"(?<=;) |(?<=\.) (?=[A-Z(])", title)[0].rstrip(";"))
    return figure, list(places)


def retitle(figure: Figure, title: str) -> None:
    """Set the title of a figure, in up to three lines; none if it is empty."""
    lines = textwrap.fill(
        _without_formulas(printable(title)), _title_characters(), max_lines=3, placeholder=" …"
    )
    figure.suptitle(lines, x=0.01, ha="left")


def _without_formulas(text: str) -> str:
    return text.replace("$", r"\$")


def _line_name(row: Row, columns: Iterable[str]) -> str:
    words = [str(row[name]) for name in ("implementation", "dtype") if row.get(name) is not None]
    for name in columns:
        words.append(f"{'' if name == 'model' else f'{name}='}{setting(row.get(name))}")
    return printable(" ".join(words)) or "exact"


def _line(rows: Iterable[Row], x: str, y: str, number: int) -> Line:
    """Return the line of two columns. number: decides its look."""
    ordered = sorted(rows, key=lambda row: row[x])
    xs, ys = (np.array([value(row, name) for row in ordered]) for name in (x, y))
    return Line(ordered, xs, ys, line_look(number))


def line_look(number: int) -> dict[str, Any]:
    """Return colour, dash and marker of a line; 280 are different."""
    looks = (("color", _COLOURS), ("linestyle", _DASHES), ("marker", _MARKERS))
    return {name: every[number % len(every)] for name, every in looks}


def labelled(axes: Axes) -> dict[str, Any]:
    """Return the entries of the legend by label, each once."""
    handles, labels = axes.get_legend_handles_labels()
    return dict(zip(labels, handles, strict=True))


def _legend(figure: Figure, axes: Axes) -> int:
    """Add the legend below the axes; return the number of its lines."""
    once = labelled(axes)
    if not once:
        return 0
    for columns in (4, 3, 2, 1):
        parts = [part for part in np.array_split(list(once), columns) if len(part)]
        if sum(8 + max(map(len, part)) for part in parts) < 1.6 * _title_characters():  # each with its marks
            break
    figure.legend(once.values(), once.keys(), loc="outside lower left", ncols=columns)
    return -(-len(once) // columns)


def _bars(axes: Axes, names: Sequence[str], words: Sequence[str]) -> int:
    """Label bars on both sides; return the lines that names take."""
    wrapped = [textwrap.fill(name, int(0.6 * _title_characters()), break_on_hyphens=False) for name in names]
    axes.set_yticks(range(len(names)), wrapped)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(False, axis="y")
    right = axes.secondary_yaxis("right")
    right.set_yticks(range(len(words)), words)
    right.tick_params(length=0)
    right.spines["right"].set_visible(False)
    return sum(text.count("\n") + 1 for text in wrapped)


def _scale_offsets(axes: Axes, values: Sequence[float]) -> None:
    """Scale a wide range of offsets logarithmically around 0."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator, SymmetricalLogLocator

    sizes = sorted({abs(x) for x in values if x})
    if sizes and sizes[-1] > _WIDE_RANGE * sizes[0]:
        linear = 10 ** math.ceil(math.log10(sizes[0])) * (1 + 1e-9)  # no tick but 0 below it
        axes.set_xscale("symlog", linthresh=linear, linscale=0.7)
        ticks = SymmetricalLogLocator(base=10, linthresh=linear)
        ticks.set_params(numticks=8)
        axes.xaxis.set_major_locator(ticks)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    axes.margins(x=0.03)


def _write_above(axes: Axes, x: float, text: str) -> None:
    above = axes.get_xaxis_transform()
    axes.text(x, 1.0, text, transform=above, ha="center", va="bottom", fontsize="small", color=GREY)


def _mark_off_scale(axes: Axes, lines: Iterable[Line], lost: str, nothing: str = "") -> None:
    """Mark nonfinite values on top, and zeros at the bottom."""
    for line in lines:
        look = {"color": line.look["color"], "markeredgecolor": "white", "zorder": 5}
        places = {lost: ~np.isfinite(line.ys), nothing: line.ys == 0}
        for label, mask in places.items():
            if label and mask.any():
                look |= {"label": label, "transform": axes.get_xaxis_transform(), "clip_on": False}
                height, mark = (1.0, "X") if label == lost else (0.0, "v")
                axes.plot(line.xs[mask], np.full(mask.sum(), height), mark, **look)


def _shorten(name: str, number: int) -> str:
    half = min(90, _title_characters()) // 2
    return name if len(name) <= 2 * half + 1 else f"[{number + 1}] {name[:half]}…{name[-half:]}"


def _left_out_note(count: int, most: int, noun: str) -> list[str]:
    left = count - most
    why = f"are not drawn, for {most} fit: give a file with fewer of them"
    return [f"{left} of {count} {noun} {why}"] if left > 0 else []


def _grouped(
    rows: Sequence[Row],
    name: Callable[[Row], str],
    most: int,
    noun: str,
    size: Callable[[list[Row]], float] = lambda group: 0.0,
) -> tuple[dict[str, list[Row]], list[str]]:
    """Return the rows by name, the largest groups at most, and a note on the others."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(name(row), []).append(row)
    largest = set(sorted(groups, key=lambda each: size(groups[each]), reverse=True)[:most])
    shown = [each for each in groups if each in largest]
    labelled_groups = {_shorten(each, number): groups[each] for number, each in enumerate(shown)}
    return labelled_groups, _left_out_note(len(groups), most, noun)


def _grouped_by_case(rows: Sequence[Row], most: int) -> tuple[dict[str, list[Row]], list[str]]:
    columns = settings.independent(rows)
    return _grouped(
        rows, lambda row: f"{_line_name(row, columns)} at offset {row['offset']:,}", most, "cases"
    )


def encoded(picture: Picture, suffix: str) -> bytes:
    """Return the bytes of a file, always the same for a picture.

    Raises: UsageError if title and legend leave no room for the axes.
    """
    file = io.BytesIO()
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        picture.figure.savefig(file, format=suffix, metadata=undated[suffix])
    width, height = picture.figure.get_size_inches()
    least = 0.25 / height  # of the figure: axes that are lower show nothing
    crowded = any(axes.get_position().height < least for axes in picture.figure.axes)
    if crowded or any("not applied" in str(warning.message) for warning in caught):
        raise UsageError(
            f"names, title and legend leave no room for the axes in {width:g} x {height:g} inches; give a "
            "larger --size, or --title ''"
        )
    return file.getvalue()
