"""What the API and the command line take: keywords and options with their defaults, choices, errors."""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

import ropeaudit
from ropeaudit import testing
from ropeaudit.main import cli

PATH = Path(__file__).parent / "api.json"
ARGUMENTS = ("Case",)  # classes that a user makes; classes of results are not held
ASSERTIONS = ("assert_rope", "assert_shift_invariant")
MOST = 14  # choices of an option that are held; what there are more of stands in a list of its own
OTHERS = {"--config", "--ticket"}  # what is completed there is no choice, or is of a tracker


def found() -> dict[str, str]:
    """Return what there is, by its name: `shift(offsets)`, `shift --offset`, `explain --by = pair`."""
    there: dict[str, str] = {}
    for name in ropeaudit.__all__:
        thing = getattr(ropeaudit, name)
        if inspect.isfunction(thing) or name in ARGUMENTS:
            there |= of_function(name, thing)
        elif isinstance(thing, type) and issubclass(thing, Exception):
            there[name] = of_error(thing)
    for name in ASSERTIONS:
        there |= of_function(f"testing.{name}", getattr(testing, name))
    for error in (testing.WrongRope, testing.NotShiftInvariant):
        there[f"testing.{error.__name__}"] = of_error(error)
    for name, command in commands(cli):
        for option in command.params:
            there |= of_option(name, option)
    return dict(sorted(there.items()))


def of_error(error: type[BaseException]) -> str:
    """Return the classes as which an error can be caught."""
    return " ".join(one.__name__ for one in error.__mro__[1:] if one not in (BaseException, object))


def of_function(name: str, function: Callable[..., Any]) -> dict[str, str]:
    """Return the arguments of a function with their defaults; * stands before those that go by name alone."""
    there = {f"{name}()": "function"}
    for argument in inspect.signature(function).parameters.values():
        if argument.kind is argument.VAR_KEYWORD:
            (packed,) = typing.get_args(eval(argument.annotation, inspect.unwrap(function).__globals__))  # noqa: S307
            there |= {f"{name}({one})": "*" for one in packed.__annotations__}
            continue
        star = "*" if argument.kind is argument.KEYWORD_ONLY else ""
        default = "required" if argument.default is argument.empty else f"default {argument.default!r}"
        there[f"{name}({argument.name})"] = f"{star}{default}"
    return there


def commands(group: click.Group, before: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield the commands of a group, and of groups in it, by their names."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, f"{before}{name} ")
        elif command is not None:
            yield f"{before}{name}", command


def of_option(command: str, option: click.Parameter) -> dict[str, str]:
    """Return an option or an argument: its type, default, whether it is required, repeated; its choices."""
    name = f"{command} {'|'.join([*option.opts, *option.secondary_opts])}"
    flag = isinstance(option, click.Option) and option.is_flag
    words = ["flag" if flag else str(option.type.name)]
    words += ["required"] * option.required + ["repeated"] * (option.multiple or option.nargs == -1)
    default = None if flag else option.get_default(click.Context(click.Command(command)), call=False)
    if default is not None and "UNSET" not in repr(default):
        words.append(f"default {default!r}")
    there = {name: " ".join(words)}
    if OTHERS.isdisjoint(option.opts):
        completed = option.shell_complete(click.Context(click.Command(command)), "")
        choices = [one.value for one in completed if one.type == "plain"]
        there |= {f"{name} = {one}": "choice" for one in choices if len(choices) <= MOST}
    return there


def record() -> None:
    """Store what there is."""
    PATH.write_text(json.dumps(found(), indent=0, ensure_ascii=False) + "\n", encoding="utf-8")
