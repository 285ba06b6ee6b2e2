"""ropeaudit module: did something cast the RoPE buffers of a module or a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ropeaudit.cli.options import report_options

if TYPE_CHECKING:
    pass


@click.command(
    epilog="Exit code: 0 done, or nothing is wrong, 1 a buffer was cast or is off, 2 bad usage or input."
)
@click.argument("source", metavar="SOURCE")
@click.option(
    "--config", metavar="PATH", help="The model's config.json or its folder.  [default: beside SOURCE]"
)
@click.option("--base", metavar="X", help="Base of the frequencies, where the config gives none.")
@report_options
def module(**options: Any) -> int:
    """Find RoPE buffers that were cast, be it to bfloat16 and back.

    SOURCE is a checkpoint (a folder, a .safetensors or .pt file), whose code is never executed, or a
    function that returns a module: file.py:function or package.module:function, which is called.
    """
    from ropeaudit import circumstances
    from ropeaudit.analyses import module as analysis
    from ropeaudit.analyses import module_source
    from ropeaudit.cli import output, rows, values
    from ropeaudit.reports.module import COLUMNS, module_report

    columns = rows.chosen_columns(options, COLUMNS)
    base = None if options["base"] is None else values.number(options["base"], "--base", "10000")
    with output.opened(options["outputs"]) as files:
        source = module_source.load(options["source"], options["config"], base)
        found = list(analysis.run(source))
        output.deliver(module_report(source, found, columns, circumstances.gather()), files, options)
    return 1 if any(one.wrong for one in found) else 0
