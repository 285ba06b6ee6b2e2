"""ropeaudit module: did something cast the RoPE buffers of a module or a checkpoint."""

from __future__ import annotations

import click

from ropeaudit.console.help import command
from ropeaudit.console.options import ReportOptions, device_option, report_options
from ropeaudit.console.parameters import INTEGER, number
from ropeaudit.console.tickets import TicketOptions, ticket_options


@command(
    epilog="Exit code: 0 done, or nothing is wrong, 1 a buffer was cast or is off, 2 bad usage or input."
)
@click.argument("source", metavar="SOURCE")
@click.option(
    "--config", metavar="PATH", help="The model's config.json or its folder.  [default: beside SOURCE]"
)
@click.option("--model", metavar="NAME", help="A named model instead (`ropeaudit list models`).")
@click.option(
    "--base",
    type=number("10000"),
    metavar="X",
    help="Base that the frequencies should have, whatever a config says.",
)
@click.option("--scaling", metavar="SPEC", help="Scaling that they should have, such as linear:factor=4.")
@click.option("--head-dim", type=INTEGER, metavar="N", help="Dims of a head, even.")
@click.option("--rotary-dim", type=INTEGER, metavar="N", help="Dims that are rotated.  [default: --head-dim]")
@device_option
@report_options
@ticket_options
def module(
    source: str,
    config: str | None,
    model: str | None,
    base: float | None,
    scaling: str | None,
    head_dim: int | None,
    rotary_dim: int | None,
    device: str | None,
    output: ReportOptions,
    ticketing: TicketOptions,
) -> int:
    """Find RoPE buffers that were cast, be it to bfloat16 and back, or that are not what they should be.

    SOURCE is a checkpoint (a folder, a .safetensors or .pt file), whose code is never executed, or a
    function that returns a module: file.py:function or package.module:function, which is called. Buffers
    are known by their values: frequencies, periods, angles, cos and sin. Without a config, a model or
    --base nothing says what their frequencies should be, and the base is guessed from the values.
    """
    from ropeaudit.console import delivery, tickets
    from ropeaudit.features.module import analysis
    from ropeaudit.features.module.report import COLUMNS, module_report
    from ropeaudit.features.module.ticket import module_ticket

    columns = output.chosen_columns(COLUMNS)
    audit = analysis.module(
        source,
        config=config,
        model=model,
        base=base,
        scaling=scaling,
        head_dim=head_dim,
        rotary_dim=rotary_dim,
        device=device,
    )
    wrong = any(buffer.wrong for buffer in audit.buffers)
    with tickets.opened(ticketing, output.outputs) as ticket_file:
        code = delivery.delivered_at_once(
            lambda metadata: module_report(audit, columns, metadata),
            output,
            delivery.BROKEN if wrong else delivery.DONE,
        )
        tickets.write(
            ticketing,
            ticket_file,
            lambda: module_ticket(audit, module_report(audit, (), {})),
            "no buffer is wrong",
        )
    return code
