"""ropeaudit parity: two recipes on the same q and k."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ropeaudit.cli.options import axis, changes_option, report_options, rope_options, vector_options

if TYPE_CHECKING:
    pass


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
    from ropeaudit import circumstances
    from ropeaudit.analyses import parity as analysis
    from ropeaudit.cli import output, rows
    from ropeaudit.reports.parity import COLUMNS, parity_report

    columns = rows.chosen_columns(options, COLUMNS)
    arguments = _arguments(options)
    named = list(zip(arguments["called"], arguments["pair"], strict=True))
    stages = {f"{name} {fmt}": r.resolve(fmt).stages() for fmt in arguments["dtypes"] for name, r in named}
    with output.opened(options["outputs"]) as files:
        found, interrupted = rows.gathered(
            lambda hear: analysis.run(**arguments, progress=hear), options["quiet"]
        )
        if found or not interrupted:
            about = circumstances.gather() | {"stages": stages}
            output.deliver(parity_report(found, columns, about), files, options)
    if interrupted:
        output.say(f"interrupted: {len(found)} rows were done and written")
    return 130 if interrupted else 0


def _arguments(options: dict[str, Any]) -> dict[str, Any]:
    """Turn options into the arguments of `analyses.parity.run`. Raises: UsageError, UnknownName, BadInput."""
    from ropeaudit import recipes
    from ropeaudit.analyses import parity as analysis
    from ropeaudit.cli import settings, values
    from ropeaudit.formats import parse

    changes = recipes.parse_changes(options["changes"])
    specs = options["a"], options["b"]
    first, second = (analysis.subject(spec, changes) for spec in specs)
    dtypes = [parse(name) for name in values.names(options["dtype"], "--dtype") or ["bf16"]]
    return {
        "cases": list(settings.cases(options)),
        "pair": (first, second),
        "called": analysis.names((first, second), specs),
        "dtypes": list(dict.fromkeys(dtypes)),
        "offsets": values.integers(options["offset"], "--offset") or [0, 1000],
    }
