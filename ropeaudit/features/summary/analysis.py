"""Many rows of reports in groups."""

from __future__ import annotations

from ropeaudit.audits import arguments
from ropeaudit.audits import summary as summaries
from ropeaudit.audits.arguments import Names
from ropeaudit.audits.summary import Group
from ropeaudit.reports.reading import read


@arguments.checked
def summary(files: Names, by: Names = summaries.BY, column: str = summaries.COLUMN) -> list[Group]:
    """Return the groups of rows that agree in the columns `by`, in the order in which they come.

    files: reports of `shift`, .csv, .json, .jsonl or .parquet; several are taken together. column: whose
    worst value and median a group tells.
    Raises: BadInput; UnknownName, UsageError for a column that does not exist or that some row lacks.
    """
    rows = [row for path in arguments.listed(files) for row in read(path)]
    return summaries.groups(rows, arguments.listed(by), column)
