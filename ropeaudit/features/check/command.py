"""The command `ropeaudit check`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from ropeaudit.console import options
from ropeaudit.console.help import command
from ropeaudit.console.options import ticket_option
from ropeaudit.console.parameters import ARGUMENT, INTEGER, NAMES, NATURAL, TEXT, merged
from ropeaudit.errors import UsageError

if TYPE_CHECKING:
    from ropeaudit.features.check.checked import Checked
    from ropeaudit.reports import Report
    from ropeaudit.reports.tickets import Ticket


@dataclass(frozen=True, slots=True)
class CheckReportOptions(options.ReportOptions):
    """Where the report of `check` goes, which has forms of its own."""

    form: str = options.form_option("check")
    outputs: tuple[str, ...] = options.outputs_option("check")


@command(
    epilog="Targets: own code (FILE.py:NAME, mypkg.rope:NAME; it is executed with your rights), a name of "
    "`list implementations` or `list models`, a config.json, a checkpoint (its folder or a .safetensors "
    "file), a .gguf file beside the config.json that it was converted with (or --config), a case of "
    "`ropeaudit vectors` with --returned FOLDER; several at once. "
    "Exit code: 0 no check failed, 1 one failed that is not waived, 2 bad usage or input.\n\n"
    'A WAIVE file holds entries such as [[waive]] check = "rotation", target = "rope.py:rotate", '
    'reason = "ticket 12", until = "2027-01-31", and dtype = "bf16" or diagnosis = "wrong-base" if it is for '
    "that alone."
)
@options.words("TARGETS", "targets")
@click.option(
    "--up-to",
    type=INTEGER,
    metavar="N",
    help="Positions that are checked. Of code it is every one.  [default: the model's maximum; else 128k; of "
    "configs those of `limit`]",
)
@options.axis("--dtype", NAMES, "Number formats of q and k.", shown="bf16; of configs bf16,fp16,fp32")
@click.option(
    "--recipe",
    metavar="NAME",
    help="Recipe that the code claims to follow. Its roundings are allowed; of configs it is what is "
    "judged.  [default: right code; of configs hf]",
)
@options.order_option
@options.device_option
@options.calling_options
@click.option("--seed", type=NATURAL, metavar="N", default=0, help="Seed of q and k.  [default: 0]")
@click.option("--thorough", is_flag=True, help="Compile code too, and cross more sizes: slower.")
@click.option("--head-dims", is_flag=True, help="Try heads of 64 to 256 dims, and parts of them.")
@click.option(
    "--negative", is_flag=True, help="Give negative positions too, to code that takes relative ones."
)
@click.option("--xpos", is_flag=True, help="Judge code of xPos without the lengths that it gives q and k.")
@options.axis(
    "--under",
    NAMES,
    f"{options.ENVIRONMENTS} none leaves them out.",
    shown="all but compile, which --thorough is",
)
@click.option("--text", metavar="FILE", help="Text that a checkpoint's model reads: runs it.")
@click.option("--tokens", metavar="N|IDS", help="Tokens that it reads, random ones or ids: runs it.")
@click.option("--returned", metavar="FOLDER", help="Where a kernel wrote back, for a case of `vectors`.")
@click.option(
    "--write-wrapper",
    metavar="FILE.py",
    help="Where code is called in a way that is not understood, write a wrapper to edit.",
)
@click.option(
    "--arg",
    "arguments",
    type=ARGUMENT,
    multiple=True,
    callback=merged,
    metavar="NAME=VALUE",
    help="Argument of the code or of its class, such as n_heads=8. Repeatable.",
)
@click.option(
    "--table",
    metavar="FILE.py:NAME",
    help="The code that makes the cos and sin that the target takes: it is checked too.",
)
@click.option("--junit", metavar="FILE", help="Write JUnit XML too.")
@click.option(
    "--waive", metavar="FILE", help="Failures that are accepted until a day. It is TOML, see below."
)
@click.option("--strict", is_flag=True, help="Exit with 1 for a warning too.")
@options.rope_options
@options.axis(
    "--mrope",
    TEXT,
    "Pairs that each position axis of code rotates; T,H,W:interleaved as in Qwen3-VL.",
    metavar="T,H,W",
)
@options.axis(
    "--axes",
    NAMES,
    "Axes of code of an image or video model (`list axes`), with --grid. Or a .toml file.",
)
@options.axis("--grid", NAMES, "Tokens along these axes, such as 24x40.", metavar="HxW")
@click.option("--github", is_flag=True, help="Print an annotation for each failure too, on stderr.")
@options.grouped(CheckReportOptions, "output")
@ticket_option
def check(
    targets: tuple[str, ...],
    dtype: tuple[str, ...],
    under: tuple[str, ...],
    junit: str | None,
    waive: str | None,
    strict: bool,
    github: bool,
    mrope: tuple[str, ...],
    axes: tuple[str, ...],
    grid: tuple[str, ...],
    rope: options.RopeOptions,
    output: CheckReportOptions,
    ticket: str | None,
    **requested: Any,
) -> int:
    """Check code, a model's RoPE setting or a checkpoint: is it right, and up to which position?

    Each check passes, fails, informs or does not apply; the exit code is 1 if one fails.
    """
    from ropeaudit.arithmetic.formats import parse
    from ropeaudit.conformance.environments import DEFAULT
    from ropeaudit.console import delivery, output_files
    from ropeaudit.features.check import analysis, waivers
    from ropeaudit.features.check import report as tables
    from ropeaudit.features.check.checked import CheckOptions, not_started_clause
    from ropeaudit.reports.forms.sarif import annotation
    from ropeaudit.reports.numbers import counted

    columns = output.chosen_columns(tables.COLUMNS)
    cases = options.cases(rope, mrope=mrope, axes=axes, grid=grid)
    if len(cases) != 1:
        raise UsageError("check takes one RoPE setting at a time; give a single value of each option")
    formats = tuple(dict.fromkeys(map(parse, dtype)))
    requested |= {"dtypes": formats, "environments": under or DEFAULT, "one_layer": bool(rope.layer)}
    asked = CheckOptions(**requested)
    accepted = waivers.read(waive) if waive is not None else []
    findings: list[str] = []
    checked: list[Checked] = []

    def run(on_progress: delivery.OnProgress) -> Iterator[Checked]:
        results = analysis.run(targets, cases[0], asked, on_progress, findings.extend)
        for one in waivers.applied(results, accepted, waivers.today()):
            checked.append(one)
            yield one

    def report(results: list[Checked], metadata: Mapping[str, Any]) -> Report:
        told = [*waivers.notes(results, accepted), *findings]
        return tables.report(results, columns, metadata, told, cases[0])

    def left(results: list[Checked]) -> str:
        begun = {one.target for one in results}
        return not_started_clause([target for target in targets if target not in begun], "target")

    def made() -> Ticket | None:
        return None if interrupted else tables.check_ticket(checked, cases[0], asked)

    with (
        output_files.opened_for("--junit", junit, "junit") as file,
        output_files.opened_for("--ticket", ticket, "ticket") as ticket_file,
    ):
        code = delivery.run_and_deliver(
            run,
            report,
            output,
            also=[(file, lambda results: [tables.junit(results)])] if file is not None else (),
            done=lambda results: counted(sum(one.judged for one in results), "check"),
            left=left,
        )
        for fault in tables.faults_of(checked) if github else ():
            click.echo(annotation(fault), err=True)
        interrupted = code == delivery.INTERRUPTED
        written = delivery.write_ticket(ticket_file, made)
    if interrupted:
        return code
    warned = strict and any(map(tables.warns, checked))
    failed = warned or any(one.judged and one.finding.failed for one in checked)
    return delivery.worst(code, written, _ours(checked, output), delivery.BROKEN if failed else delivery.DONE)


def _ours(checked: Sequence[Checked], output: CheckReportOptions) -> int:
    """Print the checks that failed by an error of ours; return the exit code."""
    from ropeaudit.console import delivery
    from ropeaudit.console.delivery import say

    faults = [check for check in checked if check.finding.fault]
    for check in faults:
        say(f"{check.target}, {check.label}: {check.finding.detail}")
        if output.verbose:
            click.echo(check.finding.fault, err=True)
    if faults:
        say("please report it with the command and `ropeaudit list environment`; -v shows where it is")
    return delivery.OUR_FAULT if faults else delivery.DONE
