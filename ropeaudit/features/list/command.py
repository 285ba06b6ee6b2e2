"""ropeaudit list: recipes, implementations, formats, models, axes, columns, verdicts."""

from __future__ import annotations

import click

from ropeaudit.console.help import command
from ropeaudit.console.options import ScreenOptions, screen_options
from ropeaudit.console.parameters import WORD, one_of
from ropeaudit.errors import UsageError

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
@click.option(
    "--match",
    type=WORD,
    metavar="PATTERN",
    help="Of impls, those whose names fit, a family's classes one by one, such as 'transformers:*'.",
)
@screen_options
def list_(kind: str, match: str | None, screen: ScreenOptions) -> None:
    """List what there is: recipes, implementations, formats, models, axes of grids, columns, verdicts."""
    from ropeaudit.console import output
    from ropeaudit.features.list.columns import LISTS
    from ropeaudit.reports import Report
    from ropeaudit.subjects import third_party

    if match is not None and kind != "impls":
        raise UsageError(f"--match goes with `ropeaudit list impls`; leave it out of list {kind}")
    columns, items = LISTS[kind]
    rows = [columns.row(item) for item in (items() if match is None else third_party.listed(match))]
    if not rows:
        raise UsageError(f"--match {match!r} fits no implementation; try --match 'transformers:*'")
    report = Report(rows, list(columns), columns.screen(()), columns.dispensable, declared=columns)
    output.print_report(report, screen)
