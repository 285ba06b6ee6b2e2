"""What a case of vectors is: its parameters, and the files that follow from them.

A case is a folder of q, k and positions for a kernel that Python cannot call.
Letters: b batch elements, h heads of q, g of k, s positions, d head_dim, p pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from ropeaudit.arithmetic.formats import FP32, FP64, Format
from ropeaudit.rope.setting import RopeSetting

WANTS = ("rotated", "gradient", "scores")
INTEGERS = ("int64", "int32")  # of positions
BATCH = 2  # elements with random numbers of their own, so that what mixes them up is seen

Entry: TypeAlias = dict[str, Any]  # of a file: its name, dtype and shape; of an input its digest too


@dataclass(frozen=True, slots=True)
class CaseSpec:
    """All that a case depends on. offsets: the first positions of the calls, 0 the first of them.

    context: the number of positions that frequencies are computed for, where they depend on it; `setting` has
    it. want: what is to be written back. positions: their dtype. tables: whether cos, sin and frequencies are
    given.
    """

    setting: RopeSetting
    dtype: Format
    heads: int
    kv_heads: int
    seq_len: int
    seed: int
    offsets: tuple[int, ...]
    context: int
    want: str = "rotated"
    positions: str = "int64"
    tables: bool = False
    model: str = "none"

    @property
    def table_dtype(self) -> Format:
        """The format of cos, sin and scores: float32, of float64 cases float64."""
        return FP64 if self.dtype is FP64 else FP32

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return name -> shape of the vectors that are given at all offsets."""
        q = (BATCH, self.heads, self.seq_len, self.setting.head_dim)
        k = (BATCH, self.kv_heads, self.seq_len, self.setting.head_dim)
        given: dict[str, tuple[int, ...]] = {"q": q, "k": k}
        return given | ({"grad_rotated_q": q, "grad_rotated_k": k} if self.want == "gradient" else {})

    def inputs(self) -> dict[str, Entry]:
        """Return name -> file of what is given at all offsets."""
        files = {name: _entry(name, self.dtype.name, shape) for name, shape in self.shapes().items()}
        if self.tables:
            files["frequencies"] = _entry("frequencies", FP64.name, (self.setting.pairs,))
        return files

    def call_inputs(self, offset: int) -> dict[str, Entry]:
        """Return name -> file of what is given at an offset."""
        files = {"positions": _entry(f"positions.{offset}", self.positions, (self.seq_len,))}
        if self.tables:
            fmt, shape = self.table_dtype.name, (self.seq_len, self.setting.pairs)
            files |= {name: _entry(f"{name}.{offset}", fmt, shape) for name in ("cos", "sin")}
        return files

    def outputs(self, offset: int) -> dict[str, Entry]:
        """Return name -> file of what is to be written back at an offset."""
        shapes = self.shapes()
        if self.want == "scores":
            shape = (BATCH, self.heads, self.seq_len, self.seq_len)
            return {"scores": _entry(f"scores.{offset}", self.table_dtype.name, shape)}
        prefix = "grad_" if self.want == "gradient" else ""
        return {
            prefix + name: _entry(f"{prefix}{name}.{offset}", self.dtype.name, shapes[name]) for name in "qk"
        }


def _entry(name: str, dtype: str, shape: tuple[int, ...]) -> Entry:
    return {"file": f"{name}.bin", "dtype": dtype, "shape": list(shape)}
