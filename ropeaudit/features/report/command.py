"""ropeaudit report: reports read back, merged, and written in any form, HTML above all."""

from __future__ import annotations

import os
import sys

import click
from click.core import ParameterSource

from ropeaudit.console.help import command
from ropeaudit.console.options import ReportOptions, report_options


@command(
    epilog="The page is one file: it opens without a network or a server. Exit code: 0 done, 2 bad usage or "
    "input."
)
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@report_options
def report(files: tuple[str, ...], output: ReportOptions) -> int:
    """Make a page, or any other form, of reports that `ropeaudit shift` has written.

    FILE is a .csv, .json or .jsonl; several are merged. With -o and without -f only the finding and the
    names of the files are printed.
    """
    from ropeaudit.console import output as out
    from ropeaudit.features.report.report import COLUMNS, merged
    from ropeaudit.reports.numbers import printable
    from ropeaudit.runtime import run_metadata

    columns = output.chosen_columns(COLUMNS, "(`ropeaudit list columns` explains them)")
    chosen = click.get_current_context().get_parameter_source("form") is not ParameterSource.DEFAULT
    with out.opened(output.outputs) as targets:
        page = merged(files, columns, run_metadata.gather())
        if chosen or not targets:
            out.deliver(page, targets, output)
            return 0
        for file in targets:
            file.write(page)
    sys.stdout.write(f"{printable(page.headline)}\n")
    for file in targets if not output.quiet else ():
        size = "" if file.stream else f", {os.path.getsize(file.path) / 1e6:.2g} MB"
        out.say(f"wrote {file.path}: {len(page.rows)} rows{size}")
    return 0
