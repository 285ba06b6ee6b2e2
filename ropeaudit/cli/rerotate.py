"""ropeaudit rerotate: keys rotated again and again from their stored values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ropeaudit.cli.options import axis, changes_option, report_options, rope_options, vector_options

if TYPE_CHECKING:
    pass


@click.command(
    epilog="Keys start where they never go below position 0. Exit code: 0 done, 2 bad usage or input."
)
@axis("--steps", "How many times keys are rotated.", "1,16,64,256")
@click.option("--by", metavar="N", help="Tokens of one step, such as --by -16.  [default: -16]")
@axis("--dtype", "Number formats of the model.", "bf16")
@axis("--recipe", "Number format per stage: a name (`ropeaudit list recipes`) or a .toml file.", "hf")
@changes_option
@vector_options
@rope_options
@report_options
def rerotate(**options: Any) -> int:
    """Rotate stored keys again and again, and report how far their scores drift.

    That is what shifting a KV cache does (K-shift in llama.cpp, position-independent reuse): every step
    starts from rounded keys. Queries are fresh.
    """
    from ropeaudit import circumstances
    from ropeaudit.analyses import rerotate as analysis
    from ropeaudit.cli import output, rows
    from ropeaudit.reports.rerotate import COLUMNS, rerotate_report

    columns = rows.chosen_columns(options, COLUMNS)
    arguments = _arguments(options)
    stages = {f"{r.recipe.name} {r.dtype}": r.stages() for r in arguments["recipes"]}
    with output.opened(options["outputs"]) as files:
        found, interrupted = rows.gathered(
            lambda hear: analysis.run(**arguments, progress=hear), options["quiet"]
        )
        if found or not interrupted:
            about = circumstances.gather() | {"stages": stages}
            output.deliver(rerotate_report(found, columns, about), files, options)
    if interrupted:
        output.say(f"interrupted: {len(found)} rows were done and written")
    return 130 if interrupted else 0


def _arguments(options: dict[str, Any]) -> dict[str, Any]:
    """Turn options into the arguments of `analyses.rerotate.run`. Raises: RopeAuditError."""
    from ropeaudit import recipes
    from ropeaudit.cli import settings, values
    from ropeaudit.formats import parse

    changes = recipes.parse_changes(options["changes"])
    named = values.names(options["recipe"], "--recipe") or ["hf"]
    chosen = [recipes.load(name).changed(changes) for name in named]
    formats = dict.fromkeys(parse(name) for name in values.names(options["dtype"], "--dtype") or ["bf16"])
    return {
        "cases": list(settings.cases(options)),
        "recipes": [recipe.resolve(fmt) for recipe in chosen for fmt in formats],
        "steps": values.integers(options["steps"], "--steps") or [1, 16, 64, 256],
        "by": -16 if options["by"] is None else values.integer(options["by"], "--by"),
    }
