"""Rows of `kernels.toml`: a kernel, how it is judged, and the exit code and codes that are right and today's.

A table has `options` of all its kernels, `command` (else `check`), and `file` where its heading is no path;
its other keys are kernels, with own options behind the name. A kernel has, by dtype, what is right:
`[exit code, codes...]`, or that with `today` beside it. `a|b`: either of two codes; `...`: any others beside
them. `fast`: the dtype that is judged by few calls, in the fast part unless `why` says what is slow; without
it the first dtype is in the slow part. Other dtypes, and what is `rare`, are in the exhaustive part.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import re
import shlex
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ropeaudit.main import main
from ropeaudit.subjects.calling.code import Rotator

NET = Path(__file__).parent
TABLE = NET / "kernels.toml"
KERNELS = NET.parent / "kernels"
OF_FILE = ("options", "command", "why", "file")
OF_KERNEL = ("fast", "rare", "why")
# Seconds that a call of one token is said to take: dear code is called less.
FEW_CALLS, ALL_CALLS = 1.0, 1e-4
Answer = tuple[int, frozenset[str]]


@dataclass
class Row:
    """A kernel with its options. stated: dtype -> `right` and, where it is another one, `today`."""

    table: str
    file: str
    kernel: str
    command: str
    options: str
    fast: str = ""
    why: str = ""
    rare: bool = False
    stated: dict[str, dict[str, list[Any]]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The table and the kernel, as a command line names them, and its own options."""
        return f"{self.table}:{self.kernel}"

    def words(self, dtype: str) -> list[str]:
        """Return the command line; a path of a config or of axes is that of the file's folder."""
        kernel, *own = shlex.split(self.kernel)
        path = KERNELS / self.file
        options = [
            str(path.parent / word) if word.endswith((".json", ".toml")) else word
            for word in (*others(shlex.split(self.options), own), *own)
        ]
        return [self.command, f"{path}:{kernel}", *renamed("options", options), "--dtype", dtype, "-q"]

    def part(self, dtype: str) -> str:
        """Return `fast`, `slow` or `exhaustive`."""
        first = dtype == (self.fast or next(iter(self.stated)))
        if not first or self.rare:
            return "exhaustive"
        return "fast" if self.fast and not self.why else "slow"


def read(table: Path = TABLE) -> list[Row]:
    """Return the rows of the table, in its order."""
    rows = []
    for name, content in tomllib.loads(table.read_text(encoding="utf-8")).items():
        for kernel, given in content.items():
            if kernel not in OF_FILE:
                cells = {dtype: value for dtype, value in given.items() if dtype not in OF_KERNEL}
                stated = {
                    dtype: value if isinstance(value, dict) else {"right": value}
                    for dtype, value in cells.items()
                }
                why = given.get("why", content.get("why", ""))
                command, options = content.get("command", "check"), content.get("options", "")
                file, fast = content.get("file", name), given.get("fast", "")
                rare = given.get("rare", False)
                rows.append(Row(name, file, kernel, command, options, fast, why, rare, stated))
    return rows


def others(words: list[str], own: list[str]) -> Iterator[str]:
    """Yield options and their values but for those that a kernel has of its own."""
    option = ""
    for word in words:
        option = word if word.startswith("--") else option
        if option not in own:
            yield word


def renamed(what: str, names: list[str]) -> list[str]:
    """Return names of options, columns, checks or codes as they are now; the table keeps the old ones."""
    path = NET / "renamed.toml"
    now = tomllib.loads(path.read_text(encoding="utf-8")).get(what, {}) if path.exists() else {}
    return [now.get(name, name) for name in names]


# ---------------------------------------------------------------------------- answers


def answer(words: list[str]) -> Answer:
    """Run a command line here and return its exit code and the codes of what fails."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            try:
                exit_code = main([*words, "-o", str(report)])
            except SystemExit as ended:
                exit_code = int(ended.code or 0)
        told = json.loads(report.read_text(encoding="utf-8")) if report.exists() else {}
    lists = [value for name, value in told.items() if isinstance(value, list) and name != "notes"]
    return exit_code, frozenset(code for row in itertools.chain(*lists) for code in failing(row))


def failing(row: dict[str, Any]) -> Iterator[str]:
    """Yield the codes of a row of a report if it fails, its check where it has none."""
    status, diagnosis, check = renamed("columns", ["status", "diagnosis", "check"])
    if "agrees" in row or "result" in row:  # of `module`: tables, and runs
        wrong = row.get("agrees") == "no" or row.get("result") in ("off", "not a number")
        name = "run" if "result" in row else "buffer"
    else:
        wrong, name = row.get(status) == "fail", row.get(check, "")
    if wrong:
        codes = [code for code in re.split(r"[+|;]", row.get(diagnosis) or "") if code]
        yield from codes or [f"check:{name}"]


def agrees(stated: list[Any], given: Answer) -> bool:
    """Return whether an answer is what is stated."""
    exit_code, codes = given
    named = [set(now(one).split("|")) for one in stated[1:] if one != "..."]
    others = codes - set().union(*named)
    return exit_code == stated[0] and all(each & codes for each in named) and ("..." in stated or not others)


def now(stated: str) -> str:
    """Return stated codes by the names that they have now."""
    names = []
    for one in stated.split("|"):
        kind, _, name = one.partition(":")
        names.append(f"check:{renamed('checks', [name])[0]}" if name else renamed("codes", [kind])[0])
    return "|".join(names)


def spelled(given: Answer) -> str:
    """Return an answer as the table has it."""
    return json.dumps([given[0], *sorted(given[1])])


def seconds(row: Row, dtype: str) -> Callable[..., float]:
    """Return what says how long a call takes, and so how often code is called: not how busy a machine is."""

    def of_a_call(rotator: Rotator, given: Any, at: Any) -> float:
        rotator.seconds(*given, at, 1)
        return FEW_CALLS if dtype == row.fast else ALL_CALLS

    return of_a_call
