"""The command `ropeaudit module`."""

from __future__ import annotations

from typing import Any

import click

from ropeaudit.console.help import GroupedCommand, command
from ropeaudit.console.options import ReportOptions, report_options, ticket_option
from ropeaudit.console.parameters import INTEGER, number


class _FilesAlone(GroupedCommand):
    """A command about files, which hands code over to `check`."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Return the context of `check` with the same arguments where one of them is code."""
        from ropeaudit.console.delivery import say
        from ropeaudit.features.module.analysis import is_code

        code = next((one for one in args if ".py:" in one or is_code(one)), None)
        group = parent.command if parent else None
        check = group.get_command(parent, "check") if parent and isinstance(group, click.Group) else None
        if code is None or check is None:
            return super().make_context(info_name, args, parent, **extra)
        if not {"-q", "--quiet"} & {*args}:
            say(f"{code} is code, which `ropeaudit check` calls; `module` reads files")
        return check.make_context("check", args, parent, **extra)


@command(
    cls=_FilesAlone,
    epilog="Exit code: 0 nothing is wrong, or nothing is stored, 1 a buffer was cast, is off or ends too "
    "early, a conversion lost something, or something was not judged, 2 bad usage or input.",
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
@report_options
@ticket_option
def module(output: ReportOptions, ticket: str | None, **asked: Any) -> int:
    """Find stored RoPE buffers that were cast, are off, or end before what their config serves.

    SOURCE is a checkpoint (a folder, a .safetensors or .pt file); a dumped inv_freq, cos and sin,
    or freqs_cis (.npz, .npy or c.npy,s.npy), which is explained pair by pair; an .onnx graph, whose
    constants are read; or a .gguf file, whose metadata is held against the config that it was
    converted with. Nothing of it is executed. Buffers are known by their values: frequencies,
    periods, angles, cos and sin. Without a config, a model or --base nothing says what their
    frequencies should be, and the base is guessed. Code (FILE.py:NAME) is given to
    `ropeaudit check`, with all options of that.
    """
    from ropeaudit.console import delivery, output_files
    from ropeaudit.features.module import analysis
    from ropeaudit.features.module import report as tables
    from ropeaudit.reports import with_metadata

    columns = output.chosen_columns(tables.COLUMNS)
    audit = analysis.module(**asked)
    made = tables.report([audit], columns, {})
    with output_files.opened_for("--ticket", ticket, "ticket") as file:
        code = delivery.run_and_deliver(
            lambda _: [made],
            lambda reports, metadata: with_metadata(reports[0], metadata),
            output,
        )
        written = delivery.write_ticket(file, lambda: tables.ticket(audit))
    broken = audit.wrong or not audit.judged
    return delivery.worst(code, written, delivery.BROKEN if broken else delivery.DONE)
