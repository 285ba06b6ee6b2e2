"""Types of options: how their text is parsed, and what shell completion offers."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any, Generic, TypeVar

import click
from click.shell_completion import CompletionItem

from ropeaudit import data
from ropeaudit.console import values
from ropeaudit.errors import UnknownName, UsageError

T = TypeVar("T")
Names = Callable[[], Iterable[str]]


class Parsed(click.ParamType, Generic[T]):  # type: ignore[type-arg]  # click before 8.5 takes no arguments
    """A type of click whose values a function parses from the text and the flag.

    Errors of that function are raised unchanged.
    """

    def __init__(
        self,
        name: str,
        parse: Callable[[str, str], T],
        names: Iterable[str] = (),
    ) -> None:
        """Set the parser. name: for click. names: the values, where they are a closed list."""
        self.name, self.parse, self.names = name, parse, tuple(names)

    def convert(
        self,
        value: str | T,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> T:
        """Parse a text; any other value is returned unchanged. Raises: UsageError."""
        return self.parse(value, flag(param)) if isinstance(value, str) else value

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return completions of the last element of a list; files for options that take them."""
        if self.names:
            return [CompletionItem(name) for name in self.names if name.startswith(incomplete)]
        (earlier, comma, word), option = incomplete.rpartition(","), flag(param)
        of_columns = option in ("--columns", "--fail-if", "--y")
        names = _columns(ctx) if of_columns else _names(option)
        items = [CompletionItem(f"{earlier}{comma}{name}") for name in names if name.startswith(word)]
        return items + [CompletionItem(incomplete, type="file")] * (option in _FILES and not (comma or items))


def flag(param: click.Parameter | None) -> str:
    """Return the name of an option for messages, such as --seq-len."""
    if param is None:
        return "value"
    if isinstance(param, click.Argument):
        return param.metavar or str(param.name)
    return max(param.opts, key=len)


def joined(
    context: click.Context,
    param: click.Parameter,
    items: Iterable[Iterable[T]],
) -> tuple[T, ...]:
    """Join the values of a repeatable option, and replace `all` and `usual` by names."""
    values: list[Any] = [value for item in items for value in item]
    for word, names in (("all", ALL), ("usual", _USUAL)):
        if word in values and flag(param) in names:
            values = [*names[flag(param)](), *(value for value in values if value != word)]
    return tuple(dict.fromkeys(values))


def merged(
    context: click.Context,
    param: click.Parameter,
    items: Iterable[Mapping[str, T]],
) -> dict[str, T]:
    """Return the entries of a repeatable option as one mapping; the last counts."""
    return {name: value for item in items for name, value in item.items()}


def number(example: str) -> Parsed[float]:
    """Return the type of a real number; example: the value that its message suggests."""
    return Parsed("number", lambda text, name: values.number(text, name, example))


def within(least: int, most: int, default: int) -> Parsed[int]:
    """Return the type of a whole number from `least` to `most`."""

    def parse(text: str, name: str) -> int:
        value = values.integer(text, name)
        if not least <= value <= most:
            raise UsageError(f"{name} {value} is not from {least} to {most}; try {name} {default}")
        return value

    return Parsed("integer", parse)


def one_of(kind: str, names: Iterable[str]) -> Parsed[str]:
    """Return the type of a name from a closed list; kind: the noun for its message."""
    allowed = tuple(names)

    def parse(text: str, name: str) -> str:
        if text not in allowed:
            raise UnknownName(kind, text, allowed)
        return text

    return Parsed("name", parse, allowed)


def _relative(text: str, name: str) -> float:
    """Parse a tolerance of drift_relative, the column that verdicts judge."""
    column, value = values.tolerance(text, name)
    if column != "drift_relative":
        raise UsageError(f"verdicts judge drift_relative, not {column}; try --fail-if '{column}>{value:g}'")
    return value


def _shard(text: str, name: str) -> tuple[int, int]:
    number, slash, count = (part.strip() for part in text.partition("/"))
    if not (slash and all(part.isdecimal() and len(part) < 10 for part in (number, count))):
        raise UsageError(f"{name} {text!r} is not K/N; try {name} 1/16")
    return int(number), int(count)


def _natural(text: str, name: str) -> int:
    value = values.integer(text, name)
    if value < 0:
        raise UsageError(f"{name} {value} is negative; try {name} 0")
    return value


def _offsets(text: str, name: str) -> list[int]:
    try:
        return values.integers(text, name)
    except UsageError as error:
        if "is a fraction" not in str(error):
            raise
        raise UsageError(f"{error.args[0]}; on a grid --step 0.5 lets {name} 1 move tokens by 0.5") from None


def _targets(text: str, name: str) -> list[str]:
    """Parse one file or target, whose name may contain commas, or a list of them."""
    path, _, function = text.rpartition(":")
    single = os.path.lexists(text) or ("," not in function and os.path.lexists(path))
    return [text] if single else values.names(text, name)


def _argument(text: str, name: str) -> dict[str, object]:
    """Parse NAME=VALUE, an argument of a call: VALUE is a Python literal, else text."""
    key, equals, value = text.partition("=")
    if not (equals and key.strip().isidentifier()):
        raise UsageError(f"{name} {text!r} is not NAME=VALUE; try {name} head_dim=128")
    try:
        return {key.strip(): ast.literal_eval(value.strip())}
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return {key.strip(): value}


INTEGER = Parsed("integer", values.integer)
NATURAL = Parsed("integer", _natural)
INTEGERS = Parsed("integers", values.integers)
OFFSETS = Parsed("integers", _offsets)
NUMBERS = Parsed("numbers", values.numbers)
NAMES = Parsed("names", values.names)
MASKS = Parsed("masks", values.masks)
TEXT = Parsed("text", lambda text, name: [text])  # one element, commas included
WORD = Parsed("word", lambda text, name: text)
TARGETS = Parsed("targets", _targets)
RELATIVE = Parsed("tolerance", _relative)
SHARD = Parsed("shard", _shard)
CHANGES = Parsed("changes", lambda text, name: _module("recipes").parse_changes([text]))
ARGUMENT = Parsed("argument", _argument)
SCALE, SECONDS = number("0.125"), number("120")


def _names(flag: str) -> list[str]:
    if flag in ALL:
        aliases = [alias for fmt in _module("arithmetic.formats").FORMATS for alias in fmt.aliases]
        others = {"--dtype": aliases, "--model": ["usual"]}.get(flag, [])
        return ["all", *ALL[flag](), *others]
    return list(_OTHERS[flag]() if flag in _OTHERS else data.table("help.toml")["completed"].get(flag, ()))


def _columns(context: click.Context) -> list[str]:
    """Return the columns of the command's reports; those of `shift` for other commands."""
    from ropeaudit.runtime.columns import table, tables

    own, name = [], str(context.info_name)
    for each in tables():
        if each in (name, f"list-{name}") or each.startswith(f"{name}-"):
            own += list(table(each))
    if name == "report":  # rows of `shift`, and of a comparison
        from ropeaudit.reports.comparison import COLUMNS

        own += [*table("shift"), "file", *COLUMNS]
    return list(dict.fromkeys(own)) or list(table("shift"))


def _module(name: str) -> Any:
    return import_module(f"ropeaudit.{name}")


# option -> all its names, which `all` stands for
ALL: Mapping[str, Names] = {
    "--recipe": lambda: [one.name for one in _module("recipes").all_recipes() if not one.refused],
    "--impl": lambda: [
        name for name, entry in _module("subjects.third_party").ENTRIES.items() if entry.installed
    ],
    "--dtype": lambda: [one.name for one in _module("arithmetic.formats").FORMATS],
    "--model": lambda: [one.name for one in _module("rope.presets").all_presets()],
    "--axes": lambda: [one.name for one in _module("rope.axial").all_presets()],
}
_USUAL: Mapping[str, Names] = {"--model": lambda: _module("rope.presets").USUAL}
_OTHERS: Mapping[str, Names] = {
    "--under": lambda: [*_module("subjects.calling.environments").NAMES, "all"],
    "--scaling": lambda: _module("rope.scaling").KINDS,
    "TARGETS": lambda: [*ALL["--impl"](), *ALL["--model"]()],
    **dict.fromkeys(("A", "B"), lambda: [*ALL["--recipe"](), *ALL["--impl"]()]),  # what `parity` compares
}
_FILES = ("--config", "--qk", "--recipe", "--impl", "TARGETS", "A", "B")
