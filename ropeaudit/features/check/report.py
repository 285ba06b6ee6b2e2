"""Checks for people: the answer in a sentence, a line a check, what to do about those that failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from ropeaudit.audits import records
from ropeaudit.conformance.finding import Status
from ropeaudit.features.check import faults
from ropeaudit.features.check.checked import NONE, Checked
from ropeaudit.features.check.config_target import MARGIN
from ropeaudit.features.check.sentences import headline, notes
from ropeaudit.features.check.targets import Kind
from ropeaudit.recognition.diagnosis import codes
from ropeaudit.reports import Report, Row
from ropeaudit.runtime.columns import Declare

SCHEMA = 1
_NOT_MADE = ("left out", "not applicable")
_LONGEST = 24  # characters of the names of checks that share a row
of = Declare[Checked]()


class CheckColumns:
    """The columns of `ropeaudit check`."""

    schema = of.like(records.COLUMNS["schema"], lambda one: SCHEMA)
    target: str = of("what was checked", shown=True)
    kind: str = of("what it is: code, model, config, checkpoint, gguf or case", choices=get_args(Kind))
    version: str = of("of its package, or the digest of its file; none where there is neither")
    layer: str = of("layer type of a model; none where a check has none", shown=True)
    dtype: str = of("number format of q and k; none where a check has none", shown=True)
    device: str = of(
        "where code was called, or a model run; none where nothing was",
        shown=lambda one: one.device not in ("cpu", NONE),
        leaves=6,
    )
    check: str = of("what was checked", lambda one: one.finding.check, shown=True)
    status: str = of(
        "pass; fail; waived: it fails and --waive accepts that; info: does not affect the exit code; "
        "nothing to check: there is no RoPE; left out: --thorough makes it; not applicable",
        lambda one: one.finding.status,
        choices=get_args(Status),
        shown=True,
    )
    measured: float = of(
        "what was measured, in `unit`",
        lambda one: one.finding.measured,
        style="short or empty",
        shown=lambda one: one.finding.measured == one.finding.measured,
        leaves=4,
    )
    allowed: float = of(
        "how much of it is allowed: at most, or at least where `unit` says so",
        lambda one: one.finding.allowed,
        style="short or empty",
        shown=lambda one: one.finding.allowed == one.finding.allowed,
        leaves=3,
    )
    unit: str = of(
        "unit of measured and allowed",
        lambda one: one.finding.unit,
        shown=lambda one: bool(one.finding.unit),
        leaves=5,  # after the numbers, which mean nothing without it
    )
    differing: float = of(
        "share of elements whose bits differ, where two ways to call were compared",
        lambda one: one.finding.differing,
        style="part or empty",
        shown=lambda one: one.finding.differing == one.finding.differing,
        leaves=2,
    )
    where: str = of(
        "where that is", lambda one: one.finding.where, shown=lambda one: bool(one.finding.where), leaves=1
    )
    diagnosis: str = of(
        "code of what explains it (`ropeaudit list diagnoses`): a+b are two faults together, a|b explain "
        "equally much; empty where nothing needs to be explained",
        lambda one: codes(one.finding.diagnosis),
    )
    resembles: str = of("the same as a sentence", lambda one: one.finding.resembles)
    remedy: str = of("what to change, where that is known", lambda one: one.finding.advice)
    detail: str = of("what was done and seen", lambda one: one.finding.detail)
    up_to: int = of(
        "number of positions that were checked, from 0; 0 where they do not matter", unit="tokens"
    )
    layout: str = of(
        "which dims are a pair: half or interleaved; none where no setting was read",
        lambda one: one.setting.layout if one.setting else NONE,
    )
    head_dim: int | None = of("dims of a head", lambda one: one.setting and one.setting.head_dim)
    rotary_dim: int | None = of("dims that are rotated", lambda one: one.setting and one.setting.rotary_dim)
    base: float | None = of(
        "theta of the frequencies", lambda one: one.setting and one.setting.base, style="setting"
    )
    scaling: str = of(
        "how frequencies are scaled, as --scaling reads it; none where no setting was read",
        lambda one: str(one.setting.scaling) if one.setting else NONE,
    )


COLUMNS = of.columns(CheckColumns)
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
    rows = [COLUMNS.row(result) for result in results]
    varying = {name for name in ("target", "dtype", "layer") if len(_values(rows, name)) > 1}
    single = {"target", "dtype", "layer"} - varying
    return Report(
        rows=rows,
        columns=list(columns or COLUMNS),
        screen=list(columns or [name for name in COLUMNS.screen(results) if name not in single]),
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
