"""Pictures of reports. Each kind is a small file with draw(...) -> Picture; matplotlib loads only to draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ropeaudit.errors import BadInput
from ropeaudit.features.plot import decay, drift, frequencies, limit, stages
from ropeaudit.features.plot.style import Picture
from ropeaudit.reports import form_of, reading
from ropeaudit.rope.scaling_names import shortened

# kind -> the command whose report it is drawn from, and the columns that this must have
_SOURCES: dict[str, tuple[str, tuple[str, ...]]] = {
    "drift": ("shift", ("implementation", "offset", "drift_rms")),
    "stages": ("explain", ("implementation", "offset", "stage", "share", "format")),
    "frequencies": ("explain", ("implementation", "offset", "pair", "wavelength", "part_rms")),
    "decay": ("decay", ("distance", "rms_relative", "bound", "men_sum", "setting", "source")),
    "limit": (
        "limit",
        (
            "dtype",
            "proved_position",
            "measured_position",
            "measured_offsets",
            "failure_position",
            "maximum",
            "tolerance",
        ),
    ),
}
# kind -> --by, table beside other rows
_TABLES = {"stages": ("stage", "stages"), "frequencies": ("pair", "pairs")}


def picture(kind: str, path: str) -> Picture:
    """Draw a report: any data file of `ropeaudit shift`, the .json of other commands.

    Raises: BadInput, MissingPackage.
    """
    command = _SOURCES[kind][0]
    if kind == "drift":
        rows: Sequence[Mapping[str, Any]] = reading.read(path)
        _check(path, kind, rows, _SOURCES[kind][1])
        return drift.draw(shortened(rows))
    if form_of(path) != "json":
        raise BadInput(f"{path!r} is no .json file; type: ropeaudit {command} ... -o report.json")
    whole = reading.whole(path)
    rows, headline = shortened(whole["records"]), str(whole.get("headline", ""))
    if kind == "decay":
        _check(path, kind, rows, _SOURCES[kind][1])
        return decay.draw(whole.get("curves") or rows, headline)
    if kind in _TABLES and whole.get("by") != _TABLES[kind][0]:
        rows = whole.get(_TABLES[kind][1], [])
    _check(path, kind, rows, _SOURCES[kind][1])
    if kind == "frequencies":
        _check(path, kind, whole["records"], ("seq_len",))
        return frequencies.draw(rows, whole["records"][0]["seq_len"])
    return {"stages": stages.draw, "limit": limit.draw}[kind](rows, headline)


def _check(path: str, kind: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Raise BadInput unless there are rows and all have these columns."""
    command = _SOURCES[kind][0]
    for name in columns:
        if not rows or any(not isinstance(row, dict) or name not in row for row in rows):
            what = f"rows with {name}" if rows else "rows"
            raise BadInput(
                f"{path!r} has no {what}: --kind {kind} draws a report of `ropeaudit {command}`, written "
                "without --columns"
            )
