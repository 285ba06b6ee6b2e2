"""The pictures of `plot`: of results, of reports, and of a measured case."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ropeaudit.audits import arguments
from ropeaudit.audits.cases import Case, check_memory, check_positions
from ropeaudit.audits.records import COLUMNS, Record
from ropeaudit.audits.variants import Bench, Sample
from ropeaudit.errors import BadInput, UnknownName, UsageError
from ropeaudit.inputs import masks
from ropeaudit.recipes import Resolved
from ropeaudit.reports import Row, charts, needed, reading
from ropeaudit.reports.charts import Picture
from ropeaudit.reports.drift import answer
from ropeaudit.reports.numbers import short
from ropeaudit.rope.scaling_names import shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# kind -> the command whose report is drawn, and its needed columns
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
# kind -> --by, table beside other rows
_TABLES = {"stages": ("stage", "stages"), "frequencies": ("pair", "pairs")}
MOST_POSITIONS = 2048


@arguments.public
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
    if ax is None:
        axes: Axes = charts.drift(rows, answer(listed).headline).figure.axes[0]
        return axes
    charts.draw_drift(ax, [row for row in rows if row["verdict"] != "refused"])
    once = charts.labelled(ax)
    ax.legend(once.values(), once.keys(), fontsize="small")
    return ax


def picture(kind: str, path: str, y: str | None = None) -> Picture:
    """Draw a report: any data file of `ropeaudit shift`, the .json of other commands.

    y: the column that is drawn where kind is "drift". Raises: BadInput, UnknownName, MissingPackage.
    """
    command, columns = _SOURCES[kind]
    if kind == "drift":
        held = reading.read(path)
        numeric = [name for name in COLUMNS.numeric if any(one is not None for one in held.column(name))]
        if y is not None and y not in numeric:
            raise UnknownName("--y", y, numeric, f"(numbers that {path!r} holds)")
        _check(path, kind, held, f"{columns} {y or charts.DRIFT}")
        finding = answer(reading.as_records(held)).headline
        return charts.drift(shortened(held), finding, y or charts.DRIFT)
    if reading.form_of(path) != "json":
        raise BadInput(f"{path!r} is no .json file; type: ropeaudit {command} ... -o report.json")
    whole = reading.whole(path)
    rows, headline = shortened(whole["records"]), str(whole.get("headline", ""))
    if kind in _TABLES and whole.get("by") != _TABLES[kind][0]:
        rows = whole.get(_TABLES[kind][1], [])
    _check(path, kind, rows, columns)
    if kind == "frequencies":
        _check(path, kind, whole["records"], "seq_len")
        return charts.frequencies(rows, headline, whole["records"][0]["seq_len"])
    return {"stages": charts.stages, "decay": charts.decay, "limit": charts.limit}[kind](rows, headline)


def _check(path: str, kind: str, rows: Sequence[Row], columns: str) -> None:
    """Raise BadInput unless there are rows with these columns."""
    for name in columns.split():
        if not rows or any(not isinstance(row, dict) or name not in row for row in rows):
            what = f"rows with {name}" if rows else "rows"
            raise BadInput(
                f"{path!r} has no {what}: --kind {kind} draws a report of `ropeaudit {_SOURCES[kind][0]}`, "
                "written without --columns"
            )


def heatmap(
    case: Case,
    recipe: Resolved,
    offset: int,
    progress: Callable[[float], None],
) -> Picture:
    """Measure and draw drift of visible scores by query and key. offset: tokens.

    It is the root mean square over heads; hidden scores are white, those that are not finite in some head
    red. Raises: UsageError, UnknownName, BadShape, BadInput, NotEmulated.
    """
    check_memory(case.check([offset]))
    inputs, setting = case.load()
    heads, size, _ = inputs.q.shape
    check_positions([offset], size)
    if size > MOST_POSITIONS:
        raise UsageError(
            f"a picture of {size} x {size} scores is too fine; at most {MOST_POSITIONS} positions are "
            "drawn: try --seq-len 256"
        )
    squares, axes, largest = np.zeros((size, size)), case.position_axes(setting), (-1.0, 0, 0, 0)
    for head in range(heads):
        sample = Sample(np.arange(size, dtype=np.int64), (head,))
        bench = Bench(inputs, setting, case.mask, axes, offset, sample, recipe)
        drifts = bench.rotated_and_drift(recipe)[2][0]
        with np.errstate(invalid="ignore", over="ignore"):
            squares += drifts * drifts
        query, key = np.unravel_index(np.abs(drifts).argmax(), drifts.shape)
        largest = max(largest, (float(abs(drifts[query, key])), head, int(query), int(key)))
        progress((head + 1) / heads)
    masked = masks.hidden(case.mask, slice(0, size), slice(0, size))
    hidden = np.broadcast_to(False if masked is None else np.asarray(masked, bool), squares.shape)
    rms = np.sqrt(squares / heads)
    lost, scores = int((~np.isfinite(rms) & ~hidden).sum()), int((~hidden).sum())
    value, head, *place = largest
    found = "the largest |drift| is {}, of query {} and key {} in head {}".format(short(value), *place, head)
    if lost:
        found = f"{lost} of {scores} scores by query and key are nan or infinite in some head"
    over = "|drift|" if heads == 1 else f"RMS drift of {heads} heads"
    title = f"{recipe.recipe.name} {recipe.dtype} at offset {offset:,}: {found}"
    return charts.scores(rms, hidden, title, f"{over} (score units)")
