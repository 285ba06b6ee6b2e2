"""ropeaudit explain: which stage is to blame, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping

import click

from ropeaudit.console import options
from ropeaudit.console.help import command
from ropeaudit.console.parameters import INTEGERS, NAMES, one_of

_KINDS = ("stage", "pair", "position", "head", "remedy")  # of explain/columns.py, not loaded for --help


@command(epilog="Causes are explained in docs/causes.md. Exit code: 0 done, 2 bad usage or input.")
@options.axis("--offset", INTEGERS, "Integers added to every position.", "1000")
@options.dtype_option
@options.axis(
    "--recipe",
    NAMES,
    "Number format per stage: a name (`ropeaudit list recipes`) or a .toml file.",
    shown="hf,uniform; none beside --impl",
)
@options.axis(
    "--impl",
    NAMES,
    "Real code, explained by way of the recipe that its numbers resemble: a name (`list implementations`), "
    f"mypkg.rope:apply_rope or path/to/file.py:apply_rope. {options.EXECUTED}",
)
@click.option(
    "--tolerance",
    metavar="COLUMN=X",
    help="What a remedy must reach: drift_rms, drift_max or drift_relative.  [default: a tenth of the RMS "
    "drift]",
)
@click.option(
    "--by",
    type=one_of("--by", _KINDS),
    metavar="ROWS",
    default="stage",
    help=f"What the rows are: {', '.join(_KINDS)}.  [default: stage]",
)
@options.changes_option
@options.qk_options
@options.rope_options
@options.report_options
def explain(
    offset: tuple[int, ...],
    dtype: tuple[str, ...],
    recipe: tuple[str, ...],
    impl: tuple[str, ...],
    tolerance: str | None,
    by: str,
    changes: Mapping[str, str],
    vectors: options.QKOptions,
    rope: options.RopeOptions,
    output: options.ReportOptions,
) -> int:
    """Say which stages are to blame for the drift, and which to keep in a wider format.

    Each stage gets a share of the drift, with its cause. The remedy is the smallest set of stages whose
    widening meets the tolerance.
    """
    from ropeaudit.audits.chosen import chosen as requested
    from ropeaudit.audits.chosen import stages
    from ropeaudit.console import delivery, settings
    from ropeaudit.features.explain import analysis, remedies
    from ropeaudit.features.explain.columns import COLUMNS
    from ropeaudit.features.explain.report import explain_report
    from ropeaudit.recipes import DEFAULT

    columns = output.chosen_columns(COLUMNS[by], f"(in rows by {by})")
    cases = settings.cases(rope, vectors)
    chosen = requested(recipe, impl, dtype, changes, DEFAULT)
    bound = None if tolerance is None else remedies.parse(tolerance)
    return delivery.delivered(
        lambda on_progress: analysis.run(cases, chosen, offset, bound, on_progress),
        lambda results, metadata: explain_report(results, by, columns, metadata),
        output,
        stages=stages(chosen),
        noun="cases",
    )
