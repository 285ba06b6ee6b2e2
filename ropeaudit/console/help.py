"""Classes of commands: how they call functions, their `--help`, and errors for unknown names."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any, cast

import click

from ropeaudit import data
from ropeaudit.errors import UnknownName, UsageError, replacement_of


def examples() -> list[str]:
    """Return the examples of `--help`: arguments of `ropeaudit`, each with a comment."""
    lines: list[str] = data.table("help.toml")["examples"]
    return lines


def flags_of(command: click.Command, ctx: click.Context) -> list[str]:
    """Return all flags of a command."""
    return [
        flag
        for param in command.get_params(ctx)
        for flag in (*param.opts, *param.secondary_opts)
        if isinstance(param, click.Option)
    ]


def unknown_option(error: click.NoSuchOption) -> UsageError:
    """Return the error for an unknown option, with what to type instead."""
    from difflib import get_close_matches  # in-function: both are needed for errors alone

    name, ctx = error.option_name, cast(click.Context, error.ctx)
    flags, root = flags_of(ctx.command, ctx), ctx.find_root()
    typed = ctx.command_path.removeprefix(root.command_path).strip()
    if instead := replacement_of(f"option of {typed}", name):
        return UsageError(f"{name} of `{ctx.command_path}` was withdrawn; {instead}")
    if (meant := _intended(name)).split(" ")[0] in flags:
        return UsageError(f"unknown option {name!r} of `{ctx.command_path}`; type {meant}")
    longer = [flag for flag in flags if flag.startswith(name)]
    close = longer or get_close_matches(name, flags, n=2, cutoff=0.7)
    owners = [
        path
        for path, command in commands(cast(click.Group, root.command), root)
        if name in flags_of(command, ctx)
    ]
    hints = [f"did you mean {' or '.join(close)}?"] if close else []
    if owners:
        listing = ", ".join(f"`{path}`" for path in (f"{root.command_path} {owners[0]}", *owners[1:]))
        hints.append(f"{name} belongs to {listing}")
    advice = " ".join(hints) or f"try `{ctx.command_path} --help`"
    return UsageError(f"unknown option {name!r} of `{ctx.command_path}`; {advice}")


def _intended(name: str) -> str:
    """Return the option or command that a common guess means; empty for other names."""
    meant: str = data.table("help.toml")["guessed"].get(name, "")
    return meant


def commands(
    group: click.Group,
    ctx: click.Context,
    before: str = "",
) -> Iterator[tuple[str, click.Command]]:
    """Yield each command, nested ones too, with what is typed for it."""
    for name in group.list_commands(ctx):
        if member := group.get_command(ctx, name):
            yield f"{before}{name}", member
            if isinstance(member, click.Group):
                yield from commands(member, ctx, f"{before}{name} ")


class GroupedCommand(click.Command):
    """A command that takes groups of options as objects, with examples in its help."""

    def invoke(self, ctx: click.Context) -> Any:
        """Call the function, with each group of options as one object.

        Raises: UsageError if an output file is also an input or another output.
        """
        from ropeaudit.console import output_files  # in-function: --help writes no file

        if "form" in ctx.params and "outputs" in ctx.params:  # `-o -` is stdout, where the report goes anyhow
            ctx.params["outputs"] = tuple(path for path in ctx.params["outputs"] if path != "-")
        output_files.refuse_clashes(ctx.params)
        arguments = dict(ctx.params)
        for name, group in getattr(self.callback, "groups", {}).items():
            options = {option.name: arguments.pop(option.name) for option in fields(group)}
            arguments[name] = group(**options)
        return ctx.invoke(cast(Callable[..., Any], self.callback), **arguments)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the epilog, then the examples, each on a line."""
        if self.epilog:
            formatter.write_paragraph()
            formatter.write_text(inspect.cleandoc(self.epilog))
        typed = ctx.command_path.partition(" ")[2]
        if lines := [line for line in examples() if line.startswith(f"{typed} ")]:
            formatter.write_paragraph()
            formatter.write_heading("Examples")
            formatter.write("".join(f"  ropeaudit {line}\n" for line in lines))


class NamedCommands(click.Group):
    """A group of commands in order, which suggests names for an unknown one."""

    def __init__(self, *args: Any, noun: str = "command", **attributes: Any) -> None:
        """Set the noun that messages have for a command of the group."""
        super().__init__(*args, **attributes)
        self.noun = noun

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments. Raises: click.UsageError, with all commands, if there are none."""
        if not (args or self.invoke_without_command or ctx.resilient_parsing):
            raise click.UsageError(f"Missing {self.noun}; give {', '.join(self.list_commands(ctx))}", ctx)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names, in the order of `--help`."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return name, command and arguments. Raises: UsageError, UnknownName."""
        if self.get_command(ctx, args[0]) is None and not (ctx.resilient_parsing or args[0].startswith("-")):
            if ctx.parent is None and (meant := _intended(args[0])):
                raise UsageError(f"unknown {self.noun} {args[0]!r}; type `{ctx.command_path} {meant}`")
            raise UnknownName(self.noun, args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)


command = functools.partial(click.command, cls=GroupedCommand)
