"""ropeaudit shift: the audit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from ropeaudit.console import options, tickets
from ropeaudit.console.help import command
from ropeaudit.console.parameters import INTEGER, INTEGERS, NAMES, OFFSETS, RELATIVE, TEXT, WORD, number
from ropeaudit.console.tickets import TicketOptions, ticket_options
from ropeaudit.errors import UsageError
from ropeaudit.features.shift.sweeping import SweepOptions, sweep_options

if TYPE_CHECKING:
    from ropeaudit.audits.audit import Audit
    from ropeaudit.audits.records import Record
    from ropeaudit.audits.sweep import Sweep
    from ropeaudit.audits.sweep_run import SweepRun
    from ropeaudit.console.delivery import Metadata
    from ropeaudit.reports import Report
    from ropeaudit.reports.tickets.ticket import Ticket


@command(
    epilog="Lists: 0,1000,16k; ranges: 1k-1m*2, 0-4096+256; k = 1024, m = 1024². Rows are the cross product. "
    "Exit code: 0 done, 1 a --fail-if was broken, 2 bad usage or input."
)
@options.axis(
    "--offset",
    OFFSETS,
    "Integers added to every position.",
    shown="0,1000; for --impl those that positions break at, up to the model's maximum or 128k",
)
@options.axis("--dtype", NAMES, "Number formats of the model.", "fp64,fp32,fp16,bf16")
@options.recipe_option
@options.impl_option
@options.order_option
@options.under_option
@click.option(
    "--backend",
    type=WORD,
    metavar="NAME",
    default="numpy",
    help="What executes recipes: numpy or torch. numpy rounds each operation once, torch has its own "
    "kernels.  "
    "[default: numpy]",
)
@options.device_option
@options.engine_option
@options.changes_option
@options.qk_options
@click.option(
    "--sample",
    type=INTEGER,
    metavar="N",
    help="Form only N scores, drawn by --seed: for millions of tokens.",
)
@options.rope_options
@options.axis("--mrope", TEXT, "Pairs per position axis; T,H,W:interleaved as in Qwen3-VL.", metavar="T,H,W")
@options.axis(
    "--axis", NAMES, "Position axes that are shifted: all, t, h, w, or some, such as hw.", shown="all"
)
@options.axis(
    "--axes",
    NAMES,
    "Axes of image and video models (`ropeaudit list axes`), with --grid. Or all, or a .toml file.",
)
@options.axis("--grid", NAMES, "Tokens along these axes, such as 32x32 or 16x32x32.", metavar="HxW")
@click.option(
    "--step",
    type=number("0.5"),
    metavar="X",
    help="How far --offset 1 moves a token of a grid. The unit is that of its positions.  [default: 1]",
)
@options.length_option
@options.axis(
    "--rerotate",
    INTEGERS,
    "How many times stored keys are rotated again. So does a cache that is shifted (K-shift) on its way to "
    "--offset; queries are fresh.",
    shown="keys are rotated once",
)
@click.option(
    "--turn",
    type=INTEGER,
    metavar="N",
    help="Tokens of one turn of --rerotate, such as --turn -16.  [default: -16]",
)
@click.option("--attention", is_flag=True, help="Measure the rows after softmax too: what drift moves there.")
@click.option(
    "--softmax",
    type=WORD,
    metavar="HOW",
    help="Arithmetic of --attention's softmax: fp64, or recipe for that of the recipe.  [default: fp64]",
)
@click.option(
    "--anchor",
    type=INTEGER,
    metavar="N",
    help="Offset that attention_d compares with (AnchorAttention).  [default: 16]",
)
@options.report_options
@ticket_options
@sweep_options
@options.no_header_option
@click.option(
    "--fail-if",
    "gates",
    type=WORD,
    multiple=True,
    metavar="COND",
    help="Exit with 1 if a row fulfils it: 'drift_rms>0.01'. NaN fails; so does a wrong rotation. "
    "With --baseline also 'drift_rms>1.1x', 1.1 times what it was. Repeatable.",
)
@click.option(
    "--tolerance",
    type=RELATIVE,
    default=0.01,
    metavar="X",
    help="Largest drift_relative that is good enough: 0.01 or 1%.  [default: 1%]",
)
@click.option(
    "--baseline", metavar="FILE", help="Compare with an earlier report: what drifts more than before."
)
def shift(
    offset: tuple[int, ...],
    dtype: tuple[str, ...],
    recipe: tuple[str, ...],
    impl: tuple[str, ...],
    order: str | None,
    under: tuple[str, ...],
    backend: str,
    device: str | None,
    engine: str | None,
    changes: Mapping[str, str],
    vectors: options.QKOptions,
    sample: int | None,
    rope: options.RopeOptions,
    mrope: tuple[str, ...],
    axis: tuple[str, ...],
    axes: tuple[str, ...],
    grid: tuple[str, ...],
    step: float | None,
    length: str | None,
    rerotate: tuple[int, ...],
    turn: int | None,
    attention: bool,
    softmax: str | None,
    anchor: int | None,
    output: options.ReportOptions,
    ticketing: TicketOptions,
    sweeping: SweepOptions,
    no_header: bool,
    gates: tuple[str, ...],
    tolerance: float,
    baseline: str | None,
) -> int:
    """Shift all positions and report how far the attention scores drift.

    Scores of every dtype and recipe are compared with exact ones, which depend on distances alone.
    """
    from ropeaudit.audits import records
    from ropeaudit.audits.audit import Audit
    from ropeaudit.console import delivery, settings
    from ropeaudit.console import gates as conditions
    from ropeaudit.engine.plan import AttentionOptions
    from ropeaudit.features.shift import analysis, baselines
    from ropeaudit.features.shift import sweeping as sweeps
    from ropeaudit.reports.numbers import percent

    output.chosen_columns(records.CHOICES, "(`ropeaudit list columns` explains them)")
    output.check_header(no_header)
    if ticketing.tracker and not impl:
        raise UsageError("--ticket is about code that is called; give --impl, or leave it out")
    earlier = baselines.opened(baseline, output)
    requested = [conditions.parse(text, relative=earlier is not None) for text in gates]
    needed = [gate.column for gate in requested]
    on_axes = {"mrope": mrope, "axis": axis, "axes": axes, "grid": grid, "step": step}
    cases = settings.cases(
        rope, vectors, length=length, sample=sample, rerotate=rerotate, turn=turn, **on_axes
    )
    audit = Audit(
        cases,
        recipes=recipe or analysis.usual_recipes(impl),
        dtypes=dtype,
        offsets=offset or analysis.usual_offsets(cases, bool(impl)),
        changes=changes,
        implementations=impl,
        backend=backend,
        device=device,
        order=order,
        tolerance=tolerance,
        attention=AttentionOptions.requested(attention, softmax, anchor),
        environments=under,
        engine=engine,
    )
    sweep = sweeps.planned(audit, sweeping, output.outputs)
    if sweeping.dry_run:
        return sweeps.show_plan(sweep, sweeping.resume, output)

    def report(run: SweepRun, metadata: Metadata) -> Report:
        measured = _report(run, audit, output.columns, needed, metadata, not no_header, length != "shifted")
        return earlier.beside(measured) if earlier else measured

    with tickets.opened(ticketing) as ticket_file:
        results, code = _measured(sweep, sweeping, output, needed, report)
        if code:
            return code
        nothing = f"no row of code is out of the tolerance of {percent(tolerance)}; --tolerance sets another"
        tickets.write(
            ticketing, ticket_file, lambda: _ticket(audit, results, output.columns, needed), nothing
        )
    return delivery.judged(earlier.broken(requested) if earlier else conditions.broken(requested, results))


def _report(
    run: SweepRun,
    audit: Audit,
    columns: Sequence[str],
    needed: Sequence[str],
    metadata: Metadata,
    header: bool,
    frozen: bool,
) -> Report:
    """Return the report of the rows so far. frozen: frequencies do not follow the offset."""
    from ropeaudit.reports import drift
    from ropeaudit.reports.model_notes import model_notes

    findings, results = run.findings(), run.results()
    about = {**metadata, "findings": findings} if findings else metadata
    note = audit.measured_by().note
    first = [
        *findings,
        *([note] if note else []),
        *_changes(audit, results),
        *model_notes(audit.cases, [one.offset for one in results]),
    ]
    return drift.report(results, columns, about, header, frozen, first, needed)


def _changes(audit: Audit, results: list[Record]) -> list[str]:
    """Return what environments change."""
    if not audit.environments:
        return []
    from ropeaudit.reports.environments import environment_notes

    return environment_notes(audit, results)


def _ticket(
    audit: Audit, results: list[Record], columns: Sequence[str], needed: Sequence[str]
) -> Ticket | None:
    """Return the ticket of the worst row of code; None where every one is within tolerance."""
    from ropeaudit.reports import drift
    from ropeaudit.reports.tickets import drift as tickets_of

    worst = tickets_of.worst(results)
    if worst is None:
        return None
    return tickets_of.ticket(worst, drift.report(results, columns, {}, needed=needed), audit.factories())


def _measured(
    sweep: Sweep,
    sweeping: SweepOptions,
    chosen: options.ReportOptions,
    needed: Sequence[str],
    report: Callable[[SweepRun, Metadata], Report],
) -> tuple[list[Record], int]:
    """Measure and deliver the report, rows stored on the way; return them and the exit code so far."""
    from ropeaudit.console import delivery, output, rows
    from ropeaudit.features.shift import sweeping as sweeps

    with (
        output.opened(chosen.outputs) as files,
        sweeps.stored(sweep, sweeping.resume, chosen.outputs, chosen.columns, needed) as store,
    ):
        run = sweeps.run(sweep, sweeping, store, chosen.quiet)
        _, interrupted = rows.gathered(run.rows, chosen.quiet, len(sweep.cells) - run.before)
        results = run.results()
        if results or not interrupted:
            measured = report(run, output.metadata(chosen))
            measured = output.incomplete(measured) if interrupted else measured
            with sweeps.stored_rows_named(store):
                output.write(measured, output.replaceable(files, interrupted))
            if store and not interrupted:
                store.remove()
            output.deliver(measured, (), chosen)
        more = sweeps.how_to_go_on(store)
    if interrupted:
        output.say_interrupted(f"{len(results)} rows", files, more)
    return results, delivery.INTERRUPTED if interrupted else delivery.DONE
