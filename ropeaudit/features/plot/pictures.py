"""Pictures of results and of reports: a function a kind, but that of drift. matplotlib loads only to draw."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.audits import arguments
from ropeaudit.audits.cases import Case, fits, positions_fit
from ropeaudit.audits.records import COLUMNS, Record
from ropeaudit.audits.variants import Bench, Sample
from ropeaudit.errors import BadInput, UnknownName, UsageError
from ropeaudit.inputs import masks
from ropeaudit.recipes import STAGES, Resolved
from ropeaudit.reports import Row, needed, numbers, reading, settings
from ropeaudit.reports.charts import drift, style
from ropeaudit.reports.charts.style import Picture, Series
from ropeaudit.reports.numbers import part, printable, short
from ropeaudit.rope.scaling_names import shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# kind -> the command whose report it is drawn from, and the columns that this must have
_SOURCES = {
    "drift": ("shift", "implementation offset"),
    "stages": ("explain", "implementation offset stage share format"),
    "frequencies": ("explain", "implementation offset pair wavelength part_rms"),
    "decay": ("decay", "distance rms_relative bound men_sum setting source"),
    "limit": (
        "limit",
        "dtype proved_position measured_position measured_offsets failure_position maximum tolerance",
    ),
}
_MOST_BARS = 48
MOST_POSITIONS = 2048
# kind -> --by, table beside other rows
_TABLES = {"stages": ("stage", "stages"), "frequencies": ("pair", "pairs")}


@arguments.checked
def plot(results: Iterable[Record], *, ax: Axes | None = None) -> Axes:
    """Draw drift against the offset, a line per implementation and dtype; return the axes.

    results: of `ropeaudit.shift`.
    ax: axes of matplotlib that it is drawn on, with a legend in them; by default those of a new figure, whose
    title is the finding. Drift in score units, offsets in tokens. `ropeaudit plot` draws other reports too.
    Raises: UsageError, MissingPackage.
    """
    needed("matplotlib", "a picture", "plot")
    listed: list[Any] = list(results)
    if not listed or not all(isinstance(one, Record) for one in listed):
        raise UsageError("plot draws what ropeaudit.shift returns; give such results")
    rows = shortened([one.as_dict() for one in listed])
    if ax is not None:
        return drift.on(ax, rows)
    axes: Axes = drift.draw(rows).figure.axes[0]
    return axes


def picture(kind: str, path: str, y: str | None = None) -> Picture:
    """Draw a report: any data file of `ropeaudit shift`, the .json of other commands.

    y: the column that is drawn where kind is "drift". Raises: BadInput, UnknownName, MissingPackage.
    """
    command, columns = _SOURCES[kind]
    if kind == "drift":
        rows: Sequence[Row] = reading.read(path)
        _check(path, kind, rows, columns)
        numeric = [name for name in COLUMNS.numeric if any(row.get(name) is not None for row in rows)]
        if y is not None and y not in numeric:
            raise UnknownName("--y", y, numeric, f"(numbers that {path!r} holds)")
        _check(path, kind, rows, y or drift.Y)
        return drift.draw(shortened(rows), y or drift.Y)
    if reading.form_of(path) != "json":
        raise BadInput(f"{path!r} is no .json file; type: ropeaudit {command} ... -o report.json")
    whole = reading.whole(path)
    rows, headline = shortened(whole["records"]), str(whole.get("headline", ""))
    if kind in _TABLES and whole.get("by") != _TABLES[kind][0]:
        rows = whole.get(_TABLES[kind][1], [])
    _check(path, kind, rows, columns)
    if kind == "frequencies":
        _check(path, kind, whole["records"], "seq_len")
        return frequencies(rows, whole["records"][0]["seq_len"])
    return {"stages": stages, "decay": decay, "limit": limits}[kind](rows, headline)


def _check(path: str, kind: str, rows: Sequence[Row], columns: str) -> None:
    """Raise BadInput unless there are rows and all have these columns."""
    for name in columns.split():
        if not rows or any(not isinstance(row, dict) or name not in row for row in rows):
            what = f"rows with {name}" if rows else "rows"
            raise BadInput(
                f"{path!r} has no {what}: --kind {kind} draws a report of `ropeaudit {_SOURCES[kind][0]}`, "
                "written without --columns"
            )


_MOST_CASES = 6
_LEAST = 0.0005  # of the mean square drift: a smaller share reads 0.0 % and has no bar to be seen
_CAUSES = ("aliasing", "sensitivity", "quantisation", "cancellation", "overflow")
_COLOURS = dict(zip(_CAUSES, (style.RED, style.BLUE, style.GREEN, style.PURPLE, style.ORANGE), strict=True))
_HATCHES = dict(zip(_CAUSES, style.HATCHES, strict=False))


def stages(rows: Sequence[Row], headline: str) -> Picture:
    """Return the picture of rows by stage; `headline` is the finding of their report."""
    seen = [row for row in rows if not _shared(row) or abs(row["share"]) >= _LEAST]
    cases, notes = style.cases(seen, _MOST_CASES)
    if len(seen) < len(rows):
        notes.append("stages that hold less than 0.05 % of the mean square drift are left out")
    most = max(map(len, cases.values()), default=1)
    figure, panels = style.figure(headline, len(cases), sharex=True)
    for axes, (name, group) in zip(panels, cases.items(), strict=True):
        order = sorted(group, key=lambda row: (*STAGES, row["stage"]).index(row["stage"]))
        words = []
        for place, row in enumerate(order):
            cause, known = str(row.get("cause")), _shared(row)
            colour, hatch = _COLOURS.get(cause, style.GREY), _HATCHES.get(cause, "")
            width = 100 * row["share"] if known else 0.0
            axes.barh(place, width, edgecolor="white", color=colour, hatch=hatch)
            words.append(f"{part(row['share'])} {cause}" if known else f"not defined: {cause}")
            if not known:
                axes.plot([0], [place], marker="X", color=style.RED, clip_on=False)
        style.bars(axes, [f"{row['stage']} ({row['format']})" for row in order], words)
        axes.set_title(name)
    panels[-1].set_xlabel("share of the mean square drift (%, Shapley)")
    return Picture(figure, headline, notes, height=1.3 + len(cases) * (0.6 + 0.2 * most))


def _shared(row: Row) -> bool:
    return row["share"] is not None and not math.isnan(row["share"])


def frequencies(rows: Sequence[Row], length: int) -> Picture:
    """Return the picture of rows by pair. length: positions of the sequence."""
    cases, notes = style.cases(rows, style.MOST_LINES)
    title = _frequencies_title(cases, length)
    figure, (axes,) = style.figure(title)
    axes.set(xscale="log", xlabel="wavelength of the frequency pair (tokens of a full turn)")
    axes.set(yscale="log", ylabel="RMS drift (score units)")
    nonfinite, zeros, of_no_pair = set[float](), set[float](), dict[str, None]()
    for number, (name, group) in enumerate(cases.items()):
        look = style.line(number) | {"markersize": 3.5 * style.scale(), "linewidth": style.scale()}
        pairs = [row for row in group if _finite(row["wavelength"])]
        line = Series.of(pairs, "wavelength", "part_rms", number)
        nonfinite.update(line.nonfinite)
        zeros.update(line.zeros)
        axes.plot(line.xs, line.drawn, label=name, **look)
        for row in group:
            if isinstance(row["pair"], str) and row["part_rms"]:
                dashes = (2 * number, (2, 2 * len(cases)))  # lines on one another take turns
                axes.axhline(row["part_rms"], color=look["color"], linestyle=dashes, linewidth=1.0)
                of_no_pair[row["pair"]] = None
    for text in of_no_pair:
        axes.plot([], [], label=text, color=style.GREY, linestyle=(0, (2, 2)), linewidth=1.0)
    if nonfinite:
        style.edge(axes, sorted(nonfinite), True, style.RED, "nan or infinite")
    if zeros:
        style.edge(axes, sorted(zeros), False, style.GREY, "no drift at all")
    if length:
        axes.axvline(length, color=style.GREY, linewidth=0.8, linestyle=(0, (2, 2)))
        text, above = f"← fast   {length:,} positions   slow →", axes.get_xaxis_transform()
        axes.text(length, 1.0, text, transform=above, ha="center", va="bottom", fontsize="small")
    style.legend(figure, axes)
    return Picture(figure, title, notes)


def _frequencies_title(groups: Mapping[str, Sequence[Row]], length: int) -> str:
    """Return where the drift of the case that drifts most sits."""
    parts = {name: [row["part_rms"] for row in rows] for name, rows in groups.items()}
    name = max(groups, key=lambda one: math.fsum(part**2 for part in parts[one] if part is not None))
    pairs = [row for row in groups[name] if _finite(row["wavelength"]) and _finite(row["share"])]
    if not pairs:
        return f"{name}: no finite drift to share out"
    fast = sum(row["share"] for row in pairs if row["wavelength"] < length)
    slow = sum(row["share"] for row in pairs if row["wavelength"] >= length)
    return (
        f"{name}: pairs that turn within {length:,} positions hold {part(fast)} of the mean square drift, "
        f"slower ones {part(slow)}"
    )


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


_PANELS = {
    "rms_relative": "RMS score / that at distance 0",
    "bound": "RoFormer's bound (§3.4.3)",
    "men_sum": "Σ cos(distance·θ) (Men et al.); ●: first negative",
}
_FEW = 40  # points of a line, each of which has a marker


def decay(rows: Sequence[Row], headline: str) -> Picture:
    """Return the picture of rows of `ropeaudit decay`; distances in tokens."""
    figure, panels = style.figure(headline, len(_PANELS), sharex=True)
    cases, sources = (
        list(dict.fromkeys(str(row.get(name)) for row in rows)) for name in ("setting", "source")
    )
    notes: list[str] = []
    for axes, (column, title) in zip(panels, _PANELS.items(), strict=True):
        lines, left_out = style.limited(_curves(rows, column, cases, sources), style.MOST_LINES, "lines")
        notes += left_out
        for name, line in lines.items():
            look = style.line(line.style) | {"linewidth": 1.3 * style.scale()}
            if len(line.xs) > _FEW:  # of few each is marked, for nothing was computed between them
                look["marker"] = ""
            axes.plot(line.xs, line.ys, label=name, **look)
            if line.nonfinite:
                style.edge(axes, line.nonfinite, True, style.RED, "undefined")
        style.offsets_axis(axes, [row["distance"] for row in rows])
        axes.axhline(0, color="black", linewidth=0.6)
        axes.set_title(title)
    for first in {row["first_failing"] for row in rows if row.get("first_failing")}:
        mark: dict[str, Any] = {"marker": "o", "color": style.RED, "markeredgecolor": "white"}
        panels[-1].plot([first], [0], markersize=6 * style.scale(), zorder=6, **mark)
    style.legend(figure, panels[0])
    panels[-1].set_xlabel("distance between query and key (tokens)")
    return Picture(figure, headline, list(dict.fromkeys(notes)), height=8.0)


def _curves(
    rows: Sequence[Row], column: str, settings: Sequence[str], sources: Sequence[str]
) -> dict[str, Series]:
    """Return a panel's lines by name: by setting, of scores also by source."""
    groups: dict[tuple[str, str], dict[int, Row]] = {}
    for row in sorted(rows, key=lambda row: row["distance"]):
        source = str(row.get("source")) if column == "rms_relative" else sources[0]
        groups.setdefault((str(row["setting"]), source), {})[row["distance"]] = row
    results = {}
    for (setting, source), group in groups.items():
        words = [setting] if len(settings) > 1 else []
        words += [source] if column == "rms_relative" else []
        number = settings.index(setting) * len(sources) + sources.index(source)
        name = printable(" ".join(words) or "exact")
        results[name] = Series.of(group.values(), "distance", column, number)
    return results


def limits(rows: Sequence[Row], headline: str) -> Picture:
    """Return the picture of rows of `ropeaudit limit`; positions in tokens."""
    telling = settings.independent(rows)
    bounds = {(row["tolerance_column"], numbers.setting(row["tolerance"])) for row in rows}
    tolerances, groups = "the tolerance", {}
    if len(bounds) == 1:
        [(column, value)] = bounds
        tolerances = f"{column} {'≥' if column == 'distinct_positions' else '≤'} {value}"
    for number, row in enumerate(rows):
        own = f" {row['tolerance_column']}={numbers.setting(row['tolerance'])}" if len(bounds) > 1 else ""
        groups[f"{style.label(row, telling)}{own} #{number}"] = row  # rows of the same name stay apart
    shown, notes = style.limited(groups, _MOST_BARS, "rows")
    figure, (axes,) = style.figure(headline)
    axes.set_xscale("log")
    dtypes, words = list(dict.fromkeys(row["dtype"] for row in shown.values())), []
    for place, row in enumerate(shown.values()):
        number, guaranteed = dtypes.index(row["dtype"]), row["proved_position"] or 1
        tested = max(guaranteed, row["measured_position"] or 1)
        look: dict[str, Any] = {
            "color": style.line(number)["color"],
            "hatch": style.HATCHES[number % len(style.HATCHES)],
            "label": f"{row['dtype']}: guaranteed",
        }
        axes.barh(place, guaranteed - 0.999, left=0.999, edgecolor="white", **look)
        if tested > guaranteed:
            look = {"color": "#dddddd", "label": "tested without a failure, not guaranteed"}
            axes.barh(place, tested - guaranteed, left=guaranteed, edgecolor="white", **look)
        if row["first_failure_seen"] is not None:
            look = {"color": style.RED, "label": "first failure", "clip_on": False, "linestyle": "none"}
            at = max(1, row["failure_position"])
            axes.plot([at], [place], marker="X", markersize=6 * style.scale(), **look)
        if row["maximum"]:
            ends = [place - 0.45, place + 0.45]
            axes.plot([row["maximum"]] * 2, ends, color="black", linewidth=2, label="the model's maximum")
        nothing = "fails at offset 0" if row["measured_position"] is None else "nothing guaranteed"
        proved = row["proved_position"]
        words.append(nothing if proved is None else f"guaranteed up to {proved:,}")
    lines = style.bars(axes, [name.rpartition(" #")[0] for name in shown], words)
    axes.set_xlim(left=1)
    axes.set_xlabel(f"last position that meets {tolerances} (tokens)")
    style.legend(figure, axes)
    return Picture(figure, headline, notes, height=1.8 + 0.24 * lines)


@dataclass(frozen=True, slots=True)
class Heatmap:
    """drift: root mean square over heads by query and key, (s, s), nan where some head's score is not finite.

    hidden: scores that the mask hides, (s, s).
    largest: the largest |drift| of one head, with its head, query and key; None where some score is not
    finite.
    """

    recipe: Resolved
    offset: int
    heads: int
    drift: Array
    hidden: NDArray[np.bool_]
    largest: tuple[float, int, int, int] | None


def measure(
    case: Case,
    recipe: Resolved,
    offset: int,
    progress: Callable[[float], None] = lambda share: None,
) -> Heatmap:
    """Measure the drift of every visible score of a case. offset: tokens.

    Raises: UsageError, UnknownName, BadShape, BadInput, NotEmulated.
    """
    fits(case.check([offset]))
    inputs, setting = case.load()
    heads, size, _ = inputs.q.shape
    positions_fit([offset], size)
    if size > MOST_POSITIONS:
        raise UsageError(
            f"a picture of {size} x {size} scores is too fine; at most {MOST_POSITIONS} positions are drawn: "
            "try --seq-len 256"
        )
    squares = np.zeros((size, size))
    largest, finite = (0.0, 0, 0, 0), True
    axes = case.position_axes(setting)
    for head in range(heads):
        sample = Sample(np.arange(size, dtype=np.int64), (head,))
        bench = Bench(inputs, setting, case.mask, axes, offset, sample, recipe)
        table = bench.table(recipe)
        q, k = bench.rotated("q", head, table, recipe), bench.rotated("k", head, table, recipe)
        drift = bench.drift(head, bench.formed(q, k, recipe))
        with np.errstate(invalid="ignore", over="ignore"):
            squares += drift * drift
        finite = finite and bool(np.isfinite(drift).all())
        if finite:
            query, key = np.unravel_index(np.abs(drift).argmax(), drift.shape)
            largest = max(largest, (float(abs(drift[query, key])), head, int(query), int(key)))
        progress((head + 1) / heads)
    masked = masks.hidden(case.mask, slice(0, size), slice(0, size))
    hidden = np.broadcast_to(False if masked is None else np.asarray(masked, bool), squares.shape)
    rms = np.sqrt(squares / heads)
    rms[~np.isfinite(rms)] = np.nan
    return Heatmap(recipe, offset, heads, rms, hidden, largest if finite else None)


def draw_heatmap(heatmap: Heatmap) -> Picture:
    """Return the picture; hidden scores are white, those that are not finite red."""
    from matplotlib.colors import ListedColormap, LogNorm

    title = _title(heatmap)
    figure, (axes,) = style.figure(title)
    shown = heatmap.drift[~heatmap.hidden & (heatmap.drift > 0)]
    low, high = (float(shown.min()), float(shown.max())) if shown.size else (1.0, 1.0)
    low = max(low, high * 1e-4, float(np.percentile(shown, 2)) if shown.size else 0.0)
    visible = np.where(heatmap.hidden | (heatmap.drift <= low), low, heatmap.drift)
    image = axes.imshow(
        np.ma.masked_array(visible, heatmap.hidden | np.isnan(heatmap.drift)),
        norm=LogNorm(low, max(high, low * 1.001)),
        cmap="cividis",
        interpolation="nearest",
    )
    nonfinite = ~heatmap.hidden & np.isnan(heatmap.drift)
    if nonfinite.any():
        axes.imshow(
            np.ma.masked_array(nonfinite, ~nonfinite),
            cmap=ListedColormap([style.RED]),
            interpolation="nearest",
        )
        axes.plot([], [], "s", color=style.RED, label="nan or infinite scores")
        style.legend(figure, axes)
    axes.grid(False)
    axes.set(xlabel="key n (index before the shift)", ylabel="query m (index before the shift)")
    if shown.size:
        over = "|drift|" if heatmap.heads == 1 else f"RMS drift of {heatmap.heads} heads"
        figure.colorbar(image, ax=axes, label=f"{over} (score units)", extend="min")
    return Picture(figure, title, height=6.4)


def _title(heatmap: Heatmap) -> str:
    who = f"{heatmap.recipe.recipe.name} {heatmap.recipe.dtype} at offset {heatmap.offset:,}"
    if heatmap.largest is None:
        seen = ~heatmap.hidden
        nonfinite, scores = int((seen & np.isnan(heatmap.drift)).sum()), int(seen.sum())
        return f"{who}: {nonfinite} of {scores} scores by query and key are nan or infinite in some head"
    value, head, query, key = heatmap.largest
    return f"{who}: the largest |drift| is {short(value)}, of query {query} and key {key} in head {head}"
