"""ropeaudit module: did something cast the RoPE buffers of a module or a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ropeaudit.console.options import report_options

if TYPE_CHECKING:
    from ropeaudit.features.module.expected import Expected


@click.command(
    epilog="Exit code: 0 done, or nothing is wrong, 1 a buffer was cast or is off, 2 bad usage or input."
)
@click.argument("source", metavar="SOURCE")
@click.option(
    "--config", metavar="PATH", help="The model's config.json or its folder.  [default: beside SOURCE]"
)
@click.option("--model", metavar="NAME", help="A named model instead (`ropeaudit list models`).")
@click.option("--base", metavar="X", help="Base that the frequencies should have, whatever a config says.")
@click.option("--scaling", metavar="SPEC", help="Scaling that they should have, such as linear:factor=4.")
@click.option("--head-dim", metavar="N", help="Dims of a head, even.")
@click.option("--rotary-dim", metavar="N", help="Dims that are rotated.  [default: --head-dim]")
@report_options
def module(**options: Any) -> int:
    """Find RoPE buffers that were cast, be it to bfloat16 and back, or that are not what they should be.

    SOURCE is a checkpoint (a folder, a .safetensors or .pt file), whose code is never executed, or a
    function that returns a module: file.py:function or package.module:function, which is called. Buffers
    are known by their values: frequencies, periods, angles, cos and sin. Without a config, a model or
    --base nothing says what their frequencies should be, and the base is guessed from the values.
    """
    from ropeaudit.console import output, rows
    from ropeaudit.features.module import analysis
    from ropeaudit.features.module import source as module_source
    from ropeaudit.features.module.report import COLUMNS, module_report
    from ropeaudit.runtime import run_metadata

    columns = rows.chosen_columns(options, COLUMNS)
    expected = _expected(options)
    with output.opened(options["outputs"]) as files:
        source = module_source.load(options["source"], expected)
        results = list(analysis.run(source))
        output.deliver(module_report(source, results, columns, run_metadata.gather()), files, options)
    return 1 if any(one.wrong for one in results) else 0


def _expected(options: dict[str, Any]) -> Expected:
    """What the options say of the frequencies. Raises: UsageError, UnknownName, BadShape, BadInput."""
    from ropeaudit.console import values
    from ropeaudit.errors import UsageError
    from ropeaudit.features.module.expected import Expected
    from ropeaudit.rope import hf_config, presets, scaling

    base = None if options["base"] is None else values.number(options["base"], "--base", "10000")
    dims = {
        name: None if (text := options[name]) is None else values.integer(text, f"--{name.replace('_', '-')}")
        for name in ("head_dim", "rotary_dim")
    }
    if options["config"] is not None and options["model"] is not None:
        raise UsageError("--model and --config both name a model; give one of them")
    model = None if options["model"] is None else presets.named(options["model"])
    if options["config"] is not None:
        model = hf_config.read(options["config"], base)
    given = None if options["scaling"] is None else scaling.parse(options["scaling"])
    expected = Expected(model, base, given, **dims)
    expected.plain(
        None, 10000.0 if base is None else base
    )  # whatever is no setting is refused before any work
    return expected
