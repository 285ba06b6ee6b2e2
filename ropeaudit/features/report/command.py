"""The command `ropeaudit report`."""

from __future__ import annotations

import click
from click.core import ParameterSource

from ropeaudit.console.help import command
from ropeaudit.console.options import ReportOptions, axis, report_options
from ropeaudit.console.parameters import NAMES, number
from ropeaudit.errors import UsageError


@command(
    epilog="Exit code: 0 done, 1 a --fail-if was broken, 2 bad usage or input.\n\n"
    "Rows come in the order of the files: shards 1/N to N/N in order give what the whole sweep gives. "
    "With --against they are joined by what was asked for: recipe, dtype, offset, RoPE setting, q and k, "
    "formats of stages. A page is one file: it opens without a network or a server."
)
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@axis("--by", NAMES, "Summarise: a line per group of rows that agree in columns: model,dtype.")
@click.option("--column", metavar="NAME", help="With --by: the column to summarise.  [default: drift_rms]")
@click.option("--worst", is_flag=True, help="With --by: the worst row of each group, with all its columns.")
@click.option(
    "--against", metavar="FILE", help="Compare with an earlier report: what drifts more than before."
)
@click.option(
    "--ratio",
    type=number("1.05"),
    metavar="X",
    help="With --against: times as much that count as changed, up or down.  [default: 1.05]",
)
@click.option("--all", "unchanged", is_flag=True, help="With --against: show cases that did not change too.")
@click.option(
    "--fail-if",
    "gates",
    multiple=True,
    metavar="COND",
    help="With --against: exit with 1 if a case fulfils it: 'drift_rms>1.1x'. That is 1.1 times what it was; "
    "'drift_rms>1e-3' looks at FILE... alone. Repeatable.",
)
@report_options
def report(
    files: tuple[str, ...],
    by: tuple[str, ...],
    column: str | None,
    worst: bool,
    against: str | None,
    ratio: float | None,
    unchanged: bool,
    gates: tuple[str, ...],
    output: ReportOptions,
) -> int:
    """Make one report of those that `ropeaudit shift` has written: a page, or any other form.

    FILE is a .csv, .json, .jsonl or .parquet, or - for stdin. Several are merged: all rows, those that stand
    in several files once. --by summarises them, --against compares them with an earlier report. With -o and
    without -f only the finding and the names of the files are printed.
    """
    from ropeaudit import reports
    from ropeaudit.audits import comparison, records
    from ropeaudit.console import delivery, output_files
    from ropeaudit.console import gates as conditions
    from ropeaudit.features.report import analysis
    from ropeaudit.reports import comparison as changes
    from ropeaudit.runtime.rows import without_garbage_collection

    with_by = {"--column": column is not None, "--worst": worst}
    with_against = {"--ratio": ratio is not None, "--all": unchanged, "--fail-if": bool(gates)}
    for there, other, along in (
        (bool(by), "--by COLUMNS", with_by),
        (against is not None, "--against FILE", with_against),
    ):
        for name in (name for name, given in along.items() if given and not there):
            raise UsageError(f"{name} goes with {other}, which is not there; add it, or leave out {name}")
    if by and against is not None:
        raise UsageError("--by summarises and --against compares, each in a report of its own; leave out one")
    broken = list[str]()
    with without_garbage_collection(), output_files.opened(output.outputs) as targets:
        if against is not None:
            columns = output.chosen_columns(changes.COLUMNS)
            requested = [conditions.parse(text, relative=True) for text in gates]
            found = analysis.diff(against, files, comparison.RATIO if ratio is None else ratio)
            broken = conditions.broken_since(requested, found.pairs)
            made = changes.report([found], columns, delivery.metadata(output), unchanged)
        elif by:
            columns = output.chosen_columns(
                records.COLUMNS if worst else ["schema", *by, *analysis.OWN_COLUMNS]
            )
            results = analysis.summary(files, by, column or analysis.COLUMN)
            made = analysis.report(results, columns, delivery.metadata(output), worst)
        else:
            columns = output.chosen_columns(
                ["file", *records.CHOICES], "(`ropeaudit list columns` explains them)"
            )
            forms = (output.form, *(file.form for file in targets))
            data = any(reports.REGISTRY[form].reads for form in forms)
            made = analysis.merged(files, columns, delivery.metadata(output), data)
        usual = click.get_current_context().get_parameter_source("form") is ParameterSource.DEFAULT
        alone = usual and bool(targets)  # of one that goes into files alone the finding is printed
        return delivery.deliver(made, targets, output, broken=lambda: broken, alone=alone)
