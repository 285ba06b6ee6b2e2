"""ropeaudit explain: which stage is to blame, and what to do about it."""

from __future__ import annotations

from typing import Any

import click

from ropeaudit.console.options import axis, changes_option, report_options, rope_options, vector_options

_KINDS = ("stage", "pair", "position", "head", "remedy")  # of explain/columns.py, not loaded for --help


@click.command(
    epilog="Causes are explained in docs/causes.md. Exit code: 0 done, 2 bad usage or input.",
)
@axis("--offset", "Integers added to every position.", "1000")
@axis("--dtype", "Number formats of the model.", "bf16")
@axis("--recipe", "Number format per stage: a name (`ropeaudit list recipes`) or a .toml file.", "hf,uniform")
@click.option(
    "--tolerance",
    metavar="COLUMN=X",
    help="What a remedy must reach: drift_rms, drift_max or drift_relative.  [default: a tenth of the RMS "
    "drift]",
)
@click.option(
    "--by",
    metavar="ROWS",
    default="stage",
    help=f"What the rows are: {', '.join(_KINDS)}.  [default: stage]",
)
@changes_option
@vector_options
@rope_options
@report_options
def explain(**options: Any) -> int:
    """Say which stages are to blame for the drift, and which to keep in a wider format.

    Each stage gets a share of the drift, with its cause. The remedy is the smallest set of stages whose
    widening meets the tolerance.
    """
    from ropeaudit.console import rows, work
    from ropeaudit.errors import UnknownName
    from ropeaudit.features.explain import analysis
    from ropeaudit.features.explain.columns import COLUMNS
    from ropeaudit.features.explain.report import explain_report

    kind = options["by"]
    if kind not in COLUMNS:
        raise UnknownName("--by", kind, COLUMNS)
    columns = rows.chosen_columns(options, COLUMNS[kind], f"(in rows by {kind})")
    arguments = _arguments(options)
    _, code = work.done(
        options,
        lambda on_progress: analysis.run(**arguments, progress=on_progress),
        lambda results, about: explain_report(results, kind, columns, about),
        work.stages(arguments["chosen"]),
        "cases",
    )
    return code


def _arguments(options: dict[str, Any]) -> dict[str, Any]:
    """Turn options into the arguments of `analyses.explain.run`. Raises: RopeAuditError."""
    from ropeaudit.console import settings, values, work
    from ropeaudit.features.explain import remedies

    return {
        "cases": list(settings.cases(options)),
        "chosen": work.resolved(options, "bf16"),
        "offsets": values.integers(options["offset"], "--offset") or [1000],
        "tolerance": remedies.parse(options["tolerance"]) if options["tolerance"] is not None else None,
    }
