"""`--help` of a command: its options in groups, and examples that can be typed as they are."""

from __future__ import annotations

import functools
from typing import Any

import click

from ropeaudit.errors import UnknownName

# heading -> options; what stands in none of them is the command's own and comes first
_SECTIONS = {
    "q and k": "--seq-len --heads --kv-heads --mask --qk --seed --sample --vectors",
    "RoPE setting": "--model --config --layer --head-dim --rotary-dim --base --scaling --clip --layout "
    "--scale --mrope --axis --axes --grid --step --length --rerotate --by",
    "After softmax": "--attention --softmax --anchor",
    "What is judged, and the exit code": "--tolerance --fail-if --baseline --waive --junit",
    "Report": "--format --color --output --columns --quiet --no-header --ticket --ticket-file",
    "Long runs": "--resume --jobs --scheduler --shard --dry-run",
}
_HEADINGS = {flag: heading for heading, flags in _SECTIONS.items() for flag in flags.split()}
_FEW = 12  # options that need no groups

# command -> what an example is for, and how it is typed
EXAMPLES = {
    "shift": (
        ("How far scores drift at 128k, by model", "shift --model llama-3.1-8b,qwen3-8b --offset 128k"),
        (
            "A report, and exit code 1 above 1 %",
            "shift --offset 0,32k -o x.json --fail-if 'drift_relative>1%'",
        ),
        (
            "A cache that is shifted up to 1,000 times, against one that is not",
            "shift --rerotate 0,10,100,1000 --offset 0 --model llama-3.1-8b --dtype bf16",
        ),
        ("Own code, in bf16", "shift --impl rope.py:apply_rope --dtype bf16"),
    ),
    "check": (
        ("Own code, at each of 128k positions", "check rope.py:apply_rope"),
        ("A model's setting, and a checkpoint", "check llama-3.1-8b ./my-model"),
    ),
    "limit": (
        ("Up to where bf16 stays within 1 %", "limit --model llama-3.1-8b --recipe hf"),
        (
            "The same of a config, for another tolerance",
            "limit --config config.json --tolerance drift_rms=0.01",
        ),
    ),
    "explain": (
        ("Which stage is to blame at 128k", "explain --recipe uniform --offset 128k"),
        ("Which frequencies are", "explain --model llama-3.1-8b --by pair"),
        ("Own code: its dtypes, what it is like", "explain rope.py:apply_rope --dtype bf16"),
    ),
    "parity": (
        ("A trainer against a server", "parity hf vllm-cuda --model llama-3.1-8b"),
        ("Own code against transformers", "parity rope.py:apply_rope transformers-llama --dtype bf16"),
    ),
    "decay": (
        ("Curves of two models, and a picture of them", "decay --model llama-3.1-8b,qwen3-8b -o decay.json"),
        ("", "plot decay.json --kind decay -o decay.svg"),
    ),
    "plot": (
        ("A sweep, as a figure for a paper", "plot x.jsonl -o x.pdf --size 3.5x2.5 --title ''"),
        ("One case by query and key", "plot --kind heatmap --dtype fp16 --offset 128k -o heatmap.png"),
    ),
    "report": (
        ("Shards, or any reports, as one", "report shard-1.jsonl shard-2.jsonl -o sweep.jsonl"),
        ("The worst case of each model and dtype", "report sweep.jsonl --by model,dtype --worst"),
        (
            "What drifts more than before, and exit code 1 above 1.1 times",
            "report after.csv --against before.csv --fail-if 'drift_rms>1.1x'",
        ),
    ),
    "frequencies": (("Which positions bf16 merges", "list frequencies --model llama-3.1-8b --dtype bf16"),),
    "vectors": (("q, k and positions for a kernel in C", "vectors --model llama-3.1-8b -o cases"),),
}


class GroupedCommand(click.Command):
    """A command whose help groups many options, and ends in examples."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, those of its own first."""
        groups: dict[str, list[tuple[str, str]]] = {}
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        for param in options:
            flags = [_HEADINGS[flag] for flag in param.opts if flag in _HEADINGS]
            record = param.get_help_record(ctx)
            if record is not None:
                heading = flags[0] if flags and len(options) > _FEW else ""
                groups.setdefault(heading, []).append(record)
        last = groups.get("", [])[-1:]  # --help, below all others
        if len(groups) > 1:
            groups[""] = groups[""][:-1]
        for heading in ("", *_SECTIONS):
            if groups.get(heading):
                with formatter.section(heading or "Options"):
                    formatter.write_dl(groups[heading])
        if len(groups) > 1:
            with formatter.section("Help"):
                formatter.write_dl(last)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the epilog, then the examples, each on a line that can be typed."""
        super().format_epilog(ctx, formatter)
        if self.name in EXAMPLES:
            with formatter.section("Examples"):
                for purpose, line in EXAMPLES[self.name]:
                    if purpose:
                        formatter.write(f"{'':{formatter.current_indent}}# {purpose}\n")
                    formatter.write(f"{'':{formatter.current_indent}}ropeaudit {line}\n")


class NamedCommands(click.Group):
    """A group in the order of its commands, which names the nearest to one that it does not have."""

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
        """Return the name, the command and its arguments. Raises: UnknownName, which names the nearest."""
        if self.get_command(ctx, args[0]) is None and not (ctx.resilient_parsing or args[0].startswith("-")):
            raise UnknownName(self.noun, args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)


command = functools.partial(click.command, cls=GroupedCommand)
