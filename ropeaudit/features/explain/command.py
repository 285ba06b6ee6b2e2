"""The command `ropeaudit explain`."""

from __future__ import annotations

from collections.abc import Mapping

import click

from ropeaudit.console import options
from ropeaudit.console.help import command
from ropeaudit.console.parameters import INTEGERS, one_of

# of report.py, not loaded for --help
_KINDS = ("dtypes", "stage", "pair", "remedy")


@command(
    epilog="CODE: a name (`ropeaudit list implementations`), PACKAGE.MODULE:NAME or FILE.py:NAME, several "
    f"separated by commas. {options.EXECUTED} Causes of stages: docs/diagnoses.md. Exit code: 0 done, "
    "even if the answer is FAIL, 2 bad usage or input."
)
@options.words("CODE", "implementations", required=False)
@options.axis(
    "--offset",
    INTEGERS,
    "Integers added to every position. Code is compared with known recipes at 0 and these.",
    shown="0 and the model's maximum, or 128k; of code with a comparison at 0,1k,32k,128k",
)
@options.dtype_option
@options.recipe_option
@options.order_option
@options.device_option
@options.calling_options
@options.under_option
@click.option(
    "--tolerance",
    metavar="X",
    help="What a remedy must reach: drift_relative=X, or X alone; drift_rms=X; drift_max=X.  [default: 0.01]",
)
@click.option(
    "--by",
    type=one_of("--by", _KINDS),
    metavar="ROWS",
    help=f"Rows: {', '.join(_KINDS)}.  [default: stage; of code dtypes]",
)
@options.changes_option
@options.qk_options
@options.rope_options
@options.report_options
def explain(
    implementations: tuple[str, ...],
    offset: tuple[int, ...],
    dtype: tuple[str, ...],
    recipe: tuple[str, ...],
    order: str | None,
    device: str | None,
    under: tuple[str, ...],
    tolerance: str | None,
    by: str | None,
    changes: Mapping[str, str],
    vectors: options.QKOptions,
    rope: options.RopeOptions,
    output: options.ReportOptions,
) -> int:
    """Say which stages are to blame for the drift, and which to keep in a wider format.

    Each stage gets a share of the drift. The remedy is the smallest set of stages to compute in higher
    precision that meets the tolerance. CODE is explained as the known recipe that its numbers resemble; -v
    shows the dtypes of its stages, as torch's operations show them.
    """
    from ropeaudit.audits import arguments
    from ropeaudit.console import delivery
    from ropeaudit.features.explain import analysis, remedies
    from ropeaudit.features.explain.report import COLUMNS, check_kind, report
    from ropeaudit.recipes import DEFAULT
    from ropeaudit.reports.numbers import counted

    kind = by or ("dtypes" if implementations else "stage")
    check_kind(kind, bool(implementations))
    columns = output.chosen_columns(COLUMNS[kind], f"(in rows by {kind})")
    cases = options.cases(rope, vectors)
    named = recipe, implementations, dtype, changes, DEFAULT
    chosen = arguments.subjects(*named, device, order, under, naming=analysis.NAMING)
    bound = None if tolerance is None else remedies.tolerance(tolerance)
    return delivery.run_and_deliver(
        lambda on_progress: analysis.run(cases, chosen, offset or None, bound, on_progress),
        lambda results, metadata: report(results, columns, metadata, by),
        output,
        stages=arguments.stage_formats(chosen),
        done=lambda results: counted(len(results), "case"),
    )
