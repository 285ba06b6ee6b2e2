"""The lines of a snippet about a row of scores: q and k, the exact scores, and the number that is printed.

Letters of the snippets: q, k (h, s, d), at (s,), x and theta (p,), rotated pairs as complex numbers.
"""

from __future__ import annotations

import math

from ropeaudit.audits.records import Record
from ropeaudit.reports.tickets.reproduction import NoSnippet
from ropeaudit.rope.scaled import attention_factor, effective_base, yarn_range
from ropeaudit.rope.setting import RopeSetting

_DTYPES = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
_MASKS = {"causal": "[:, at[:, None] >= at]", "full": ""}
_NORMAL = (
    "import numpy as np",
    "generator = np.random.default_rng({seed})",
    "def normal(*shape):  # numbers of 8 bits, which bfloat16 and float16 hold",
    "    m, e = np.frexp(generator.standard_normal(shape))",
    "    return torch.from_numpy(np.ldexp(np.rint(m * 256), e - 8)).half().to(torch.{dtype})",
)


def begin(record: Record) -> list[str]:
    """Return the lines that make q, k, positions and frequencies. Raises: NoSnippet."""
    d = record.setting
    for cannot, why in (
        (record.sample, "its scores are a sample; leave out --sample"),
        (record.axes != "none", "it has several position axes"),
        (math.isfinite(d.clip), "its angles are clipped"),
        (record.dtype not in _DTYPES, f"torch has no {record.dtype}"),
    ):
        if cannot:
            raise NoSnippet(why)
    lines = _vectors(record)
    if record.heads != record.kv_heads:
        lines.append(f"k = k.repeat_interleave({record.heads // record.kv_heads}, 0)")
    lines.append(f"at, x = torch.arange({record.seq_len}), {exponents(d)}")
    return [*lines, *scaled(d)]


def _vectors(record: Record) -> list[str]:
    """Return the lines that make the q and k of a row. Raises: NoSnippet."""
    dtype, source, size = f"torch.{record.dtype}", record.source, f"{record.seq_len}, {record.head_dim}"
    kinds = {
        "gaussian": "normal({shape})",
        "randn": f"torch.randn({{shape}}).bfloat16().half().to({dtype})",
        "ones": f"torch.ones({{shape}}, dtype={dtype})",
        "arange": f"torch.arange({record.head_dim}).expand({{shape}}).to({dtype})",
    }
    if source not in kinds:
        raise NoSnippet(f"its q and k are {source}, which a few lines do not make; try --qk gaussian")
    first = {
        "gaussian": [line.format(seed=record.seed or 0, dtype=record.dtype) for line in _NORMAL],
        "randn": [f"torch.manual_seed({record.seed or 0})"],
    }
    q, k = (kinds[source].format(shape=f"{heads}, {size}") for heads in (record.heads, record.kv_heads))
    return [*first.get(source, []), f"q = {q}", f"k = {k}"]


def exact(record: Record) -> str:
    """Return the line of q and k rotated exactly: by distances alone, in float64."""
    d = record.setting
    part = "y.double()" if d.rotary_dim == d.head_dim else f"y.double()[..., :{d.rotary_dim}]"
    halves = f"{part}.chunk(2, -1)" if d.layout == "half" else f"{part}.unflatten(-1, (-1, 2)).unbind(-1)"
    turn = f"{factor(d)}torch.exp(1j * at[:, None] * {theta(d)})"
    return f"exact = [torch.complex(*{halves}) * {turn} for y in (q, k)]"


def end(record: Record, scores: str) -> list[str]:
    """Return the lines that print the RMS of scores minus exact ones, where the mask shows them."""
    d, product = record.setting, "(exact[0] @ exact[1].mH).real"
    if d.rotary_dim < d.head_dim:
        rest = [f"{y}[..., {d.rotary_dim}:].double()" for y in "qk"]
        product = f"({product} + {rest[0]} @ {rest[1]}.mT)"
    error = f"error = scores - {scale(d)}{product}"
    number = f"error{_visible(record.mask)}.square().mean().sqrt()"
    return [f"scores = {scores}", error, f'print("drift_rms", f"{{{number}:.3g}}")']


def factor(d: RopeSetting) -> str:
    """Return what multiplies cos and sin, as it stands before a product; empty for 1."""
    value = attention_factor(d.scaling)
    return "" if value == 1.0 else f"{value!r} * "


def scale(d: RopeSetting) -> str:
    """Return the softmax scale, as it stands before a product."""
    usual = d.scale == 1.0 / math.sqrt(d.head_dim)
    return f"{d.head_dim} ** -0.5 * " if usual else f"{d.scale!r} * "


def _visible(mask: str) -> str:
    """Return the index that takes of scores what the mask shows. Raises: NoSnippet."""
    if mask in _MASKS:
        return _MASKS[mask]
    kind, _, width = mask.partition(":")
    if kind != "window":
        raise NoSnippet(f"its mask is {mask}")
    return f"[:, (at[:, None] >= at) & (at[:, None] < at + {width})]"


def exponents(d: RopeSetting) -> str:
    """Return 2i/d of each pair: an expression, x of the others."""
    return f"torch.arange(0, {d.rotary_dim}, 2).double() / {d.rotary_dim}"


def theta(d: RopeSetting) -> str:
    """Return the frequencies, exact up to float64: an expression of x."""
    power = f"{effective_base(d)!r} ** -x"
    return f"scaled({power})" if d.scaling.rules.rescales else power


def scaled(d: RopeSetting) -> list[str]:
    """Return the line of a function that scales frequencies; none where they are not. Raises: NoSnippet."""
    return [_scaled(d)] if d.scaling.rules.rescales else []


def _scaled(d: RopeSetting) -> str:
    """Return the line of a function that scales frequencies. Raises: NoSnippet."""
    s, stretch = d.scaling, d.scaling.stretch
    if s.kind == "linear":
        return f"def scaled(t): return t / {stretch!r}"
    if s.kind == "yarn":
        low, high = yarn_range(d)
        ramp = f"(({d.pairs} * x - {low!r}) / {high - low!r}).clamp(0, 1)"
        return f"def scaled(t): return t * (1 - (1 - 1 / {stretch!r}) * {ramp})"
    if s.kind == "llama3":
        slow, fast, factor = s.low or 1.0, s.high or 1.0, s.factor or 1.0
        if slow >= fast:
            turns = f"{s.original!r} * t / (2 * torch.pi)"
            return f"def scaled(t): return torch.where({turns} < {slow!r}, t / {factor!r}, t)"
        smooth = f"(({s.original!r} * t / (2 * torch.pi) - {slow!r}) / {fast - slow!r}).clamp(0, 1)"
        return f"def scaled(t): return t * (1 / {factor!r} + (1 - 1 / {factor!r}) * {smooth})"
    raise NoSnippet(f"the scaling {s.kind} takes more than a few lines")
