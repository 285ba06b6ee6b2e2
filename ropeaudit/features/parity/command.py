"""ropeaudit parity: two recipes on the same q and k."""

from __future__ import annotations

from collections.abc import Mapping

import click

from ropeaudit.console import options
from ropeaudit.console.parameters import INTEGERS


@click.command(
    epilog="Subjects: a recipe (`ropeaudit list recipes`) or a .toml file, changed in brackets as in "
    "'hf[angle=fp64]'. Exit code: 0 done, 2 bad usage or input."
)
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@options.axis("--offset", INTEGERS, "Integers added to every position.", "0,1000")
@options.dtype_option
@options.changes_option
@options.qk_options
@options.rope_options
@options.report_options
def parity(
    a: str,
    b: str,
    offset: tuple[int, ...],
    dtype: tuple[str, ...],
    changes: Mapping[str, str],
    vectors: options.QKOptions,
    rope: options.RopeOptions,
    output: options.ReportOptions,
) -> int:
    """Compare two subjects, such as a trainer A and a server B.

    Both see the same q and k. Reported is how far their scores are apart, how far each is from the exact
    scores, and which of them is nearer.
    """
    from ropeaudit.audits.arguments import formats
    from ropeaudit.console import delivery, settings
    from ropeaudit.features.parity import analysis
    from ropeaudit.features.parity.report import COLUMNS, parity_report

    columns = output.chosen_columns(COLUMNS)
    pair, names = analysis.subjects(a, b, changes)
    cases = settings.cases(rope, vectors)
    called = list(zip(names, pair, strict=True))
    resolved = [(name, recipe.resolve(fmt)) for fmt in formats(dtype) for name, recipe in called]
    return delivery.delivered(
        lambda on_progress: analysis.parity(
            a, b, offset, dtype, changes=changes, cases=cases, on_progress=on_progress
        ),
        lambda results, metadata: parity_report(results, columns, metadata),
        output,
        stages={f"{name} {recipe.dtype}": recipe.stages() for name, recipe in resolved},
    )
