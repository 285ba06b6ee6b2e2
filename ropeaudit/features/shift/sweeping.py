"""How `shift` runs: planned, in tasks, on one process or several, with rows kept in a file as they finish."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from ropeaudit.audits.audit import Audit
    from ropeaudit.audits.records import Record
    from ropeaudit.audits.sweep import Sweep, Task
    from ropeaudit.console.output_files import OutputFile
    from ropeaudit.console.sweep_file import SweepFile

_LONG = 3600.0  # seconds
F = TypeVar("F", bound=Callable[..., Any])


def sweep_options(function: F) -> F:
    """--resume, --jobs, --scheduler, --shard and --dry-run; this file reads them."""
    for option in reversed(
        (
            click.option(
                "--resume",
                is_flag=True,
                help="Measure only what is not in the first -o file, or in FILE.part, where a run keeps "
                "its rows until it is over.",
            ),
            click.option("--jobs", metavar="N", help="Processes that measure side by side.  [default: 1]"),
            click.option(
                "--scheduler", metavar="ADDRESS", help="A Dask scheduler, tcp://HOST:PORT; local starts one."
            ),
            click.option("--shard", metavar="K/N", help="Measure part K of N alone; see `ropeaudit merge`."),
            click.option("--dry-run", is_flag=True, help="Show what would be measured, and measure nothing."),
        )
    ):
        function = option(function)
    return function


def planned(audit: Audit, options: dict[str, Any]) -> tuple[Sweep, int]:
    """Return the cells to measure, and how many processes do so. Raises: UsageError."""
    from ropeaudit.audits.sweep import Sweep
    from ropeaudit.console import output_files, values
    from ropeaudit.errors import UsageError

    jobs = 1 if options["jobs"] is None else values.integer(options["jobs"], "--jobs")
    if not 1 <= jobs <= 1024:
        raise UsageError(f"--jobs {jobs} is not from 1 to 1024; try --jobs 2")
    if options["resume"] and output_files.first_file(options["outputs"]) is None:
        raise UsageError("--resume needs the file to go on with; add -o sweep.jsonl")
    if (address := options["scheduler"]) is not None and address != "local" and "://" not in address:
        raise UsageError(f"--scheduler {address!r} is no address; try tcp://127.0.0.1:8786, or local")
    here = jobs if address in (None, "local") else 1
    return Sweep(audit, _shard(options["shard"]), here), jobs


def _shard(text: str | None) -> tuple[int, int]:
    from ropeaudit.errors import UsageError

    if text is None:
        return 1, 1
    match = re.fullmatch(r"\s*(\d{1,9})\s*/\s*(\d{1,9})\s*", text)
    if not match:
        raise UsageError(f"--shard {text!r} is not K/N; try --shard 1/16")
    return int(match[1]), int(match[2])


class Run:
    """One run of a sweep. done: cell -> row, those of earlier runs included."""

    def __init__(self, sweep: Sweep, jobs: int, options: dict[str, Any], file: SweepFile | None) -> None:
        """Take the rows that are there."""
        self.sweep, self.jobs, self.options, self.file = sweep, jobs, options, file
        self.done: dict[int, Record] = sweep.placed(file.rows)[0] if file else {}
        self.before = len(self.done)
        self.reported: dict[int, list[tuple[str, ...]]] = {}  # first cell of a unit -> findings of its worker

    def rows(self, progress: Callable[[float], None]) -> Iterator[Record]:
        """Measure what is left; yield each row once it is kept."""
        apart = self.jobs > 1 or self.options["scheduler"] is not None
        tasks = self.sweep.tasks(self.done, whole=self.file is None and not apart)
        if not self.options["quiet"]:
            forewarn(tasks)
        for cell, row in (self._apart if apart else self._here)(tasks, progress):
            self._keep(cell, row)
            yield row

    def results(self) -> list[Record]:
        """Return all rows that are done, in the planned order."""
        return [self.done[cell] for cell in sorted(self.done)]

    def findings(self) -> list[str]:
        """Return what was found out about the code that was called; the order is not that of finishing."""
        return self.sweep.audit.findings(self.reported[cell] for cell in sorted(self.reported))

    def _keep(self, cell: int, row: Record) -> None:
        from ropeaudit.errors import BadInput

        if row.identity() != self.sweep.cells[cell].identity:
            raise BadInput(
                f"a worker did {row.subject} {row.dtype} with version {row.version}, other than planned; "
                "it must have this version of ropeaudit and see the same files"
            )
        if self.file is not None:
            self.file.append(row)
        self.done[cell] = row

    def _tell(self, text: str) -> None:
        from ropeaudit.console import output

        if not self.options["quiet"]:
            output.say(f"note: {text}")

    def _here(self, tasks: list[Task], progress: Callable[[float], None]) -> Iterator[tuple[int, Record]]:
        from ropeaudit.audits import sweep
        from ropeaudit.runtime import run_metadata

        whole = sum(task.seconds for task in tasks)
        yield from sweep.measured(
            self.sweep.audit, tasks, run_metadata.threads(), lambda seconds: progress(seconds / whole)
        )

    def _apart(self, tasks: list[Task], progress: Callable[[float], None]) -> Iterator[tuple[int, Record]]:
        from ropeaudit.audits import dask_cluster, sweep, workers

        units = sweep.units(tasks, self.jobs)
        ready, whole = 0.0, sum(task.seconds for task in tasks)

        def listen() -> None:
            progress(ready / whole)

        address, audit = self.options["scheduler"], self.sweep.audit
        finished = (
            dask_cluster.on_dask(audit, units, address, self.jobs, listen, self._tell)
            if address is not None
            else workers.processes(audit, units, self.jobs, listen)
        )
        with contextlib.closing(finished):  # type: ignore[type-var]
            for unit, result in finished:
                yield from workers.home(unit, result)
                if isinstance(result, workers.Result):
                    self.reported[unit[0].cells[0]] = result.findings
                ready += sum(task.seconds for task in unit)


def forewarn(tasks: list[Task]) -> None:
    """Say before hours of work about how many they are, and how they become fewer."""
    from ropeaudit.console import output, progress
    from ropeaudit.runtime import run_metadata

    seconds = sum(task.seconds for task in tasks) / run_metadata.threads()
    if seconds < _LONG:
        return
    sampled = any(task.case.sample is not None for task in tasks)
    remedy = "" if sampled else "--sample 100000 measures so many scores of each row instead of all; "
    output.say(
        f"this takes roughly {progress.duration(seconds)} on this machine; {remedy}a shorter --seq-len, "
        "fewer rows, or --shard on several machines make it shorter"
    )


@contextlib.contextmanager
def stored(sweep: Sweep, options: dict[str, Any]) -> Iterator[SweepFile | None]:
    """Open the file beside the first -o where rows are kept as they finish; None without a file.

    Raises: BadOutput; BadInput if it holds rows of another sweep.
    """
    from ropeaudit.console import output_files

    name = output_files.first_file(options["outputs"])
    if name is None:
        yield None
        return
    from ropeaudit.console import sweep_file

    if not options["resume"]:
        _refuse_other_shard(sweep, name)

    def check(path: str, rows: list[Record]) -> None:
        sweep_file.refuse_foreign(path, sweep.placed(rows)[1])

    file = sweep_file.SweepFile(name, options["resume"], check)
    try:
        yield file
    finally:
        file.close()


def _refuse_other_shard(sweep: Sweep, name: str) -> None:
    """Raise BadOutput if NAME holds what another shard of the sweep has measured."""
    from ropeaudit.audits import part_rows
    from ropeaudit.console import sweep_file
    from ropeaudit.errors import BadInput, BadOutput, UnknownName

    rows: list[Record] = []
    others = sweep.others()
    if others:
        with contextlib.suppress(BadInput, UnknownName):  # whatever else is there may be replaced
            rows = sweep_file.finished(name)
    if foreign := next((row for row in rows if row.identity() in others), None):
        raise BadOutput(
            f"{name!r} holds rows of another shard, such as {part_rows.shown(foreign)}; give each --shard "
            "an -o of its own, or remove it"
        )


@contextlib.contextmanager
def stored_rows_named(file: SweepFile | None) -> Iterator[None]:
    """Say where the rows are if the report cannot be written. Raises: BadOutput."""
    from ropeaudit.console import output
    from ropeaudit.errors import BadOutput

    try:
        yield
    except BadOutput as error:
        if file is None:
            raise
        raise BadOutput(
            f"{error}, or make room: the rows are in {file.path!r}, and the same command with --resume "
            "goes on"
        ) from None
    except KeyboardInterrupt:
        if file is not None:
            output.say(f"the rows are in {file.path!r}, and the same command with --resume goes on")
        raise


def stand_in_report(
    file: SweepFile, files: Sequence[OutputFile], columns: Sequence[str], rows: Sequence[Record]
) -> bool:
    """Return whether what a broken-off run wrote under NAME holds its rows, so that NAME.part may go."""
    written = any(one.written for one in files if one.path == file.name)
    return written and file.reported_by(columns, rows)


def how_to_go_on(file: SweepFile | None) -> str:
    """Return what to say of an interrupted run's rows; nothing where they are stored nowhere."""
    if file is None:
        return ""
    where = (
        f"; the rows are in {file.path!r}" if os.path.exists(file.path) and os.path.getsize(file.path) else ""
    )
    return f"{where}; the same command with --resume goes on"


def show_plan(sweep: Sweep, options: dict[str, Any]) -> int:
    """Print what would be measured; no file is written, and NAME.part is only read."""
    from ropeaudit.console import output, output_files, sweep_file
    from ropeaudit.features.shift.plan_report import plan_report
    from ropeaudit.runtime import run_metadata

    done: dict[int, Record] = {}
    if options["resume"]:
        name = str(output_files.first_file(options["outputs"]))
        done, foreign = sweep.placed(sweep_file.peek(name))
        sweep_file.refuse_foreign(name, foreign)
    left = [cell for number, cell in enumerate(sweep.cells) if number not in done]
    seconds = sum(cell.seconds for cell in left)
    scores = sum(cell.scores for cell in left)
    identities = [cell.identity for cell in sweep.cells]
    report = plan_report(identities, scores, seconds, len(done), run_metadata.gather())
    output.print_report(report, options["form"], options["color"])
    return 0
