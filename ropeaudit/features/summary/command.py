"""ropeaudit summary: many rows in a few lines."""

from __future__ import annotations

import click

from ropeaudit.console.help import command
from ropeaudit.console.options import ReportOptions, axis, report_options
from ropeaudit.console.parameters import NAMES


@command(epilog="Exit code: 0 done, 2 bad usage or input.")
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@axis("--by", NAMES, "Columns that make a group.", "subject,dtype")
@click.option(
    "--column", default="drift_rms", metavar="NAME", help="Column to summarise.  [default: drift_rms]"
)
@click.option("--worst", is_flag=True, help="Show the worst row of each group, with all its columns.")
@report_options
def summary(
    files: tuple[str, ...], by: tuple[str, ...], column: str, worst: bool, output: ReportOptions
) -> int:
    """Summarise reports of `ropeaudit shift`: a line per group of rows.

    FILE: .csv, .json, .jsonl or .parquet; several are taken together.
    """
    from ropeaudit.audits import records
    from ropeaudit.console import delivery
    from ropeaudit.features.summary import analysis
    from ropeaudit.features.summary.report import OWN, summary_report, worst_report

    own = records.COLUMNS if worst else ["schema", *by, *OWN]
    columns = output.chosen_columns(own)
    groups = analysis.summary(files, by, column)
    make = worst_report if worst else summary_report
    return delivery.delivered_at_once(lambda metadata: make(groups, by, columns, metadata), output)
