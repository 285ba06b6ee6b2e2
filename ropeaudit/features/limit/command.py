"""ropeaudit limit: up to which offset a tolerance is met."""

from __future__ import annotations

from collections.abc import Mapping

import click

from ropeaudit.console import options
from ropeaudit.console.parameters import INTEGER, NAMES


@click.command(
    epilog="What is claimed: first_failure_seen was measured to fail. No offset up to proved_up_to fails: "
    "the a-priori bound proves it (bound_up_to), or each was measured. Where there are too many for that, "
    "powers of two, ends of formats, the end of the model's positions, neighbours of the boundary, the "
    "offsets whose angles are the worst, and spread ones are measured: no failure was seen in "
    "`measured_offsets` of them up to measured_up_to, and one that was not measured may fail. Exit "
    "code: 0 done, 2 bad usage or input."
)
@options.axis(
    "--tolerance",
    NAMES,
    "Worst accepted value of a column of `shift`, such as drift_rms=1e-3: at most it, of distinct_positions "
    "at least it.",
    "drift_relative=0.01",
    metavar="COLUMN=X",
)
@click.option("--up-to", type=INTEGER, metavar="N", help="Largest offset that is looked at.  [default: 16m]")
@click.option(
    "--budget",
    type=INTEGER,
    metavar="N",
    help="Offsets that may be measured per row.  [default: by size, 208 for 8 heads of 256 positions]",
)
@options.dtype_option
@options.recipe_option
@options.length_option
@options.changes_option
@options.qk_options
@options.rope_options
@options.report_options
def limit(
    tolerance: tuple[str, ...],
    up_to: int | None,
    budget: int | None,
    dtype: tuple[str, ...],
    recipe: tuple[str, ...],
    length: str | None,
    changes: Mapping[str, str],
    vectors: options.QKOptions,
    rope: options.RopeOptions,
    output: options.ReportOptions,
) -> int:
    """Find how far positions may be shifted within a tolerance.

    Reported are the offset up to which it is proved that none fails, the one up to which no failure was seen,
    and the smallest that was seen to fail. Models are judged by the positions that they are made for.
    """
    from ropeaudit.audits.arguments import resolved
    from ropeaudit.console import delivery, settings
    from ropeaudit.features.limit import analysis
    from ropeaudit.features.limit.report import COLUMNS, limit_report

    columns = output.chosen_columns(COLUMNS)
    cases = settings.cases(rope, vectors, length=length)
    return delivery.delivered(
        lambda on_progress: analysis.limit(
            tolerance,
            dtype,
            recipe,
            up_to=analysis.UP_TO if up_to is None else up_to,
            budget=budget,
            changes=changes,
            cases=cases,
            on_progress=on_progress,
        ),
        lambda results, metadata: limit_report(results, columns, metadata),
        output,
        stages=delivery.stages(resolved(recipe, dtype, changes)),
    )
