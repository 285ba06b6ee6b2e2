"""ropeaudit limit: up to which offset a tolerance is met."""

from __future__ import annotations

from typing import Any

import click

from ropeaudit.console.options import (
    axis,
    changes_option,
    length_option,
    report_options,
    rope_options,
    vector_options,
)


@click.command(
    epilog="What is claimed: first_failure_seen was measured to fail. No offset up to proved_up_to fails: "
    "the a-priori bound proves it (bound_up_to), or each was measured. Where there are too many for that, "
    "powers of two, ends of formats, the end of the model's positions, neighbours of the boundary, the "
    "offsets whose angles are the worst, and spread ones are measured: no failure was seen in "
    "`measured_offsets` of them up to measured_up_to, and one that was not measured may fail. Exit "
    "code: 0 done, 2 bad usage or input."
)
@axis(
    "--tolerance",
    "Worst accepted value of a column of `shift`, such as drift_rms=1e-3: at most it, of distinct_positions "
    "at least it.",
    "drift_relative=0.01",
    metavar="COLUMN=X",
)
@click.option("--up-to", metavar="N", help="Largest offset that is looked at.  [default: 16m]")
@click.option(
    "--budget",
    metavar="N",
    help="Offsets that may be measured per row.  [default: by size, 208 for 8 heads of 256 positions]",
)
@axis("--dtype", "Number formats of the model.", "bf16")
@axis("--recipe", "Number format per stage: a name (`ropeaudit list recipes`) or a .toml file.", "hf,uniform")
@length_option
@changes_option
@vector_options
@rope_options
@report_options
def limit(**options: Any) -> int:
    """Find how far positions may be shifted within a tolerance.

    Reported are the offset up to which it is proved that none fails, the one up to which no failure was seen,
    and the smallest that was seen to fail. Models are judged by the positions that they are made for.
    """
    from ropeaudit.console import rows, work
    from ropeaudit.features.limit import analysis
    from ropeaudit.features.limit.report import COLUMNS, limit_report

    columns = rows.chosen_columns(options, COLUMNS)
    arguments = _arguments(options)
    _, code = work.done(
        options,
        lambda on_progress: analysis.run(**arguments, progress=on_progress),
        lambda results, about: limit_report(results, columns, about),
        work.stages(arguments["resolved"]),
    )
    return code


def _arguments(options: dict[str, Any]) -> dict[str, Any]:
    """Turn options into the arguments of `analyses.limit.run`. Raises: RopeAuditError."""
    from ropeaudit.console import settings, values, work
    from ropeaudit.features.limit import analysis
    from ropeaudit.features.limit.tolerance import TOLERANCE, tolerance

    typed = values.names(options["tolerance"], "--tolerance") or [TOLERANCE]
    up_to, budget = options["up_to"], options["budget"]
    return {
        "cases": list(settings.cases(options)),
        "resolved": work.resolved(options, "bf16"),
        "tolerances": [tolerance(text) for text in typed],
        "up_to": analysis.UP_TO if up_to is None else values.integer(up_to, "--up-to"),
        "budget": None if budget is None else values.integer(budget, "--budget"),
    }
