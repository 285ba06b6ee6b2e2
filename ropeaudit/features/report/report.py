"""Several reports read back as one: their rows, and what each file says of its making."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ropeaudit import reports
from ropeaudit.audits import judging, records
from ropeaudit.errors import BadInput
from ropeaudit.reports import Report, Row, reading
from ropeaudit.reports.drift import drift_report
from ropeaudit.runtime.columns import Column

_NEEDED = ("dtype", "drift_rms", "verdict")
_FILE: Column[Row] = Column("file", str, "the report that the row is from")
COLUMNS: Mapping[str, Column[Any]] = {**records.COLUMNS, "file": _FILE}


def merged(paths: Sequence[str], columns: Sequence[str] | None, metadata: Mapping[str, Any]) -> Report:
    """Return the report of all rows of these files, in their order; a row that says all the same counts once.

    Its metadata are those of merging, and under "sources" those that each file carries.
    Raises: BadInput, UnknownName.
    """
    rows: dict[tuple[Any, ...], Row] = {}
    sources = []
    for path in paths:
        read = reading.read(path)
        for row in read:
            _check(path, row)
            whole = {name: row.get(name, column.undefined) for name, column in records.COLUMNS.items()}
            rows.setdefault(tuple(map(_plain, whole.values())), whole | {"file": path})
        sources.append({"file": path, "rows": len(read), **carried(path)})
    distinct = list(rows.values())
    described = _message(paths, distinct, metadata)
    screen = list(columns or [*(["file"] if len(paths) > 1 else []), *described.screen])
    repeated = sum(source["rows"] for source in sources) - len(distinct)
    notes = [f"{repeated} rows stand in these files more than once and count once."] if repeated else []
    return replace(
        described,
        rows=distinct,
        columns=list(columns or records.COLUMNS),
        screen=screen,
        dispensable=() if columns else described.dispensable,
        notes=[*notes, *described.notes],
        metadata={**described.metadata, "sources": sources},
        declared=COLUMNS,
    )


def _message(paths: Sequence[str], rows: Sequence[Row], about: Mapping[str, Any]) -> Report:
    """What is said of the rows; by hand a file can be given values that nothing can be said of."""
    try:
        return drift_report([reading.record(row) for row in rows], (), about, frozen=False)
    except (ValueError, ArithmeticError, TypeError) as error:
        raise BadInput(f"{', '.join(paths)}: values that no audit gives: {error}") from None


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


def _plain(value: Any) -> str | None:
    """What tells values apart; JSON holds none that is not finite."""
    undefined = value is None or (isinstance(value, float) and not math.isfinite(value))
    return None if undefined else repr(value)


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
