"""The q and k of an audit: made from a seed, constant, counted, positional, or captured from a real model.

Positional heads look at one distance: q and k are the same at every token. diagonal: q = k = psi; previous: k
is psi rotated by one token. psi lives on the fastest frequencies. Source: arXiv 2410.06205.
Letters: h heads, g key-value heads, s positions, d head_dim, f fast pairs, t distances in tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import FP32, FP64, Format, parse
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.errors import BadInput, BadShape, UnknownName, UsageError
from ropeaudit.rope.frequencies import frequencies
from ropeaudit.rope.rotation import split_pairs
from ropeaudit.rope.scaled import attention_factor
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime import digests

BEHIND = {"diagonal": 0, "previous": 1}  # kind of head -> distance that it looks at
SYNTHETIC = ("gaussian", "ones", "arange", *BEHIND)
RANDN = "randn"  # torch's normal numbers
WHOLE = (*SYNTHETIC[:1], RANDN, *SYNTHETIC[1:])  # kinds whose rows are made all at once
_FEWEST_FAST = 4  # pairs, where there are so many; else the fastest quarter of them
_TOKENS = 256  # among at least so many on both sides
_WEIGHT = 0.95  # the right token's, of the exact softmax
_LARGEST_SCORE = 1024.0  # beyond it 16-bit scores cannot distinguish neighbours

# of captured ones
_NAMES = {"q": ("q", "query"), "k": ("k", "key")}
_REMEDIES = {
    "is a folder": "give a file with q and k",
    "no such file": "or give gaussian, ones or arange",
    "the file is empty": "give one with q and k",
}
# Squares of scores, and the low parts of products, stay clear of overflow and of underflow's grid.
_SMALLEST, _LARGEST = 1e-60, 1e60


@dataclass(frozen=True, slots=True)
class Inputs:
    """q (h, s, d) and k (g, s, d) in float64, before the input stage rounds them.

    source: the kind or file; digest: of the numbers in a file. Query head i reads key-value head
    i // (h // g).
    """

    q: Array
    k: Array
    source: str
    seed: int | None
    digest: str = ""
    _unchanged: dict[Format, bool] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.q.shape[0] % self.k.shape[0]:
            raise BadShape(
                f"{self.k.shape[0]} key-value heads do not divide {self.q.shape[0]} heads; "
                f"give --kv-heads a divisor of --heads"
            )

    @property
    def heads(self) -> int:
        """h: query heads."""
        return int(self.q.shape[0])

    @property
    def kv_heads(self) -> int:
        """g: key-value heads."""
        return int(self.k.shape[0])

    @property
    def seq_len(self) -> int:
        """s: positions."""
        return int(self.q.shape[1])

    def unchanged_by(self, fmt: Format) -> bool:
        """Return whether rounding q and k to `fmt` leaves them as they are."""
        if fmt not in self._unchanged:
            rows = (row for x in (self.q, self.k) for row in x)
            self._unchanged[fmt] = fmt is FP64 or all(np.array_equal(round_to(row, fmt), row) for row in rows)
        return self._unchanged[fmt]

    def distinct(self, formats: Iterable[Format]) -> dict[Format, Format]:
        """Return each format, or float64 where q and k stay as they are."""
        return {fmt: FP64 if self.unchanged_by(fmt) else fmt for fmt in formats}

    @property
    def group(self) -> int:
        """How many query heads share a key-value head."""
        return int(self.q.shape[0] // self.k.shape[0])


def make(
    kind: str,
    heads: int,
    kv_heads: int,
    seq_len: int,
    setting: RopeSetting,
    seed: int = 0,
) -> Inputs:
    """Return synthetic q and k for a setting.

    kind: "gaussian" (independent standard normal, from `seed`), "randn" (the same from torch's generator on
    the CPU: q first, then k), "ones", "arange" (0, 1, ..., d-1 in every row), or a positional head. Random
    values are rounded to bfloat16 and to multiples of 2^-24: float64, float32, float16 and bfloat16 hold them
    exactly, and are audited on the same q and k. Raises: UnknownName, BadShape, UsageError.
    """
    check_kind(kind, WHOLE)
    head_dim = setting.head_dim
    q_shape, k_shape = (heads, seq_len, head_dim), (kv_heads, seq_len, head_dim)
    if kind in ("gaussian", RANDN):
        if kind == RANDN:
            import torch

            of_torch = torch.Generator().manual_seed(seed)
            drawn = (torch.randn(x, generator=of_torch, dtype=torch.float32) for x in (q_shape, k_shape))
            q, k = (one.bfloat16().half().numpy().astype(np.float64) for one in drawn)
        else:  # a head at a time, in the cache
            generator, (q, k) = np.random.default_rng(seed), map(np.empty, (q_shape, k_shape))
            for head in (*q, *k):
                generator.standard_normal(out=head)
                head[...] = on_16_bit_grid(head)
        inputs = Inputs(q, k, kind, seed)
        inputs._unchanged.update(dict.fromkeys((FP32, parse("fp16"), parse("bf16")), True))
        return inputs
    group = heads // kv_heads
    q, k = (
        np.ascontiguousarray(
            np.broadcast_to(rows.repeat(repeats, axis=0)[:, None], (len(rows) * repeats, seq_len, head_dim))
        )
        for rows, repeats in zip(constant(kind, kv_heads, seq_len, setting, seed), (group, 1), strict=True)
    )
    return Inputs(q, k, kind, seed if seeded(kind) else None)


def seeded(kind: str) -> bool:
    """Return whether a kind of `make` depends on the seed."""
    return kind in ("gaussian", RANDN) or kind in BEHIND


def constant(
    kind: str,
    kv_heads: int,
    seq_len: int,
    setting: RopeSetting,
    seed: int,
) -> tuple[Array, Array]:
    """Return q and k of any token, of kinds whose tokens are alike. Shapes: -> two of (g, d)."""
    if kind in BEHIND:
        q, k = _positional(kind, kv_heads, seq_len, setting, seed)
        return on_16_bit_grid(q), on_16_bit_grid(k)
    row = np.ones(setting.head_dim) if kind == "ones" else np.arange(setting.head_dim, dtype=np.float64)
    rows = np.broadcast_to(row, (kv_heads, setting.head_dim))
    return rows, rows


def check_kind(kind: str, known: Sequence[str] = SYNTHETIC) -> None:
    """Raise UnknownName unless `kind` is a known kind of q and k."""
    if kind not in known:
        raise UnknownName("--qk", kind, known, "(or a file: .safetensors, .npz, .pt, q.npy,k.npy)")


def check_head(kind: str, seq_len: int, setting: RopeSetting) -> None:
    """Raise UsageError if `kind` is a positional head that the setting cannot have."""
    if kind in BEHIND:
        _positional(kind, 1, seq_len, setting, 0)


def on_16_bit_grid(x: Array) -> Array:
    """Round to bfloat16, then to float16: see `make`."""
    return round_to(round_to(x, parse("bf16")), parse("fp16")).astype(np.float64)


def from_file(spec: str) -> Inputs:
    """Read q and k of a real model, in float64, exactly as a file stores them.

    It has two tensors called q and k (or query and key), or there is a .npy of each. No pickle is run.
    Shapes: (h, s, d) and (g, s, d); (b, h, s, d), of batch b, is folded into (b*h, s, d).
    Raises: BadInput, BadShape.
    """
    from ropeaudit.tensor_files import tensors as tensorfiles  # in-function: seldom needed

    paths = tensorfiles.paths(spec)
    for path in paths:
        if wrong := tensorfiles.why_no_content(path):
            raise BadInput(
                f"--qk {str(path)!r}: {wrong}; {_REMEDIES.get(wrong, 'give a file that can be read')}"
            )

    def read() -> Mapping[str, NDArray[Any]]:
        if len(paths) == 2:
            return {name: next(tensorfiles.parts(p)).read(...) for name, p in zip("qk", paths, strict=True)}
        path, known = paths[0], (".safetensors", ".npz", ".pt", ".pth")
        if path.suffix.lower() not in known:
            seen = "one .npy file holds one tensor" if path.suffix == ".npy" else "unknown kind of file"
            remedy = f"give one of {', '.join(known)}, or a pair q.npy,k.npy"
            raise BadInput(f"--qk {str(path)!r}: {seen}; {remedy}")
        return tensorfiles.read(path, {name for names in _NAMES.values() for name in names})

    tensors = tensorfiles.read_or_refuse(f"--qk {spec!r}", paths[0], read)
    q, k = (_checked_heads(spec, which, tensors) for which in _NAMES)
    if q.shape[1:] != k.shape[1:]:
        raise BadInput(
            f"--qk {spec!r}: q has shape {q.shape} and k {k.shape}; they must agree in positions and head_dim"
        )
    name = spec if spec.isprintable() else repr(spec)[1:-1]
    return Inputs(q, k, name, None, digests.of_arrays((q, k)))


def _checked_heads(spec: str, name: str, tensors: Mapping[str, NDArray[Any]]) -> Array:
    """Check one tensor and bring it to (h, s, d) in float64."""
    from ropeaudit.tensor_files import tensors as tensorfiles

    called = next((one for one in _NAMES[name] if one in tensors), None)
    if called is None:
        seen = f"no tensor called {' or '.join(_NAMES[name])}; it holds {tensorfiles.first_names(tensors)}"
        raise BadInput(f"--qk {spec!r}: {seen}")
    tensor = tensorfiles.checked_real(f"--qk {spec!r}: {name}", tensors[called])
    if tensor.ndim not in (3, 4) or 0 in tensor.shape or tensor.shape[-1] % 2:
        raise BadInput(
            f"--qk {spec!r}: {name} has shape {tensor.shape}; give (heads, seq, head_dim) or "
            "(batch, heads, seq, head_dim), none of them 0, head_dim even"
        )
    with np.errstate(over="ignore", invalid="ignore"):  # what becomes inf or nan here is refused below
        values = tensor.astype(np.float64).reshape(-1, *tensor.shape[-2:])
    if not np.isfinite(values).all():
        bad = int(values.size - np.isfinite(values).sum())
        raise BadInput(
            f"--qk {spec!r}: {name} has {bad} nan or infinite values of {values.size}; give finite ones"
        )
    largest = float(np.abs(values).max())
    if largest > _LARGEST or 0.0 < largest < _SMALLEST:
        raise BadInput(
            f"--qk {spec!r}: the largest value of {name} is {largest:.3g}; "
            f"give one between {_SMALLEST:g} and {_LARGEST:g}"
        )
    return values


def is_file(spec: str) -> bool:
    """Return whether a --qk value names a file rather than a synthetic kind."""
    return "." in spec or "/" in spec


def _positional(
    kind: str, kv_heads: int, seq_len: int, setting: RopeSetting, seed: int
) -> tuple[Array, Array]:
    """Return q and k of any token of each key-value head, (g, d) each; `seed` chooses phases of psi."""
    speeds = frequencies(setting, "inverse_power", FP64)
    fast = np.argsort(-speeds, kind="stable")[: max(speeds.size // 4, min(_FEWEST_FAST, speeds.size))]
    # the |psi_i| at which softmax gives the right token `_WEIGHT`
    tokens = max(seq_len, _TOKENS)
    t = np.arange(1.0, tokens + 1.0)
    # in units of |psi_i|² * scale
    gaps = sum((1.0 - np.cos(t * speed) for speed in speeds[fast]), np.zeros_like(t))
    largest_sum, low, high = 1.0 / _WEIGHT - 1.0, 0.0, _LARGEST_SCORE / max(fast.size, 1)
    if 2.0 * np.exp(-high * gaps).sum() > largest_sum:
        raise UsageError(
            f"--qk {kind} needs fast frequencies to tell {tokens} tokens apart, and the {fast.size} "
            f"fastest of rotary_dim {setting.rotary_dim} do not; give a larger --rotary-dim or --qk gaussian"
        )
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if 2.0 * np.exp(-middle * gaps).sum() <= largest_sum else (middle, high)
    size = float(np.sqrt(high / setting.scale) / attention_factor(setting.scaling))
    phases = np.random.default_rng(seed).uniform(0.0, 2 * np.pi, (kv_heads, fast.size))
    sides = []
    for by in (0.0, BEHIND[kind] * speeds[fast]):
        x = np.zeros((kv_heads, setting.head_dim))
        for part, of in zip(split_pairs(x, setting), (np.cos, np.sin), strict=True):
            part[:, fast] = size * of(phases + by)
        sides.append(x)
    return sides[0], sides[1]
