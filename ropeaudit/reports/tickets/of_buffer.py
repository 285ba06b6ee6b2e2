"""The ticket of a RoPE buffer that was cast or is off, with a snippet that compares its values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from ropeaudit.reports import Report
from ropeaudit.reports.numbers import percent, printable, short
from ropeaudit.reports.tickets import own_source
from ropeaudit.reports.tickets.inputs import exponents, scaled, theta
from ropeaudit.reports.tickets.reproduction import NoSnippet, Snippet
from ropeaudit.reports.tickets.ticket import Ticket, reproduction
from ropeaudit.rope.setting import RopeSetting

_PRINTS = 'print("largest_error", f"{error:.3g}")'


@dataclass(frozen=True, slots=True)
class WrongBuffer:
    """A buffer and what is wrong with it, as `ropeaudit module` says it.

    spec: where it is from. built: whether `spec` is a function that was called. what: inv_freq, periods, ...
    error: the largest. finding: what explains its values. setting, against: what it was compared with.
    near: the drift of scores that it causes by itself, over their RMS, within `tokens`.
    noun: what it is called. lines: of Python, that read it out of a graph; unknown where there are none.
    """

    spec: str
    built: bool
    name: str
    what: str
    dtype: str
    cast: str
    error: float | None
    finding: str
    setting: RopeSetting | None
    against: str
    near: float | None
    tokens: int
    noun: str = "buffer"
    lines: tuple[str, ...] = ()


def ticket(one: WrongBuffer, report: Report, command: str) -> Ticket:
    """Return the ticket of a buffer. Runs the snippet."""
    off = "" if one.error is None or not math.isfinite(one.error) else f", off by up to {short(one.error)}"
    unit = " (relative)" if off and one.what in ("inv_freq", "periods") else ""
    seen = f"The {one.noun} `{one.name}` of `{one.spec}` ({one.what}) is stored in {one.dtype}{off}{unit}"
    return Ticket(
        printable(f"RoPE {one.noun} {one.name} {_cast(one)}{off}{unit}"),
        printable(f"{seen}: {one.finding.rstrip('.')}.{_moves(one)}"),
        printable(
            f"The values should be those of {one.against}, computed in float32 or wider and not rounded to a "
            "narrower format afterwards: the relative error of a frequency is that of every angle, so the "
            "error of an angle grows with the position, and no cast back restores what was rounded away. The "
            "exact values follow from the base and the dims alone, as the snippet computes them in float64."
        ),
        reproduction(lambda inline: snippet(one)),
        report,
        command,
    )


def _moves(one: WrongBuffer) -> str:
    if one.near is None:
        return ""
    share = percent(one.near)
    alone = "These values alone, with everything else exact, move attention scores by"
    return f" {alone} {share} of their RMS within {one.tokens} tokens."


def _cast(one: WrongBuffer) -> str:
    return "is not what it should be" if one.cast == "none" else f"was cast to {one.cast}"


def snippet(one: WrongBuffer) -> Snippet:
    """Return code that prints the largest error of a buffer. Raises: NoSnippet."""
    if one.setting is None or one.error is None or not math.isfinite(one.error):
        raise NoSnippet("there is nothing to compare its values with")
    if one.what not in ("inv_freq", "periods"):
        raise NoSnippet(f"its values are {one.what}")
    d = one.setting
    exact = theta(d) if one.what == "inv_freq" else f"1 / ({theta(d)})"
    lines, path = _values(one)
    return Snippet(
        (
            "import torch",
            *lines,
            f"x = {exponents(d)}",
            *scaled(d),
            f"exact = {exact}",
            "error = (values.double().flatten() / exact - 1).abs().max()",
            _PRINTS,
        ),
        "largest_error",
        one.error,
        one.name,
        path,
    )


def _values(one: WrongBuffer) -> tuple[list[str], str]:
    """Return the lines that read the buffer, and the folder of own code. Raises: NoSnippet."""
    if not one.built:
        return _stored(one), ""
    place, _, function = one.spec.rpartition(":")
    lines, folder = own_source.imported(place, function)
    prefix, _, leaf = one.name.rpartition(".")
    module = f"{function}().get_submodule({prefix!r})" if prefix else f"{function}()"
    return [*lines, f"values = {module}.{leaf}"], folder


def _stored(one: WrongBuffer) -> list[str]:
    path = Path(one.spec)
    if one.noun == "constant":
        if not one.lines:
            raise NoSnippet("it takes more than a few lines to find it in its graph")
        return list(one.lines)
    if path.suffix == ".safetensors":
        load = ["from safetensors.torch import load_file", f"values = load_file({one.spec!r})[{one.name!r}]"]
    elif path.suffix in (".pt", ".pth", ".bin"):
        load = [f"values = torch.load({one.spec!r}, weights_only=True)[{one.name!r}]"]
    elif path.suffix in (".npz", ".npy"):
        key = f"[{one.name!r}]" if path.suffix == ".npz" else ""
        load = ["import numpy", f"values = torch.from_numpy(numpy.load({one.spec!r}){key})"]
    elif (path / "model.safetensors").is_file():
        file = str(path / "model.safetensors")
        load = ["from safetensors.torch import load_file", f"values = load_file({file!r})[{one.name!r}]"]
    else:
        raise NoSnippet("its checkpoint is in several files")
    return load
