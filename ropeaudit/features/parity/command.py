"""ropeaudit parity: two recipes on the same q and k."""

from __future__ import annotations

from typing import Any

import click

from ropeaudit.console.options import axis, changes_option, report_options, rope_options, vector_options


@click.command(
    epilog="Subjects: a recipe (`ropeaudit list recipes`) or a .toml file, changed in brackets as in "
    "'hf[angle=fp64]'. Exit code: 0 done, 2 bad usage or input."
)
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@axis("--offset", "Integers added to every position.", "0,1000")
@axis("--dtype", "Number formats of the model.", "bf16")
@changes_option
@vector_options
@rope_options
@report_options
def parity(**options: Any) -> int:
    """Compare two subjects, such as a trainer A and a server B.

    Both see the same q and k. Reported is how far their scores are apart, how far each is from the exact
    scores, and which of them is nearer.
    """
    from ropeaudit.console import rows, work
    from ropeaudit.features.parity import analysis
    from ropeaudit.features.parity.report import COLUMNS, parity_report

    columns = rows.chosen_columns(options, COLUMNS)
    arguments = _arguments(options)
    named = list(zip(arguments["called"], arguments["pair"], strict=True))
    stages = {f"{name} {fmt}": r.resolve(fmt).stages() for fmt in arguments["dtypes"] for name, r in named}
    _, code = work.done(
        options,
        lambda on_progress: analysis.run(**arguments, progress=on_progress),
        lambda results, about: parity_report(results, columns, about),
        stages,
    )
    return code


def _arguments(options: dict[str, Any]) -> dict[str, Any]:
    """Turn options into the arguments of `analyses.parity.run`. Raises: UsageError, UnknownName, BadInput."""
    from ropeaudit import recipes
    from ropeaudit.console import settings, values, work
    from ropeaudit.features.parity import analysis

    changes = recipes.parse_changes(options["changes"])
    specs = options["a"], options["b"]
    first, second = (analysis.subject(spec, changes) for spec in specs)
    return {
        "cases": list(settings.cases(options)),
        "pair": (first, second),
        "called": analysis.names((first, second), specs),
        "dtypes": work.formats(options, "bf16"),
        "offsets": values.integers(options["offset"], "--offset") or [0, 1000],
    }
