"""ropeaudit env: what to attach to a bug ticket."""

from __future__ import annotations

from ropeaudit.console.help import command
from ropeaudit.console.options import ScreenOptions, screen_options


@command()
@screen_options
def env(screen: ScreenOptions) -> None:
    """Show versions, platform and threads, for a bug ticket."""
    from ropeaudit.console import output
    from ropeaudit.reports import Report
    from ropeaudit.runtime import run_metadata

    rows = [{"what": name, "value": str(text)} for name, text in run_metadata.environment().items()]
    output.print_report(Report(rows, ["what", "value"], ["what", "value"]), screen)
