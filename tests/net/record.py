"""Store anew what command lines give: python -m tests.net.record NAME [--only PATTERN].

NAME is a file of commands/ without its ending, api, or all. PATTERN is looked for in names of its entries.
What is stored is one line of JSON an entry and one a row, so that a change is read as a diff.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from . import api, inputs
from .compare import Renamed
from .entries import COMMANDS, HERE, Entry, Rows, Seen, read, run

Stored = dict[str, list[tuple[list[str], Rows]]]  # entry -> its outputs, those with the same rows together


def grouped(seen: Seen) -> list[tuple[list[str], Rows]]:
    """Return the rows that came out, each with the outputs that hold them."""
    groups: list[tuple[list[str], Rows]] = []
    for output, rows in seen.rows.items():
        for outputs, known in groups:
            if known == rows:
                outputs.append(output)
                break
        else:
            groups.append(([output], rows))
    return groups


def load(command: str) -> Stored:
    """Return what is stored of a command."""
    path, stored = HERE / f"{command}.jsonl", Stored()
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        one = json.loads(line)
        if "entry" in one:
            groups = stored.setdefault(one["entry"], [])
            if "outputs" in one:
                common = one.get("common", {})
                groups.append((one["outputs"], []))
        else:
            groups[-1][1].append(common | one)
    return stored


def save(command: str, stored: Stored) -> None:
    """Write what is stored of a command: what all rows of an output have in common stands once."""
    lines: list[dict[str, Any]] = []
    for name in sorted(stored):
        for outputs, rows in stored[name] or []:
            common = {n: v for n, v in rows[0].items() if all(n in row and row[n] == v for row in rows)}
            head: dict[str, Any] = {"entry": name, "outputs": outputs}
            lines.append(head | {"common": dict(sorted(common.items()))})
            lines += [{n: row[n] for n in sorted(row) if n not in common} for row in rows]
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    (HERE / f"{command}.jsonl").write_text(text, encoding="utf-8")


def wrong(entry: Entry, seen: Seen) -> list[str]:
    """Say in what an entry's exit code and files are not what its TOML says."""
    found = list(seen.unreadable)
    if seen.code != entry.code:
        found.append(f"exit code {seen.code} instead of {entry.code}; {seen.said.strip()[-300:]}")
    if sorted(seen.files) != sorted(entry.files):
        found.append(f"files {seen.files} instead of {list(entry.files)}")
    return found


def main() -> int:
    """Store what was asked for; 1 where an exit code or a file is not what the TOML says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=[*COMMANDS, "api", "all"])
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    code, renamed = 0, Renamed.read()
    if given.name in ("api", "all"):
        api.record()
    if given.name == "api":
        return code
    with tempfile.TemporaryDirectory() as scratch:
        written = inputs.write(Path(scratch).resolve() / "inputs")
        for command in COMMANDS if given.name == "all" else [given.name]:
            stored, entries = load(command), read(command)
            for entry in entries:
                if not re.search(given.only, entry.name) or entry.missing:
                    continue
                begun = time.process_time()
                seen = run(entry, written, Path(scratch).resolve() / command / entry.name, renamed)
                stored[entry.name] = grouped(seen)
                rows = sum(len(rows) for _, rows in stored[entry.name])
                seconds = time.process_time() - begun
                print(f"{command:8} {seconds:6.2f} s {rows:4} rows {entry.part} {entry.name}")
                if said := wrong(entry, seen):
                    code = 1
                    print(*said, sep="\n", file=sys.stderr)
            names = {entry.name for entry in entries}
            save(command, {name: groups for name, groups in stored.items() if name in names})
    return code


if __name__ == "__main__":
    sys.exit(main())
