"""ropeaudit shift: the audit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ropeaudit.cli.options import axis, form, rope_options

if TYPE_CHECKING:
    from ropeaudit.audit import Audit
    from ropeaudit.cli.output import OutputFile
    from ropeaudit.records import Record


@click.command(
    epilog="Lists are separated by commas and flags may be repeated; ranges: 1k-1m*2, 0-4096+256; "
    "k = 1024, m = 1024². Rows are the cross product. Exit code: 0 done, 1 a --fail-if was "
    "broken, 2 bad usage or input."
)
@axis("--offset", "Integers added to every position.", "0,1000")
@axis("--dtype", "Number formats of the model.", "fp64,fp32,fp16,bf16")
@axis("--recipe", "Number format per stage: a name (`ropeaudit list recipes`) or a .toml file.", "uniform")
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="STAGE=FORMAT",
    help="Change a stage of every recipe, such as angle=fp64 or frequency_form=divide.",
)
@click.option("--accumulate", metavar="FORMAT", help="Accumulator of q·k; short for --set accumulate=FORMAT.")
@axis("--seq-len", "Positions.", "256")
@click.option("--heads", metavar="N", help="Query heads.  [default: 8]")
@click.option("--kv-heads", metavar="N", help="Key-value heads, a divisor of --heads.  [default: --heads]")
@rope_options
@click.option(
    "--mrope",
    multiple=True,
    metavar="T,H,W",
    help="Pairs per position axis; T,H,W:interleaved as in Qwen3-VL.",
)
@axis("--axis", "Position axes that are shifted: all, t, h, w, or some, such as hw.", "all")
@click.option(
    "--length",
    metavar="WHICH",
    help="Frequencies that depend on the length: unshifted keeps them, shifted lets the offset change them.  "
    "[default: unshifted]",
)
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
@axis("--columns", "Columns to show and write (`ropeaudit list columns`).")
@click.option("--no-header", is_flag=True, help="Rows alone, for csv and table.")
@click.option(
    "--fail-if",
    "gates",
    multiple=True,
    metavar="COND",
    help="Exit with 1 if a row fulfils it: 'drift_rms>0.01'. nan does. Repeatable.",
)
@click.option("-q", "--quiet", is_flag=True, help="No notes and no progress on stderr.")
def shift(**options: Any) -> int:
    """Shift all positions and report how far the attention scores drift.

    Scores are computed with every dtype and recipe and compared with exact ones, which depend on
    distances alone.
    """
    from ropeaudit import circumstances, records, reports
    from ropeaudit.cli import gates, output, values
    from ropeaudit.errors import UnknownName, UsageError
    from ropeaudit.reports.drift import drift_report

    if options["form"] not in reports.FORMS:
        raise UnknownName("report format", options["form"], reports.FORMS)
    if options["no_header"] and options["form"] not in ("csv", "table"):
        raise UsageError(f"--no-header goes with csv and table; {options['form']} has no header")
    columns = records.check_columns(values.names(options["columns"], "--columns"))
    conditions = [gates.parse(text) for text in options["gates"]]
    audit = _audit(options)
    with output.opened(options["outputs"]) as files:
        found, interrupted = _rows(audit, options["quiet"])
        about = circumstances.gather() | {"stages": audit.stages()}
        if found or not interrupted:
            frozen = options["length"] != "shifted"
            report = drift_report(found, columns, about, header=not options["no_header"], frozen=frozen)
            _deliver(report, files, options)
    if interrupted:
        output.say(f"interrupted: {len(found)} rows were done and written")
        return 130
    broken = gates.broken(conditions, found)
    for line in broken:
        output.say(line)
    return 1 if broken else 0


def _audit(options: dict[str, Any]) -> Audit:
    """Turn options into a checked audit."""
    from ropeaudit import recipes
    from ropeaudit.audit import DTYPES, Audit
    from ropeaudit.cli import settings, values
    from ropeaudit.errors import UsageError

    changes = recipes.parse_changes(options["changes"])
    if options["accumulate"] is not None:
        if not options["accumulate"].strip():
            raise UsageError("--accumulate '' is no number format; try --accumulate fp32")
        changes["accumulate"] = options["accumulate"]
    return Audit(
        cases=list(settings.cases(options)),
        recipes=values.names(options["recipe"], "--recipe") or ["uniform"],
        dtypes=values.names(options["dtype"], "--dtype") or DTYPES,
        offsets=values.integers(options["offset"], "--offset") or [0, 1000],
        changes=changes,
    )


def _rows(audit: Audit, quiet: bool) -> tuple[list[Record], bool]:
    """Run the audit; return the records and whether the user broke it off."""
    from ropeaudit.cli.interrupts import held_back
    from ropeaudit.cli.progress import Progress

    progress, found = Progress(quiet), []
    try:
        with held_back() as interrupts:

            def hear(share: float) -> None:
                interrupts.check()
                progress(share)

            for record in audit.run(progress=hear):
                found.append(record)
    except KeyboardInterrupt:
        return found, True
    finally:
        progress.clear()
    return found, False


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
