"""ropeaudit trace: which number formats an implementation uses, and which recipe it behaves like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from ropeaudit.console import options
from ropeaudit.console.help import command
from ropeaudit.console.parameters import INTEGERS, NAMES

if TYPE_CHECKING:
    from ropeaudit.reports import Report


@command(
    epilog="Implementations: a name (`ropeaudit list implementations`), mypkg.rope:apply_rope or "
    "path/to/file.py:apply_rope, several separated by commas. Exit code: 0 done, 2 bad usage or input."
)
@options.words("IMPL", "implementations")
@options.axis("--dtype", NAMES, "Number formats of q and k.", "bf16")
@options.axis("--offset", INTEGERS, "Offsets of the error profile.", "0,1k,32k,128k")
@click.option("--order", metavar="AXES", help="Axes of your own code, such as bhsd.  [default: found out]")
@options.device_option
@options.under_option
@options.rope_options
@options.report_options
def trace(
    implementations: tuple[str, ...],
    dtype: tuple[str, ...],
    offset: tuple[int, ...],
    order: str | None,
    device: str | None,
    under: tuple[str, ...],
    rope: options.RopeOptions,
    output: options.ReportOptions,
) -> int:
    """Trace an implementation: dtypes by stage, and the recipe that it behaves like.

    Torch operations are logged while it rotates; whatever its engine, its rotated vectors and its drift are
    compared with those of every named recipe.
    """
    from ropeaudit.console import delivery, settings
    from ropeaudit.features.trace import analysis
    from ropeaudit.features.trace.columns import COLUMNS
    from ropeaudit.features.trace.report import trace_report

    columns = output.chosen_columns(COLUMNS)
    code = analysis.called(implementations, order, device, under)
    cases = settings.cases(rope)

    def report(results: list[analysis.Traced], metadata: Mapping[str, Any]) -> Report:
        findings = [text for one in code for text in getattr(one, "findings", ())]
        metadata = {**metadata, "findings": findings} if findings else metadata
        return trace_report(results, columns, metadata, findings)

    return delivery.delivered(
        lambda on_progress: analysis.trace(code, dtype, offset, cases=cases, on_progress=on_progress),
        report,
        output,
        noun="implementations",
    )
