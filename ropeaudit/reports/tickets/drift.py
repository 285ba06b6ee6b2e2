"""The ticket of rows of code: the one that is worst out of tolerance, as the report says it.

Its snippet calls own code as it was fitted, third-party code as its file says, and prints the RMS of scores
minus exact ones. Lines of it define rotate(y, at) of y (h, s, d) and positions (s,).
Letters of the snippets: q, k (h, s, d), at (s,), theta (p,), rotated pairs as complex numbers.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ropeaudit.audits.records import Record
from ropeaudit.reference import exact_frequencies
from ropeaudit.reports import Report, drift, verdicts
from ropeaudit.reports.numbers import percent, short
from ropeaudit.reports.tickets.ticket import (
    NoSnippet,
    Reproduction,
    Snippet,
    Ticket,
    by_code,
    file_name,
    reproduced,
)
from ropeaudit.rope.scaled import attention_factor
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Subject, third_party
from ropeaudit.subjects.calling import signatures
from ropeaudit.subjects.calling.anew import is_module
from ropeaudit.subjects.calling.building import building_argument
from ropeaudit.subjects.calling.called import Called
from ropeaudit.subjects.calling.code import Code
from ropeaudit.subjects.calling.conventions import Convention
from ropeaudit.subjects.calling.own_code import OwnCode
from ropeaudit.subjects.factories import SubjectFactory

# axes of x -> what brings (h, s, d) there, and back
_AXES = {
    "bhsd": ("[None]", "[0]"),
    "bshd": (".transpose(0, 1)[None]", "[0].transpose(0, 1)"),
    "sbhd": (".transpose(0, 1)[:, None]", "[:, 0].transpose(0, 1)"),
    "hsd": ("", ""),
    "shd": (".transpose(0, 1)", ".transpose(0, 1)"),
}
# what a line can be written for; positions and tables at once want tables of all positions
_KNOWN = {"q", "k", "x", "positions", "offset", "cos", "sin", "freqs", "seq_dim", "head_axis", "base", "dim"}
_DTYPES = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
_NORMAL = """\
import torch
import numpy as np
generator = np.random.default_rng({seed})
def normal(*shape):  # numbers of 8 bits, which bfloat16 and float16 hold
    m, e = np.frexp(generator.standard_normal(shape))
    return torch.from_numpy(np.ldexp(np.rint(m * 256), e - 8)).half().to(torch.{dtype})
q, k = normal({heads}, {seq_len}, {head_dim}), normal({kv_heads}, {seq_len}, {head_dim})
"""


def worst(results: Sequence[Record]) -> Record | None:
    """Return the row of code that is out of tolerance, and the furthest of those that are finite."""

    def size(record: Record) -> tuple[bool, float]:
        finite = math.isfinite(record.drift_relative)
        return finite, record.drift_relative if finite else record.nonfinite

    bad = [one for one in results if one.within_tolerance == "no" and one.verdict != "refused"]
    return max((one for one in bad if one.environment is not None), key=size, default=None)


def ticket(record: Record, report: Report, factories: Sequence[SubjectFactory]) -> Ticket:
    """Return the ticket of a row of a report. Runs the snippet. factories: of the subjects of the rows."""
    single = drift.report([record], (), {})
    where = "" if record.device == "cpu" else f" on {record.device}"
    called = f"The code itself was called{where}; scores were formed from it in float64."
    said = replace(
        report,
        rows=[row for row in report.rows if row["implementation"] == record.implementation],
        headline=single.headline,
        notes=[*single.notes, called],
    )
    facts = {name: getattr(record, name) for name in single.columns}
    return Ticket(f"RoPE of {_title(record)}", said, facts, _expected(record), snippet_of(record, factories))


def snippet_of(record: Record, factories: Sequence[SubjectFactory]) -> Reproduction:
    """Return a snippet of a row that was run, or why there is none."""
    if record.within_tolerance == "no" and record.drift_relative <= record.tolerance:
        missing = (
            "the scores of one sequence do not show it, and a snippet prints nothing else: their drift, "
            f"{percent(record.drift_relative)}, is within {percent(record.tolerance)}"
        )
        return Reproduction(None, missing=missing)
    wanted = record.implementation, record.dtype, record.environment
    factory = next(one for one in factories if (one.name, one.dtype.name, one.environment) == wanted)
    subject = factory.make(record.setting, None) if record.axes == "none" else None
    try:
        return reproduced(snippet(record, subject))
    except NoSnippet as error:
        return Reproduction(None, missing=str(error))


def _title(record: Record) -> str:
    """Return the row, its verdict, its drift and the code of its diagnosis."""
    name = " ".join([file_name(record.implementation), *verdicts.under(record.environment)])
    off = f"drift {percent(record.drift_relative)} of the scores' RMS"
    if record.nonfinite:
        off = f"{record.nonfinite} of {record.scores} scores nan or infinite"
    row = f"{name} in {record.dtype} at offset {record.offset}"
    return f"{row}: {verdicts.words(record.verdict)}, {off}{by_code(record.diagnosis)}"


def _expected(record: Record) -> str:
    """Return what is right, and why, with what careful code in the dtype attains."""
    near = record.attainable_rms / record.reference_rms if record.reference_rms else math.nan
    return (
        "RoPE makes a score depend on q, k and their distance alone, so that adding an integer to every "
        "position changes nothing. The exact scores are computed from q, k and the distance; their own error "
        f"is at most {short(record.reference_error)}. Tolerated is a drift of {percent(record.tolerance)} of "
        f"their RMS. Careful code in {record.dtype} drifts by {short(record.attainable_rms)} RMS near offset "
        f"0 at {record.seq_len} tokens, {percent(near)} of the scores' RMS, by prediction."
    )


def snippet(record: Record, subject: Subject | None) -> Snippet:
    """Return code that calls what a row called and prints its drift_rms. Raises: NoSnippet."""
    if not isinstance(subject, Called):
        raise NoSnippet("it has several position axes")
    if record.nonfinite:
        raise NoSnippet("its scores are nan or infinite")
    code = subject.code
    if code.environment.kind != "none" or not code.device.is_cpu:
        raise NoSnippet(f"{verdicts.called(record)} was not called plainly on the CPU")
    lines, both, file = (
        _own(record, code) if isinstance(code, OwnCode) else (_third_party(record, code), False, "")
    )
    return Snippet(
        (
            *_given(record),
            *lines,
            *_measured(record, both),
        ),
        "drift_rms",
        record.drift_rms,
        f"{verdicts.called(record)} in {record.dtype} at offset {record.offset}",
        file,
    )


def _given(record: Record) -> list[str]:
    """Return the lines that make q, k, positions and frequencies. Raises: NoSnippet."""
    d = record.setting
    for cannot, why in (
        (record.sample, "its scores are a sample; leave out --sample"),
        (record.axes != "none", "it has several position axes"),
        (math.isfinite(d.clip), "its angles are clipped"),
        (record.dtype not in _DTYPES, f"torch has no {record.dtype}"),
        (
            record.source != "gaussian",
            f"its q and k are {record.source}, which a few lines do not make; try --qk gaussian",
        ),
    ):
        if cannot:
            raise NoSnippet(why)
    lines = _NORMAL.format(
        seed=record.seed or 0,
        dtype=record.dtype,
        heads=record.heads,
        kv_heads=record.kv_heads,
        seq_len=record.seq_len,
        head_dim=record.head_dim,
    ).splitlines()
    if record.heads != record.kv_heads:
        lines.append(f"k = k.repeat_interleave({record.heads // record.kv_heads}, 0)")
    theta = f"{d.base!r} ** (-torch.arange(0, {d.rotary_dim}, 2).double() / {d.rotary_dim})"
    if d.scaling.kind != "default":
        exact = [float(one) for one in exact_frequencies.frequencies(d)]
        theta = f"torch.tensor({exact!r}, dtype=torch.float64)  # exact, as scaled"
    return [*lines, f"at = torch.arange({record.seq_len})", f"theta = {theta}"]


def _measured(record: Record, both: bool) -> list[str]:
    """Return the lines that print the RMS of scores minus exact ones, where the mask shows them.

    The exact ones are of distances alone, in float64. both: whether rotate takes q and k and returns two.
    Raises: NoSnippet.
    """
    d, product = record.setting, "(exact[0] @ exact[1].mH).real"
    part, shifted = "y.double()", f"at + {record.offset}" if record.offset >= 0 else f"at - {-record.offset}"
    if d.rotary_dim < d.head_dim:
        part = f"{part}[..., :{d.rotary_dim}]"
        rest = [f"{y}[..., {d.rotary_dim}:].double()" for y in "qk"]
        product = f"({product} + {rest[0]} @ {rest[1]}.mT)"
    halves = f"{part}.chunk(2, -1)" if d.layout == "half" else f"{part}.unflatten(-1, (-1, 2)).unbind(-1)"
    scale = f"{d.head_dim} ** -0.5" if d.scale == 1.0 / math.sqrt(d.head_dim) else repr(d.scale)
    mask, _, width = record.mask.partition(":")
    visible = {
        "causal": "[:, at[:, None] >= at]",
        "full": "",
        "window": f"[:, (at[:, None] >= at) & (at[:, None] < at + {width})]",
    }
    if mask not in visible:
        raise NoSnippet(f"its mask is {record.mask}")
    q, k = (f"rotate({y}, {shifted}){f'[{n}]' if both else ''}" for n, y in enumerate("qk"))
    return [
        f"turn = {_factor(d)}torch.exp(1j * at[:, None] * theta)",
        f"exact = [torch.complex(*{halves}) * turn for y in (q, k)]",
        f"scores = {scale} * ({q}.double() @ {k}.double().mT)",
        f"error = scores - {scale} * {product}",
        f'print("drift_rms", f"{{error{visible[mask]}.square().mean().sqrt():.3g}}")',
    ]


def _factor(d: RopeSetting) -> str:
    """Return what multiplies cos and sin, as it stands before a product; empty for 1."""
    value = attention_factor(d.scaling)
    return "" if value == 1.0 else f"{value!r} * "


def _third_party(record: Record, code: Code) -> list[str]:
    """Return the lines that call an entry of `ropeaudit list implementations`. Raises: NoSnippet."""
    entry, d = third_party.entry_of(code.name), record.setting
    if not entry.snippet:
        raise NoSnippet(f"{code.name} is called by more than a few lines")
    if d.scaling.kind != "default":
        raise NoSnippet(f"{code.name} with the scaling {d.scaling.kind} takes more than a few lines")
    values = {
        "head_dim": d.head_dim,
        "rotary_dim": d.rotary_dim,
        "base": d.base,
        "dtype": f"torch.{record.dtype}",
        "end": record.offset + record.seq_len,
    }
    lines = list(entry.snippet)
    for key, value in values.items():
        lines = [line.replace(f"<{key}>", str(value)) for line in lines]
    return lines


def _own(record: Record, code: OwnCode) -> tuple[list[str], bool, str]:
    """Return the lines that import and call own code, whether it takes q and k, and the file imported.

    Raises: NoSnippet.
    """
    convention = code.fit(record.setting).convention
    where, _, name = code.name.rpartition(":")
    for cannot, why in (
        (convention.engine == "jax", "the code takes jax arrays"),
        (convention.engine == "numpy", "the code takes NumPy arrays"),
        (code.changes, "--set changes the tables that the code is given"),
        (
            inspect.isclass(code.thing) or (not is_module(code.thing) and signatures.is_factory(code.thing)),
            "a class is built before it is called",
        ),
        (convention.order not in _AXES, f"the code takes axes {convention.order}"),
        (convention.composed, "the code returns cos and sin"),
        (convention.headless, "the code takes k without an axis of heads"),
        (
            convention.signature.whole or not set(convention.signature.roles) <= _KNOWN,
            f"the code is called as {convention.signature}",
        ),
    ):
        if cannot:
            raise NoSnippet(why)
    lines, file = _imported(where)
    both = "k" in convention.signature.roles
    into, back = _AXES[convention.order]
    call = f"own.{name}({_arguments(record, convention)})"
    body = f"({call}[0]{back}, {call}[1]{back})" if both else f"{call}{back}"
    rows = [f"    y = y{into}"] if into else []
    return [*lines, "def rotate(y, at):", *rows, f"    return {body}"], both, file


def _imported(place: str) -> tuple[list[str], str]:
    """Return the lines that import a file or module as `own`, and the file that its reader lacks.

    Raises: NoSnippet.
    """
    path = Path(place)
    if not place.endswith(".py"):
        top = place.partition(".")[0]
        local = next((one for one in (top, f"{top}.py") if Path(one).exists()), "")
        found = ["import sys", 'sys.path.append(".")'] if local else []
        return [*found, f"import {place} as own"], local
    if not path.stem.isidentifier():
        raise NoSnippet(f"a file called {path.name} cannot be imported by its name")
    folder = f"sys.path.insert(0, {str(path.parent)!r})  # where {path.name} lies"
    return ["import sys", folder, f"import {path.stem} as own"], path.name


def _arguments(record: Record, convention: Convention) -> str:
    """Return the arguments of a call: what each role is filled with. Raises: NoSnippet."""
    parts = [
        (keyword, _argument(role, record, convention)) for keyword, role in convention.signature.arguments
    ]
    return ", ".join(value if keyword is None else f"{keyword}={value}" for keyword, value in parts)


def _argument(role: str, record: Record, convention: Convention) -> str:
    order = convention.order
    if role in ("q", "k", "x"):
        return "y"
    if role == "positions":
        return "at" if convention.rank == 1 else "at[None]"
    if role in ("cos", "sin", "freqs"):
        return _table(role, record, convention)
    numbers: dict[str, Any] = {
        "offset": "int(at[0])",
        "seq_dim": order.index("s"),
        "head_axis": order.index("h") if "h" in order else 0,
    }
    return str(numbers[role] if role in numbers else building_argument(role, record.setting))


def _table(role: str, record: Record, convention: Convention) -> str:
    """Return a table as the audit makes it: float64 rounded once to float32. Raises: NoSnippet."""
    if convention.rank > 2:
        raise NoSnippet("the code takes tables with an axis for each of x")
    factor = _factor(record.setting)
    wide = "" if record.dtype == "float64" else ".float()"
    angles = "(at[:, None] * theta)"
    if role == "freqs":
        table = f"({factor}torch.exp(1j * {angles[1:-1]}))" + ("" if not wide else ".to(torch.complex64)")
    else:
        table = f"({factor}{angles}.{role}()){wide}" if factor else f"{angles}.{role}(){wide}"
        if convention.width == "half":
            table += ".repeat(1, 2)"
        elif convention.width != "pairs":
            table += ".repeat_interleave(2, 1)"
    return table if convention.rank == 1 else f"{table}[None]"
