"""ropeaudit explain: which stage is to blame, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ropeaudit.cli.options import axis, changes_option, report_options, rope_options, vector_options

if TYPE_CHECKING:
    pass

_KINDS = (
    "stage",
    "pair",
    "position",
    "head",
    "remedy",
)  # of reports.explain_rows, which --help must not load


@click.command(
    epilog="Causes are explained in docs/causes.md. Exit code: 0 done, 2 bad usage or input.",
)
@axis("--offset", "Integers added to every position.", "1000")
@axis("--dtype", "Number formats of the model.", "bf16")
@axis("--recipe", "Number format per stage: a name (`ropeaudit list recipes`) or a .toml file.", "uniform")
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
    from ropeaudit import circumstances
    from ropeaudit.analyses import explain as analysis
    from ropeaudit.cli import output, rows
    from ropeaudit.errors import UnknownName
    from ropeaudit.reports.explain import explain_report
    from ropeaudit.reports.explain_rows import COLUMNS

    kind = options["by"]
    if kind not in COLUMNS:
        raise UnknownName("--by", kind, COLUMNS)
    columns = rows.chosen_columns(options, COLUMNS[kind], f"(in rows by {kind})")
    arguments = _arguments(options)
    stages = {f"{r.recipe.name} {r.dtype}": r.stages() for r in arguments["chosen"]}
    with output.opened(options["outputs"]) as files:
        found, interrupted = rows.gathered(
            lambda hear: analysis.run(**arguments, progress=hear), options["quiet"]
        )
        if found or not interrupted:
            about = circumstances.gather() | {"stages": stages}
            output.deliver(explain_report(found, kind, columns, about), files, options)
    if interrupted:
        output.say(f"interrupted: {len(found)} cases were done and written")
    return 130 if interrupted else 0


def _arguments(options: dict[str, Any]) -> dict[str, Any]:
    """Turn options into the arguments of `analyses.explain.run`. Raises: RopeAuditError."""
    from ropeaudit import recipes
    from ropeaudit.analyses import remedies
    from ropeaudit.cli import settings, values
    from ropeaudit.formats import parse

    changes = recipes.parse_changes(options["changes"])
    named = values.names(options["recipe"], "--recipe") or ["uniform"]
    chosen = [recipes.load(name).changed(changes) for name in named]
    formats = dict.fromkeys(parse(name) for name in values.names(options["dtype"], "--dtype") or ["bf16"])
    return {
        "cases": list(settings.cases(options)),
        "chosen": [recipe.resolve(fmt) for recipe in chosen for fmt in formats],
        "offsets": values.integers(options["offset"], "--offset") or [1000],
        "tolerance": remedies.parse(options["tolerance"]) if options["tolerance"] is not None else None,
    }
