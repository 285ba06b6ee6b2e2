"""`report` and `to_frame`: results of any function as a report, and as a DataFrame of pandas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Any

from ropeaudit.audits import arguments
from ropeaudit.audits.results import Result
from ropeaudit.errors import UnknownName, UsageError
from ropeaudit.reports import Report

if TYPE_CHECKING:
    import pandas as pd

    from ropeaudit.runtime.columns import Column


def report(
    results: Result | Iterable[Result],
    columns: Sequence[str] | None = None,
    *,
    by: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Report:
    """Return the report of results: rows, a finding, notes, and a legend.

    columns: what is shown and written, in this order; by default those of the command. by: the kind of rows
    of `explain` (dtypes, stage, pair, remedy) and of `model` (summary, layer, pair). metadata: of the
    run; by default versions, platform, command and time.
    `ropeaudit.render` turns a report into text. Raises: UnknownName for a column, UsageError, and what the
    results raise.

    >>> from ropeaudit import limit, report
    >>> results = limit("distinct_positions=16", "fp16", "uniform", seq_len=16, heads=1)
    >>> [row["proved_up_to"] for row in report(results, ["proved_up_to"]).rows]
    [2033]
    """
    from ropeaudit.runtime import run_metadata

    listed: list[Any] = [results]
    if not isinstance(results, Result):
        listed = list(results) if isinstance(results, Iterable) else []
    if not listed:
        raise UsageError("there are no results to report")
    modules = {getattr(result, "report_module", ""): type(result).__name__ for result in listed}
    if "" in modules:
        raise UsageError(
            f"a {modules['']} is no result of ropeaudit; give what shift, limit, explain, ... return"
        )
    if len(modules) > 1:
        raise UsageError(f"results of {' and of '.join(modules.values())} have a report each; give one kind")
    make: Callable[..., Report] = import_module(listed[0].report_module).report
    about = run_metadata.gather() if metadata is None else metadata
    if by is not None and "by" not in signature(make).parameters:
        raise UsageError(f"by {by!r} says what the rows of explain and of model are; leave it out")
    if columns is not None:
        columns = arguments.as_list(columns)
    made = make(listed, columns, about, **({} if by is None else {"by": by}))
    for name in made.columns:
        if made.rows and name not in made.rows[0]:
            raise UnknownName("column", name, made.rows[0])
    return made


@arguments.public
def to_frame(
    results: Result | Iterable[Result],
    columns: Sequence[str] = (),
    *,
    by: str | None = None,
) -> pd.DataFrame:
    """Return the rows of the report of results as a pandas DataFrame.

    columns: names, and of `shift` also groups, "core" or "all"; by default those of a JSON report.
    by: as in `report`. Whole numbers and text have pandas' nullable types, words of a closed set are
    categories, values that do not apply are <NA>. Raises: MissingPackage, and what `report` raises.
    """
    import pandas as pd

    made = report(results, columns or None, by=by, metadata={})
    every = {name: [None if row[name] == "" else row[name] for row in made.rows] for name in made.columns}
    return pd.DataFrame(
        {
            name: pd.Series(values, dtype=_pandas_type(made.declared.get(name), values))
            for name, values in every.items()
        }
    )


def _pandas_type(column: Column | None, values: Sequence[Any]) -> Any:
    """Return the pandas type of a column; of an undeclared one by its first value."""
    import pandas as pd

    if column is not None and column.kind is bool:
        return "boolean"
    if column is not None and column.words:
        return pd.CategoricalDtype(list(column.words))
    kind = column.kind if column is not None else type(values[0]) if values else float
    if kind is int:
        return "UInt64" if any(value is not None and value >= 2**63 for value in values) else "Int64"
    return "string" if kind is str else "float64"
