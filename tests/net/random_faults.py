"""Kernels with one or two faults drawn at random, and right ones, written apart from what recognises them.

Nothing of ropeaudit is imported. A kernel is a rotation (`Rotation`) that is right until a fault changes a
field of it; frequencies and scalings are written here from their papers. A case is drawn from a seed, and
drawn again until each of its faults shows in what the kernel returns, beside the other one too.
Letters: b batch, h heads, s positions, d head_dim, p pairs.
"""

from __future__ import annotations

import functools
import math
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

FORMATS = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}
PRECISION = {"fp64": 53, "fp32": 24, "fp16": 11, "bf16": 8}
LENGTH, BATCH, ROW_STEP = 96, 2, 7  # positions of a call, its batch, tokens from one row of it to the next
TABLE = 2**12  # rows of a stored table
PUBLISHED = (1e4, 1e5, 1.6e5, 5e5, 1e6)
IN_BOTH = "the first in q, the second in k"
SHOWS = 4.0  # how many times the error of careful code a fault has to make

Move: TypeAlias = Callable[[Tensor], Tensor]  # of positions, (s,) or (b, s)


@dataclass(frozen=True)
class Rope:
    """What is asked for. scaling: its kind and its parameters, empty for none."""

    head_dim: int
    rotary_dim: int
    base: float
    layout: str
    scaling: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return str(self.scaling.get("kind", "none"))

    def frequencies(self, denominator: float | None = None) -> np.ndarray:
        """Radians per token of each pair, scaled, in float64."""
        exponents = np.arange(0, self.rotary_dim, 2) / (denominator or self.rotary_dim)
        theta = self.base**-exponents
        if self.kind == "linear":
            return theta / self.scaling["factor"]
        if self.kind == "llama3":
            return self._llama3(theta)
        return self._yarn(theta) if self.kind == "yarn" else theta

    def _llama3(self, theta: np.ndarray) -> np.ndarray:
        """As Llama 3.1's reference code has it, with low_freq_factor 1 and high_freq_factor 4."""
        factor, original = self.scaling["factor"], self.scaling["original"]
        wavelength = 2 * math.pi / theta
        smooth = (original / wavelength - 1) / 3
        blended = (1 - smooth) * theta / factor + smooth * theta
        long, short = wavelength > original, wavelength < original / 4
        return np.where(long, theta / factor, np.where(short, theta, blended))

    def _yarn(self, theta: np.ndarray) -> np.ndarray:
        """Equations 20 to 23 of arXiv 2309.00071, borders truncated as its code does."""
        factor, original, d = self.scaling["factor"], self.scaling["original"], self.rotary_dim

        def border(turns: float) -> float:
            return d * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(self.base))

        low, high = max(math.floor(border(32)), 0), min(math.ceil(border(1)), d - 1)
        ramp = np.clip((np.arange(d // 2) - low) / max(high - low, 0.001), 0, 1)
        return theta / factor * ramp + theta * (1 - ramp)

    @property
    def attention_factor(self) -> float:
        return 0.1 * math.log(self.scaling["factor"]) + 1 if self.kind == "yarn" else 1.0

    def scaling_text(self) -> str:
        """Return the scaling as options of a command spell it."""
        if not self.scaling:
            return "default"
        given = dict(self.scaling) | ({"low": 1, "high": 4} if self.kind == "llama3" else {})
        return f"{given.pop('kind')}:" + ",".join(f"{name}={value}" for name, value in given.items())


@dataclass(frozen=True)
class Rotation:
    """How a kernel rotates; a fault changes one field.

    denominator: of the exponents, None for rotary_dim. moves: what is done to positions. formats: stage ->
    format that it is rounded to. direction: -1 where sin has the other sign. turns: how often it rotates.
    factor: on the vectors. attention: on cos and sin, None for the setting's. swapped: "cos" for cos and sin,
    "pair" for the halves. writing, powers, product: how the rotation, frequencies without a scaling and
    angles are spelled. in_dtype: cos, sin and every operation in the dtype of x. stored: cos and sin are rows
    of a table.
    """

    rope: Rope
    denominator: float | None = None
    moves: tuple[Move, ...] = ()
    formats: tuple[tuple[str, str], ...] = ()
    direction: int = 1
    turns: int = 1
    factor: float = 1.0
    attention: float | None = None
    swapped: tuple[str, ...] = ()
    writing: str = "split"
    powers: str = "rounded"
    product: str = "outer"
    in_dtype: bool = False
    wide: bool = False
    stored: bool = False

    def rounded(self, stage: str, value: Tensor) -> Tensor:
        """Round to the format of a stage, if it has one."""
        fmt = dict(self.formats).get(stage)
        return value.to(FORMATS[fmt]).to(value.dtype) if fmt else value

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        """Return x (b, h, s, d) rotated at positions (s,) or (b, s)."""
        compute = torch.float64 if self.wide or x.dtype == torch.float64 else torch.float32
        for move in self.moves:
            positions = move(positions)
        if self.stored:
            tables = self.tables(torch.arange(TABLE), compute)
            cos, sin = (table[positions] for table in tables)
        else:
            cos, sin = self.tables(positions, compute)
        if positions.ndim == 2:
            cos, sin = cos[:, None], sin[:, None]
        y = self.rounded("input", x)
        for _ in range(self.turns):
            y = self.rotated(y, cos, sin)
        return (y * self.factor if self.factor != 1 else y).to(x.dtype)

    def tables(self, positions: Tensor, compute: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cos and sin of each position and pair."""
        theta = torch.from_numpy(self.rope.frequencies(self.denominator)).to(compute)
        if self.powers in POWERS and not self.rope.scaling:
            r = self.rope.rotary_dim
            theta = POWERS[self.powers](self.rope.base, torch.arange(0, r, 2, dtype=compute) / r)
        at = self.rounded("position", positions.to(compute))
        angles = self.rounded("angle", PRODUCTS[self.product](at, self.rounded("frequency", theta)))
        scale = self.rope.attention_factor if self.attention is None else self.attention
        cos, sin = (self.rounded("table", f(angles) * scale) for f in (torch.cos, torch.sin))
        return (sin, cos) if "cos" in self.swapped else (cos, self.direction * sin)

    def rotated(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return x with its first rotary_dim dims rotated."""
        narrow = dict(self.formats).get("rotation")
        inner = FORMATS[narrow] if narrow else x.dtype if self.in_dtype else cos.dtype
        part, rest = x[..., : self.rope.rotary_dim], x[..., self.rope.rotary_dim :]
        a, b = (half.to(inner) for half in self.split(part))
        cos, sin = cos.to(inner), sin.to(inner)
        if self.writing == "complex" and inner in (torch.float32, torch.float64):
            pairs = torch.complex(a, b) * torch.complex(cos.expand_as(a), sin.expand_as(a))
            a, b = pairs.real, pairs.imag
        elif self.writing == "rotate_half":
            a, b = a * cos + -b * sin, b * cos + a * sin
        elif self.writing == "fused":
            a, b = torch.addcmul(a * cos, -b, sin), torch.addcmul(b * cos, a, sin)
        elif self.writing == "einsum":
            matrix = torch.stack([torch.stack([cos, -sin], -1), torch.stack([sin, cos], -1)], -2)
            pairs = torch.stack([a, b], -1)
            a, b = torch.einsum("...pij,...pj->...pi", matrix.expand(*a.shape, 2, 2), pairs).unbind(-1)
        else:
            a, b = a * cos - b * sin, a * sin + b * cos
        return torch.cat([self.joined(b, a) if "pair" in self.swapped else self.joined(a, b), rest], -1)

    def split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        first, second = (x[..., 0::2], x[..., 1::2]) if self.rope.layout == "interleaved" else x.chunk(2, -1)
        return first, second

    def joined(self, a: Tensor, b: Tensor) -> Tensor:
        """Join the two numbers of each pair."""
        if self.rope.layout == "interleaved":
            return torch.stack([a, b], -1).flatten(-2)
        return torch.cat([a, b], -1)


# Of a right kernel: how the rotation, the powers of the base and the angles may be written.
WRITINGS = ("split", "rotate_half", "complex", "fused", "einsum")
POWERS: dict[str, Callable[[float, Tensor], Tensor]] = {
    "inverse": lambda base, x: 1.0 / base**x,
    "negative": lambda base, x: base**-x,
    "exp": lambda base, x: torch.exp(-math.log(base) * x),
    "exp2": lambda base, x: torch.exp2(-math.log2(base) * x),
}
PRODUCTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "outer": lambda at, theta: at[..., None] * theta,
    "einsum": lambda at, theta: torch.einsum("...,p->...p", at, theta),
    "matmul": lambda at, theta: at[..., None] @ theta[None],
}


@dataclass(frozen=True)
class Call:
    """How a kernel is called. style: "x" or "qk"; rows: it takes positions of each batch element."""

    dtype: str
    offset: int
    heads: int
    kv_heads: int
    style: str
    rows: bool

    @property
    def last(self) -> int:
        """The largest position that it may be given."""
        return self.offset + LENGTH - 1 + ROW_STEP * (BATCH - 1) * self.rows


@dataclass(frozen=True)
class Fault:
    """What is wrong, in words, the codes that name it, and what it changes.

    state, noise, swaps: what a kernel does beside its rotation. alike: it keeps the attention factor.
    """

    kind: str
    words: str
    codes: frozenset[str]
    change: Callable[[Rotation], Rotation] = lambda rotation: rotation
    state: str = ""
    noise: bool = False
    swaps: bool = False
    alike: bool = False


@dataclass(frozen=True)
class Case:
    """A kernel drawn from a seed. make: an instance without a past. where: in which part of q and k it is."""

    seed: int
    rope: Rope
    call: Call
    faults: tuple[Fault, ...]
    where: str
    make: Callable[[], Instance]

    @property
    def words(self) -> str:
        faults = " + ".join(fault.words for fault in self.faults)
        return f"{faults} ({self.where})" if self.where != "everywhere" else faults


# Faults. Each function draws one for a setting and a call; None where there is none that could show.

Draw: TypeAlias = np.random.Generator
Maker: TypeAlias = Callable[[Draw, Rope, Call], Fault | None]
MAKERS: dict[str, Maker] = {}


def maker(kind: str) -> Callable[[Maker], Maker]:
    """Register what draws a kind of fault."""

    def registered(make: Maker) -> Maker:
        MAKERS[kind] = make
        return make

    return registered


def chosen(draw: Draw, *choices: Any) -> Any:
    """Draw one of some."""
    return choices[int(draw.integers(len(choices)))]


def fault(kind: str, words: str, *also: str, **changed: Any) -> Fault:
    """Return the fault of other fields of a rotation. also: other codes of the same numbers."""
    return Fault(kind, words, frozenset({kind, *also}), lambda rotation: replace(rotation, **changed))


def of_rope(kind: str, words: str, change: Callable[[Rope], Rope]) -> Fault:
    """Return the fault of computing with another setting."""
    return Fault(
        kind, words, frozenset({kind}), lambda rotation: replace(rotation, rope=change(rotation.rope))
    )


def of_positions(kind: str, words: str, move: Move) -> Fault:
    """Return the fault of taking other positions."""
    return Fault(
        kind, words, frozenset({kind}), lambda rotation: replace(rotation, moves=(*rotation.moves, move))
    )


def always(one: Fault) -> None:
    """Register a fault that is the same for every setting and call."""
    MAKERS[one.kind] = lambda draw, rope, call: one


def rounding(stage: str, *also: str) -> None:
    """Register the fault of a stage in a narrow format. also: other codes of the same numbers."""
    exact = stage in ("position", "frequency", "angle")  # these belong into float32 whatever the dtype
    name = {"position": "positions", "frequency": "frequencies", "angle": "angles"}.get(stage, stage)
    code = f"narrow-{name}"

    def make(draw: Draw, rope: Rope, call: Call) -> Fault | None:
        most = min(PRECISION[call.dtype], 24) if not exact else PRECISION["fp32"]
        if call.dtype == "fp64":
            most = 53
        formats = [name for name in FORMATS if PRECISION[name] < most]
        if stage in ("position", "angle") and call.last > 60000 and "fp16" in formats:
            formats.remove("fp16")  # overflows
        if not formats:
            return None
        fmt = chosen(draw, *formats)
        return Fault(
            code,
            f"{name} in {fmt}",
            frozenset({code, *also}),
            lambda rotation: replace(rotation, formats=(*rotation.formats, (stage, fmt))),
        )

    MAKERS[code] = make


rounding("position")
rounding("frequency")
rounding("angle")
rounding("table")
rounding("rotation", "narrow-output")  # all of it is rounded, the result last
rounding("input")


@maker("missing-scaling")
def _missing(draw: Draw, rope: Rope, call: Call) -> Fault | None:
    if not rope.scaling:
        return None
    return of_rope("missing-scaling", f"no {rope.kind} scaling", lambda rope: replace(rope, scaling={}))


@maker("other-scaling")
def _other_scaling(draw: Draw, rope: Rope, call: Call) -> Fault | None:
    if not rope.scaling:
        return None
    name = chosen(draw, *(name for name in rope.scaling if name != "kind"))
    value = rope.scaling[name] * chosen(draw, 0.25, 0.5, 2, 4)
    if name == "factor" and value <= 1:
        return None
    words = f"{rope.kind} {name} {value:g} instead of {rope.scaling[name]:g}"
    return of_rope("other-scaling", words, lambda rope: replace(rope, scaling={**rope.scaling, name: value}))


@maker("wrong-base")
def _base(draw: Draw, rope: Rope, call: Call) -> Fault | None:
    base = chosen(draw, *PUBLISHED, float(f"{10 ** draw.uniform(3.5, 6.5):.3g}"))
    if abs(math.log(base / rope.base)) < 0.03:
        return None
    words = f"base {base:g} instead of {rope.base:g}"
    return of_rope("wrong-base", words, lambda rope: replace(rope, base=base))


@maker("exponent-denominator")
def _exponents(draw: Draw, rope: Rope, call: Call) -> Fault | None:
    dims = chosen(draw, rope.head_dim, rope.rotary_dim - 2, 128)
    if dims == rope.rotary_dim:
        return None
    return fault(
        "exponent-denominator", f"exponents over {dims} instead of {rope.rotary_dim}", denominator=dims
    )


@maker("wrong-layout")
def _layout(draw: Draw, rope: Rope, call: Call) -> Fault | None:
    other = "half" if rope.layout == "interleaved" else "interleaved"
    return of_rope("wrong-layout", f"{other} pairs", lambda rope: replace(rope, layout=other))


@maker("partial-rotation")
def _partial(draw: Draw, rope: Rope, call: Call) -> Fault | None:
    dims = chosen(draw, rope.head_dim, rope.head_dim // 2, rope.head_dim // 4 // 2 * 2)
    if dims == rope.rotary_dim:
        return None
    words = f"{dims} of {rope.head_dim} dims rotated instead of {rope.rotary_dim}"
    return of_rope("partial-rotation", words, lambda rope: replace(rope, rotary_dim=dims))


@maker("attention-factor")
def _attention(draw: Draw, rope: Rope, call: Call) -> Fault | None:
    if rope.attention_factor == 1:
        return None
    seen = chosen(draw, 1.0, rope.attention_factor**2)
    words = f"attention factor {seen:.4g} instead of {rope.attention_factor:.4g}"
    return fault("attention-factor", words, attention=seen)


@maker("scaled-vectors")
def _scaled(draw: Draw, rope: Rope, call: Call) -> Fault | None:
    factor = chosen(draw, 1 / math.sqrt(rope.head_dim), 0.5, 2.0, float(f"{draw.uniform(0.3, 3):.3g}"))
    same = ["attention-factor"] if rope.rotary_dim == rope.head_dim else []  # no dims tell them apart
    return fault("scaled-vectors", f"vectors times {factor:.4g}", *same, factor=factor)


@maker("positions-off")
def _off(draw: Draw, rope: Rope, call: Call) -> Fault | None:
    by = chosen(draw, 1, -1, 2, int(draw.integers(3, 200)), -int(draw.integers(2, 200)))
    if call.offset + by < 0:
        return None
    return of_positions("positions-off", f"positions {by:+d}", lambda at: at + by)


always(of_positions("positions-from-0", "positions from 0", lambda at: at - at[..., :1]))
always(of_positions("positions-reversed", "positions in reverse order", lambda at: at.flip(-1)))
always(of_positions("first-position-only", "the first position alone", lambda at: at[..., :1] + 0 * at))


@maker("positions-of-another-row")
def _row_0(draw: Draw, rope: Rope, call: Call) -> Fault | None:
    def row_0(at: Tensor) -> Tensor:
        return at[:1].expand_as(at) if at.ndim == 2 else at

    return of_positions("positions-of-another-row", "positions of row 0", row_0) if call.rows else None


@maker("wrap")
def _wrap(draw: Draw, rope: Rope, call: Call) -> Fault | None:
    size = chosen(draw, 256, 1000, 2048, 4096, 5000, 8192, 32768, 65536, call.offset + LENGTH // 2)
    if size < 2 * LENGTH or call.offset % size == 0:  # as blocks that restart, and as positions from 0
        return None
    return of_positions("wrap", f"positions that wrap at {size}", lambda at: at % size)


@maker("table-ends")
def _ends(draw: Draw, rope: Rope, call: Call) -> Fault | None:
    size = chosen(draw, 512, 1000, 2048, 4096, 5000, 8192, 32768, 65536, call.offset + LENGTH // 2)
    return of_positions("table-ends", f"a table of {size} rows, clamped", lambda at: at.clamp(max=size - 1))


@maker("restart")
def _restart(draw: Draw, rope: Rope, call: Call) -> Fault | None:
    size = chosen(draw, 16, 32, 64, int(draw.integers(10, LENGTH - 10)))
    words = f"positions that restart every {size}"
    return of_positions("restart", words, lambda at: at[..., :1] + (at - at[..., :1]) % size)


always(of_positions("integer-width", "positions in int16", lambda at: at.to(torch.int16).long()))
always(fault("no-rotation", "no rotation", turns=0))
always(fault("wrong-direction", "the other direction", direction=-1))
always(fault("rotated-twice", "rotated twice", turns=2))


@maker("q-k-swapped")
def _q_k(draw: Draw, rope: Rope, call: Call) -> Fault | None:
    if call.style != "qk" or call.heads != call.kv_heads:
        return None
    return Fault("q-k-swapped", "q and k swapped", frozenset({"q-k-swapped"}), swaps=True)


def _swapped(part: str) -> Callable[[Rotation], Rotation]:
    return lambda rotation: replace(rotation, swapped=(*rotation.swapped, part))


always(Fault("cos-sin-swapped", "cos and sin swapped", frozenset({"cos-sin-swapped"}), _swapped("cos")))
always(Fault("halves-swapped", "halves of a pair swapped", frozenset({"halves-swapped"}), _swapped("pair")))
always(Fault("random", "random results", frozenset({"random"}), noise=True))


@maker("state-left")
def _state(draw: Draw, rope: Rope, call: Call) -> Fault | None:
    if not call.offset:  # nothing is called before it
        return None
    kept = chosen(draw, "by shape", "longest", *(["calls"] if call.style == "qk" else []))
    words = {
        "by shape": "the table of the first call of a length",
        "longest": "the table of the first call",
        "calls": "positions that count calls",
    }
    return Fault("state-left", words[kept], frozenset({"state-left"}), state=kept)


# Which two faults go together.

_LEFT_OUT = tomllib.loads(Path(__file__).with_name("random_faults.toml").read_text(encoding="utf-8"))


def left_out(first: str, second: str) -> str:
    """Return why two kinds of faults are not combined in the same vectors; empty where they are."""
    for kind in (first, second):
        if kind in _LEFT_OUT["alone"]:
            return str(_LEFT_OUT["alone"][kind])
    return next((why for why, group in _LEFT_OUT["apart"].items() if {first, second} <= set(group)), "")


# Drawing.


def draw_rope(draw: Draw) -> Rope:
    """Draw a setting."""
    head_dim = chosen(draw, 32, 48, 64, 80, 96, 128)
    rotary_dim = head_dim // chosen(draw, 1, 1, 2, 4) // 2 * 2
    base = chosen(draw, 1e4, 1e5, 5e5, 1e6, float(f"{10 ** draw.uniform(4, 6):.4g}"))
    scaling = chosen(
        draw,
        {},
        {},
        {"kind": "linear", "factor": chosen(draw, 2.0, 2.5, 4.0, 8.0)},
        {"kind": "llama3", "factor": chosen(draw, 8.0, 32.0), "original": chosen(draw, 4096, 8192)},
        {
            "kind": "yarn",
            "factor": chosen(draw, 4.0, 16.0, 40.0),
            "original": chosen(draw, 2048, 4096, 32768),
        },
    )
    return Rope(head_dim, rotary_dim, base, chosen(draw, "half", "interleaved"), scaling)


def draw_call(draw: Draw) -> Call:
    """Draw a dtype, an offset, heads and a signature."""
    dtype = chosen(draw, *["fp32", "fp16", "bf16"] * 5, "fp64")
    offset = chosen(draw, 0, 300, 1000, 4000, 5000, 20000, 32768, 40000, 100000)
    offset += int(draw.integers(100)) if offset and draw.random() < 0.7 else 0
    kv_heads = chosen(draw, 1, 2, 4)
    return Call(
        dtype,
        offset,
        kv_heads * chosen(draw, 1, 1, 2),
        kv_heads,
        chosen(draw, "x", "qk"),
        draw.random() < 0.4,
    )


def draw_rotation(draw: Draw, rope: Rope, call: Call) -> Rotation:
    """Draw a right way to write the rotation."""
    return Rotation(
        rope,
        writing=chosen(draw, "split", "rotate_half", "complex"),
        in_dtype=draw.random() < 0.25,
        wide=draw.random() < 0.25,
        stored=call.last < TABLE - 1000 and draw.random() < 0.3,
    )


def draw_where(draw: Draw, call: Call, faults: tuple[Fault, ...]) -> str:
    """Draw in which part of q and k the faults are."""
    if any(fault.noise or fault.state or fault.swaps for fault in faults):
        return "everywhere"
    if len(faults) == 2 and call.style == "qk" and draw.random() < 0.4:
        return IN_BOTH
    choices = ["row 1 alone"]
    if call.style == "qk":
        choices += ["k alone", "q alone"]
    if call.heads > 1:
        choices.append("odd heads")
    return chosen(draw, *choices) if draw.random() < 0.35 else "everywhere"


def kernel(
    rotation: Rotation,
    call: Call,
    faults: tuple[Fault, ...],
    where: str,
) -> Callable[[], Instance]:
    """Return what makes an instance of a kernel with some faults."""
    wrong = {"q": rotation, "k": rotation}
    for index, fault in enumerate(faults):
        for side in wrong:
            if where == IN_BOTH and side != ("q", "k")[index]:
                continue
            if not where.endswith(" alone") or where[0] not in "qk" or where[0] == side:
                wrong[side] = fault.change(wrong[side])

    def turned(side: str, x: Tensor, at: Tensor) -> Tensor:
        result = wrong[side](x, at)
        if where in ("row 1 alone", "odd heads"):
            right = rotation(x, at)
            part = (slice(1, None),) if where == "row 1 alone" else (slice(None), slice(1, None, 2))
            right[part] = result[part]
            return right
        return result

    noise = np.random.default_rng(0)  # of all instances: no two calls are alike
    return lambda: Instance(turned, call.style, faults, noise)


class Instance:
    """One instance of a kernel, called with (x, positions) or (q, k, positions)."""

    def __init__(
        self,
        turned: Callable[[str, Tensor, Tensor], Tensor],
        style: str,
        faults: tuple[Fault, ...],
        noise: Draw,
    ) -> None:
        self.turned, self.style = turned, style
        self.swaps = any(fault.swaps for fault in faults)
        self.noise = noise if any(fault.noise for fault in faults) else None
        self.state = "".join(fault.state for fault in faults)
        self.kept: dict[Any, Tensor] = {}
        self.calls = 0

    def __call__(self, *given: Tensor) -> Any:
        *vectors, at = given
        at = self.seen(at)
        results = [self.noisy(self.turned(side, x, at)) for side, x in zip("qk", vectors, strict=False)]
        if self.swaps:
            results.reverse()
        return tuple(results) if self.style == "qk" else results[0]

    def seen(self, at: Tensor) -> Tensor:
        """Return the positions that it takes for those that it is given, for what it kept."""
        if self.state == "calls":
            self.calls += 1
            return at + 16 * (self.calls - 1)
        if self.state == "by shape":
            return self.kept.setdefault(at.shape, at)
        if self.state == "longest":
            if not self.kept or self.kept[0].shape[-1] < at.shape[-1] or self.kept[0].ndim != at.ndim:
                self.kept[0] = at
            return self.kept[0][..., : at.shape[-1]]
        return at

    def noisy(self, x: Tensor) -> Tensor:
        """Return x with random numbers in some of its positions."""
        if self.noise is None:
            return x
        places = self.noise.random(x.shape[-2]) < 0.2
        places[int(self.noise.integers(x.shape[-2]))] = True
        x[..., torch.from_numpy(places), :] += torch.from_numpy(self.noise.standard_normal(1)).to(x.dtype)
        return x


# Whether a fault shows.


def vectors(call: Call, rope: Rope) -> tuple[Tensor, Tensor]:
    """Return q and k of a call."""
    return _normal(0, call.heads, rope.head_dim, call.dtype), _normal(
        1, call.kv_heads, rope.head_dim, call.dtype
    )


@functools.cache
def _normal(side: int, heads: int, head_dim: int, dtype: str) -> Tensor:
    numbers = np.random.default_rng([heads, head_dim, side])
    return torch.from_numpy(numbers.standard_normal((BATCH, heads, LENGTH, head_dim))).to(FORMATS[dtype])


def answers(make: Callable[[], Instance], call: Call, rope: Rope) -> list[np.ndarray]:
    """Return q and k as a kernel rotates them at the offset, called at 0 before; by rows too."""
    q, k = vectors(call, rope)
    results: list[np.ndarray] = []
    for step in (0, ROW_STEP)[: 1 + call.rows]:
        instance = make()
        for offset in (0, call.offset) if instance.state else (call.offset,):
            at = torch.arange(LENGTH) + offset
            if step:
                at = at + step * torch.arange(BATCH)[:, None]
            both = instance(q.clone(), k.clone(), at) if call.style == "qk" else None
            rotated = both or tuple(instance(x.clone(), at) for x in (q, k))
        results += [x.double().numpy() for x in rotated]
    return results


def pairs_of(x: np.ndarray, rope: Rope) -> np.ndarray:
    """Return pairs as complex numbers, those of the dims that are not rotated last."""
    part, rest = x[..., : rope.rotary_dim], x[..., rope.rotary_dim :]
    half = rope.rotary_dim // 2
    if rope.layout == "interleaved":
        z = part[..., 0::2] + 1j * part[..., 1::2]
    else:
        z = part[..., :half] + 1j * part[..., half:]
    return np.concatenate([z, rest[..., 0::2] + 1j * rest[..., 1::2]], -1)


def exactly(call: Call, rope: Rope) -> list[np.ndarray]:
    """Return q and k rotated in float64, one call or one by rows too. Shapes: (b, h, s, p + r)."""
    results = []
    unturned = (rope.head_dim - rope.rotary_dim) // 2
    for step in (0, ROW_STEP)[: 1 + call.rows]:
        at = call.offset + np.arange(LENGTH) + step * np.arange(BATCH)[:, None]
        turn = rope.attention_factor * np.exp(1j * at[..., None] * rope.frequencies())
        turn = np.concatenate([turn, np.ones((*at.shape, unturned))], -1)[:, None]
        results += [pairs_of(x.double().numpy(), rope) * turn for x in vectors(call, rope)]
    return results


def distance(
    first: list[np.ndarray],
    second: list[np.ndarray],
    call: Call,
    rope: Rope,
    sides: str,
) -> float:
    """Return the largest distance of two pairs over what careful code may be off by; inf for nan.

    Careful code has a few roundings of the dtype, and float32 frequencies and angles.
    """
    at = call.offset + np.arange(LENGTH)
    unit = 2.0 ** -PRECISION[call.dtype]
    inner = 2.0**-53 if call.dtype == "fp64" else 2.0**-24
    angles = np.zeros((LENGTH, rope.head_dim // 2))
    angles[:, : rope.rotary_dim // 2] = at[:, None] * rope.frequencies()
    allowed = 8 * unit + np.minimum(angles * inner * (20 + rope.rotary_dim), 2)
    given = [np.abs(pairs_of(x.double().numpy(), rope)) for x in vectors(call, rope)]
    over = 0.0
    for index, (a, b) in enumerate(zip(first, second, strict=True)):
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            return math.inf
        if "qk"[index % 2] in sides:
            over = max(over, float((np.abs(a - b) / (allowed * given[index % 2])).max()))
    return over


_SCALINGS = ("missing-scaling", "other-scaling")


def _of_frequencies(fault: Fault, rope: Rope) -> Fault:
    """Return another scaling with the attention factor that is asked for, which alone has another name."""
    if fault.kind not in _SCALINGS:
        return fault
    change = fault.change
    return replace(
        fault, alike=True, change=lambda rotation: replace(change(rotation), attention=rope.attention_factor)
    )


def shown(rotation: Rotation, call: Call, faults: tuple[Fault, ...], where: str) -> bool:
    """Return whether each fault shows: alone against the exact rotation, and beside the other."""
    rope = rotation.rope

    def pairs(some: tuple[Fault, ...]) -> list[np.ndarray]:
        return [pairs_of(x, rope) for x in answers(kernel(rotation, call, some, where), call, rope)]

    def apart(first: list[np.ndarray], second: list[np.ndarray], sides: str = "qk") -> bool:
        return SHOWS < distance(first, second, call, rope, sides) < math.inf

    if rope.kind == "yarn" and any(fault.kind in _SCALINGS and not fault.alike for fault in faults):
        alike = tuple(_of_frequencies(fault, rope) for fault in faults)
        if not shown(rotation, call, alike, where):
            return False
    exact, together = exactly(call, rope), pairs(faults)
    if where == IN_BOTH:
        return apart(together, exact, "q") and apart(together, exact, "k")
    if len(faults) == 1 or not apart(together, exact):
        return apart(together, exact)
    return all(apart(alone, exact) and apart(alone, together) for alone in (pairs((one,)) for one in faults))


def case(seed: int, tries: int = 2000) -> Case:
    """Draw a case: two faults in two of five."""
    draw = np.random.default_rng([seed, 15])
    kinds = [str(kind) for kind in draw.choice(list(MAKERS), 2 if draw.random() < 0.4 else 1, replace=False)]
    for attempt in range(tries):
        if attempt % 100 == 99:  # two that are left out, or that hardly ever show
            kinds = [str(kind) for kind in draw.choice(list(MAKERS), len(kinds), replace=False)]
        rope, call = draw_rope(draw), draw_call(draw)
        made = [MAKERS[kind](draw, rope, call) for kind in kinds]
        faults = tuple(fault for fault in made if fault is not None)
        if len(faults) < len(kinds):
            continue
        where = draw_where(draw, call, faults)
        if len(faults) == 2 and _left_out(faults, where):
            continue
        rotation = draw_rotation(draw, rope, call)
        if shown(rotation, call, faults, where):
            faults = tuple(_with_equals(fault, rope) for fault in faults)
            return Case(seed, rope, call, faults, where, kernel(rotation, call, faults, where))
    raise AssertionError(f"no case of {kinds} shows")


def _left_out(faults: tuple[Fault, ...], where: str) -> bool:
    """Return whether two faults are not combined: those of q and of k do not meet."""
    if where == IN_BOTH:
        return faults[0].kind == faults[1].kind
    return bool(left_out(faults[0].kind, faults[1].kind))


def _with_equals(fault: Fault, rope: Rope) -> Fault:
    """Return a fault with the codes of what is the same in this setting.

    Under linear scaling to rotate twice is to divide by half the factor, or by none where that is 1.
    """
    if fault.kind == "rotated-twice" and rope.kind == "linear":
        half = rope.scaling["factor"] / 2
        return replace(fault, codes=fault.codes | {"missing-scaling" if half == 1 else "other-scaling"})
    return fault


def cases(count: int, start: int = 0) -> Iterator[Case]:
    """Draw cases from consecutive seeds."""
    return (case(seed) for seed in range(start, start + count))


def right_case(seed: int) -> Case:
    """Draw a kernel without a fault, in more ways of writing than faults are planted in."""
    draw = np.random.default_rng([seed, 16])
    rope, call = draw_rope(draw), draw_call(draw)
    rotation = draw_rotation(draw, rope, call)
    spelled = {"writing": WRITINGS, "powers": ("rounded", *POWERS), "product": tuple(PRODUCTS)}
    rotation = replace(rotation, **{name: chosen(draw, *ways) for name, ways in spelled.items()})
    if not rotation.stored and draw.random() < 0.2:
        rotation = replace(rotation, formats=(("table", call.dtype),))
    return Case(seed, rope, call, (), repr(rotation), kernel(rotation, call, (), "everywhere"))
