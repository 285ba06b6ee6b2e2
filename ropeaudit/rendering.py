"""The report of any result: the feature that it is from renders it, as its command does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from inspect import signature
from typing import Any, ClassVar, Protocol

from ropeaudit.errors import UsageError
from ropeaudit.reports import Report


class Result(Protocol):
    """What a function of this package returns, or yields several of.

    report_module: where report(results, columns, metadata) is, which makes a report of a sequence of them,
    and with `by` where their rows may be of several kinds.
    """

    report_module: ClassVar[str]


def report(
    results: Result | Iterable[Result],
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

    listed: list[Any]
    if hasattr(results, "report_module"):
        listed = [results]
    else:
        listed = list(results) if isinstance(results, Iterable) else []
    if not listed:
        raise UsageError("there are no results to report")
    modules = {getattr(one, "report_module", ""): type(one).__name__ for one in listed}
    if "" in modules:
        raise UsageError(
            f"a {modules['']} is no result of ropeaudit; give what shift, limit, explain, ... return"
        )
    if len(modules) > 1:
        raise UsageError(f"results of {' and of '.join(modules.values())} have a report each; give one kind")
    make: Callable[..., Report] = import_module(listed[0].report_module).report
    about = run_metadata.gather() if metadata is None else metadata
    if by is None:
        return make(listed, columns, about)
    if "by" not in signature(make).parameters:
        raise UsageError(f"by {by!r} says what the rows of explain and of model are; leave it out")
    return make(listed, columns, about, by=by)
