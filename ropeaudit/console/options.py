"""Options of several commands: each group is declared once and passed as an object.

A field of a group is an option: its name is that of the flag, its type that of the parsed value; or a group.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

import click

from ropeaudit import door
from ropeaudit.console.parameters import (
    CHANGES,
    INTEGER,
    INTEGERS,
    MASKS,
    NAMES,
    NUMBERS,
    PATHS,
    TARGETS,
    TEXT,
    WORD,
    Parsed,
    joined,
    merged,
    number,
    one_of,
)
from ropeaudit.errors import UnknownName, UsageError
from ropeaudit.reports import FORMS, REGISTRY

F = TypeVar("F", bound=Callable[..., Any])


EXECUTED = "It is executed with your rights: name no file that you do not trust."
ENVIRONMENTS = (
    "Environments in which code is called too. After the clean state: autocast:bf16, autocast:fp16, tf32, "
    "default-dtype:bf16, default-dtype:fp16, compile, or all; of a module to:bf16, to:fp16 (moved by .to)."
)
QK_KINDS = (
    "Kinds: gaussian, randn (torch's), ones, arange, diagonal, previous (heads that look at one token). "
    "Files: .safetensors, .npz, .pt, q.npy,k.npy."
)


def axis(
    flag: str,
    type_: Parsed[list[Any]],
    help_: str,
    default: str | None = None,
    *,
    shown: str | None = None,
    metavar: str = "LIST",
) -> Callable[[F], F]:
    """An option that takes lists and may be repeated; its value is a tuple, each value once.

    default: what holds where it is not given, as it could be typed. shown: what --help says instead, where
    the command must know whether it was given.
    """
    text = f"{help_}  [default: {default or shown}]" if default or shown else help_
    return click.option(
        flag,
        type=type_,
        multiple=True,
        default=[default] if default else None,
        callback=joined,
        metavar=metavar,
        help=text,
    )


def words(metavar: str, name: str, required: bool = True) -> Callable[[F], F]:
    """An argument that takes names, separated by commas or spaces."""
    shown = metavar if required else f"[{metavar}]"
    return click.argument(name, metavar=shown, nargs=-1, required=required, type=TARGETS, callback=joined)


under_option = axis("--under", NAMES, ENVIRONMENTS, shown="clean alone")


def filled_by(decorator: Callable[[Any], Any]) -> Any:
    """Return the field of a group that an option fills."""
    return field(metadata={"option": decorator})


def option(*flags: str, **attributes: Any) -> Any:
    """Return the field of a group that a `click.option` fills."""
    return filled_by(click.option(*flags, **attributes))


def listed(flag: str, type_: Parsed[list[Any]], help_: str, **attributes: Any) -> Any:
    """Return the field of a group that an `axis` fills."""
    return filled_by(axis(flag, type_, help_, **attributes))


def grouped(group: type[Any], name: str) -> Callable[[F], F]:
    """Give a command a group's options as one object in parameter `name`."""

    def decorate(command: F) -> F:
        for option in reversed(fields(group)):
            command = option.metadata["option"](command)
        command.__dict__.setdefault("groups", {})[name] = group  # those that are fields of it stand before it
        return command

    return decorate


def form_option(command: str = "") -> Any:
    """Return the field that says how the report of a command is printed."""
    forms = [name for name in FORMS if REGISTRY[name].command in ("", command)]
    return option(
        "-f",
        "--format",
        "form",
        type=one_of("report format", forms),
        default=FORMS[0],
        metavar="FORM",
        help=f"Print as {', '.join(forms)}.  [default: {FORMS[0]}]",
    )


def outputs_option(command: str = "") -> Any:
    """Return the field that says into which files the report of a command goes."""
    forms = (form for form in REGISTRY.values() if form.command in ("", command))
    table, *others = (form.suffixes[0] for form in forms)
    return option(
        "-o",
        "--output",
        "outputs",
        multiple=True,
        metavar="FILE",
        help=f"Write a file too: {', '.join(others)} or {table}. Repeatable.",
    )


@dataclass(frozen=True, slots=True)
class ScreenOptions:
    """How a report is printed. color: None by default, on a terminal."""

    form: str = form_option()
    verbose: bool = option("-v", "--verbose", is_flag=True, help="Print all rows and all notes.")
    color: bool | None = option(
        "--color/--no-color",
        default=None,
        help="Colour the table or do not; by default on a terminal. NO_COLOR, FORCE_COLOR work.",
    )


@dataclass(frozen=True, slots=True)
class ReportOptions(ScreenOptions):
    """Where a report goes, and what of it. columns: none for all."""

    outputs: tuple[str, ...] = outputs_option()
    columns: tuple[str, ...] = listed("--columns", NAMES, "Columns to show and write.")
    quiet: bool = option(
        "-q",
        "--quiet",
        is_flag=True,
        help="Print the first line alone; with -f or -o only keep notes off stderr.",
    )

    def chosen_columns(self, known: Iterable[str], hint: str = "") -> list[str]:
        """Return the columns that were asked for. Raises: UnknownName."""
        names = list(known)
        for name in self.columns:
            if name not in names:
                raise UnknownName("column", name, names, hint)
        return list(self.columns)

    def check_header(self, no_header: bool) -> None:
        """Raise UsageError if a form that has no header is to be without one."""
        if no_header and not REGISTRY[self.form].header:
            having = [name for name in FORMS if REGISTRY[name].header]
            raise UsageError(f"--no-header goes with {' and '.join(having)}; {self.form} has no header")


@dataclass(frozen=True, slots=True)
class QKOptions:
    """Which q and k, which scores are seen; empty or None if not given."""

    seq_len: tuple[int, ...] = listed("--seq-len", INTEGERS, "Positions.", shown="256")
    heads: int | None = option("--heads", type=INTEGER, metavar="N", help="Query heads.  [default: 8]")
    kv_heads: int | None = option(
        "--kv-heads",
        type=INTEGER,
        metavar="N",
        help="Key-value heads, a divisor of --heads.  [default: --heads]",
    )
    mask: tuple[str, ...] = listed(
        "--mask",
        MASKS,
        "Keys that a query sees: causal, full or window:N. A window is the last N.",
        shown="causal",
    )
    qk: tuple[str, ...] = listed(
        "--qk",
        TEXT,
        f"Kind of q and k, or a file with captured ones. {QK_KINDS}",
        shown="gaussian",
        metavar="SOURCE",
    )
    seed: tuple[int, ...] = listed("--seed", INTEGERS, "Seeds of random q and k.", shown="0")


@dataclass(frozen=True, slots=True)
class RopeOptions:
    """Which RoPE setting; empty or None where nothing is said."""

    model: tuple[str, ...] = listed(
        "--model", NAMES, "Named models (`ropeaudit list models`), or all. usual stands for ten that differ."
    )
    config: tuple[str, ...] = listed(
        "--config", PATHS, "Hugging Face config.json files, or their folders.", metavar="PATH"
    )
    layer: tuple[str, ...] = listed(
        "--layer",
        NAMES,
        "Layer types of a model that has several, or all.",
        shown="full_attention",
    )
    head_dim: tuple[int, ...] = listed("--head-dim", INTEGERS, "Dims of a head, even.", shown="128")
    rotary_dim: tuple[int, ...] = listed(
        "--rotary-dim", INTEGERS, "Dims that are rotated, the first ones.", shown="--head-dim"
    )
    base: tuple[float, ...] = listed(
        "--base", NUMBERS, "Base of the frequencies (rope theta).", shown="10000"
    )
    scaling: tuple[str, ...] = listed(
        "--scaling",
        TEXT,
        "Scaling, such as yarn:factor=4,original=32768. Types: default, linear, dynamic, proportional, "
        "yarn, longrope, llama3, explicit. Repeatable.",
        metavar="SPEC",
    )
    clip: tuple[float, ...] = listed(
        "--clip", NUMBERS, "Cap of the angles in radians, an experiment.", shown="inf"
    )
    layout: tuple[str, ...] = listed(
        "--layout",
        NAMES,
        "Pairs of dims: half (GPT-NeoX, Llama in HF) or interleaved (GPT-J, Meta).",
        shown="half; its own of --impl",
    )
    scale: float | None = option(
        "--scale",
        type=number("0.125"),
        metavar="X",
        help="Softmax scale.  [default: 1/sqrt(head_dim)]",
    )


screen_options = grouped(ScreenOptions, "screen")
report_options = grouped(ReportOptions, "output")
qk_options = grouped(QKOptions, "vectors")
rope_options = grouped(RopeOptions, "rope")

changes_option = click.option(
    "--set",
    "changes",
    type=CHANGES,
    multiple=True,
    callback=merged,
    metavar="STAGE=FORMAT",
    help="Change a stage of every recipe: angle=fp64, frequency_form=divide, ... output=e4m3:head "
    "stores keys with a scale a head (tensor, head, token, channel; input: before the rotation; int8 too).",
)

recipe_option = axis(
    "--recipe",
    NAMES,
    "Recipes (`list recipes`) or .toml files. A recipe is a number format per stage.",
    shown="hf,uniform; none beside code",
)
impl_option = axis(
    "--impl",
    TARGETS,
    "Real code: FILE.py:NAME, PACKAGE.MODULE:NAME, or `list implementations`. It is called as it is, "
    "instead of recipes or beside them. Each is called in a process of its own. A "
    f"wrong rotation meets no tolerance. {EXECUTED}",
)
order_option = click.option(
    "--order", metavar="AXES", help="Axes of own code, such as bhsd.  [default: found out]"
)
dtype_option = axis("--dtype", NAMES, "Number formats of the model.", "bf16")
device_option = click.option(
    "--device",
    type=WORD,
    metavar="NAME",
    help="Where code or torch computes: cpu, cuda, cuda:N or mps. Code is called with q and k that lie "
    "there.  [default: cpu; of a module where it lies]",
)


def _timeout(context: click.Context, param: click.Parameter, seconds: float | None) -> None:
    if seconds is not None and not seconds > 0:
        raise UsageError(f"--timeout {seconds:g} is no time to wait; give seconds, such as 120")
    if seconds is not None:
        _for_this_run(context, door.TIMEOUT, repr(seconds))


def _in_process(context: click.Context, param: click.Parameter, here: bool) -> None:
    if here:
        _for_this_run(context, door.ROAD, door.IN_PROCESS)


def _for_this_run(context: click.Context, name: str, value: str) -> None:
    """Set a variable for this command and the processes that it starts."""
    before = os.environ.get(name)
    os.environ[name] = value
    context.call_on_close(
        lambda: os.environ.pop(name, None) if before is None else os.environ.update({name: before})
    )


_TIMEOUT = click.option(
    "--timeout",
    type=number("120"),
    metavar="SECONDS",
    expose_value=False,
    callback=_timeout,
    help="Seconds that code may take for its import, and for a call, in its process.  [default: 120]",
)
_IN_PROCESS = click.option(
    "--in-process",
    is_flag=True,
    expose_value=False,
    callback=_in_process,
    help="Call code in this process, for a debugger. What it changes here stays changed.",
)


def calling_options(command: Any) -> Any:
    """Add the options of how code is called in its process."""
    return _TIMEOUT(_IN_PROCESS(command))


length_option = click.option(
    "--length",
    type=WORD,
    metavar="WHICH",
    help="Frequencies that depend on the length, unshifted or shifted. unshifted keeps them, shifted lets "
    "the offset change them.  [default: unshifted]",
)
no_header_option = click.option("--no-header", is_flag=True, help="Rows alone, for csv and table.")
