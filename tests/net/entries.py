"""Command lines of the net: what stands in commands/NAME.toml, and what comes out of one."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import shlex
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from ropeaudit.main import main

from .compare import UNHELD, Renamed, held

HERE = Path(__file__).parent / "commands"
CALLED = HERE.parents[1] / "kernels" / "called"
Rows = list[dict[str, Any]]
COMMANDS = ("check", "shift", "limit", "explain", "parity", "decay", "module", "model", "vectors")
COMMANDS += ("list", "plot", "report")
BAD_USE = 2


@dataclass(frozen=True)
class Entry:
    """A command line with what it must give.

    line: with {in}, {kernels} and {configs} for what `inputs.write` writes, {called} for kernels/called.
    before: lines that are run first in the same folder. files: what lies in that folder afterwards. key:
    the column that names a row. unheld: columns that are not compared. dtype: of the numbers, where no
    column says it. needs: packages without which it is skipped. defaults: it leaves out options, and
    changes with a default.
    """

    command: str
    name: str
    line: str
    part: str = "fast"
    code: int = 0
    files: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    stdin: str = ""
    key: str = ""
    dtype: str = ""
    unheld: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    defaults: bool = False

    @property
    def missing(self) -> list[str]:
        return [package for package in self.needs if find_spec(package) is None]


@dataclass
class Seen:
    """What a command line gave: exit code, files, rows by output, and what of an output cannot be read."""

    code: int
    files: list[str]
    rows: dict[str, Rows] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)
    said: str = ""


def read(command: str) -> list[Entry]:
    """Return the entries of a command. A `<word>` of a line stands for what the table `words` says of it."""
    given = tomllib.loads((HERE / f"{command}.toml").read_text(encoding="utf-8"))

    def whole(line: str) -> str:
        for word, text in given.get("words", {}).items():
            line = line.replace(f"<{word}>", text)
        return line

    entries = []
    for one in given["entry"]:
        lists = {name: tuple(value) for name, value in one.items() if isinstance(value, list)}
        entry = Entry(command=command, **(one | lists))
        before = tuple(whole(line) for line in entry.before)
        entries.append(replace(entry, line=whole(entry.line), before=before))
    names = [entry.name for entry in entries]
    assert len(set(names)) == len(names), f"{command}: a name stands twice"
    return entries


def run(entry: Entry, inputs: Path, folder: Path, renamed: Renamed) -> Seen:
    """Run an entry in process, in a new folder. Returns what it gave, without the places of this machine."""
    folder.mkdir(parents=True)
    places = {"{kernels}": inputs / "kernels.py", "{configs}": inputs / "configs", "{in}": inputs}
    places |= {"{called}": CALLED, "{tmp}": folder}
    words: list[str] = []
    for line in (*entry.before, entry.line):
        words = shlex.split(renamed.line(line))
        for place, path in places.items():
            words = [word.replace(place, str(path)) for word in words]
        code, out, said = called(words, folder, entry.stdin)
        assert line is entry.line or code == 0, f"{line}: {said}"
    outputs = {"stdout": (form(words), out.encode())}
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in paths:
        outputs[path.relative_to(folder).as_posix()] = (path.suffix.removeprefix("."), path.read_bytes())
    seen = Seen(code, [name for name in outputs if name != "stdout"], said=said)
    for name, (kind, content) in outputs.items():
        if (name == "stdout" and code == BAD_USE) or not content:
            continue
        try:
            rows = READERS[kind](content) if kind in READERS else []
        except Exception as error:  # of many kinds, by the form
            seen.unreadable.append(f"{name} cannot be read as {kind}: {error}")
            continue
        if rows:
            left_out = UNHELD.union(entry.unheld)
            rows = [{n: v for n, v in row.items() if n not in left_out} for row in rows]
            seen.rows[name] = [without_places(row, inputs, folder) for row in rows]
    return seen


def form(words: list[str]) -> str:
    """Return in which form a command line prints."""
    for option, value in pairwise(words):
        if option in ("-f", "--format"):
            return value
    return ""


def called(words: list[str], folder: Path, stdin: str = "") -> tuple[int, str, str]:
    streams = [io.BytesIO(), io.BytesIO()]
    out, said = (io.TextIOWrapper(stream, encoding="utf-8", write_through=True) for stream in streams)
    known = sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8")
    try:
        with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
            code = main(words)
    finally:
        sys.stdin = known
    return code, streams[0].getvalue().decode(), streams[1].getvalue().decode()


def without_places(row: dict[str, Any], inputs: Path, folder: Path) -> dict[str, Any]:
    """Return a row as it is stored, with IN, TMP and CALLED for the folders of a run."""
    plain = {}
    for name, value in row.items():
        if isinstance(value, str):
            value = (
                value.replace(str(inputs), "IN").replace(str(folder), "TMP").replace(str(CALLED), "CALLED")
            )
        plain[name] = held(value)
    return plain


# ---------------------------------------------------------------------------- outputs, by their form


def of_json(content: bytes) -> Rows:
    """Return the rows of a report; of a manifest its arrays, with their digests as words."""
    read = json.loads(content)
    if "records" in read:
        return list(read["records"])
    if "calls" not in read:
        return []
    arrays = {**read["inputs"]}
    for number, call in enumerate(read["calls"]):
        for side in ("inputs", "outputs"):
            arrays |= {f"{side} {name} of call {number}": one for name, one in call[side].items()}
    return [
        {"array": name, "dtype": one["dtype"], "shape": one["shape"], "bits": one.get("digest")}
        for name, one in arrays.items()
    ]


def of_jsonl(content: bytes) -> Rows:
    """Return a row a line."""
    return [json.loads(line) for line in content.decode().splitlines()]


def of_csv(content: bytes) -> Rows:
    """Return the rows under a header."""
    rows = list(csv.DictReader(io.StringIO(content.decode())))
    assert all(None not in row for row in rows), "a row is longer than the header"
    return rows


def of_parquet(content: bytes) -> Rows:
    """Return the rows of a table."""
    import pyarrow.parquet as parquet

    return list(parquet.read_table(io.BytesIO(content)).to_pylist())


def of_sarif(content: bytes) -> Rows:
    """Return the rule and the level of each result."""
    (one,) = json.loads(content)["runs"]
    rules = {rule["id"] for rule in one["tool"]["driver"]["rules"]}
    assert all(result["ruleId"] in rules for result in one["results"]), "a rule is not declared"
    return [{"rule": result["ruleId"], "level": result["level"]} for result in one["results"]]


def of_junit(content: bytes) -> Rows:
    """Return how many tests there are, fail and are skipped."""
    root = ElementTree.fromstring(content)  # noqa: S314 (written a moment ago)
    count = {tag: len(root.findall(f".//{tag}")) for tag in ("testcase", "failure", "skipped")}
    return [count]


def of_markdown(content: bytes) -> Rows:
    """Return no rows: read that each table has as many cells in every line."""
    wide = 0
    for line in content.decode().splitlines():
        cells = line.replace("\\|", "").count("|") if line.startswith("|") else 0
        assert not (wide and cells) or cells == wide, f"a line of a table has {cells} bars, another {wide}"
        wide = cells
    return []


class _Page(HTMLParser):
    """A page whose elements are closed in the order in which they were opened."""

    EMPTY = frozenset({"area", "base", "br", "col", "hr", "img", "input", "link", "meta", "source", "wbr"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.EMPTY:
            return
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1] == tag, f"</{tag}> closes <{self.open[-1]}>"
        self.open.pop()


def of_html(content: bytes) -> Rows:
    """Return no rows: read that the page is one, and holds a table."""
    page = _Page()
    text = content.decode()
    page.feed(text)
    page.close()
    assert not page.open, f"<{page.open[-1]}> is not closed"
    assert "<table" in text, "there is no table"
    return []


def of_svg(content: bytes) -> Rows:
    """Return no rows: read that it is XML."""
    ElementTree.fromstring(content)  # noqa: S314 (the same)
    return []


def starts(*beginnings: bytes) -> Callable[[bytes], Rows]:
    """Return a reader of what is known by how it begins."""

    def of_bytes(content: bytes) -> Rows:
        assert content.startswith(beginnings), f"it begins with {content[:8]!r}"
        return []

    return of_bytes


READERS: dict[str, Callable[[bytes], Rows]] = {
    "json": of_json,
    "jsonl": of_jsonl,
    "csv": of_csv,
    "parquet": of_parquet,
    "sarif": of_sarif,
    "xml": of_junit,
    "markdown": of_markdown,
    "md": of_markdown,
    "html": of_html,
    "svg": of_svg,
    "png": starts(b"\x89PNG"),
    "pdf": starts(b"%PDF"),
}
