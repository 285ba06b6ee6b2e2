"""ropeaudit diff: two reports of the same cases."""

from __future__ import annotations

from typing import Any

import click

from ropeaudit.console.options import regression_option, report_options


@click.command(
    epilog="Rows are joined by what was asked for: recipe, dtype, offset, RoPE setting, q and k, formats of "
    "stages. Exit code: 0 done, 1 a --fail-if was broken, 2 bad usage or input."
)
@click.argument("before", metavar="BEFORE")
@click.argument("after", metavar="AFTER")
@click.option(
    "--ratio", metavar="X", help="Times as much that count as changed, up or down.  [default: 1.05]"
)
@click.option("--all", "unchanged", is_flag=True, help="Show the cases that did not change too.")
@regression_option
@report_options
def diff(**options: Any) -> int:
    """Compare two reports of `ropeaudit shift`: what drifts more than before.

    BEFORE and AFTER: .csv, .json, .jsonl or .parquet.
    """
    from ropeaudit.audits import comparison as analysis
    from ropeaudit.console import gates, rows, values, work
    from ropeaudit.reports.comparison import COLUMNS, diff_report
    from ropeaudit.reports.reading import read

    columns = rows.chosen_columns(options, COLUMNS)
    conditions = [gates.parse(text, relative=True) for text in options["gates"]]
    ratio = analysis.RATIO if options["ratio"] is None else values.number(options["ratio"], "--ratio", "1.05")
    result = analysis.compare(read(options["before"]), read(options["after"]), ratio)
    gates.check_columns(conditions, [side for pair in result.pairs for side in (pair.before, pair.after)])
    _, code = work.done(
        options,
        lambda on_progress: [result],
        lambda differences, about: diff_report(differences[0], columns, about, options["unchanged"]),
        {},
        "comparisons",
    )
    return work.judged(gates.broken_since(conditions, result.pairs), code)
