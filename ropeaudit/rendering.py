"""The report of any result: the feature that it is from renders it, as its command does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

from ropeaudit.errors import UsageError
from ropeaudit.reports import Report

if TYPE_CHECKING:
    from ropeaudit.audits.comparison import Difference
    from ropeaudit.audits.records import Record
    from ropeaudit.features.check.checked import Checked
    from ropeaudit.features.decay.audit import DecayCurves
    from ropeaudit.features.explain.analysis import CodeExplanation, Explanation
    from ropeaudit.features.limit.limit_result import Limit
    from ropeaudit.features.list.frequencies import FrequencyTable
    from ropeaudit.features.model.analysis import ModelAudit
    from ropeaudit.features.module.analysis import ModuleAudit
    from ropeaudit.features.parity.analysis import Parity
    from ropeaudit.features.report.groups import Group
    from ropeaudit.features.vectors.analysis import WrittenCase

    Single: TypeAlias = Difference | ModelAudit | ModuleAudit
    Several: TypeAlias = Iterable[
        Record
        | Checked
        | CodeExplanation
        | Group
        | DecayCurves
        | Explanation
        | FrequencyTable
        | Limit
        | Parity
        | WrittenCase
    ]

_Columns = Sequence[str] | None
_Metadata = Mapping[str, Any]


def report(
    results: Single | Several,
    columns: Sequence[str] | None = None,
    *,
    by: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Report:
    """Return the report of what a function of this package returns: rows, a finding, notes, how to read it.

    columns: what is shown and written, in this order; by default those of the request. by: of `explain`
    (dtypes, stage, pair, position, head, remedy) and of `model` (summary, layer, head, pair), what the rows
    are. metadata: of the run; by default versions, platform, command and time.
    `ropeaudit.render` turns a report into text. Raises: UsageError, and what the results raise.

    >>> from ropeaudit import limit, report
    >>> results = limit("distinct_positions=16", "fp16", "uniform", seq_len=16, heads=1)
    >>> [row["proved_up_to"] for row in report(results, ["proved_up_to"]).rows]
    [2033]
    """
    from ropeaudit.runtime import run_metadata

    about = run_metadata.gather() if metadata is None else metadata
    if type(results).__name__ in _OF_ONE:
        return _OF_ONE[type(results).__name__](results, columns, by, about)
    listed = list(results) if isinstance(results, Iterable) else []
    if not listed:
        raise UsageError("there are no results to report")
    kind = type(listed[0]).__name__
    if kind not in _OF_SEVERAL:
        raise UsageError(f"a {kind} is no result of ropeaudit; give what shift, limit, explain, ... return")
    return _OF_SEVERAL[kind](listed, columns, by, about)


_Adapter = Callable[[Any, _Columns, str | None, _Metadata], Report]


def _by(place: str) -> _Adapter:
    """Return a report function that takes results, columns and metadata, by "feature.module:function"."""

    def render(results: Any, columns: _Columns, by: str | None, metadata: _Metadata) -> Report:
        if by is not None:
            raise UsageError(f"by {by!r} says what the rows of explain and of model are; leave it out")
        module, _, name = place.partition(":")
        result: Report = getattr(import_module(f"ropeaudit.{module}"), name)(results, columns, metadata)
        return result

    return render


def _explain(results: Any, columns: _Columns, by: str | None, metadata: _Metadata) -> Report:
    from ropeaudit.features.explain.report import explain_report

    of_code = any(type(one).__name__ == "CodeExplanation" for one in results)
    return explain_report(results, by or ("dtypes" if of_code else "stage"), columns, metadata)


def _model(audit: ModelAudit, columns: _Columns, by: str | None, metadata: _Metadata) -> Report:
    from ropeaudit.features.model import load
    from ropeaudit.features.model.analysis import THRESHOLD
    from ropeaudit.features.model.report import model_report

    return model_report(audit, list(audit), by or "summary", THRESHOLD, columns, load.versions(), metadata)


def _summary(groups: list[Group], columns: _Columns, by: str | None, metadata: _Metadata) -> Report:
    from ropeaudit.features.report.groups import summary_report

    return summary_report(groups, list(groups[0].names), columns, metadata)


# one line a type of results: the function that makes its report
_OF_ONE: dict[str, _Adapter] = {
    "Difference": _by("reports.comparison:diff_report"),
    "ModelAudit": _model,
    "ModuleAudit": _by("features.module.report:module_report"),
}
_OF_SEVERAL: dict[str, _Adapter] = {
    "Checked": _by("features.check.report:check_report"),
    "DecayCurves": _by("features.decay.report:decay_report"),
    "CodeExplanation": _explain,
    "Explanation": _explain,
    "FrequencyTable": _by("features.list.frequencies:frequencies_report"),
    "Group": _summary,
    "Limit": _by("features.limit.report:limit_report"),
    "Parity": _by("features.parity.report:parity_report"),
    "Record": _by("reports.drift:drift_report"),
    "WrittenCase": _by("features.vectors.report:vectors_report"),
}
