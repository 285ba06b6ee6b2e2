"""ropeaudit diff: two reports of the same cases."""

from __future__ import annotations

import click

from ropeaudit.console.help import command
from ropeaudit.console.options import ReportOptions, regression_option, report_options
from ropeaudit.console.parameters import number


@command(
    epilog="Rows are joined by what was asked for: recipe, dtype, offset, RoPE setting, q and k, formats of "
    "stages. Exit code: 0 done, 1 a --fail-if was broken, 2 bad usage or input."
)
@click.argument("before", metavar="BEFORE")
@click.argument("after", metavar="AFTER")
@click.option(
    "--ratio",
    type=number("1.05"),
    default=1.05,
    metavar="X",
    help="Times as much that count as changed, up or down.  [default: 1.05]",
)
@click.option("--all", "unchanged", is_flag=True, help="Show the cases that did not change too.")
@regression_option
@report_options
def diff(
    before: str,
    after: str,
    ratio: float,
    unchanged: bool,
    gates: tuple[str, ...],
    output: ReportOptions,
) -> int:
    """Compare two reports of `ropeaudit shift`: what drifts more than before.

    BEFORE and AFTER: .csv, .json, .jsonl or .parquet.
    """
    from ropeaudit.console import delivery
    from ropeaudit.console import gates as conditions
    from ropeaudit.features.diff import analysis
    from ropeaudit.reports.comparison import COLUMNS, diff_report

    columns = output.chosen_columns(COLUMNS)
    requested = [conditions.parse(text, relative=True) for text in gates]
    result = analysis.diff(before, after, ratio)
    conditions.check_columns(requested, [side for pair in result.pairs for side in (pair.before, pair.after)])
    delivery.delivered_at_once(lambda metadata: diff_report(result, columns, metadata, unchanged), output)
    return delivery.judged(conditions.broken_since(requested, result.pairs))
