"""ropeaudit merge: the reports of several runs as one."""

from __future__ import annotations

import click

from ropeaudit.console.help import command
from ropeaudit.console.options import ReportOptions, report_options


@command(
    epilog="Rows come in the order of the files: shards 1/N to N/N in order give what the whole sweep gives. "
    "Exit code: 0 done, 2 bad usage or input."
)
@click.argument("reports", nargs=-1, required=True, metavar="FILE...")
@report_options
def merge(reports: tuple[str, ...], output: ReportOptions) -> int:
    """Put reports of `ropeaudit shift` together: .csv, .json or .jsonl, with all columns.

    A row that stands in several files is taken once.
    """
    from ropeaudit.audits import records
    from ropeaudit.console import delivery
    from ropeaudit.features.merge import analysis
    from ropeaudit.reports.drift import drift_report

    columns = output.chosen_columns(records.COLUMNS, "(`ropeaudit list columns` explains them)")
    rows = analysis.merge(reports)
    stages = analysis.stages(rows)
    return delivery.delivered_at_once(
        lambda metadata: drift_report(
            rows,
            columns,
            {**metadata, "stages": stages} if stages else metadata,
            frozen=analysis.frozen(rows),
        ),
        output,
    )
