"""ropeaudit shift: the audit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ropeaudit.console import options, output_files, tickets
from ropeaudit.console.help import command
from ropeaudit.console.options import filled_by, option
from ropeaudit.console.parameters import INTEGER, INTEGERS, NAMES, OFFSETS, RELATIVE, TEXT, WORD, Rare, number
from ropeaudit.errors import BadInput, UsageError
from ropeaudit.features.shift.sweeping import SweepOptions, sweep_options

if TYPE_CHECKING:
    from ropeaudit.audits.audit import Audit
    from ropeaudit.audits.comparison import Pair
    from ropeaudit.audits.records import Record
    from ropeaudit.audits.sweep import Sweep
    from ropeaudit.console.delivery import Metadata
    from ropeaudit.console.gates import Gate
    from ropeaudit.reports import Report, Row
    from ropeaudit.reports.tickets.ticket import Ticket


# options of its own that are fields of a case
_OF_CASES = ("length", "sample", "rerotate", "turn", "mrope", "axis", "axes", "grid", "step")


@dataclass(frozen=True, slots=True)
class ShiftOptions:
    """The options of `shift`, in the order of its help; those of other commands too come in their groups."""

    offset: tuple[int, ...] = filled_by(
        options.axis(
            "--offset",
            OFFSETS,
            "Integers added to every position.",
            shown="0,1000; for --impl those that positions break at, up to the model's maximum or 128k",
        )
    )
    dtype: tuple[str, ...] = filled_by(
        options.axis("--dtype", NAMES, "Number formats of the model.", "fp64,fp32,fp16,bf16")
    )
    recipe: tuple[str, ...] = filled_by(options.recipe_option)
    impl: tuple[str, ...] = filled_by(options.impl_option)
    order: str | None = filled_by(options.order_option)
    under: tuple[str, ...] = filled_by(options.under_option)
    backend: str = option(
        "--backend",
        type=WORD,
        metavar="NAME",
        default="numpy",
        help="What executes recipes: numpy or torch. numpy rounds each operation once, torch has its own "
        "kernels.  "
        "[default: numpy]",
        cls=Rare,
    )
    device: str | None = filled_by(options.device_option)
    changes: Mapping[str, str] = filled_by(options.changes_option)
    vectors: options.QKOptions = filled_by(options.qk_options)
    sample: int | None = option(
        "--sample",
        type=INTEGER,
        metavar="N",
        help="Form only N scores, drawn by --seed: for millions of tokens.",
        cls=Rare,
    )
    rope: options.RopeOptions = filled_by(options.rope_options)
    mrope: tuple[str, ...] = filled_by(
        options.axis(
            "--mrope",
            TEXT,
            "Pairs per position axis; T,H,W:interleaved as in Qwen3-VL.",
            metavar="T,H,W",
            cls=Rare,
        )
    )
    axis: tuple[str, ...] = filled_by(
        options.axis(
            "--axis",
            NAMES,
            "Position axes that are shifted: all, t, h, w, or some, such as hw.",
            shown="all",
            cls=Rare,
        )
    )
    axes: tuple[str, ...] = filled_by(
        options.axis(
            "--axes",
            NAMES,
            "Axes of image and video models (`ropeaudit list axes`), with --grid. Or all, or a .toml file.",
            cls=Rare,
        )
    )
    grid: tuple[str, ...] = filled_by(
        options.axis(
            "--grid", NAMES, "Tokens along these axes, such as 32x32 or 16x32x32.", metavar="HxW", cls=Rare
        )
    )
    step: float | None = option(
        "--step",
        type=number("0.5"),
        metavar="X",
        help="How far --offset 1 moves a token of a grid. The unit is that of its positions.  [default: 1]",
        cls=Rare,
    )
    length: str | None = filled_by(options.length_option)
    rerotate: tuple[int, ...] = filled_by(
        options.axis(
            "--rerotate",
            INTEGERS,
            "How many times stored keys are rotated again. So does a cache that is shifted (K-shift) on its "
            "way to --offset; queries are fresh.",
            shown="keys are rotated once",
            cls=Rare,
        )
    )
    turn: int | None = option(
        "--turn",
        type=INTEGER,
        metavar="N",
        help="Tokens of one turn of --rerotate, such as --turn -16.  [default: -16]",
        cls=Rare,
    )
    attention: bool = option(
        "--attention",
        is_flag=True,
        help="Measure the rows after softmax too: what drift moves there.",
        cls=Rare,
    )
    softmax: str | None = option(
        "--softmax",
        type=WORD,
        metavar="HOW",
        help="Arithmetic of --attention's softmax: fp64, or recipe for that of the recipe.  [default: fp64]",
        cls=Rare,
    )
    anchor: int | None = option(
        "--anchor",
        type=INTEGER,
        metavar="N",
        help="Offset that attention_d compares with (AnchorAttention).  [default: 16]",
        cls=Rare,
    )
    output: options.ReportOptions = filled_by(options.report_options)
    ticket: str | None = filled_by(tickets.ticket_option)
    sweeping: SweepOptions = filled_by(sweep_options)
    no_header: bool = filled_by(options.no_header_option)
    gates: tuple[str, ...] = option(
        "--fail-if",
        "gates",
        type=WORD,
        multiple=True,
        metavar="COND",
        help="Exit with 1 if a row fulfils it: 'drift_rms>0.01'. NaN fails; so does a wrong rotation. "
        "With --baseline also 'drift_rms>1.1x', 1.1 times what it was. Repeatable.",
    )
    tolerance: float = option(
        "--tolerance",
        type=RELATIVE,
        default=0.01,
        metavar="X",
        help="Largest drift_relative that is good enough: 0.01 or 1%.  [default: 1%]",
    )
    baseline: str | None = option(
        "--baseline", metavar="FILE", help="Compare with an earlier report: what drifts more than before."
    )

    def audit(self) -> Audit:
        """Return what is to be measured. Raises: UsageError, UnknownName, BadInput."""
        from ropeaudit.audits.audit import Audit
        from ropeaudit.console import settings
        from ropeaudit.engine.plan import AttentionOptions
        from ropeaudit.features.shift import analysis

        more = {name: getattr(self, name) for name in _OF_CASES}
        cases = settings.cases(self.rope, self.vectors, **more)
        return Audit(
            cases,
            recipes=self.recipe or analysis.usual_recipes(self.impl),
            dtypes=self.dtype,
            offsets=self.offset or analysis.usual_offsets(cases, bool(self.impl)),
            changes=self.changes,
            implementations=self.impl,
            backend=self.backend,
            device=self.device,
            order=self.order,
            tolerance=self.tolerance,
            attention=AttentionOptions.requested(self.attention, self.softmax, self.anchor),
            environments=self.under,
        )


@command(
    epilog="Lists: 0,1000,16k; ranges: 1k-1m*2, 0-4096+256; k = 1024, m = 1024². Rows are the cross product. "
    "Exit code: 0 done, 1 a --fail-if was broken, 2 bad usage or input."
)
@options.calling_options
@options.grouped(ShiftOptions, "asked")
def shift(asked: ShiftOptions) -> int:
    """Shift all positions and report how far the attention scores drift.

    Scores of every dtype and recipe are compared with exact ones, which depend on distances alone.
    """
    from ropeaudit.audits import records
    from ropeaudit.console import delivery
    from ropeaudit.console import gates as conditions
    from ropeaudit.features.shift import sweeping as sweeps

    output, sweeping = asked.output, asked.sweeping
    output.chosen_columns(records.CHOICES, "(`ropeaudit list columns` explains them)")
    output.check_header(asked.no_header)
    if asked.ticket and not asked.impl:
        raise UsageError("--ticket is about code that is called; give --impl, or leave it out")
    earlier: Baseline | None = None
    if asked.baseline is not None:  # read before anything is measured
        from ropeaudit.reports import form_named, reading

        announced = not form_named(output.form).finding and not output.quiet
        earlier = Baseline(
            asked.baseline, reading.read(asked.baseline), reading.processor(asked.baseline), announced
        )
    requested = [conditions.parse(text, relative=earlier is not None) for text in asked.gates]
    needed = [gate.column for gate in requested]
    audit = asked.audit()
    sweep = sweeps.planned(audit, sweeping, output.outputs)
    if sweeping.dry_run:
        return sweeps.show_plan(sweep, sweeping.resume, output)

    def report(metadata: Metadata) -> Report:
        measured = _report(asked, sweep, needed, metadata)
        return earlier.beside(measured) if earlier else measured

    def broken(results: list[Record]) -> list[str]:
        return earlier.broken(requested) if earlier else conditions.broken(requested, results)

    with output_files.opened_for("--ticket", asked.ticket, "ticket") as file:
        results, code = _measured(asked, sweep, needed, report, broken)
        if code == delivery.INTERRUPTED:
            return code
        written = tickets.write(file, lambda: _ticket(audit, results, output.columns, needed))
    return delivery.worst(code, written)


@dataclass(slots=True)
class Baseline:
    """The rows of an earlier report; `pairs` holds the comparison once there is something to compare.

    processor: what measured it, empty where nothing says. announced: whether the finding goes to stderr, for
    forms without sentences.
    """

    path: str
    rows: Sequence[Row]
    processor: str
    announced: bool
    pairs: Sequence[Pair] = field(default_factory=list)
    nothing: BadInput | None = None

    def beside(self, report: Report) -> Report:
        """Return a report with what changed behind it; forms without sentences get it on stderr.

        Where no case is in both, `broken` raises what is wrong: the rows must be written first.
        """
        from ropeaudit.audits import comparison
        from ropeaudit.console import output
        from ropeaudit.reports.comparison import report as changes_of
        from ropeaudit.runtime import run_metadata

        try:
            here = run_metadata.processor(run_metadata.kernels())
            result = comparison.compare(self.rows, report.rows, processors=(self.processor, here))
        except BadInput as error:
            self.nothing = error
            return report
        changes = changes_of([result], None, {})
        [answer] = changes.answers
        answer = replace(answer, target=f"{answer.target} since {self.path}")
        changes = replace(changes, metadata={}, answers=[answer], headline=answer.headline)
        self.pairs = result.pairs
        if self.announced:
            output.say(changes.headline)
        return replace(report, further={**report.further, "changes": changes})

    def broken(self, conditions: Sequence[Gate]) -> list[str]:
        """Return a line for every gate that is broken. Raises: UsageError, BadInput."""
        from ropeaudit.console import gates

        if self.nothing:
            raise self.nothing
        relative = [gate for gate in conditions if gate.relative]
        gates.check_columns(relative, [pair.before for pair in self.pairs])
        return gates.broken_since(conditions, self.pairs)


def _report(asked: ShiftOptions, sweep: Sweep, needed: Sequence[str], metadata: Metadata) -> Report:
    """Return the report of the rows so far. needed: columns that are written too."""
    from ropeaudit.reports import drift
    from ropeaudit.reports.model_notes import model_notes

    audit, findings, results = sweep.audit, sweep.findings(), sweep.results()
    about = {**metadata, "findings": findings} if findings else metadata
    first = [*findings]
    if audit.environments:
        from ropeaudit.reports.environments import environment_notes

        first += environment_notes(audit, results)
    first += model_notes(audit.cases, [one.offset for one in results])
    frozen = asked.length != "shifted"  # frequencies do not follow the offset
    return drift.report(results, asked.output.columns, about, not asked.no_header, frozen, first, needed)


def _ticket(
    audit: Audit, results: list[Record], columns: Sequence[str], needed: Sequence[str]
) -> Ticket | None:
    """Return the ticket of the worst row of code; None where none was measured."""
    from ropeaudit.reports import drift
    from ropeaudit.reports.tickets import drift as tickets_of

    worst = tickets_of.worst(results)
    if worst is None:
        return None
    return tickets_of.ticket(worst, drift.report(results, columns, {}, needed=needed), audit.factories())


def _measured(
    asked: ShiftOptions,
    sweep: Sweep,
    needed: Sequence[str],
    report: Callable[[Metadata], Report],
    broken: Callable[[list[Record]], list[str]],
) -> tuple[list[Record], int]:
    """Measure and deliver the report, rows stored on the way; return them and the exit code."""
    from ropeaudit.console import delivery, output, rows
    from ropeaudit.features.shift import sweeping as sweeps
    from ropeaudit.reports.numbers import counted

    chosen, sweeping, code = asked.output, asked.sweeping, delivery.DONE
    with (
        output_files.opened(chosen.outputs) as files,
        sweeps.stored(sweep, sweeping.resume, chosen.outputs, chosen.columns, needed) as store,
    ):
        run = sweeps.run(sweep, sweeping, store, chosen.quiet)
        _, interrupted = rows.gathered(run, chosen.quiet, len(sweep.cells) - len(sweep.done))
        results = sweep.results()
        done = counted(len(results), "row")
        if results or not interrupted:
            measured = report(output.metadata(chosen))
            measured = delivery.incomplete(measured, done) if interrupted else measured
            wanted = delivery.replaceable(files, interrupted)
            with sweeps.stored_rows_named(store):
                code = delivery.deliver(
                    measured, wanted, chosen, broken=lambda: () if interrupted else broken(results)
                )
            if store and not interrupted and any(file.written and file.path == store.name for file in files):
                store.remove()
        more = sweeps.how_to_go_on(store)
    if interrupted:
        delivery.say_interrupted(done, files, more)
    elif more:
        output.say(more.removeprefix("; "))
    return results, delivery.worst(code, delivery.INTERRUPTED if interrupted else delivery.DONE)
