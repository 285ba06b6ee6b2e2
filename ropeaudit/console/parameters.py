"""Types of options: what their text says, and what a shell offers for them."""

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
    """A type whose values a function reads from text and the flag, which its messages name.

    Our own errors are no errors of click and pass through it as they are.
    """

    def __init__(
        self,
        name: str,
        parse: Callable[[str, str], T],
        names: Iterable[str] = (),
    ) -> None:
        """Take the function. name: for click. names: all values of a closed list."""
        self.name, self.parse, self.names = name, parse, tuple(names)

    def convert(
        self,
        value: str | T,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> T:
        """Return the value of some text. Raises: UsageError."""
        return self.parse(value, flag(param)) if isinstance(value, str) else value

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return what a shell offers."""
        if self.names:
            return [CompletionItem(name) for name in self.names if name.startswith(incomplete)]
        return _complete(ctx, flag(param), incomplete)


def flag(param: click.Parameter | None) -> str:
    """Return what to call an option in a message, such as --seq-len."""
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
    """Return each value of an option once; `all` is every name, `usual` some models."""
    values: list[Any] = [value for item in items for value in item]
    for word, names in (("all", ALL), ("usual", _USUAL)):
        if word in values and flag(param) in names:
            values = [*names[flag(param)](), *(one for one in values if one != word)]
    return tuple(dict.fromkeys(values))


def merged(
    context: click.Context,
    param: click.Parameter,
    items: Iterable[Mapping[str, T]],
) -> dict[str, T]:
    """Return the entries of a repeatable option, of equal names the last."""
    return {name: value for item in items for name, value in item.items()}


def number(example: str) -> Parsed[float]:
    """Return the type of one real number; example: what its message tells to try."""
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
    """Return the type of a name from a closed list; kind: what the message calls it."""
    known = tuple(names)

    def parse(text: str, name: str) -> str:
        if text not in known:
            raise UnknownName(kind, text, known)
        return text

    return Parsed("name", parse, known)


def _relative(text: str, name: str) -> float:
    """Return a tolerance of drift_relative, the one that verdicts are judged by."""
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
    """Return a file or a target, whose name may hold commas, or several."""
    path, _, function = text.rpartition(":")
    alone = os.path.lexists(text) or ("," not in function and os.path.lexists(path))
    return [text] if alone else values.names(text, name)


def _argument(text: str, name: str) -> dict[str, object]:
    """Return an argument of a call: a Python literal, or text that is none."""
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
TEXT = Parsed("text", lambda text, name: [text])  # an item of its own, commas included
WORD = Parsed("word", lambda text, name: text)
PATHS = Parsed("paths", _targets)
TARGETS = Parsed("targets", _targets)
RELATIVE = Parsed("tolerance", _relative)
SHARD = Parsed("shard", _shard)
CHANGES = Parsed("changes", lambda text, name: _module("recipes").parse_changes([text]))
ARGUMENT = Parsed("argument", _argument)
SCALE, SECONDS = number("0.125"), number("120")


def _complete(context: click.Context, flag: str, incomplete: str) -> list[CompletionItem]:
    """Return what the last element of a list may become; files where an option takes them."""
    done, comma, word = incomplete.rpartition(",")
    of_columns = flag in ("--columns", "--fail-if", "--y")
    names = _columns(context) if of_columns else _names(flag)
    items = [CompletionItem(f"{done}{comma}{name}") for name in names if name.startswith(word)]
    return items + [CompletionItem(incomplete, type="file")] * (flag in _FILES and not (comma or items))


def _names(flag: str) -> list[str]:
    """Return the names that a shell offers for an option."""
    if flag in ALL:
        more = [alias for one in _module("arithmetic.formats").FORMATS for alias in one.aliases]
        others = {"--dtype": more, "--model": ["usual"]}.get(flag, [])
        return ["all", *ALL[flag](), *others]
    return list(_OTHERS[flag]() if flag in _OTHERS else data.table("help.toml")["completed"].get(flag, ()))


def _columns(context: click.Context) -> list[str]:
    """Return the columns of the command's reports; else those of `shift`."""
    from ropeaudit.runtime.columns import table, tables

    own, name = [], str(context.info_name)
    for known in tables():
        if known in (name, f"list-{name}") or known.startswith(f"{name}-"):
            own += list(table(known))
    if name == "report":  # rows of `shift`, as they were and in comparison
        from ropeaudit.reports.comparison import COLUMNS

        own += [*table("shift"), "file", *COLUMNS]
    return list(dict.fromkeys(own)) or list(table("shift"))


def _module(name: str) -> Any:
    """Return a module of this package, which is loaded only when needed."""
    return import_module(f"ropeaudit.{name}")


# every name that `all` stands for
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
