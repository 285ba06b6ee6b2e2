"""Options that several commands share, in groups, and the cases that they describe."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ropeaudit import data, door
from ropeaudit.console import parameters
from ropeaudit.console.parameters import TARGETS, Parsed, joined, merged, one_of
from ropeaudit.errors import UnknownName, UsageError, replacement_of
from ropeaudit.reports import FORMS, REGISTRY

if TYPE_CHECKING:
    from ropeaudit.audits.cases import Case

F = TypeVar("F", bound=Callable[..., Any])


_DESCRIBED = data.table("options.toml")
EXECUTED, ENVIRONMENTS, QK_KINDS = (
    _DESCRIBED["phrases"][name] for name in ("executed", "environments", "kinds")
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
    """Return an option that takes lists and may be repeated; its value is a tuple without duplicates.

    default: the default as it would be typed. shown: a default for --help alone, where the command must know
    whether the option was given.
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
    """Return an argument that takes names, separated by commas or spaces."""
    shown = metavar if required else f"[{metavar}]"
    return click.argument(name, metavar=shown, nargs=-1, required=required, type=TARGETS, callback=joined)


def described(flag: str, **code: Any) -> Callable[[F], F]:
    """Return an option that `data/options.toml` describes. code: attributes that are no data."""
    attributes = {name: value for name, value in _DESCRIBED[flag].items() if name != "list"} | code
    attributes["help"] = attributes["help"].format_map(_DESCRIBED["phrases"])
    if "type" in attributes:
        attributes["type"] = getattr(parameters, attributes["type"])
    if "list" in _DESCRIBED[flag]:
        return axis(flag, attributes.pop("type"), attributes.pop("help"), **attributes)
    return click.option(*flag.split(), **attributes)


under_option = described("--under")


def filled_by(decorator: Callable[[Any], Any]) -> Any:
    """Return the field of a group that an option fills."""
    return field(metadata={"option": decorator})


def option(*flags: str, **attributes: Any) -> Any:
    """Return the field of a group that a `click.option` fills."""
    return filled_by(click.option(*flags, **attributes))


def listed(flag: str, type_: Parsed[list[Any]], help_: str, **attributes: Any) -> Any:
    """Return the field of a group that an `axis` fills."""
    return filled_by(axis(flag, type_, help_, **attributes))


def described_field(flag: str) -> Any:
    """Return the field of a group that an option of `data/options.toml` fills."""
    return filled_by(described(flag))


def grouped(group: type[Any], name: str) -> Callable[[F], F]:
    """Give a command the options of a group, as one object in its parameter `name`."""

    def decorate(command: F) -> F:
        for option in reversed(fields(group)):
            command = option.metadata["option"](command)
        command.__dict__.setdefault("groups", {})[name] = group  # groups within it come first
        return command

    return decorate


def form_option(command: str = "") -> Any:
    """Return the field of -f, the form in which the report of a command is printed."""
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
    """Return the field of -o, the files of the report of a command."""
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
    """How a report is printed. color: None for colours on a terminal."""

    form: str = form_option()
    verbose: bool = described_field("-v --verbose")
    color: bool | None = option(
        "--color/--no-color",
        default=None,
        help="Colour the table or do not; by default on a terminal. NO_COLOR, FORCE_COLOR work.",
    )


@dataclass(frozen=True, slots=True)
class ReportOptions(ScreenOptions):
    """Where a report goes, and which columns. columns: empty for all."""

    outputs: tuple[str, ...] = outputs_option()
    columns: tuple[str, ...] = described_field("--columns")
    quiet: bool = described_field("-q --quiet")

    def chosen_columns(self, known: Iterable[str], hint: str = "") -> list[str]:
        """Return the requested columns. Raises: UnknownName unless all are known."""
        names = list(known)
        for name in self.columns:
            if name not in names:
                raise UnknownName("column", name, names, hint)
        return list(self.columns)

    def check_header(self, no_header: bool) -> None:
        """Raise UsageError for --no-header with a form without a header."""
        if no_header and not REGISTRY[self.form].header:
            having = [name for name in FORMS if REGISTRY[name].header]
            raise UsageError(f"--no-header goes with {' and '.join(having)}; {self.form} has no header")


@dataclass(frozen=True, slots=True)
class QKOptions:
    """Which q and k, and which scores the mask shows; empty or None if not given."""

    seq_len: tuple[int, ...] = described_field("--seq-len")
    heads: int | None = described_field("--heads")
    kv_heads: int | None = described_field("--kv-heads")
    mask: tuple[str, ...] = described_field("--mask")
    qk: tuple[str, ...] = described_field("--qk")
    seed: tuple[int, ...] = described_field("--seed")


@dataclass(frozen=True, slots=True)
class RopeOptions:
    """Which RoPE setting; empty or None if not given."""

    model: tuple[str, ...] = described_field("--model")
    config: tuple[str, ...] = described_field("--config")
    layer: tuple[str, ...] = described_field("--layer")
    head_dim: tuple[int, ...] = described_field("--head-dim")
    rotary_dim: tuple[int, ...] = described_field("--rotary-dim")
    base: tuple[float, ...] = described_field("--base")
    scaling: tuple[str, ...] = described_field("--scaling")
    clip: tuple[float, ...] = described_field("--clip")
    layout: tuple[str, ...] = described_field("--layout")
    scale: float | None = described_field("--scale")


screen_options = grouped(ScreenOptions, "screen")
report_options = grouped(ReportOptions, "output")
qk_options = grouped(QKOptions, "vectors")
rope_options = grouped(RopeOptions, "rope")

changes_option = described("--set changes", callback=merged)
recipe_option = described("--recipe")
impl_option = described("--impl")
order_option = described("--order")
dtype_option = described("--dtype")
device_option = described("--device")


def _timeout(context: click.Context, param: click.Parameter, seconds: float | None) -> None:
    if seconds is not None and not seconds > 0:
        raise UsageError(f"--timeout {seconds:g} is no time to wait; give seconds, such as 120")
    if seconds is not None:
        _set_variable(context, door.TIMEOUT, repr(seconds))


def _in_process(context: click.Context, param: click.Parameter, in_process: bool) -> None:
    if in_process:
        _set_variable(context, door.ROAD, door.IN_PROCESS)


def _set_variable(context: click.Context, name: str, value: str) -> None:
    """Set an environment variable until the command ends."""
    before = os.environ.get(name)
    os.environ[name] = value
    context.call_on_close(
        lambda: os.environ.pop(name, None) if before is None else os.environ.update({name: before})
    )


def calling_options(command: Any) -> Any:
    """Add the options of the process in which code is called."""
    in_process = described("--in-process", expose_value=False, callback=_in_process)
    return described("--timeout", expose_value=False, callback=_timeout)(in_process(command))


length_option = described("--length")
no_header_option = described("--no-header")


def _ticket_file(text: str, flag: str) -> str:
    """Parse the file name of a ticket. Raises: UsageError, UnknownName."""
    if replacement_of(flag, text):
        raise UnknownName(flag, text, ())
    if not text.strip():
        raise UsageError(f"{flag} {text!r} names no file; give one, or leave it out")
    return text


ticket_option = click.option(
    "--ticket",
    type=Parsed("file", _ticket_file),
    metavar="FILE",
    help="Write a bug report in Markdown too. Its snippet is run once.",
)


_MOST_CASES = 100_000
# fields of a case that take lists; cases are ordered by the first of them
_AXES = (
    *("qk", "seq_len", "model", "config", "layer", "scaling", "head_dim", "rotary_dim", "base", "clip"),
    *("layout", "mrope", "axes", "grid", "axis", "mask", "seed", "rerotate"),
)


def cases(rope: RopeOptions, vectors: QKOptions | None = None, **more: Any) -> list[Case]:
    """Return a case for each combination of the lists, in the order of `_AXES`.

    more: other fields of `Case`: tuples of those in `_AXES`, else values.
    Raises: UsageError, UnknownName, BadInput.
    """
    from itertools import product
    from math import prod

    from ropeaudit.audits.cases import Case, distinct, with_default_mask

    groups: list[RopeOptions | QKOptions] = [rope, vectors] if vectors else [rope]
    given = {option.name: getattr(group, option.name) for group in groups for option in fields(group)} | more
    lists: dict[str, Sequence[Any]] = {name: given.pop(name, ()) or (None,) for name in _AXES}
    count = prod(map(len, lists.values()))
    if count > _MOST_CASES:
        raise UsageError(f"these lists make {count} settings; at most {_MOST_CASES} are allowed: shorten one")
    single = {name: value for name, value in given.items() if value is not None}
    results = []
    for combination in product(*lists.values()):
        listed = zip(lists, combination, strict=True)
        own = with_default_mask({name: value for name, value in listed if value is not None})
        layer = own.pop("layer", None)
        case = Case(**own, **single)
        if layer not in (None, "all", *case.layers()) and case.declared() is not None:
            raise UnknownName("layer type", layer, case.layers(), "(or all)")
        for name in case.layers() if layer == "all" else [layer]:
            results.append(Case(**own, **single, layer=name) if name else case)
    return distinct(results)
