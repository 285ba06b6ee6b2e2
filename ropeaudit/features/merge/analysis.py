"""The rows of several runs as those of one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import astuple

from ropeaudit.audits import arguments
from ropeaudit.audits.arguments import Names
from ropeaudit.audits.part_rows import shown
from ropeaudit.audits.records import Record
from ropeaudit.errors import BadInput
from ropeaudit.reports import reading


@arguments.checked
def merge(files: Names) -> list[Record]:
    """Return the rows of reports of `shift`, in the order of the files; one that several hold comes once.

    files: .csv, .json or .jsonl, with all columns. What is not a number is null in JSON and is no difference;
    a row is taken from the file that says most.
    Raises: BadInput if two rows of the same cell differ, UnknownName.
    """
    rows: dict[object, Record] = {}
    for path in arguments.listed(files):
        for row in reading.records_of(path, reading.read(path)):
            before = rows.setdefault(row.key(), row)
            if _finite(before) != _finite(row):
                raise BadInput(
                    f"two different rows of the same cell: {shown(row)}; leave out one of the files"
                )
            if any(isinstance(value, float) and math.isinf(value) for value in astuple(row)):
                rows[row.key()] = row
    return list(rows.values())


def stages(rows: Iterable[Record]) -> dict[str, dict[str, str]]:
    """Return "subject dtype" -> stage -> format of some rows."""
    split = {f"{row.subject} {row.dtype}": row.stages.split() for row in rows}
    pairs = {name: [word.partition("=") for word in words] for name, words in split.items()}
    return {name: {stage: fmt for stage, _, fmt in words} for name, words in pairs.items()}


def frozen(rows: Sequence[Record]) -> bool:
    """Return whether frequencies stand for one number of positions in all rows of a sequence length."""
    lengths: dict[tuple[str, int], set[int | None]] = {}
    for row in rows:
        lengths.setdefault((row.scaling, row.seq_len), set()).add(row.length)
    return all(len(some) == 1 for some in lengths.values())


def _finite(row: Record) -> list[object]:
    """Return the values of a row, as far as every kind of file can hold them."""
    return [
        None if isinstance(value, float) and not math.isfinite(value) else value for value in astuple(row)
    ]
