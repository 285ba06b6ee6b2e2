"""ropeaudit env: what to attach to a bug ticket."""

from __future__ import annotations

import click

from ropeaudit.cli.options import form


@click.command()
@form
def env(form: str, color: bool | None) -> None:
    """Show versions, platform and threads, for a bug ticket."""
    from ropeaudit import circumstances
    from ropeaudit.cli import output
    from ropeaudit.reports import Report

    rows = [{"what": name, "value": str(text)} for name, text in circumstances.environment().items()]
    output.print_report(Report(rows, ["what", "value"], ["what", "value"]), form, color)
