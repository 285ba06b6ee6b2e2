"""ropeaudit rerotate: keys rotated again and again from their stored values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ropeaudit.cli.options import axis, form, rope_options

if TYPE_CHECKING:
    from ropeaudit.analyses.rerotate import Rerotated
    from ropeaudit.cli.output import OutputFile


@click.command(
    epilog="Keys start where they never go below position 0. Exit code: 0 done, 2 bad usage or input."
)
@axis("--steps", "How many times keys are rotated.", "1,16,64,256")
@click.option("--by", metavar="N", help="Tokens of one step, such as --by -16.  [default: -16]")
@axis("--dtype", "Number formats of the model.", "bf16")
@axis("--recipe", "Number format per stage: a name (`ropeaudit list recipes`) or a .toml file.", "hf")
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="STAGE=FORMAT",
    help="Change a stage of every recipe, such as table=fp32.",
)
@axis("--seq-len", "Positions.", "256")
@click.option("--heads", metavar="N", help="Query heads.  [default: 8]")
@click.option("--kv-heads", metavar="N", help="Key-value heads, a divisor of --heads.  [default: --heads]")
@rope_options
@axis("--mask", "Keys that a query sees: causal or full.", "causal")
@axis(
    "--qk",
    "gaussian, ones, arange, or a file with captured q and k: .safetensors, .npz, .pt, q.npy,k.npy.",
    "gaussian",
    metavar="SOURCE",
)
@axis("--seed", "Seeds of gaussian q and k.", "0")
@form
@click.option(
    "-o",
    "--output",
    "outputs",
    multiple=True,
    metavar="FILE",
    help="Write a file too: .csv, .json, .jsonl, .md or .txt. Repeatable.",
)
@axis("--columns", "Columns to show and write.")
@click.option("-q", "--quiet", is_flag=True, help="No notes and no progress on stderr.")
def rerotate(**options: Any) -> int:
    """Rotate stored keys again and again, and report how far their scores drift.

    That is what shifting a KV cache does (K-shift in llama.cpp, position-independent reuse): every step
    starts from rounded keys. Queries are fresh.
    """
    from ropeaudit import circumstances
    from ropeaudit.cli import output
    from ropeaudit.reports.rerotate import COLUMNS, rerotate_report

    columns = _checked(options, COLUMNS)
    arguments = _arguments(options)
    stages = {f"{r.recipe.name} {r.dtype}": r.stages() for r in arguments["recipes"]}
    with output.opened(options["outputs"]) as files:
        found, interrupted = _rows(arguments, options["quiet"])
        if found or not interrupted:
            about = circumstances.gather() | {"stages": stages}
            _deliver(rerotate_report(found, columns, about), files, options)
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


def _rows(arguments: dict[str, Any], quiet: bool) -> tuple[list[Rerotated], bool]:
    """Rotate and measure; return what was found and whether the user broke it off."""
    from ropeaudit.analyses import rerotate as analysis
    from ropeaudit.cli.interrupts import held_back
    from ropeaudit.cli.progress import Progress

    progress, found = Progress(quiet), []
    try:
        with held_back() as interrupts:

            def hear(share: float) -> None:
                interrupts.check()
                progress(share)

            for one in analysis.run(**arguments, progress=hear):
                found.append(one)
    except KeyboardInterrupt:
        return found, True
    finally:
        progress.clear()
    return found, False


def _checked(options: dict[str, Any], known: dict[str, str]) -> list[str]:
    """Check the form and return the chosen columns. Raises: UnknownName, UsageError."""
    from ropeaudit import reports
    from ropeaudit.cli import values
    from ropeaudit.errors import UnknownName

    if options["form"] not in reports.FORMS:
        raise UnknownName("report format", options["form"], reports.FORMS)
    names = values.names(options["columns"], "--columns")
    for name in names:
        if name not in known:
            raise UnknownName("column", name, known)
    return names


def _deliver(report: Any, files: Sequence[OutputFile], options: dict[str, Any]) -> None:
    """Write the files first: a closed pipe or a full screen must not lose them."""
    from ropeaudit.cli import output

    for file in files:
        file.write(report)
    output.print_report(report, options["form"], options["color"])
    if not options["quiet"] and options["form"] != "markdown":
        for note in report.notes[:8]:
            output.say(f"note: {note}")
        if len(report.notes) > 8:
            output.say(f"note: {len(report.notes) - 8} more like these")
