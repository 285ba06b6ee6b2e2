"""The q and k of an audit: made from a seed, constant, counted, or captured from a real model.

Letters: h heads, g key-value heads, s positions, d head_dim.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ropeaudit import captured
from ropeaudit.doubledouble import Array
from ropeaudit.errors import BadShape, UnknownName
from ropeaudit.formats import Format, parse, round_to

SYNTHETIC = ("gaussian", "ones", "arange")


@dataclass(frozen=True, slots=True)
class Inputs:
    """q (h, s, d) and k (g, s, d) in float64, before the input stage rounds them.

    source says where they came from; seed is None where none was used.
    Query head i reads key-value head i // (h // g).
    """

    q: Array
    k: Array
    source: str
    seed: int | None

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
        """Tell whether rounding q and k to `fmt` leaves them as they are."""
        return all(np.array_equal(round_to(row, fmt), row) for x in (self.q, self.k) for row in x)

    @property
    def group(self) -> int:
        """How many query heads share a key-value head."""
        return int(self.q.shape[0] // self.k.shape[0])


def make(kind: str, heads: int, kv_heads: int, seq_len: int, head_dim: int, seed: int = 0) -> Inputs:
    """Return synthetic q and k.

    kind: "gaussian" (independent standard normal, from `seed`), "ones", or "arange" (0, 1, ..., d-1 in
    every row). Gaussian values are rounded to bfloat16 and to multiples of 2^-24, like activations
    captured from a 16-bit model: float64, float32, float16 and bfloat16 hold them exactly, so that these
    dtypes are audited on the same q and k and against the same reference. Raises: UnknownName, BadShape.
    """
    check_kind(kind)
    q_shape, k_shape = (heads, seq_len, head_dim), (kv_heads, seq_len, head_dim)
    if kind == "gaussian":
        generator = np.random.default_rng(seed)
        q, k = (on_16_bit_grid(generator.standard_normal(shape)) for shape in (q_shape, k_shape))
        return Inputs(q, k, kind, seed)
    if kind == "ones":
        return Inputs(np.ones(q_shape), np.ones(k_shape), kind, None)
    row = np.arange(head_dim, dtype=np.float64)
    q, k = (np.ascontiguousarray(np.broadcast_to(row, shape)) for shape in (q_shape, k_shape))
    return Inputs(q, k, kind, None)


def check_kind(kind: str) -> None:
    """Raise UnknownName unless `kind` is one that `make` knows."""
    if kind not in SYNTHETIC:
        raise UnknownName("--qk", kind, SYNTHETIC, "(or a file: .safetensors, .npz, .pt, q.npy,k.npy)")


def on_16_bit_grid(x: Array) -> Array:
    """Round to bfloat16, then to float16: see `make`."""
    return round_to(round_to(x, parse("bf16")), parse("fp16")).astype(np.float64)


def from_file(spec: str) -> Inputs:
    """Return captured q and k; see `ropeaudit.captured.read`. Raises: BadInput, BadShape."""
    q, k = captured.read(spec)
    return Inputs(q, k, spec if spec.isprintable() else repr(spec)[1:-1], None)


def is_file(spec: str) -> bool:
    """Tell whether a --qk value names a file rather than a synthetic kind."""
    return "." in spec or "/" in spec
