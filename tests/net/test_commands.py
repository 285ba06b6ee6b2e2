"""Every command line of commands/*.toml gives what is stored of it: exit code, files, rows.

One test a command, which says all that differs. How a row is stored anew: record.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from . import inputs, record
from .compare import Renamed, differences
from .entries import COMMANDS, Entry, Seen, read, run


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the command lines read."""
    return inputs.write(tmp_path_factory.mktemp("net").resolve() / "inputs")


@pytest.mark.processor
@pytest.mark.parametrize("part", ["fast", pytest.param("slow", marks=pytest.mark.slow)])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_gives_what_is_stored(command: str, part: str, written: Path, tmp_path: Path) -> None:
    """Slow: larger sizes, and other processes."""
    stored, renamed, found = record.load(command), Renamed.read(), []
    entries = [entry for entry in read(command) if entry.part == part and not entry.missing]
    for entry in entries:
        seen = run(entry, written, tmp_path.resolve() / entry.name, renamed)
        said = record.wrong(entry, seen) + rows_moved(entry, seen, stored, renamed)
        found += [f"{entry.name}: {text}" for text in said]
    assert not found, "\n".join([f"{len(found)} of {command}", *found])


def rows_moved(entry: Entry, seen: Seen, stored: record.Stored, renamed: Renamed) -> list[str]:
    """Say which rows of an entry are not as stored."""
    if entry.name not in stored and seen.rows:
        return [f"nothing is stored; type: python -m tests.net.record {entry.command} --only {entry.name}"]
    found, left = [], dict(seen.rows)
    for outputs, rows in stored.get(entry.name, []):
        for output in outputs:
            if (now := left.pop(output, None)) is None:
                found.append(f"{output}: no rows instead of {len(rows)}")
                continue
            moved = differences(rows, now, entry.command, renamed, entry.key, entry.dtype, entry.unheld)
            found += [f"{output}: {text}" for text in moved]
    return found + [f"{output}: {len(rows)} rows instead of none" for output, rows in left.items()]
