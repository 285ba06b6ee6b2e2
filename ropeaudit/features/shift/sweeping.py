"""How `shift` runs on the command line: its options, the plan, and the file that rows are stored in."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ropeaudit.console.options import ReportOptions, grouped, option
from ropeaudit.console.parameters import SHARD, Parsed, Rare, within
from ropeaudit.errors import BadInput, BadOutput, UnknownName, UsageError

if TYPE_CHECKING:
    from ropeaudit.audits.arguments import OnProgress
    from ropeaudit.audits.audit import Audit
    from ropeaudit.audits.records import Record, shown
    from ropeaudit.audits.sweep import Sweep, Task
    from ropeaudit.console.sweep_file import SweepFile


_LONG = 3600.0  # seconds


def _scheduler(address: str, flag: str) -> str:
    if address != "local" and "://" not in address:
        raise UsageError(f"{flag} {address!r} is no address; try tcp://127.0.0.1:8786, or local")
    return address


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """How the cells of an audit are shared out, and whether an earlier run goes on."""

    heading: ClassVar[str] = "Report, and long runs"
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
        type=Parsed("address", _scheduler),
        metavar="ADDRESS",
        help="A Dask scheduler, tcp://HOST:PORT; local starts one.",
        cls=Rare,
    )
    shard: tuple[int, int] = option(
        "--shard",
        type=SHARD,
        default=(1, 1),
        metavar="K/N",
        help="Measure part K of N alone; `report` merges them.",
        cls=Rare,
    )
    dry_run: bool = option(
        "--dry-run", is_flag=True, help="Show what would be measured, and measure nothing.", cls=Rare
    )


sweep_options = grouped(SweepOptions, "sweeping")


def planned(audit: Audit, options: SweepOptions, outputs: Sequence[str]) -> Sweep:
    """Return the cells to measure. Raises: UsageError."""
    from ropeaudit.audits.sweep import Sweep
    from ropeaudit.console import output_files

    if options.resume and output_files.first_file(outputs) is None:
        raise UsageError("--resume needs the file to go on with; add -o sweep.jsonl")
    here = options.jobs if options.scheduler in (None, "local") else 1
    return Sweep(audit, options.shard, here)


def run(
    sweep: Sweep, options: SweepOptions, store: SweepFile | None, quiet: bool
) -> Callable[[OnProgress], Iterator[Record]]:
    """Take the rows of a file; return what measures the rest into it, warns before hours and tells notes."""
    from ropeaudit.console import output, rows
    from ropeaudit.runtime import run_metadata, threads

    def note(text: str) -> None:
        if not quiet:
            output.say(f"note: {text}")

    def warn(tasks: Sequence[Task]) -> None:
        """Say before hours of work about how many they are, and how they become fewer."""
        count, seconds = run_metadata.threads(), 0.0
        for task in tasks:
            side_by_side = threads.worth(count, task.case.seq_len or threads.SHORT)
            seconds += task.seconds / max(min(options.jobs, count), side_by_side)
        if quiet or seconds < _LONG:
            return
        sampled = any(task.case.sample is not None for task in tasks)
        remedy = "" if sampled else "--sample 100000 measures so many scores of each row instead of all; "
        output.say(
            f"before measuring anything, a rough guess: {rows.duration(seconds)} on this machine; {remedy}"
            "a shorter --seq-len, fewer rows, or --shard on several machines make it shorter"
        )

    if store and (text := sweep.take(store.rows)):
        note(text)
    return functools.partial(
        sweep.run,
        keep=store.append if store else None,
        jobs=options.jobs,
        scheduler=options.scheduler,
        on_plan=warn,
        on_note=note,
    )


@contextlib.contextmanager
def stored(
    sweep: Sweep, resume: bool, outputs: Sequence[str], columns: Sequence[str], needed: Sequence[str]
) -> Iterator[SweepFile | None]:
    """Open the file beside the first -o where rows are kept as they finish; None without a file.

    columns, needed: which the report has; see `records.written`.

    Raises: BadOutput where it holds what another shard has measured; BadInput if rows of another sweep.
    """
    from ropeaudit.console import output_files

    name = output_files.first_file(outputs)
    if name is None:
        yield None
        return
    from ropeaudit.audits import records
    from ropeaudit.console import sweep_file

    others = set() if resume else sweep.others()
    earlier: list[Record] = []
    if others:
        with contextlib.suppress(BadInput, UnknownName):  # whatever else is there may be replaced
            earlier = sweep_file.finished(name)
    if foreign := next((row for row in earlier if row.key() in others), None):
        raise BadOutput(
            f"{name!r} holds rows of another shard, such as {shown(foreign)}; give each --shard "
            "an -o of its own, or remove it"
        )

    def check(path: str, rows: list[Record]) -> None:
        sweep_file.refuse_foreign(path, sweep.placed(rows)[1])

    file = sweep_file.SweepFile(name, resume, check, lambda rows: records.written(rows, columns, needed)[0])
    try:
        yield file
    finally:
        file.close()


@contextlib.contextmanager
def stored_rows_named(file: SweepFile | None) -> Iterator[None]:
    """Say where the rows are if a Ctrl-C comes while the report is being written."""
    from ropeaudit.console import output

    try:
        yield
    except KeyboardInterrupt:
        if more := how_to_go_on(file):
            output.say(more.removeprefix("; "))
        raise


def how_to_go_on(file: SweepFile | None) -> str:
    """Return what to say of rows that are in no report yet; nothing where they are stored nowhere."""
    if file is None or not (os.path.exists(file.path) and os.path.getsize(file.path)):
        return ""
    rows = "the rows that fitted" if file.full else "the rows"
    return f"; {rows} are in {file.path!r}; the same command with --resume goes on"


_PLAN = ("axis", "count", "values")
_ALWAYS = ("implementation", "dtype", "offset", "seq_len")
_LONGEST = 50  # characters of values
_PLAN_LEGEND = (
    "count: different values; values: of an axis, in the order of the cells. The time is guessed from sizes,"
    "\nabout within a factor of two on a server's core, of own code as of a recipe; nothing was measured."
)


def show_plan(sweep: Sweep, resume: bool, options: ReportOptions) -> int:
    """Print what would be measured; no file is written, and NAME.part is only read."""
    from ropeaudit.audits import records
    from ropeaudit.audits.sweep import START_SECONDS
    from ropeaudit.console import output, output_files, sweep_file
    from ropeaudit.console.rows import duration
    from ropeaudit.reports import Report
    from ropeaudit.runtime import run_metadata

    done: dict[int, Record] = {}
    if resume:
        name = str(output_files.first_file(options.outputs))
        done, foreign = sweep.placed(sweep_file.peek(name))
        sweep_file.refuse_foreign(name, foreign)
    left = [cell for number, cell in enumerate(sweep.cells) if number not in done]
    seconds = sum((cell.seconds for cell in left), START_SECONDS)
    scores = sum(cell.scores for cell in left)
    rows, cells = [], [cell.identity for cell in sweep.cells]
    for place, column in enumerate(records.IDENTITY):
        values = list(dict.fromkeys(cell[place] for cell in cells))
        if column in _ALWAYS or (len(values) > 1 and column not in ("stages", "case")):
            rows.append({"axis": column, "count": len(values), "values": _listed(values)})
    state = f"{len(done)} are done and {len(left)} are to be measured" if done else "none is measured yet"
    about = {"cells": len(cells), "done": len(done), "scores": scores, "seconds": seconds}
    report = Report(
        rows=rows,
        columns=list(_PLAN),
        screen=list(_PLAN),
        headline=f"{len(cells)} cells, {state}: {scores} scores; before measuring anything, a rough guess: "
        f"{duration(max(seconds, 1))} of one core.",
        legend=_PLAN_LEGEND,
        metadata={**about, **run_metadata.gather()},
    )
    return output.print_report(report, options)


def _listed(values: Sequence[Any]) -> str:
    """Return the first values, as many as fit a line.

    >>> _listed([0, None, 7]), _listed(range(10_000, 10_100))
    ('0, none, 7', '10000, 10001, 10002, 10003, 10004, 10005, 10006, ...')
    """
    words = ["none" if value is None else str(value) for value in values]
    ends = itertools.accumulate(len(word) + 2 for word in words)
    most = max(1, sum(end <= _LONGEST for end in ends))
    return ", ".join([*words[:most], *(["..."] if most < len(words) else [])])
