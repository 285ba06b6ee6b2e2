"""Several reports read back as one: their rows, and what each file says of its making."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ropeaudit import reports
from ropeaudit.audits import judging, records
from ropeaudit.audits.records import Record
from ropeaudit.errors import BadInput
from ropeaudit.features.report import analysis, groups
from ropeaudit.reports import Report, Row, comparison, reading
from ropeaudit.reports.drift import drift_report
from ropeaudit.runtime.columns import Column

_NEEDED = ("dtype", "drift_rms", "verdict")
_FILE: Column[Row] = Column("file", str, "the report that the row is from")
_MERGED: Mapping[str, Column[Any]] = {**records.COLUMNS, "file": _FILE}
# what is made of the files -> the columns of its rows
COLUMNS = {"merged": _MERGED, "by": groups.COLUMNS, "against": comparison.COLUMNS}


def merged(
    files: Sequence[str], columns: Sequence[str] | None, metadata: Mapping[str, Any], data: bool = False
) -> Report:
    """Return the report of all rows of these files, in their order; those that say all the same count once.

    Its metadata are those of merging, and under "sources" those that each file carries. data: whether a
    program reads what is written, where nothing says which file a row is from: rows of several files must
    then be whole, of this schema, and of different cells.
    Raises: BadInput, UnknownName.
    """
    paths = list(dict.fromkeys(files))
    pairs, counts = analysis.rows_of(paths)
    told = reading.told([row for _, row in pairs])
    if data and len(paths) > 1:
        pairs = [(path, record.as_dict()) for path, record in analysis.whole(pairs)]
    rows = [_filled(path, row) for path, row in pairs]
    described = _described(paths, rows, columns or (), metadata)
    more = [name for name in told if name not in described.columns]
    repeated = counts.total() - len(rows)
    notes = [f"{repeated} rows stand in these files more than once and count once."] if repeated else []
    return replace(
        described,
        rows=rows,
        columns=described.columns if columns else [*described.columns, *more],
        screen=[*(["file"] if len(paths) > 1 and not columns else []), *described.screen],
        notes=[*notes, *described.notes],
        metadata={
            **described.metadata,
            "sources": [{"file": path, "rows": counts[path], **carried(path)} for path in paths],
        },
        declared={**described.declared, "file": _FILE},
    )


def _filled(path: str, row: Row) -> Row:
    """Return a row with every column, and its file. Raises: BadInput for one that no page can show."""
    _check(path, row)
    return {name: row.get(name, column.undefined) for name, column in records.COLUMNS.items()} | {
        "file": path
    }


def _described(
    paths: Sequence[str], rows: Sequence[Row], columns: Sequence[str], about: Mapping[str, Any]
) -> Report:
    """Return what is said of the rows; by hand a file can be given values that nothing can be said of."""
    try:
        results = [reading.record(row) for row in rows]
        return drift_report(results, columns, about, frozen=_frozen(results))
    except (ValueError, ArithmeticError, TypeError) as error:
        raise BadInput(f"{', '.join(paths)}: values that no audit gives: {error}") from None


def _frozen(rows: Sequence[Record]) -> bool:
    """Return whether frequencies stand for one number of positions, whatever the offset."""
    lengths: dict[tuple[str, int], set[int | None]] = {}
    for row in rows:
        lengths.setdefault((row.scaling, row.seq_len), set()).add(row.length)
    several = len({row.offset for row in rows}) > 1
    return several and all(len(some) == 1 for some in lengths.values())


def carried(path: str) -> dict[str, Any]:
    """Return the command, time, environment and stages that a report carries, or "lacking": why it has none.

    JSON holds them itself, CSV in NAME.meta.json beside it, JSON Lines nowhere.
    """
    form = reports.form_of(path)
    if form == "jsonl":
        return {"lacking": "JSON Lines carries no command and no environment; JSON does, and CSV beside it."}
    holder = path if form == "json" else f"{path}.meta.json"
    try:
        whole = json.loads(Path(holder).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {"lacking": f"The command and the environment would stand in {holder}, which is not there."}
    except (OSError, ValueError, RecursionError):
        return {"lacking": f"The command and the environment would stand in {holder}, which cannot be read."}
    return _known(whole) or {"lacking": f"{holder} holds no command and no environment."}


def _known(whole: Any) -> dict[str, Any]:
    """What is known of the making of a report, in the shape that it must have: anything else is left out."""
    if not isinstance(whole, dict):
        return {}
    results: dict[str, Any] = {
        name: whole[name] for name in ("command", "time") if isinstance(whole.get(name), str)
    }
    environment, stages = whole.get("environment"), whole.get("stages")
    if isinstance(environment, dict):
        results["environment"] = {name: str(value) for name, value in environment.items()}
    if isinstance(stages, dict):
        results["stages"] = {
            subject: {stage: str(fmt) for stage, fmt in formats.items()}
            for subject, formats in stages.items()
            if isinstance(formats, dict)
        }
    return results


def _check(path: str, row: Row) -> None:
    for name in _NEEDED:
        if name not in row:
            raise BadInput(f"{path!r} has no column {name}; write it again without --columns")
    if row["verdict"] not in judging.VERDICTS:
        known = ", ".join(judging.VERDICTS)
        raise BadInput(f"{path!r} has a verdict {row['verdict']!r}; there are {known}")
