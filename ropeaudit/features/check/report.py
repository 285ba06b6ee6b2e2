"""Checks for people: the answer in a sentence, a line a check, what to do about those that failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ropeaudit.features.check import faults
from ropeaudit.features.check.checked import NONE, Checked
from ropeaudit.features.check.config_target import MARGIN
from ropeaudit.features.check.sentences import headline, notes
from ropeaudit.recognition.diagnosis import codes
from ropeaudit.reports import Report, Row
from ropeaudit.runtime.columns import table

SCHEMA = 1
_NOT_MADE = ("left out", "not applicable")
_LONGEST = 24  # characters of the names of checks that share a row


def row(one: Checked) -> dict[str, Any]:
    """Return the row of a check."""
    return {
        "schema": SCHEMA,
        "target": one.target,
        "kind": one.kind,
        "version": one.version,
        "layer": one.layer,
        "dtype": one.dtype,
        "device": one.device,
        "check": one.finding.check,
        "status": one.finding.status,
        "measured": one.finding.measured,
        "allowed": one.finding.allowed,
        "unit": one.finding.unit,
        "differing": one.finding.differing,
        "where": one.finding.where,
        "diagnosis": codes(one.finding.diagnosis),
        "resembles": one.finding.resembles,
        "remedy": one.finding.advice,
        "detail": one.finding.detail,
        "up_to": one.up_to,
        "layout": one.setting.layout if one.setting else NONE,
        "head_dim": one.setting and one.setting.head_dim,
        "rotary_dim": one.setting and one.setting.rotary_dim,
        "base": one.setting and one.setting.base,
        "scaling": str(one.setting.scaling) if one.setting else NONE,
    }


COLUMNS = table("check")
LEGEND = "pass: what was measured is within what is allowed, at the positions that `detail` names (-f json)."
_MARGIN = (
    "times its maximum: last good position ÷ the model's maximum; 1 or more passes; see `ropeaudit limit`."
)
_NOTE = "info: does not affect the exit code."


def report(
    results: Sequence[Checked],
    columns: Sequence[str] | None,
    metadata: Mapping[str, Any],
    findings: Sequence[str] = (),
    waived: Sequence[str] = (),
    left: str = "",
) -> Report:
    """Return the report; `columns` chooses and orders what is shown and written.

    findings: on the calls. waived: on waivers, which come first; how code was called explains what it fails.
    left: a clause of the targets that an interruption left, see `sentences.not_begun`.
    """
    rows = [row(result) for result in results]
    varying = {name for name in ("target", "dtype", "layer") if len(_values(rows, name)) > 1}
    single = {"target", "dtype", "layer"} - varying
    return Report(
        rows=rows,
        columns=list(columns or COLUMNS),
        screen=list(columns or [name for name in COLUMNS.screen(rows) if name not in single]),
        dispensable=() if columns else COLUMNS.dispensable,
        headline=headline(results, left),
        notes=[*waived, *findings, *notes(results)],
        legend=_legend(results),
        metadata={"schema": SCHEMA, **metadata},
        declared=COLUMNS,
        folded=None if columns else folded(rows),
        faults=faults.of_checks(results),
    )


def _legend(results: Sequence[Checked]) -> str:
    margins = any(one.finding.unit == MARGIN for one in results)
    passed = any(one.finding.status == "pass" for one in results)
    noted = any(one.finding.status == "info" for one in results)
    second = " ".join(line for line, there in ((_MARGIN, margins), (_NOTE, noted)) if there)
    return "\n".join(filter(None, (LEGEND if passed else "", second)))


def _values(rows: Sequence[Row], name: str) -> set[str]:
    """Return the values of a column; of layer types none does not count."""
    return {row[name] for row in rows} - ({NONE} if name == "layer" else set())


def folded(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with those that do not apply at the end of each target, one a dtype."""
    targets: dict[str, list[Row]] = {}
    for row in rows:
        targets.setdefault(row["target"], []).append(row)
    results: list[Row] = []
    for own in targets.values():
        results += [row for row in own if row["status"] not in _NOT_MADE]
        missing: dict[tuple[str, str], list[Row]] = {}
        for row in own:
            if row["status"] in _NOT_MADE:
                missing.setdefault((row["dtype"], row["status"]), []).append(row)
        results += [_together(group) for group in missing.values()]
    return results


def _together(rows: Sequence[Row]) -> Row:
    """Return checks that do not apply in one row."""
    names = list(dict.fromkeys(row["check"] for row in rows))
    listed = ", ".join(names)
    layers = {row["layer"] for row in rows}
    return {
        **rows[0],
        "check": listed if len(listed) <= _LONGEST or len(names) == 1 else f"{len(names)} checks",
        "layer": layers.pop() if len(layers) == 1 else NONE,
    }
