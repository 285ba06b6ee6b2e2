"""ropeaudit merge: the reports of several runs as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

from ropeaudit.console.options import report_options

if TYPE_CHECKING:
    from ropeaudit.audits.records import Record


@click.command(
    epilog="Rows come in the order of the files: shards 1/N to N/N in order give what the whole sweep gives. "
    "Exit code: 0 done, 2 bad usage or input."
)
@click.argument("reports", nargs=-1, required=True, metavar="FILE...")
@report_options
def merge(**options: Any) -> int:
    """Put reports of `ropeaudit shift` together: .csv, .json or .jsonl, with all columns.

    A row that stands in several files is taken once.
    """
    from ropeaudit.audits import records
    from ropeaudit.console import rows, work
    from ropeaudit.reports.drift import drift_report

    columns = rows.chosen_columns(options, records.COLUMNS, "(`ropeaudit list columns` explains them)")
    results = _read(options["reports"])
    stages = {f"{row.subject} {row.dtype}": dict(_split(row.stages)) for row in results}

    def run(on_progress: Callable[[float], None]) -> Iterable[Record]:
        return results

    _, code = work.done(
        options,
        run,
        lambda stored, about: drift_report(stored, columns, about, frozen=_frozen(stored)),
        stages,
    )
    return code


def _read(paths: Iterable[str]) -> list[Record]:
    """Return the rows of the files, each cell once. Raises: BadInput, UnknownName."""
    from ropeaudit.console import sweep_file
    from ropeaudit.reports import reading

    return sweep_file.in_order(row for path in paths for row in reading.records_of(path, reading.read(path)))


def _frozen(results: Iterable[Record]) -> bool:
    """Whether frequencies stand for one number of positions in all rows of a sequence length."""
    lengths: dict[tuple[str, int], set[int | None]] = {}
    for row in results:
        lengths.setdefault((row.scaling, row.seq_len), set()).add(row.length)
    return all(len(some) == 1 for some in lengths.values())


def _split(stages: str) -> Iterable[tuple[str, str]]:
    for word in stages.split():
        stage, _, fmt = word.partition("=")
        yield stage, fmt
