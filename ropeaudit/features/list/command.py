"""ropeaudit list: recipes, implementations, formats, models, axes, columns, verdicts."""

from __future__ import annotations

import click

from ropeaudit.console.help import command
from ropeaudit.console.options import ScreenOptions, screen_options
from ropeaudit.console.parameters import one_of

KINDS = (
    "recipes",
    "impls",
    "formats",
    "models",
    "axes",
    "columns",
    "verdicts",
)  # of list/columns.py: no NumPy here


@command(name="list")
@click.argument("kind", metavar="|".join(KINDS), type=one_of("list", KINDS))
@screen_options
def list_(kind: str, screen: ScreenOptions) -> None:
    """List what there is: recipes, implementations, formats, models, axes of grids, columns, verdicts."""
    from ropeaudit.console import output
    from ropeaudit.features.list.columns import LISTS
    from ropeaudit.reports import Report

    columns, items = LISTS[kind]
    rows = [columns.row(item) for item in items()]
    report = Report(rows, list(columns), columns.screen(()), columns.dispensable, declared=columns)
    output.print_report(report, screen)
