"""ropeaudit rerotate: keys rotated again and again from their stored values."""

from __future__ import annotations

from typing import Any

import click

from ropeaudit.console.options import axis, changes_option, report_options, rope_options, vector_options


@click.command(
    epilog="Keys start where they never go below position 0. Exit code: 0 done, 2 bad usage or input."
)
@axis("--steps", "How many times keys are rotated.", "1,16,64,256")
@click.option("--by", metavar="N", help="Tokens of one step, such as --by -16.  [default: -16]")
@axis("--dtype", "Number formats of the model.", "bf16")
@axis("--recipe", "Number format per stage: a name (`ropeaudit list recipes`) or a .toml file.", "hf,uniform")
@changes_option
@vector_options
@rope_options
@report_options
def rerotate(**options: Any) -> int:
    """Rotate stored keys again and again, and report how far their scores drift.

    That is what shifting a KV cache does (K-shift in llama.cpp, position-independent reuse): every step
    starts from rounded keys. Queries are fresh.
    """
    from ropeaudit.console import rows, settings, values, work
    from ropeaudit.features.rerotate import analysis
    from ropeaudit.features.rerotate.report import COLUMNS, rerotate_report

    columns = rows.chosen_columns(options, COLUMNS)
    cases, recipes = list(settings.cases(options)), work.resolved(options, "bf16")
    steps = values.integers(options["steps"], "--steps") or [1, 16, 64, 256]
    by = -16 if options["by"] is None else values.integer(options["by"], "--by")
    _, code = work.done(
        options,
        lambda on_progress: analysis.run(cases, recipes, steps, by, on_progress),
        lambda results, about: rerotate_report(results, columns, about),
        work.stages(recipes),
    )
    return code
