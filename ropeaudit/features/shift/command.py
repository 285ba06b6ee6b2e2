"""The command `ropeaudit shift`."""

from __future__ import annotations

import contextlib
import functools
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ropeaudit.console import options, output_files
from ropeaudit.console.help import command
from ropeaudit.console.options import filled_by, listed, option
from ropeaudit.console.parameters import (
    INTEGER,
    INTEGERS,
    NAMES,
    OFFSETS,
    RELATIVE,
    SHARD,
    TEXT,
    WORD,
    Parsed,
    number,
    within,
)
from ropeaudit.errors import BadInput, UsageError

if TYPE_CHECKING:
    from ropeaudit.audits.comparison import Difference, Pair
    from ropeaudit.audits.records import Record
    from ropeaudit.audits.sweep import Audit, Sweep
    from ropeaudit.audits.workers import Crew
    from ropeaudit.console.delivery import Metadata, OnProgress
    from ropeaudit.console.gates import Gate
    from ropeaudit.console.sweep_file import SweepFile
    from ropeaudit.reports import Report
    from ropeaudit.reports.tickets import Ticket


def _scheduler_address(address: str, flag: str) -> str:
    if address != "local" and "://" not in address:
        raise UsageError(f"{flag} {address!r} is no address; try tcp://127.0.0.1:8786, or local")
    return address


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """How the cells are distributed, and whether an earlier run is resumed."""

    resume: bool = option(
        "--resume",
        is_flag=True,
        help="Measure only what is not in the first -o file or its FILE.part. There a run keeps "
        "its rows until it is over.",
    )
    jobs: int = option(
        "--jobs",
        type=within(1, 1024, 2),
        default=1,
        metavar="N",
        help="Processes that measure side by side.  [default: 1]",
    )
    scheduler: str | None = option(
        "--scheduler",
        type=Parsed("address", _scheduler_address),
        metavar="ADDRESS",
        help="A Dask scheduler, tcp://HOST:PORT; local starts one.",
    )
    shard: tuple[int, int] = option(
        "--shard",
        type=SHARD,
        default=(1, 1),
        metavar="K/N",
        help="Measure part K of N alone; `report` merges them.",
    )
    dry_run: bool = option(
        "--dry-run", is_flag=True, help="Show what would be measured, and measure nothing."
    )


# options that are fields of a case
_OF_CASES = ("length", "sample", "rerotate", "turn", "mrope", "axis", "axes", "grid", "step")


@dataclass(frozen=True, slots=True)
class ShiftOptions:
    """The options of `shift`, in the order of its help; shared ones come in groups."""

    offset: tuple[int, ...] = listed(
        "--offset",
        OFFSETS,
        "Integers added to every position.",
        shown="0,1000; for --impl those that positions break at, up to the model's maximum or 128k",
    )
    dtype: tuple[str, ...] = listed(
        "--dtype",
        NAMES,
        "Number formats of the model.",
        default="fp64,fp32,fp16,bf16",
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
        "kernels.  [default: numpy]",
    )
    device: str | None = filled_by(options.device_option)
    changes: Mapping[str, str] = filled_by(options.changes_option)
    vectors: options.QKOptions = filled_by(options.qk_options)
    sample: int | None = option(
        "--sample",
        type=INTEGER,
        metavar="N",
        help="Form only N scores, drawn by --seed: for millions of tokens.",
    )
    rope: options.RopeOptions = filled_by(options.rope_options)
    mrope: tuple[str, ...] = listed(
        "--mrope",
        TEXT,
        "Pairs per position axis; T,H,W:interleaved as in Qwen3-VL.",
        metavar="T,H,W",
    )
    axis: tuple[str, ...] = listed(
        "--axis",
        NAMES,
        "Position axes that are shifted: all, t, h, w, or some, such as hw.",
        shown="all",
    )
    axes: tuple[str, ...] = listed(
        "--axes",
        NAMES,
        "Axes of image and video models (`ropeaudit list axes`), with --grid. Or all, or a .toml file.",
    )
    grid: tuple[str, ...] = listed(
        "--grid",
        NAMES,
        "Tokens along these axes, such as 32x32 or 16x32x32.",
        metavar="HxW",
    )
    step: float | None = option(
        "--step",
        type=number("0.5"),
        metavar="X",
        help="How far --offset 1 moves a token of a grid. The unit is that of its positions.  [default: 1]",
    )
    length: str | None = filled_by(options.length_option)
    rerotate: tuple[int, ...] = listed(
        "--rerotate",
        INTEGERS,
        "How many times stored keys are rotated again. So does a cache that is shifted (K-shift) on its "
        "way to --offset; queries are fresh.",
        shown="keys are rotated once",
    )
    turn: int | None = option(
        "--turn",
        type=INTEGER,
        metavar="N",
        help="Tokens of one turn of --rerotate, such as --turn -16.  [default: -16]",
    )
    attention: bool = option(
        "--attention",
        is_flag=True,
        help="Measure the rows after softmax too: what drift moves there.",
    )
    softmax: str | None = option(
        "--softmax",
        type=WORD,
        metavar="HOW",
        help="Arithmetic of --attention's softmax: fp64, or recipe for that of the recipe.  [default: fp64]",
    )
    anchor: int | None = option(
        "--anchor",
        type=INTEGER,
        metavar="N",
        help="Offset that attention_d compares with (AnchorAttention).  [default: 16]",
    )
    output: options.ReportOptions = filled_by(options.report_options)
    ticket: str | None = filled_by(options.ticket_option)
    sweeping: SweepOptions = filled_by(options.grouped(SweepOptions, "sweeping"))
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

    def audit(self, bounded: bool) -> Audit:
        """Return the requested audit. Raises: UsageError, UnknownName, BadInput.

        bounded: whether the columns of bounds are computed.
        """
        from ropeaudit.audits.sweep import Audit
        from ropeaudit.engine.plan import AttentionOptions
        from ropeaudit.features.shift import analysis

        more = {name: getattr(self, name) for name in _OF_CASES}
        cases = options.cases(self.rope, self.vectors, **more)
        return Audit(
            cases,
            recipes=self.recipe or None,
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
            bounded=bounded,
        )

    def shows_bounds(self, gated: Iterable[str], earlier: Baseline | None) -> bool:
        """Return whether the columns of bounds are shown or compared; HTML pages draw them."""
        from ropeaudit.audits import records
        from ropeaudit.reports import REGISTRY

        bounds = [name for name in records.group_columns("bounds") if records.COLUMNS[name].optional]
        before = [earlier.source.rows.column(name) for name in bounds] if earlier else []
        paths, suffixes = [path.lower() for path in self.output.outputs], REGISTRY["html"].suffixes
        pages = self.output.form == "html" or any(path.endswith(suffixes) for path in paths)
        return bool(
            {"all", "bounds", *bounds}.intersection([*self.output.columns, *gated])
            or any(one is not None for column in before for one in column)
            or (pages and not self.sweeping.resume)  # rows that are taken over may lack them
        )


@command(
    epilog="Lists: 0,1000,16k; ranges: 1k-1m*2, 0-4096+256; k = 1024, m = 1024². Rows are the cross product. "
    "Exit code: 0 done, even if the answer is FAIL, 1 a --fail-if was broken, 2 bad usage or input."
)
@options.grouped(ShiftOptions, "asked")
@options.calling_options
def shift(asked: ShiftOptions) -> int:
    """Shift all positions and report how far the attention scores drift.

    Scores of every dtype and recipe are compared with exact ones, which depend on distances alone.
    """
    from ropeaudit.audits import records
    from ropeaudit.audits.sweep import Sweep
    from ropeaudit.console import delivery, gates

    output, sweeping = asked.output, asked.sweeping
    output.chosen_columns(records.CHOICES, "(`ropeaudit list columns` explains them)")
    output.check_header(asked.no_header)
    if asked.ticket and not asked.impl:
        raise UsageError("--ticket is about code that is called; give --impl, or leave it out")
    earlier = Baseline(asked.baseline, output) if asked.baseline is not None else None
    conditions = [gates.parse(text, relative=earlier is not None) for text in asked.gates]
    audit = asked.audit(asked.shows_bounds([gate.column for gate in conditions], earlier))
    if sweeping.resume and output_files.first_file(output.outputs) is None:
        raise UsageError("--resume needs the file to go on with; add -o sweep.jsonl")
    here = sweeping.jobs if sweeping.scheduler in (None, "local") else 1
    sweep = Sweep(audit, sweeping.shard, here)
    if sweeping.dry_run:
        return _print_plan(sweep, sweeping.resume, output)
    with output_files.opened_for("--ticket", asked.ticket, "ticket") as file:
        code = _measure_and_deliver(asked, sweep, conditions, earlier)
        if code == delivery.INTERRUPTED:
            return code

        def ticket() -> Ticket | None:
            """Return the ticket of the worst row of code; None if none was measured."""
            from ropeaudit.reports import drift
            from ropeaudit.reports import tickets as tickets_of

            if (worst := tickets_of.worst(results := sweep.results())) is None:
                return None
            needed = [gate.column for gate in conditions]
            report = drift.report(results, output.columns, {}, needed=needed)
            return tickets_of.ticket(worst, report, audit.factories())

        written = delivery.write_ticket(file, ticket)
    return delivery.worst(code, written)


class Baseline:
    """The earlier report of --baseline, which is read before anything is measured."""

    def __init__(self, path: str, output: options.ReportOptions) -> None:
        from ropeaudit.reports import REGISTRY, reading

        self.path, self.source = path, reading.load(path)
        # forms without sentences: the finding goes to stderr
        self.announced = not REGISTRY[output.form].finding and not output.quiet
        self.found: Difference | BadInput = BadInput("nothing was measured")
        self.alone: list[Pair] = []

    def beside(self, report: Report) -> Report:
        """Return a report with the changes since the baseline.

        If the two have no case in common, `broken_gates` raises that, once the rows are written.
        """
        from ropeaudit.audits import comparison
        from ropeaudit.console.delivery import say
        from ropeaudit.reports.comparison import report as changes_of
        from ropeaudit.runtime import run_metadata

        processors = self.source.processor, run_metadata.processor(run_metadata.kernels())
        self.alone = [comparison.Pair(None, row) for row in report.rows]
        try:
            self.found = comparison.compare(self.source.rows, report.rows, processors=processors)
        except BadInput as error:
            self.found = error
            return report
        changes = changes_of([self.found], None, {})
        [answer] = changes.answers
        answer = replace(answer, target=f"{answer.target} since {self.path}")
        changes = replace(changes, metadata={}, answers=[answer], headline=answer.headline)
        if self.announced:
            say(changes.headline)
        return replace(report, further={**report.further, "changes": changes})

    def broken_gates(self, conditions: Sequence[Gate]) -> list[str]:
        """Return a line for every gate that is broken. Raises: UsageError, BadInput."""
        from ropeaudit.console import gates

        if not isinstance(self.found, BadInput):
            return gates.broken_since(conditions, self.found.pairs)
        alone = [gate for gate in conditions if not gate.relative]
        if lines := gates.broken_since(alone, self.alone):
            return [*lines, str(self.found)]
        raise self.found


def _measure_and_deliver(
    asked: ShiftOptions,
    sweep: Sweep,
    conditions: Sequence[Gate],
    earlier: Baseline | None,
) -> int:
    """Measure, storing rows, and deliver; return the exit code."""
    from ropeaudit.audits import records
    from ropeaudit.audits.comparison import Pair
    from ropeaudit.console import delivery, gates
    from ropeaudit.reports import drift, verdicts
    from ropeaudit.reports.model_notes import model_notes
    from ropeaudit.reports.numbers import counted

    chosen, sweeping, needed = asked.output, asked.sweeping, [gate.column for gate in conditions]
    name = output_files.first_file(chosen.outputs)
    stores: list[SweepFile] = []

    def note(text: str) -> None:
        if not chosen.quiet:
            delivery.say(f"note: {text}")

    def columns(some: Sequence[Record]) -> list[str]:
        return records.file_columns(some, chosen.columns, needed)[0]

    def measured(on_progress: OnProgress) -> Iterator[Record]:
        keep = None
        if name is not None:  # beside it rows are kept as they finish
            from ropeaudit.console.sweep_file import SweepFile

            store = stack.enter_context(SweepFile(name, sweep, sweeping.resume, columns))
            stores.append(store)
            keep = store.append
            if store.note:
                note(store.note)
        yield from sweep.run(on_progress, keep=keep, crew=_worker_starter(sweeping, note))

    def report(_: object, metadata: Metadata) -> Report:
        findings, results = sweep.findings(), sweep.results()
        about = {**metadata, "findings": findings} if findings else metadata
        notes = [*findings, *verdicts.environment_notes(sweep.audit.factories(), results)]
        notes += model_notes(sweep.audit.cases, [record.offset for record in results])
        made = drift.report(results, chosen.columns, about, notes, needed)
        made = replace(made, header=not asked.no_header)
        return earlier.beside(made) if earlier else made

    def broken(_: object) -> list[str]:
        if earlier:
            return earlier.broken_gates(conditions)
        rows = [one.as_dict() for one in sweep.results()] if conditions else []
        return gates.broken_since(conditions, [Pair(None, row) for row in rows])

    with contextlib.ExitStack() as stack:
        code = delivery.run_and_deliver(
            measured,
            report,
            chosen,
            done=lambda _: counted(len(sweep.done), "row"),
            left=lambda _: "".join(f"; {text}" for store in stores if (text := store.hint())),
            broken=broken,
        )
    if uncalled := next((one.reason for one in sweep.results() if one.refused == "uncalled"), None):
        delivery.say_error(UsageError(uncalled))
        code = delivery.worst(code, delivery.BAD_USE)
    return code


def _worker_starter(sweeping: SweepOptions, note: Callable[[str], None]) -> Callable[[int], Crew] | None:
    """Return a function that starts workers; None for this process alone."""
    if sweeping.scheduler is None and sweeping.jobs == 1:
        return None
    from ropeaudit.audits import workers

    if sweeping.scheduler is None:
        return functools.partial(workers.Processes, sweeping.jobs)
    address = sweeping.scheduler
    return lambda tasks: workers.Dask(address, sweeping.jobs, note)


_PLAN = ("axis", "count", "values")
_ALWAYS = ("implementation", "dtype", "offset", "seq_len")
_LONGEST = 52  # characters of values
_PLAN_LEGEND = (
    "count: different values; values: of an axis, in the order of the cells. The time is guessed from sizes,"
    "\nabout within a factor of two on a server's core, of own code as of a recipe; nothing was measured."
)


def _print_plan(sweep: Sweep, resume: bool, options: options.ReportOptions) -> int:
    from ropeaudit.audits import records
    from ropeaudit.audits.sweep import START_SECONDS
    from ropeaudit.console import delivery, sweep_file
    from ropeaudit.reports import Report
    from ropeaudit.runtime import run_metadata

    if resume:
        sweep_file.peek(str(output_files.first_file(options.outputs)), sweep)
    done, left = len(sweep.done), sweep.left()
    seconds = sum((cell.seconds for cell in left), START_SECONDS)
    scores = sum(cell.scores for cell in left)
    rows, cells = [], [cell.identity for cell in sweep.cells]
    for place, column in enumerate(records.IDENTITY):
        values = list(dict.fromkeys(cell[place] for cell in cells))
        if column in _ALWAYS or (len(values) > 1 and column not in ("stages", "case")):
            words = ", ".join("none" if value is None else str(value) for value in values)
            shown = textwrap.shorten(words, _LONGEST, placeholder=" ...")
            rows.append({"axis": column, "count": len(values), "values": shown})
    state = f"{done} are done and {len(left)} are to be measured" if done else "none is measured yet"
    about = {"cells": len(cells), "done": done, "scores": scores, "seconds": seconds}
    report = Report(
        rows=rows,
        columns=list(_PLAN),
        screen=list(_PLAN),
        headline=f"{len(cells)} cells, {state}: {scores} scores; before measuring anything, a rough guess: "
        f"{delivery.duration(max(seconds, 1))} of one core.",
        legend=_PLAN_LEGEND,
        metadata={**about, **run_metadata.gather()},
    )
    return delivery.print_report(report, options)
