"""ropeaudit env: what to attach to a bug ticket."""

from __future__ import annotations

from ropeaudit.console.help import command
from ropeaudit.console.options import ScreenOptions, screen_options


@command()
@screen_options
def env(screen: ScreenOptions) -> None:
    """Show versions, processor, GPU and torch's switches, for a bug ticket."""
    from ropeaudit.console import output
    from ropeaudit.reports import Report
    from ropeaudit.runtime import hardware, run_metadata
    from ropeaudit.subjects import third_party

    audited = tuple(entry.package for entry in third_party.ENTRIES.values())
    known = run_metadata.environment()
    known |= {name: value for name, value in hardware.environment(audited).items() if name not in known}
    rows = [{"what": name, "value": str(text)} for name, text in known.items()]
    output.print_report(Report(rows, ["what", "value"], ["what", "value"]), screen)
