"""Checks for people: the answer in a sentence, a line a check, what to do about those that failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ropeaudit.audits import records
from ropeaudit.features.check.analysis import Checked
from ropeaudit.reports import Report
from ropeaudit.reports.numbers import short
from ropeaudit.runtime.columns import Declare

SCHEMA = 1
of = Declare[Checked]()


class CheckColumns:
    """The columns of `ropeaudit check`."""

    schema = of.like(records.COLUMNS["schema"], lambda one: SCHEMA)
    target: str = of("what was checked", shown=True)
    kind: str = of("what it is: code, model, config, checkpoint or case")
    version: str = of("of its package, or the digest of its file; none where there is neither")
    dtype: str = of("number format of q and k; none where a check has none", shown=True)
    check: str = of("what was checked", lambda one: one.finding.check, shown=True)
    status: str = of("pass, fail or not applicable", lambda one: one.finding.status, shown=True)
    measured: float = of("what was measured, in `unit`", lambda one: one.finding.measured, shown=True)
    allowed: float = of("how much of it is allowed", lambda one: one.finding.allowed, shown=True)
    unit: str = of("unit of measured and allowed", lambda one: one.finding.unit, shown=True, leaves=1)
    differing: float = of(
        "share of elements whose bits differ, where two ways to call were compared",
        lambda one: one.finding.differing,
        style="part",
        shown=True,
        leaves=3,
    )
    where: str = of("where that is", lambda one: one.finding.where, shown=True, leaves=2)
    resembles: str = of("what it behaves like, where that is known", lambda one: one.finding.resembles)
    detail: str = of("what was done and seen", lambda one: one.finding.detail)
    up_to: int = of("number of positions that were checked, from 0", unit="tokens")
    layout = of.like(records.COLUMNS["layout"], lambda one: one.setting.layout)
    head_dim = of.like(records.COLUMNS["head_dim"], lambda one: one.setting.head_dim)
    rotary_dim = of.like(records.COLUMNS["rotary_dim"], lambda one: one.setting.rotary_dim)
    base = of.like(records.COLUMNS["base"], lambda one: one.setting.base)
    scaling = of.like(records.COLUMNS["scaling"], lambda one: str(one.setting.scaling))


COLUMNS = of.columns(CheckColumns)
LEGEND = (
    "pass: what was measured is within what is allowed, at the positions that `detail` names; see `-f json`."
)


def check_report(
    results: Sequence[Checked],
    columns: Sequence[str] | None,
    metadata: Mapping[str, Any],
    findings: Sequence[str],
) -> Report:
    """Return the report; `columns` chooses and orders what is shown and written; findings: on the calls."""
    rows = [COLUMNS.row(result) for result in results]
    varying = {name for name in ("target", "dtype") if len({row[name] for row in rows}) > 1}
    screen = [name for name in COLUMNS.screen(results) if name not in ("target", "dtype") or name in varying]
    return Report(
        rows=rows,
        columns=list(columns or COLUMNS),
        screen=list(columns or screen),
        dispensable=() if columns else COLUMNS.dispensable,
        headline=headline(results),
        notes=[*notes(results), *findings],
        legend=LEGEND,
        metadata={"schema": SCHEMA, **metadata},
        declared=COLUMNS,
    )


def headline(results: Sequence[Checked]) -> str:
    """Return the answer in a sentence: what fails first, or what passed."""
    judged = [one for one in results if one.finding.status != "not applicable"]
    if not judged:
        reason = f": {results[0].finding.detail}" if results else ""
        return f"Nothing could be checked{reason}."
    failed = [one for one in judged if one.finding.failed]
    if not failed:
        targets = ", ".join(dict.fromkeys(one.target for one in judged))
        dtypes = ", ".join(dict.fromkeys(one.dtype for one in judged))
        last = judged[0].up_to - 1
        return f"{targets} passes all {len(judged)} checks in {dtypes}, at positions up to {last}."
    worst = failed[0]
    count = f"{worst.target} fails {len(failed)} of {len(judged)} checks"
    return f"{count}; {worst.finding.check} in {worst.dtype}: {_seen(worst)}."


def _seen(one: Checked) -> str:
    finding = one.finding
    size = f"{short(finding.measured)} {finding.unit}, allowed {short(finding.allowed)}"
    parts = [finding.detail] if finding.measured != finding.measured else [size, finding.where]
    behaves = f"; behaves like: {finding.resembles}" if finding.resembles else ""
    return ", ".join(part for part in parts if part) + behaves


def notes(results: Sequence[Checked]) -> list[str]:
    """Return what was seen of each check that failed, and why others could not be made."""
    messages = [
        f"{one.target} in {one.dtype}, {one.finding.check}: {_seen(one)} ({one.finding.detail})."
        for one in results
        if one.finding.failed
    ]
    missing: dict[str, list[str]] = {}
    for one in results:
        if one.finding.status == "not applicable":
            missing.setdefault(one.finding.detail, []).append(one.finding.check)
    messages += [f"Not checked: {', '.join(dict.fromkeys(names))}: {why}." for why, names in missing.items()]
    return list(dict.fromkeys(messages))
