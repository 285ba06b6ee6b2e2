"""The command `ropeaudit vectors`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from ropeaudit.console import options
from ropeaudit.console.help import command
from ropeaudit.console.parameters import INTEGER, INTEGERS, NATURAL


@command(
    epilog="A kernel reads the folder, rotates, writes what manifest.json asks for into another folder, and "
    "`ropeaudit check CASE --returned OUT` judges it. Exit code: 0 done, 2 bad usage or input."
)
@click.option(
    "-o",
    "--output",
    "folder",
    required=True,
    metavar="FOLDER",
    help="A folder: of the case, or of cases. It is written whole, in place of cases that are there.",
)
@options.axis(
    "--offset",
    INTEGERS,
    "First positions of the calls. 0 is always one, and beside a power of two stands an offset whose "
    "positions are on both sides of it.",
    shown="where positions break; up to the model's maximum",
)
@options.dtype_option
@click.option(
    "--want",
    default="rotated",
    metavar="WHAT",
    help="What is written back: rotated or gradient. rotated is q and k; gradient is that of q and k, from "
    "one of the rotated ones.  [default: rotated]",
)
@click.option(
    "--served",
    is_flag=True,
    help="Add calls as servers make them. They are rows at positions of their own, with one token each too, "
    "packed sequences, and many query heads to a key head.",
)
@click.option(
    "--positions",
    default="int64",
    metavar="DTYPE",
    help="Integers of the positions: int64 or int32.  [default: int64]",
)
@click.option("--heads", type=INTEGER, metavar="N", help="Query heads.  [default: 4]")
@click.option(
    "--kv-heads",
    type=INTEGER,
    metavar="N",
    help="Key-value heads, a divisor of --heads.  [default: half of it]",
)
@click.option("--seq-len", type=INTEGER, metavar="N", help="Positions of a call.  [default: 256]")
@click.option("--seed", type=NATURAL, default=0, metavar="N", help="Seed of q and k.  [default: 0]")
@click.option(
    "--context",
    type=INTEGER,
    metavar="N",
    help="Positions that frequencies are computed for. It counts where they depend on it (dynamic, "
    "longrope).  [default: up to the last one of the case]",
)
@options.rope_options
@options.screen_options
def vectors(
    folder: str,
    offset: tuple[int, ...],
    dtype: tuple[str, ...],
    heads: int | None,
    kv_heads: int | None,
    seq_len: int | None,
    seed: int,
    rope: options.RopeOptions,
    screen: options.ScreenOptions,
    **asked: Any,
) -> int:
    """Write q, k and positions for a kernel that Python cannot call.

    A case is a folder of raw little-endian files, the same as .safetensors, and a manifest that says what
    they hold and what to write back. Several models or dtypes make a folder for each.
    """
    from ropeaudit.console import delivery
    from ropeaudit.features.vectors import analysis

    lengths = () if seq_len is None else (seq_len,)
    cases = options.cases(rope, seed=(seed,), heads=heads, kv_heads=kv_heads, seq_len=lengths)
    results, interrupted = delivery.run_analysis(
        lambda on_progress: analysis.vectors(
            folder, dtype, offset, cases=cases, on_progress=on_progress, **asked
        ),
        quiet=False,
    )
    if interrupted:
        delivery.say("interrupted: nothing was written")
        return delivery.INTERRUPTED
    made, told = analysis.report(results, None, {}), screen.form == "table"  # whose answer holds the notes
    code = delivery.print_report(replace(made, notes=[]) if told else made, screen)
    for note in () if told else made.notes:
        delivery.say(f"note: {note}")
    return code
