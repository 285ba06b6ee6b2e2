"""ropeaudit history: state that leaks between the calls of an implementation."""

from __future__ import annotations

import click

from ropeaudit.console.help import command
from ropeaudit.console.options import (
    ReportOptions,
    RopeOptions,
    axis,
    device_option,
    report_options,
    rope_options,
    under_option,
)
from ropeaudit.console.parameters import INTEGERS, NAMES


@command(
    epilog="Names: FILE.py:NAME, mypkg.rope:NAME or a name of `list implementations`. Exit code: 0 done, "
    "whether anything leaks or not, 2 bad usage or input."
)
@click.argument("implementations", metavar="NAMES", type=NAMES)
@axis("--dtype", NAMES, "Number formats of the calls, and of those before them.", "fp32,fp16,bf16")
@axis("--offset", INTEGERS, "First positions of the calls.", "0,1000")
@axis("--seq-len", INTEGERS, "Positions of the calls.", shown="256")
@device_option
@under_option
@rope_options
@report_options
def history(
    implementations: list[str],
    dtype: tuple[str, ...],
    offset: tuple[int, ...],
    seq_len: tuple[int, ...],
    device: str | None,
    under: tuple[str, ...],
    rope: RopeOptions,
    output: ReportOptions,
) -> int:
    """Find state that leaks between the calls of real code.

    The same call is made on a fresh instance and after calls in another dtype, for another length and at
    another offset: what it returns must not differ in a single bit. FILE.py:NAME is executed anew for each; a
    function of a package is loaded once.
    """
    from ropeaudit.console import delivery, settings
    from ropeaudit.features.history import analysis
    from ropeaudit.features.history.report import COLUMNS, history_report

    columns = output.chosen_columns(COLUMNS)
    cases = settings.cases(rope, seq_len=seq_len)
    return delivery.delivered(
        lambda on_progress: analysis.history(
            implementations,
            dtype,
            offset,
            device=device,
            under=under,
            cases=cases,
            on_progress=on_progress,
        ),
        lambda results, metadata: history_report(results, columns, metadata),
        output,
    )
