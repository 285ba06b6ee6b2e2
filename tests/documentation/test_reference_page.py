"""docs/reference-*.md are what --help, docstrings and lists say; what commands share is described once.

`python tests/documentation/test_reference_page.py` writes them.
"""

import contextlib
import dataclasses
import functools
import inspect
import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

import ropeaudit
import ropeaudit.testing
from ropeaudit.console.help import commands as named
from ropeaudit.main import cli
from ropeaudit.runtime.columns import Column, table, tables

BY_NAME: dict[str, click.Command] = dict(named(cli, click.Context(cli)))
DOCS = Path(__file__).parents[2] / "docs"
WIDTH = 110  # as docstrings have it
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
# Public classes that a user makes; all others are made by functions.
SETTINGS = ("Case", "Audit", "RopeSetting", "Format")
HARD = "\N{NO-BREAK SPACE}"  # keeps an argument on one line
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
COLUMNS = (
    "Rows of `ropeaudit shift` have the core, settings that are not the usual ones, and the groups that a "
    "request is about. `--columns` chooses others: names of groups and columns, or all. CSV leaves sentences "
    "out. An empty cell: does not apply; nan: not a number. `ropeaudit list columns` says too which columns "
    "another processor may change."
)


def commands_page() -> Iterator[str]:
    groups = shared()
    yield "# Reference: commands"
    yield f"{GENERATED.format('`--help`')} Sizes in options: k = 1024, m = 1024²."
    yield f"```text\n{click.Context(cli, info_name='ropeaudit', **_SIZE).get_help().rstrip()}\n```"
    alike: dict[str, list[str]] = {}  # shared options -> the commands that have these, and nothing else
    for name in commands():
        if " " in name and not described_further(name, groups):
            alike.setdefault("; ".join(taken(options(name), groups)), []).append(f"`{name}`")
        else:
            yield from (f"## ropeaudit {name}", *command(name, groups))
    for shared_options, names in alike.items():
        yield f"{', '.join(names)} take shared options alone: {shared_options}."
    yield from ("## Shared options", "A command names those that it takes; every one takes `-h`.")
    for group, records in groups.items():
        yield from (f"### {group} options", f"```text\n{definitions(records)}\n```")


def columns_page() -> Iterator[str]:
    """Yield the paragraphs of the page on columns: those of shift by group, then those of other commands."""
    yield "# Reference: columns"
    yield f"{GENERATED.format('`ropeaudit/data/columns.toml`')} {COLUMNS}"
    shift = sorted(table("shift").values(), key=lambda one: one.group)  # the core, which has no name, first
    cells = [[one.group or "core", one.name, described(one)] for one in shift]
    yield from ("## ropeaudit shift", markdown_table([["group", "column", "meaning"], *cells]))
    families: dict[str, list[str]] = {}
    for name in tables():
        families.setdefault(name.partition("-")[0], []).append(name)
    for command, names in families.items():
        if command not in ("shift", "list"):
            yield from (f"## ropeaudit {command}", *family(command, names))


def family(command: str, names: list[str]) -> Iterator[str]:
    """Yield what reports of a command have as `shift` has it, and a table of their other columns."""
    shift = {(one.name, one.meaning) for one in table("shift").values()}
    homes: dict[tuple[str, str], list[str]] = {}
    for name in names:
        rows = name.removeprefix(command).strip("-") or "all"
        for one in table(name).values():
            homes.setdefault((one.name, described(one) * ((one.name, one.meaning) not in shift)), []).append(
                rows
            )
    same = [f"`{name}`" for name, meaning in homes if not meaning]
    if same:
        yield f"As in `shift`: {', '.join(same)}."
    several = len(names) > 1
    cells = [[name, ", ".join(rows), meaning] for (name, meaning), rows in homes.items() if meaning]
    header = ["column", "rows", "meaning"]
    yield markdown_table([row if several else [row[0], row[2]] for row in (header, *cells)])


def described(column: Column) -> str:
    """Return what a column holds, with its unit unless the words have it."""
    has = not column.unit or column.unit.rstrip("s") in column.meaning
    return column.meaning if has else f"{column.meaning} ({column.unit})"


def markdown_table(cells: list[list[str]]) -> str:
    """Return a header and rows as Markdown."""
    header, *rest = ([cell.replace("|", "\\|") for cell in row] for row in cells)
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rest))


def python_page() -> Iterator[str]:
    """Yield the paragraphs of the page on Python: functions, settings, results, errors, assertions."""
    yield "# Reference: Python"
    generated = GENERATED.format("docstrings")
    yield (f"{generated} `import ropeaudit` loads nothing else; a name is loaded when it is first used.")
    public = {name: getattr(ropeaudit, name) for name in exported(ropeaudit)}
    testing = {name: getattr(ropeaudit.testing, name) for name in exported(ropeaudit.testing)}
    assertions = {name: one for name, one in testing.items() if not raised(one)}
    errors = {name: one for name, one in (public | testing).items() if raised(one)}
    functions = {name: one for name, one in public.items() if inspect.isfunction(one)}
    settings = {name: public[name] for name in SETTINGS}
    results = {name: one for name, one in public.items() if name not in {*errors, *functions, *settings}}
    for title, part in (("Functions", functions), ("Settings", settings)):
        yield f"## {title}"
        for name, one in part.items():
            yield from (f"### ropeaudit.{name}", documented(name, one))
    yield "## Results"
    yield "Functions return or yield these. `report` and `to_frame` make tables of them."
    yield "```text\n" + "\n\n".join(result(name, one) for name, one in results.items()) + "\n```"
    yield "## Errors"
    yield (
        "Children of `RopeAuditError` have its fields `fault`, `remedy` and `where`. The last two are of "
        "`ropeaudit.testing`: `diagnosis` has the codes, `worst` the largest error ÷ allowed."
    )
    cells = [
        [f"`{name}`", ", ".join(f"`{base.__name__}`" for base in one.__bases__), first_line(one)]
        for name, one in errors.items()
    ]
    yield markdown_table([["error", "child of", "meaning"], *cells])
    yield "## Assertions"
    yield "Of `ropeaudit.testing`, for tests in pytest or without it."
    for name, one in assertions.items():
        yield from (f"### ropeaudit.testing.{name}", documented(name, one))


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


def described_further(name: str, groups: dict[str, dict[tuple[str, str], str]]) -> bool:
    """Return whether a command has options of its own, or more of a description than a line."""
    own = [record for record in options(name) if not any(record in records for records in groups.values())]
    return bool(own or BY_NAME[name].epilog or "\n" in (BY_NAME[name].help or "").strip())


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


def raised(thing: object) -> bool:
    """Return whether it is a class of errors."""
    return inspect.isclass(thing) and issubclass(thing, Exception)


def first_line(thing: object) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def documented(name: str, thing: object) -> str:
    """Return the signature and docstring of a function or a class."""
    return f"```text\n{signature(name, thing)}\n\n{inspect.getdoc(thing)}\n```"


def result(name: str, thing: object) -> str:
    """Return the docstring of a class of results, the names of its fields, and of what it computes."""
    first, _, rest = (inspect.getdoc(thing) or "").partition("\n")
    fields = [one.name for one in dataclasses.fields(thing) if one.name[0] != "_"]
    if fields == [one.name for one in table("shift").values()]:
        fields = ["the columns of `shift`"]
    named = {"fields": fields, "computed": computed(thing)}
    lines = [f"{label}: {', '.join(names)}" for label, names in named.items() if names]
    lines = [part for one in lines for part in textwrap.wrap(one, WIDTH - 4, subsequent_indent="    ")]
    return f"{name}: {first}\n" + textwrap.indent("\n".join([*lines, *rest.strip().splitlines()]), "    ")


def computed(thing: object) -> list[str]:
    """Return the public properties of a class, and its methods with brackets."""
    members = {name: inspect.getattr_static(thing, name) for name in dir(thing) if name[0] != "_"}
    names = [name for name, one in members.items() if isinstance(one, property | functools.cached_property)]
    return [*names, *(f"{name}()" for name, one in members.items() if inspect.isfunction(one))]


def signature(name: str, thing: object) -> str:
    """Return how it is called, in lines of `WIDTH`."""
    try:
        result = inspect.signature(thing)
    except (TypeError, ValueError):  # a bare exception has none
        return name
    parameters = list(result.parameters.values())
    arguments = [plain(str(one)) for one in parameters]
    if any(one.kind is one.KEYWORD_ONLY for one in parameters):
        arguments.insert([one.kind for one in parameters].index(inspect.Parameter.KEYWORD_ONLY), "*")
    end = (
        ""
        if result.return_annotation in (result.empty, None, "None")
        else f" -> {plain(str(result.return_annotation))}"
    )
    lines = textwrap.wrap(
        f"{name}({', '.join(one.replace(' ', HARD) for one in arguments)}){end.replace(' ', HARD)}",
        WIDTH,
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines).replace(HARD, " ")


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
