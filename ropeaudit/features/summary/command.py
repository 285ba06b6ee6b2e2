"""ropeaudit summary: many rows in a few lines."""

from __future__ import annotations

from typing import Any

import click

from ropeaudit.console.options import axis, report_options


@click.command(epilog="Exit code: 0 done, 2 bad usage or input.")
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@axis("--by", "Columns that make a group.", "subject,dtype")
@click.option("--column", metavar="NAME", help="Column to summarise.  [default: drift_rms]")
@click.option("--worst", is_flag=True, help="Show the worst row of each group, with all its columns.")
@report_options
def summary(**options: Any) -> int:
    """Summarise reports of `ropeaudit shift`: a line per group of rows.

    FILE: .csv, .json, .jsonl or .parquet; several are taken together.
    """
    from ropeaudit.audits import records
    from ropeaudit.audits import summary as analysis
    from ropeaudit.console import rows, values, work
    from ropeaudit.features.summary.report import OWN, summary_report, worst_report
    from ropeaudit.reports.reading import read

    by = values.names(options["by"], "--by") or list(analysis.BY)
    own = records.COLUMNS if options["worst"] else ["schema", *by, *OWN]
    columns = rows.chosen_columns(options, own)
    whole = [row for path in options["files"] for row in read(path)]
    result = analysis.groups(whole, by, options["column"] or analysis.COLUMN)
    make = worst_report if options["worst"] else summary_report
    _, code = work.done(
        options,
        lambda on_progress: result,
        lambda groups, about: make(groups, by, columns, about),
        {},
        "groups",
    )
    return code
