"""ropeaudit rerotate: keys rotated again and again from their stored values."""

from __future__ import annotations

from collections.abc import Mapping

import click

from ropeaudit.console import options
from ropeaudit.console.help import command
from ropeaudit.console.parameters import INTEGER, INTEGERS


@command(epilog="Keys start where they never go below position 0. Exit code: 0 done, 2 bad usage or input.")
@options.axis("--steps", INTEGERS, "How many times keys are rotated.", "1,16,64,256")
@click.option(
    "--by",
    type=INTEGER,
    default=-16,
    metavar="N",
    help="Tokens of one step, such as --by -16.  [default: -16]",
)
@options.dtype_option
@options.recipe_option
@options.changes_option
@options.qk_options
@options.rope_options
@options.report_options
def rerotate(
    steps: tuple[int, ...],
    by: int,
    dtype: tuple[str, ...],
    recipe: tuple[str, ...],
    changes: Mapping[str, str],
    vectors: options.QKOptions,
    rope: options.RopeOptions,
    output: options.ReportOptions,
) -> int:
    """Rotate stored keys again and again, and report how far their scores drift.

    That is what shifting a KV cache does (K-shift in llama.cpp, position-independent reuse): every step
    starts from rounded keys. Queries are fresh.
    """
    from ropeaudit.audits.arguments import resolved
    from ropeaudit.console import delivery, settings
    from ropeaudit.features.rerotate import analysis
    from ropeaudit.features.rerotate.report import COLUMNS, rerotate_report

    columns = output.chosen_columns(COLUMNS)
    cases = settings.cases(rope, vectors)
    return delivery.delivered(
        lambda on_progress: analysis.rerotate(
            steps, by, dtype, recipe, changes=changes, cases=cases, on_progress=on_progress
        ),
        lambda results, metadata: rerotate_report(results, columns, metadata),
        output,
        stages=delivery.stages(resolved(recipe, dtype, changes)),
    )
