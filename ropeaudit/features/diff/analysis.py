"""Two reports of the same cases: what changed."""

from __future__ import annotations

from ropeaudit.audits import arguments, comparison
from ropeaudit.audits.comparison import Difference
from ropeaudit.reports.reading import processor, read


@arguments.checked
def diff(before: str, after: str, ratio: float = comparison.RATIO) -> Difference:
    """Compare two reports of `shift`: files, .csv, .json, .jsonl or .parquet.

    Rows are joined by what was asked for: recipe, dtype, offset, RoPE setting, q and k, formats of stages.
    ratio: times as much that count as changed, up or down, at least 1. Between reports that are not known to
    be of one processor, what the order of sums explains is no change.
    Raises: UsageError for a ratio, BadInput if rows cannot be told apart or none is in both.
    """
    return comparison.compare(read(before), read(after), ratio, (processor(before), processor(after)))
