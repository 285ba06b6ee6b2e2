"""The snippet of code that is called: own code as it was fitted, third-party code as its file says.

The lines define rotate(y, at) of y (h, s, d) and positions (s,); x is that of `inputs`, the exponents.
"""

from __future__ import annotations

import inspect
from typing import Any

from ropeaudit.reports.tickets import own_source
from ropeaudit.reports.tickets.inputs import Setup, theta
from ropeaudit.reports.tickets.reproduction import NoSnippet
from ropeaudit.subjects import third_party
from ropeaudit.subjects.calling import conventions, signatures
from ropeaudit.subjects.calling.conventions import Convention
from ropeaudit.subjects.calling.copies import is_module
from ropeaudit.subjects.calling.own_code import Own

# axes of x -> what brings (h, s, d) there, and back
_AXES = {
    "bhsd": ("[None]", "[0]"),
    "bshd": (".transpose(0, 1)[None]", "[0].transpose(0, 1)"),
    "sbhd": (".transpose(0, 1)[:, None]", "[:, 0].transpose(0, 1)"),
    "hsd": ("", ""),
    "shd": (".transpose(0, 1)", ".transpose(0, 1)"),
}


def third_party_lines(setup: Setup, name: str) -> list[str]:
    """Return the lines that call an entry of `ropeaudit list implementations`. Raises: NoSnippet."""
    entry = third_party.entry_of(name)
    if not entry.snippet:
        raise NoSnippet(f"{name} is called by more than a few lines")
    if setup.setting.scaling.kind != "default":
        raise NoSnippet(f"{name} with the scaling {setup.setting.scaling.kind} takes more than a few lines")
    d = setup.setting
    values = {
        "head_dim": d.head_dim,
        "rotary_dim": d.rotary_dim,
        "base": d.base,
        "dtype": f"torch.{setup.dtype}",
        "end": setup.offset + setup.seq_len,
    }
    lines = list(entry.snippet)
    for key, value in values.items():
        lines = [line.replace(f"<{key}>", str(value)) for line in lines]
    return lines


def scores(setup: Setup, both: bool = False) -> str:
    """Return the scores in float64 of what the code returns: an expression."""
    q, k = (f"rotate({y}, {setup.shifted}){f'[{n}]' if both else ''}" for n, y in enumerate("qk"))
    return f"{setup.scale()}({q}.double() @ {k}.double().mT)"


def own_lines(setup: Setup, code: Own) -> tuple[list[str], bool, str]:
    """Return the lines that import and call own code, whether it takes q and k, and its folder.

    Raises: NoSnippet.
    """
    fit = code.fit(setup.setting)
    convention = fit.convention
    if convention.engine != "torch":
        raise NoSnippet(f"the code takes {'jax' if convention.engine == 'jax' else 'NumPy'} arrays")
    if code.changes:
        raise NoSnippet("--set changes the tables that the code is given")
    lines, name, folder = _imported(code, setup.inline)
    both = "k" in convention.signature.roles
    place = "" if code.device.is_cpu else f".to({code.device.name!r})"
    call = f"{name}({_arguments(setup, convention, place)})"
    if not code.device.is_cpu and is_module(code.thing):
        lines = [*lines, f"{name} = {name}{place}"]
    if convention.order not in _AXES:
        raise NoSnippet(f"the code takes axes {convention.order}")
    into, back = _AXES[convention.order]
    back += "" if code.device.is_cpu else ".cpu()"
    picked = [f"{call}[{n}]{back}" for n in (0, 1)] if both else [f"{call}{back}"]
    body = f"({', '.join(picked)})" if both else picked[0]
    rows = [f"    y = y{into}"] if into else []
    return [*lines, "def rotate(y, at):", *rows, f"    return {body}"], both, folder


def _imported(code: Own, inline: bool) -> tuple[list[str], str, str]:
    """Return the lines that bring own code, what to call, and the folder of its file. Raises: NoSnippet."""
    where, _, name = code.name.rpartition(":")
    if inspect.isclass(code.thing) or (not is_module(code.thing) and signatures.is_factory(code.thing)):
        raise NoSnippet("a class is built before it is called")
    lines, folder = own_source.imported(where, name, inline)
    return lines, name, folder


def _arguments(setup: Setup, convention: Convention, place: str) -> str:
    """Return the arguments of a call: what each role is filled with, tensors moved. Raises: NoSnippet."""
    parts = []
    for keyword, role in convention.signature.arguments:
        value = _argument(role, setup, convention)
        if place and role in ("q", "k", "x", "positions", "cos", "sin", "freqs"):
            whole = value.isidentifier() or value.endswith((")", "]"))
            value = f"{value if whole else f'({value})'}{place}"
        parts.append(value if keyword is None else f"{keyword}={value}")
    return ", ".join(parts)


def _argument(role: str, setup: Setup, convention: Convention) -> str:
    order = convention.order
    if role in ("q", "k", "x"):
        return "y"
    if role == "positions":
        return "at" if convention.rank == 1 else "at[None]"
    if role in ("cos", "sin", "freqs"):
        return _table(role, setup, convention)
    numbers: dict[str, Any] = {
        "offset": "int(at[0])",
        "seq_dim": order.index("s"),
        "head_axis": order.index("h") if "h" in order else 0,
    }
    return str(numbers[role] if role in numbers else conventions.building_argument(role, setup.setting))


def _table(role: str, setup: Setup, convention: Convention) -> str:
    """Return a table as the audit makes it: float64 rounded once to float32. Raises: NoSnippet."""
    if convention.rank > 2:
        raise NoSnippet("the code takes tables with an axis for each of x")
    wide = "" if setup.dtype == "float64" else ".float()"
    angles = f"(at[:, None] * {theta(setup.setting)})"
    if role == "freqs":
        table = f"({setup.factor}torch.exp(1j * {angles[1:-1]}))" + (
            "" if not wide else ".to(torch.complex64)"
        )
    else:
        table = f"({setup.factor}{angles}.{role}()){wide}" if setup.factor else f"{angles}.{role}(){wide}"
        if convention.width == "half":
            table += ".repeat(1, 2)"
        elif convention.width != "pairs":
            table += ".repeat_interleave(2, 1)"
    return table if convention.rank == 1 else f"{table}[None]"
