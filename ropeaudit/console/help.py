"""`--help` of a command: what most people need on one screen; `--help-all` lists every option in full.

Of each text `--help` shows what stands first: of an option the first sentence and the first default, of an
epilog the first paragraph.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any, cast

import click

from ropeaudit.console.parameters import Rare
from ropeaudit.errors import WITHDRAWN, UnknownName, UsageError

# command -> how an example is typed, and what it is for
EXAMPLES = {
    "shift": (
        ("shift --model llama-3.1-8b,qwen3-8b --offset 128k", "drift at 128k, by model"),
        ("shift --impl rope.py:apply_rope --dtype bf16", "own code"),
        ("shift --offset 0,32k -o x.json --fail-if 'drift_relative>1%'", "exit code 1 above 1 %"),
    ),
    "check": (
        ("check rope.py:apply_rope", "own code, at each of 128k positions"),
        ("check llama-3.1-8b ./my-model", "a model's setting, and a checkpoint"),
    ),
    "limit": (
        ("limit --model llama-3.1-8b --recipe hf", "up to where bf16 stays within 1 %"),
        ("limit --config config.json --tolerance 0.1%", "a config, another tolerance"),
    ),
    "explain": (
        ("explain --recipe uniform --offset 128k", "which stage is to blame"),
        ("explain --model llama-3.1-8b --by pair", "which frequencies are"),
        ("explain rope.py:apply_rope --dtype bf16", "own code, and what is like it"),
    ),
    "parity": (
        ("parity hf vllm-cuda --model llama-3.1-8b", "a trainer against a server"),
        ("parity rope.py:apply_rope transformers-llama --dtype bf16", "own code against it"),
    ),
    "vectors": (("vectors --model llama-3.1-8b -o cases", "q, k and positions for a kernel in C"),),
    "module": (("module ./my-model", "a checkpoint: are its RoPE buffers right"),),
    "model": (("model ./llama-dir --offset 32k", "a model at positions from 0 and from 32k on"),),
    "decay": (
        ("decay --model llama-3.1-8b --distance 0-8192+16 -o decay.json", "its curves"),
        ("plot decay.json --kind decay -o decay.svg", "a picture of them"),
    ),
    "plot": (
        ("plot sweep.jsonl -o x.pdf --size 3.5x2.5 --title ''", "a figure for a paper"),
        ("plot --kind heatmap --dtype fp16 --offset 128k -o heatmap.png", "one case"),
    ),
    "report": (
        ("report shard-1.jsonl shard-2.jsonl -o sweep.jsonl", "shards as one"),
        ("report sweep.jsonl --by model,dtype --worst", "the worst case of each"),
        ("report after.csv --against before.csv --fail-if 'drift_rms>1.1x'", "exit code 1 if worse"),
    ),
    "frequencies": (("list frequencies --model llama-3.1-8b --dtype bf16", "which positions bf16 merges"),),
}

GUESSED = {  # option or command that people guess: what it is called here
    "--theta": "--base",
    "--rope-theta": "--base",
    "--json": "-f json",
    "--csv": "-f csv",
    "version": "--version",
    "compare": "report FILE --against FILE",
    "diff": "report FILE --against FILE",
}


def brief(text: str) -> str:
    """Return the first sentence of an option's help, and its first default."""
    sentences, bracket, default = text.partition("  [")
    first, more, _ = sentences.partition(". ")
    usual, others, _ = default.partition(";")
    end = bracket and f"{'; ...' if others else ''}]"
    return f"{first}{'.' if more else ''}{bracket}{usual.rstrip(']')}{end}"


def flags_of(command: click.Command, ctx: click.Context) -> list[str]:
    """Return all that one may type as an option of a command."""
    return [
        flag
        for param in command.get_params(ctx)
        for flag in (*param.opts, *param.secondary_opts)
        if isinstance(param, click.Option)
    ]


def unknown_option(error: click.NoSuchOption) -> UsageError:
    """Return the error that says what to type instead of an unknown option."""
    from difflib import get_close_matches  # in-function: both are needed for errors alone

    name, ctx = error.option_name, cast(click.Context, error.ctx)
    known, root = flags_of(ctx.command, ctx), ctx.find_root()
    typed = ctx.command_path.removeprefix(root.command_path).strip()
    if instead := WITHDRAWN.get((f"option of {typed}", name)):
        return UsageError(f"{name} of `{ctx.command_path}` was withdrawn; {instead}")
    if (meant := GUESSED.get(name, "")).split(" ")[0] in known:
        return UsageError(f"unknown option {name!r} of `{ctx.command_path}`; type {meant}")
    begin = [flag for flag in known if flag.startswith(name)]
    close = begin or get_close_matches(name, known, n=2, cutoff=0.7)
    homes = [
        path
        for path, command in commands(cast(click.Group, root.command), root)
        if name in flags_of(command, ctx)
    ]
    said = [f"did you mean {' or '.join(close)}?"] if close else []
    if homes:
        listing = ", ".join(f"`{path}`" for path in (f"{root.command_path} {homes[0]}", *homes[1:]))
        said.append(f"{name} belongs to {listing}")
    advice = " ".join(said) or f"try `{ctx.command_path} --help`"
    return UsageError(f"unknown option {name!r} of `{ctx.command_path}`; {advice}")


def commands(group: click.Group, ctx: click.Context, before: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield what one types for each command of a group and of those in it, and the command."""
    for name in group.list_commands(ctx):
        if member := group.get_command(ctx, name):
            yield f"{before}{name}", member
            if isinstance(member, click.Group):
                yield from commands(member, ctx, f"{before}{name} ")


def _show_all(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[__name__] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


_HELP_ALL = click.Option(
    ["--help-all"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_all,
    help="Show all options, and all that is to be said of them.",
)


class GroupedCommand(click.Command):
    """A command with grouped options, whose help ends in examples."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters, --help-all before --help."""
        *params, last = super().get_params(ctx)
        return [*params, _HELP_ALL, last]

    def invoke(self, ctx: click.Context) -> Any:
        """Call the function, each group of options as one object.

        Raises: UsageError if an output is an input or another output, whichever options name them.
        """
        from ropeaudit.console import output_files  # in-function: --help writes no file

        if "form" in ctx.params and "outputs" in ctx.params:  # `-o -` is stdout, where the report goes anyhow
            ctx.params["outputs"] = tuple(path for path in ctx.params["outputs"] if path != "-")
        output_files.refuse_clashes(ctx.params)
        asked = dict(ctx.params)
        for name, group in getattr(self.callback, "groups", {}).items():
            asked[name] = group(**{option.name: asked.pop(option.name) for option in fields(group)})
        return ctx.invoke(cast(Callable[..., Any], self.callback), **asked)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the usual options under their headings; or all as a list."""
        if ctx.meta.get(__name__):
            super().format_options(ctx, formatter)
            return
        groups, sections = getattr(self.callback, "groups", {}).values(), dict[str, list[tuple[str, str]]]()
        headings = {one.name: getattr(group, "heading", "") for group in groups for one in fields(group)}
        for param in self.params:
            if isinstance(param, click.Option) and not isinstance(param, Rare):
                flags, text = param.get_help_record(ctx) or ("", "")
                heading = headings.get(str(param.name)) or "Options"
                sections.setdefault(heading, []).append((flags, brief(text)))
        width = max(len(flags) for records in sections.values() for flags, _ in records)
        formatter.write_paragraph()
        for heading, records in sections.items():
            formatter.write_heading(heading)
            with formatter.indentation():
                formatter.write_dl([(flags.ljust(width), text) for flags, text in records])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the epilog, then the examples, each on a line that can be typed."""
        whole = ctx.meta.get(__name__, False)
        if self.epilog:
            text = inspect.cleandoc(self.epilog)
            formatter.write_paragraph()
            formatter.write_text(text if whole else text.partition("\n\n")[0])
        if self.name in EXAMPLES:
            formatter.write_paragraph()
            formatter.write_heading("Examples")
            for line, purpose in EXAMPLES[self.name]:
                formatter.write(f"  ropeaudit {line}  # {purpose}\n")
        if not whole:
            formatter.write(f"\nMore options: {ctx.command_path} --help-all\n")


class NamedCommands(click.Group):
    """A group that keeps its order and names the nearest to a wrong command."""

    def __init__(self, *args: Any, noun: str = "command", **attributes: Any) -> None:
        """noun: what a command of the group is called in messages."""
        super().__init__(*args, **attributes)
        self.noun = noun

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments. Raises: click.UsageError without any, which names all commands."""
        if not (args or self.invoke_without_command or ctx.resilient_parsing):
            raise click.UsageError(f"Missing {self.noun}; give {', '.join(self.list_commands(ctx))}", ctx)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names, in the order of `--help`."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return name, command and arguments. Raises: UnknownName, with the nearest."""
        if self.get_command(ctx, args[0]) is None and not (ctx.resilient_parsing or args[0].startswith("-")):
            if ctx.parent is None and (meant := GUESSED.get(args[0])):
                raise UsageError(f"unknown {self.noun} {args[0]!r}; type `{ctx.command_path} {meant}`")
            raise UnknownName(self.noun, args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)


command = functools.partial(click.command, cls=GroupedCommand)
