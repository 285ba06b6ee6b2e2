"""ropeaudit parity: two recipes on the same q and k."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ropeaudit.cli.options import axis, form, rope_options

if TYPE_CHECKING:
    from ropeaudit.analyses.parity import Parity
    from ropeaudit.cli.output import OutputFile


@click.command(
    epilog="Subjects: a recipe (`ropeaudit list recipes`) or a .toml file, changed in brackets as in "
    "'hf[angle=fp64]'. Exit code: 0 done, 2 bad usage or input."
)
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@axis("--offset", "Integers added to every position.", "0,1000")
@axis("--dtype", "Number formats of the model.", "bf16")
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="STAGE=FORMAT",
    help="Change a stage of both subjects, such as input=bf16.",
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
def parity(**options: Any) -> int:
    """Compare two subjects, such as a trainer A and a server B.

    Both see the same q and k. Reported is how far their scores are apart, how far each is from the exact
    scores, and which of them is nearer.
    """
    from ropeaudit import circumstances
    from ropeaudit.cli import output
    from ropeaudit.reports.parity import COLUMNS, parity_report

    columns = _checked(options, COLUMNS)
    arguments = _arguments(options)
    named = list(zip(arguments["called"], arguments["pair"], strict=True))
    stages = {f"{name} {fmt}": r.resolve(fmt).stages() for fmt in arguments["dtypes"] for name, r in named}
    with output.opened(options["outputs"]) as files:
        found, interrupted = _rows(arguments, options["quiet"])
        if found or not interrupted:
            about = circumstances.gather() | {"stages": stages}
            _deliver(parity_report(found, columns, about), files, options)
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


def _rows(arguments: dict[str, Any], quiet: bool) -> tuple[list[Parity], bool]:
    """Run the comparison; return what was found and whether the user broke it off."""
    from ropeaudit.analyses import parity as analysis
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
