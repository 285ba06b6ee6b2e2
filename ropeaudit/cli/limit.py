"""ropeaudit limit: the largest offset that meets a tolerance."""

from __future__ import annotations

from typing import Any

import click

from ropeaudit.cli.options import axis, changes_option, report_options, rope_options, vector_options


@click.command(
    epilog="What is claimed: the first failing offset was measured. Where `how` says exhaustive, so were all "
    "below it but those that the a-priori bound proves (guaranteed_offset). Where it says searched, they are "
    "too many: measured were powers of two, ends of formats, neighbours of the boundary, the offsets "
    "below it whose angles are the worst, and spread ones; one that fails may have been missed. "
    "Frequencies are those of the unshifted sequence. Exit code: 0 done, 2 bad usage or input."
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
@changes_option
@vector_options
@rope_options
@report_options
def limit(**options: Any) -> int:
    """Find how far positions may be shifted within a tolerance.

    Reported are the largest offset that is safe, with all below it, and the first that fails, in tokens
    and as the last position of the sequence there.
    """
    from ropeaudit.analyses import limit as analysis
    from ropeaudit.cli import rows, work
    from ropeaudit.reports.limit import COLUMNS, limit_report

    columns = rows.chosen_columns(options, COLUMNS)
    arguments = _arguments(options)
    _, code = work.done(
        options,
        lambda hear: analysis.run(**arguments, progress=hear),
        lambda found, about: limit_report(found, columns, about),
        work.stages(arguments["resolved"]),
    )
    return code


def _arguments(options: dict[str, Any]) -> dict[str, Any]:
    """Turn options into the arguments of `analyses.limit.run`. Raises: RopeAuditError."""
    from ropeaudit.analyses import limit as analysis
    from ropeaudit.cli import settings, values, work

    typed = values.names(options["tolerance"], "--tolerance") or [analysis.TOLERANCE]
    up_to, budget = options["up_to"], options["budget"]
    return {
        "cases": list(settings.cases(options)),
        "resolved": work.resolved(options, "bf16"),
        "tolerances": [analysis.tolerance(text) for text in typed],
        "up_to": analysis.UP_TO if up_to is None else values.integer(up_to, "--up-to"),
        "budget": None if budget is None else values.integer(budget, "--budget"),
    }
