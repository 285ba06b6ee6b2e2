"""The lines of a snippet that all have: q and k, the exact scores, and the number that is printed.

Letters of the snippets: q, k (h, s, d), at (s,), x and theta (p,), rotated pairs as complex numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ropeaudit.audits.records import Record
from ropeaudit.reports.tickets.reproduction import NoSnippet
from ropeaudit.rope.scaled import attention_factor, effective_base, yarn_range
from ropeaudit.rope.setting import RopeSetting

# dtypes by their names in torch -> what snippets call them
DTYPES = {
    "float64": "f64",
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
}
_MASKS = {"causal": "[:, at[:, None] >= at]", "full": ""}


@dataclass(frozen=True, slots=True)
class Setup:
    """What is measured: a RoPE setting, the sizes of q and k, and where they come from."""

    setting: RopeSetting
    heads: int
    kv_heads: int
    seq_len: int
    mask: str
    source: str
    seed: int | None
    dtype: str
    offset: int
    inline: bool = True  # whether few lines of own code are written into a snippet, or imported

    @classmethod
    def of(cls, record: Record, setting: RopeSetting) -> Setup:
        """Return that of a row. Raises: NoSnippet for what takes more than a few lines."""
        if record.sample:
            raise NoSnippet("its scores are a sample; leave out --sample")
        if record.axes != "none":
            raise NoSnippet("it has several position axes")
        return cls(
            setting,
            record.heads,
            record.kv_heads,
            record.seq_len,
            record.mask,
            record.source,
            record.seed,
            record.dtype,
            record.offset,
        )

    @property
    def factor(self) -> str:
        """What multiplies cos and sin, as it stands before a product; empty for 1."""
        value = attention_factor(self.setting.scaling)
        return "" if value == 1.0 else f"{value!r} * "

    @property
    def shifted(self) -> str:
        """The positions: an expression."""
        return f"at + {self.offset}" if self.offset >= 0 else f"at - {-self.offset}"

    def pairs(self, y: str) -> str:
        """Return the two halves of each pair of dims of `y`: an expression of two tensors."""
        d = self.setting
        part = y if d.rotary_dim == d.head_dim else f"{y}[..., :{d.rotary_dim}]"
        return f"{part}.chunk(2, -1)" if d.layout == "half" else f"{part}.unflatten(-1, (-1, 2)).unbind(-1)"

    def begin(self) -> list[str]:
        """Return the lines that make q, k, positions, exact rotated pairs. Raises: NoSnippet."""
        d = self.setting
        if d.clipped:
            raise NoSnippet("its angles are clipped")
        own = _dtype(self.dtype)
        of = f"for h in ({self.heads}, {self.kv_heads})" if self.heads != self.kv_heads else "for _ in 'qk'"
        h = "h" if self.heads != self.kv_heads else str(self.heads)
        shape = f"{h}, {self.seq_len}, {d.head_dim}"
        kinds = {
            "randn": f"torch.randn({shape}).bfloat16().half().to({own})",
            "ones": f"torch.ones({shape}, dtype={own})",
            "arange": f"torch.arange({d.head_dim}).expand({shape}).to({own})",
        }
        if self.source not in kinds:
            raise NoSnippet(f"its q and k are {self.source}, which torch alone does not make; try --qk randn")
        lines = [f"torch.manual_seed({self.seed or 0})"] if self.source == "randn" else []
        note = "  # 16-bit numbers" if self.source == "randn" else ""
        lines.append(f"q, k = ({kinds[self.source]} {of}){note}")
        if self.heads != self.kv_heads:
            lines.append(f"k = k.repeat_interleave({self.heads // self.kv_heads}, 0)")
        lines.append(f"at, x = torch.arange({self.seq_len}), {exponents(d)}")
        return [*lines, *scaled(d)]

    def exact(self) -> str:
        """Return the line of q and k rotated exactly: by distances alone, in float64."""
        d, halves = self.setting, self.pairs("y.double()")
        turn = f"{self.factor}torch.exp(1j * at[:, None] * {theta(d)})"
        return f"exact = [torch.complex(*{halves}) * {turn} for y in (q, k)]"

    def end(self, scores: str) -> list[str]:
        """Return the lines that print the RMS of scores minus exact ones, where the mask shows them."""
        d, product = self.setting, "(exact[0] @ exact[1].mH).real"
        if d.rotary_dim < d.head_dim:
            rest = [f"{y}[..., {d.rotary_dim}:].double()" for y in "qk"]
            product = f"({product} + {rest[0]} @ {rest[1]}.mT)"
        error = f"error = scores - {self.scale()}{product}"
        number = f"error{self.visible()}.square().mean().sqrt()"
        return [f"scores = {scores}", error, f'print("drift_rms", f"{{{number}:.3g}}")']

    def scale(self) -> str:
        """Return the softmax scale, as it stands before a product."""
        d = self.setting
        usual = d.scale == 1.0 / math.sqrt(d.head_dim)
        return f"{d.head_dim} ** -0.5 * " if usual else f"{d.scale!r} * "

    def visible(self) -> str:
        """Return the index that takes of scores what the mask shows."""
        if self.mask in _MASKS:
            return _MASKS[self.mask]
        kind, _, width = self.mask.partition(":")
        if kind != "window":
            raise NoSnippet(f"its mask is {self.mask}")
        return f"[:, (at[:, None] >= at) & (at[:, None] < at + {width})]"


def _dtype(name: str) -> str:
    if name not in DTYPES:
        raise NoSnippet(f"torch has no {name}")
    return f"torch.{name}"


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
        if slow == fast:
            turns = f"{s.original!r} * t / (2 * torch.pi)"
            return f"def scaled(t): return torch.where({turns} < {slow!r}, t / {factor!r}, t)"
        smooth = f"(({s.original!r} * t / (2 * torch.pi) - {slow!r}) / {fast - slow!r}).clamp(0, 1)"
        return f"def scaled(t): return t * (1 / {factor!r} + (1 - 1 / {factor!r}) * {smooth})"
    raise NoSnippet(f"the scaling {s.kind} takes more than a few lines")
