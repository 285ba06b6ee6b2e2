"""docs/reference-*.md are what --help, docstrings and lists say; what commands share is described once.

`python tests/documentation/test_reference_page.py` writes them.
"""

import contextlib
import functools
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

import ropeaudit
import ropeaudit.testing
from ropeaudit.console.help import commands as named
from ropeaudit.main import cli
from ropeaudit.runtime.columns import table, tables

BY_NAME: dict[str, click.Command] = dict(named(cli, click.Context(cli)))
DOCS = Path(__file__).parents[2] / "docs"
WIDTH = 100
_SIZE = {
    "max_content_width": WIDTH,
    "terminal_width": WIDTH,
    "help_option_names": ["-h", "--help"],
}
# Options that several commands share: group -> their flags, in the order of --help.
GROUPS = {
    "RoPE setting": "--model --config --layer --head-dim --rotary-dim --base --scaling --clip --layout "
    "--scale",
    "Q and k": "--seq-len --heads --kv-heads --mask --qk --seed",
    "Recipes": "--dtype --recipe --set --length --order",
    "Report": "--format --color --output --columns --quiet",
    "Ticket": "--ticket",
}
# Terms of signatures that say nothing to a reader who calls the function.
_NOISE = re.compile(r"ropeaudit\.(?:\w+\.)*|collections\.abc\.|typing\.")


def commands() -> dict[str, click.Command]:
    """Return name -> command, by name."""
    return dict(sorted(BY_NAME.items()))


def context(name: str) -> click.Context:
    parent = click.Context(cli, info_name="ropeaudit", **_SIZE)
    return click.Context(BY_NAME[name], info_name=name, parent=parent, **_SIZE)


def options(name: str) -> dict[tuple[str, str], str]:
    """Return the options of a command, but for --help: what its --help says of each -> its long flag."""
    here = context(name)
    return {
        record: max(param.opts, key=len)
        for param in BY_NAME[name].get_params(here)
        if isinstance(param, click.Option) and not {"--help", "--help-all"} & {*param.opts}
        if (record := param.get_help_record(here))
    }


def shared() -> dict[str, dict[tuple[str, str], str]]:
    """Return group -> record of --help -> flag, for the records that are those of two commands or more."""
    counts: dict[tuple[str, str], int] = {}
    flags: dict[tuple[str, str], str] = {}
    for name in commands():
        for record, flag in options(name).items():
            counts[record] = counts.get(record, 0) + 1
            flags[record] = flag
    several = {record: flags[record] for record, count in counts.items() if count > 1}
    results: dict[str, dict[tuple[str, str], str]] = {}
    for group, text in GROUPS.items():
        order = text.split()
        members = [record for record, flag in several.items() if flag in order]
        members.sort(key=lambda record: (order.index(flags[record]), -counts[record]))
        results[group] = {record: flags[record] for record in members}
    rest = {
        record: flag for record, flag in several.items() if not any(record in g for g in results.values())
    }
    return results | {"Other": rest} if rest else results


def pages() -> dict[str, str]:
    """Return the pages as they should be, by file."""
    made = {"commands": commands_page(), "columns": columns_page(), "python": python_page()}
    return {f"reference-{name}.md": "\n\n".join(parts) + "\n" for name, parts in made.items()}


GENERATED = "Generated from {}; a test compares it."


def commands_page() -> Iterator[str]:
    groups = shared()
    yield "# Reference: commands"
    yield f"{GENERATED.format('`--help`')} Sizes in options: k = 1024, m = 1024²."
    yield f"```text\n{click.Context(cli, info_name='ropeaudit', **_SIZE).get_help().rstrip()}\n```"
    for name in commands():
        yield from (f"## ropeaudit {name}", *command(name, groups))
    yield from ("## Shared options", "A command names those that it takes; every one takes `-h`.")
    for group, records in groups.items():
        yield from (f"### {group} options", f"```text\n{definitions(records)}\n```")


def columns_page() -> Iterator[str]:
    """Yield the paragraphs of the page on columns: those of shift, the core first; then a table a report."""
    yield "# Reference: columns"
    yield (
        f"{GENERATED.format('`ropeaudit/data/columns.toml`')} Rows of `ropeaudit shift` have the core, "
        "settings that are not the usual ones, and the groups that a request is about; `--columns all`, or "
        "names of groups and columns, choose. CSV leaves sentences out. An empty cell: does not apply; nan: "
        "not a number."
    )
    header, *rest = rows("columns")
    place = header.index("group")
    for group in dict.fromkeys(row[place] for row in rest):
        cells = [
            [*row[:place], *row[place + 1 :]] for row in (header, *rest) if row[place] in ("group", group)
        ]
        yield from (f"## {group.capitalize()}", markdown_table(cells))
    for name in tables():
        if not name.startswith("shift"):
            cells = [[one.name, one.meaning, one.unit] for one in table(name).values()]
            yield from (
                f"## {name.replace('-', ' ')}",
                markdown_table([["column", "meaning", "unit"], *cells]),
            )


def markdown_table(cells: list[list[str]]) -> str:
    """Return a header and rows as Markdown."""
    header, *rest = ([cell.replace("|", "\\|") for cell in row] for row in cells)
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rest))


def python_page() -> Iterator[str]:
    yield "# Reference: Python"
    generated = GENERATED.format("docstrings")
    yield (f"{generated} `import ropeaudit` loads nothing else; a name is loaded when it is first used.")
    for home in (ropeaudit, ropeaudit.testing):
        for name in exported(home):
            yield from (f"## {home.__name__}.{name}", documented(name, getattr(home, name)))


def command(name: str, groups: dict[str, dict[tuple[str, str], str]]) -> Iterator[str]:
    """Yield usage, description and own options of a command, and which shared ones it takes."""
    here, own = context(name), options(name)
    if isinstance(BY_NAME[name], click.Group):
        yield f"```text\n{here.get_help().rstrip()}\n```"
        return
    text = click.HelpFormatter(width=WIDTH)
    BY_NAME[name].format_usage(here, text)
    BY_NAME[name].format_help_text(here, text)
    alone = [record for record in own if not any(record in records for records in groups.values())]
    if alone:
        text.write_paragraph()
        text.write(definitions(alone, "Options") + "\n")
    BY_NAME[name].format_epilog(here, text)
    yield f"```text\n{text.getvalue().rstrip()}\n```"
    yield f"Shared options: {'; '.join(taken(own, groups))}."


def taken(
    own: dict[tuple[str, str], str],
    groups: dict[str, dict[tuple[str, str], str]],
) -> Iterator[str]:
    """Yield each group of which a command has options, with those that it has, or all but those it lacks."""
    for group, records in groups.items():
        here = [flag for record, flag in records.items() if record in own]
        flags = list(dict.fromkeys(records.values()))
        lacking = [flag for flag in flags if flag not in here]
        link = f"[{group}](#{group.lower().replace(' ', '-')}-options)"
        if here and not lacking:
            yield link
        elif here:
            few = here if len(here) <= len(lacking) else lacking
            listing = ", ".join(f"`{flag}`" for flag in few)
            yield f"{link}: {listing}" if few is here else f"{link}, without {listing}"


def definitions(records: Iterable[tuple[str, str]], title: str = "") -> str:
    """Return options as --help writes them."""
    text = click.HelpFormatter(width=WIDTH)
    with text.section(title) if title else contextlib.nullcontext():
        text.write_dl(list(records), col_max=22)
    return text.getvalue().strip("\n")


@functools.cache
def rows(kind: str) -> list[list[str]]:
    """Return the rows of `ropeaudit list`, its header first."""
    line = [sys.executable, "-m", "ropeaudit", "list", kind, "-f", "json"]
    text = subprocess.run(line, check=True, capture_output=True, encoding="utf-8").stdout
    items = json.loads(text)["records"]
    return [list(items[0]), *([str(value) for value in item.values()] for item in items)]


def exported(home: object) -> list[str]:
    """Return the public names of a module."""
    names = getattr(home, "__all__", None)
    if names is not None:
        return list(names)
    return [
        name
        for name, thing in vars(home).items()
        if not name.startswith("_") and getattr(thing, "__module__", "") == home.__name__
    ]


def documented(name: str, thing: object) -> str:
    """Return the signature and docstring of a function or a class, and its source where it has any."""
    return f"```text\n{signature(name, thing)}\n\n{inspect.getdoc(thing)}\n```"


def signature(name: str, thing: object) -> str:
    """Return how it is called, one argument a line where it has many; a record's fields are the columns."""
    try:
        result = inspect.signature(thing)
    except (TypeError, ValueError):  # a bare exception has none
        return name
    parameters = list(result.parameters.values())
    if [one.name for one in parameters] == [row[0] for row in rows("columns")[1:]]:
        return f"{name}: a field for each column"
    arguments = [plain(str(one)) for one in parameters]
    if any(one.kind is one.KEYWORD_ONLY for one in parameters):
        arguments.insert([one.kind for one in parameters].index(inspect.Parameter.KEYWORD_ONLY), "*")
    end = "" if result.return_annotation is result.empty else f" -> {plain(str(result.return_annotation))}"
    text = f"{name}({', '.join(arguments)}){end}"
    if len(text) <= WIDTH:
        return text
    lines = "".join(f"    {argument},\n" for argument in arguments)
    return f"{name}(\n{lines}){end}"


def plain(argument: str) -> str:
    """Return an argument without quotes around its type, without modules, without a default that is long."""
    argument = re.sub(r": '([^']*)'", r": \1", _NOISE.sub("", argument))
    start, sign, default = argument.partition(" = ")
    return f"{start}{sign}..." if len(default) > 70 else argument


def test_the_reference_is_what_help_and_docstrings_say() -> None:
    # in a process of its own: click keeps the first help option that a command is asked for
    line = [sys.executable, __file__, "print"]
    fresh = subprocess.run(line, check=True, capture_output=True, encoding="utf-8").stdout
    for name, text in json.loads(fresh).items():
        there = (DOCS / name).read_text(encoding="utf-8")
        assert there == text, "run python tests/documentation/test_reference_page.py"


if __name__ == "__main__":
    if sys.argv[1:] == ["print"]:
        sys.stdout.reconfigure(encoding="utf-8")
        sys.stdout.write(json.dumps(pages()))
    else:
        for file, text in pages().items():
            (DOCS / file).write_text(text, encoding="utf-8")
