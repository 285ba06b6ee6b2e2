"""ropeaudit module: was something that RoPE stores cast, and is it right."""

from __future__ import annotations

from typing import Any

import click

from ropeaudit.console.help import command
from ropeaudit.console.options import ReportOptions, axis, calling_options, report_options, ticket_option
from ropeaudit.console.parameters import ARGUMENT, INTEGER, NAMES, merged, number


@command(
    epilog="Exit code: 0 nothing is wrong, 1 a buffer was cast or is off, a conversion lost something, or "
    "something was not judged, 2 bad usage or input."
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
@axis(
    "--loaded",
    NAMES,
    "Loading modes in which modules are looked at. built, to (cast by .to), "
    "default-dtype (built under it), from-pretrained (saved and loaded by transformers or diffusers).",
    shown="all of a class; else built",
)
@axis("--dtype", NAMES, "Dtypes of those modes: bf16, fp16, fp32, fp64.", "bf16")
@click.option(
    "--build",
    type=ARGUMENT,
    multiple=True,
    callback=merged,
    metavar="NAME=VALUE",
    help="Argument that SOURCE is called with, such as head_dim=128.",
)
@calling_options
@report_options
@ticket_option
def module(output: ReportOptions, ticket: str | None, **asked: Any) -> int:
    """Find RoPE buffers that were cast or are off, as files store them and as modules hold them.

    SOURCE is a checkpoint (a folder, a .safetensors or .pt file), whose code is never executed; a dumped
    inv_freq, cos and sin, or freqs_cis (.npz, .npy or c.npy,s.npy), which is explained pair by pair; an .onnx
    graph, whose constants are read and which is never executed; a .gguf file, whose metadata is held against
    the config that it was converted with; or a function that returns a module, or the class of one:
    file.py:name or package.module:name, which is called; a class is built from its default config or usual
    sizes, anew for each loading mode: .to(dtype), from_pretrained(dtype) and the default dtype. `forward` is
    never called: `ropeaudit check` does that. Buffers and constants are known by their values: frequencies,
    periods, angles, cos and sin. Without a config, a model or --base nothing says what their frequencies
    should be, and the base is guessed from the values.
    """
    from ropeaudit.console import delivery, output_files
    from ropeaudit.features.module.report import COLUMNS, run
    from ropeaudit.reports import with_metadata

    asked |= {"dtypes": list(asked.pop("dtype")), "loaded": list(asked.pop("loaded")) or None}
    broken, report, made = run(asked, output.chosen_columns(COLUMNS))
    with output_files.opened_for("--ticket", ticket, "ticket") as file:
        code = delivery.delivered(
            lambda _: [report],
            lambda reports, metadata: with_metadata(reports[0], metadata),
            output,
        )
        written = delivery.write_ticket(file, lambda: made)
    return delivery.worst(code, written, delivery.BROKEN if broken else delivery.DONE)
