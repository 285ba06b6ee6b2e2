"""Code that is called with real arrays, as a subject of an audit.

What is audited is the rotation alone: scores are formed in float64 from what the code returns.
Letters: h heads, g key-value heads, s positions, d head_dim.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.formats import FP32, FP64, FloatArray, Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.errors import Ended, ForeignError, Late, one_line
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions, Raised
from ropeaudit.subjects.calling.code import Code, Rotator
from ropeaudit.subjects.calling.devices import advice
from ropeaudit.subjects.calling.shapes import WrongShape

_LARGEST = 2**24  # numbers of q and k that one call rotates: 64 MiB of float32
_OF_NUMPY = ("float16", "float32", "float64")


@dataclass(slots=True)
class _Instance:
    """One instance at some positions; it may keep state: one thread at a time calls it.

    heads: what one call gave for all heads of q and of k, at the positions that are wanted.
    """

    rotator: Rotator
    positions: Positions
    lock: threading.Lock
    heads: tuple[FloatArray, FloatArray] | None = None


class Called:
    """Code in a dtype, on a RoPE setting; implements `ropeaudit.subjects.Subject`."""

    accumulate = score = FP64
    softmax = FP32
    scale_after_store = False

    def __init__(
        self,
        code: Code,
        setting: RopeSetting,
        dtype: Format,
        instance: Rotator | None = None,
    ) -> None:
        """Keep what is to be called. instance: None to make a new one for each use."""
        self.code, self.setting, self.instance = code, setting, instance
        self.name, self.backend = code.name, code.engine
        self.device, self.environment = code.device.label, code.environment_label
        self.narrowed: Format = code.environment.narrowed(dtype)
        self.dtype = self.input = self.output = dtype
        self.narrowest = dtype.precision
        self.ended = False  # whether the process that calls it ended in a call
        # the orders of dims in calls, and of what is handed on: see `parity`
        self.into: NDArray[np.int64] | slice = slice(None)
        self.back: NDArray[np.int64] | slice = slice(None)
        self.given: tuple[FloatArray, FloatArray] | None = None
        self.wanted: Positions | None = None

    @property
    def version(self) -> str:
        """That of the code."""
        return self.code.version

    def together(self, q: FloatArray, k: FloatArray, wanted: Positions | None = None) -> None:
        """Let one call rotate all heads of these, where it is at all of their positions.

        wanted: positions among 0, 1, ... whose rows alone are asked for. Of more than 2^24 numbers each head
        has a call of its own. Shapes: (h, s, d), (g, s, d).
        """
        self.given = (q, k) if q.size + k.size <= _LARGEST else None
        self.wanted = wanted

    @property
    def bytes_together(self) -> int:
        """How much memory what one call gives takes."""
        return sum(x.size for x in self.given or ()) * int(self.dtype.carrier.itemsize)

    def stages(self) -> dict[str, str]:
        """Return the formats of q, k and scores, and the order of axes if requested."""
        formats = {"input": self.input.name, "accumulate": self.accumulate.name, "score": self.score.name}
        order = self.code.order
        return {**formats, **self.code.changes} | ({"order": order.lower()} if order else {})

    def refusal(self, seq_len: int, offset: int) -> str:
        """Return why positions are refused, by a call at the first and at the last."""
        if reason := self.code.refusal(self.setting, self.dtype):
            return reason
        for end in sorted({0, seq_len - 1}):
            try:
                self.rotate(np.ones((1, self.setting.head_dim)), self.table(np.array([end]), offset))
            except ForeignError as error:
                return Raised(one_line(error) + self._hint(error))
        return ""

    def _hint(self, error: Exception) -> str:
        """Return a hint where devices are mixed, or NumPy lacks the dtype."""
        if places := advice(str(error), self.code.device):
            return f"; {places}"
        wanted = any(
            word in f"{getattr(error, 'type', '')} {error}"
            for word in ("TypeError", "dtype", self.dtype.name)
        )
        if self.code.engine != "numpy" or self.dtype.name in _OF_NUMPY or not wanted:
            return ""  # another reason: the end of a table
        return (
            f"; NumPy itself has no {self.dtype}: a wrapper that takes x.astype(numpy.float32) and returns "
            ".astype(x.dtype) can be audited"
        )

    def table(self, positions: Positions, offset: int) -> Any:
        """Return a new instance and the positions at which it is to rotate."""
        rotator = self.rotator() if self.instance is None else self.instance
        return _Instance(rotator, positions + offset, threading.Lock())

    def rotator(self) -> Rotator:
        """Return a new instance."""
        return self.code.rotator(self.setting, self.dtype)

    def by_batch(self) -> bool:
        """Return whether it takes positions of each batch element."""
        fit = self.code.fit(self.setting)
        return fit is not None and fit.rows

    def rotate(self, x: FloatArray, table: _Instance) -> FloatArray:
        """Return x rotated, as q. Shapes: (s, d) -> (s, d)."""
        return self.rotate_head(x, table, False, None)

    def rotate_head(
        self,
        x: FloatArray,
        table: _Instance,
        key: bool,
        head: int | None,
    ) -> FloatArray:
        """Return x, a head of q or k, as a call with all heads rotates it; head None: alone.

        Shapes: (s, d) -> (s, d).
        """
        seq_len = 0 if self.given is None else self.given[0].shape[1]
        wanted = np.arange(seq_len, dtype=np.int64) if self.wanted is None else self.wanted
        with table.lock:
            if head is None or self.given is None or table.positions.size != wanted.size:
                alone = x[None]
                return np.ascontiguousarray(self._rotated(table, table.positions, alone, alone)[key][0])
            if table.heads is None:
                every = np.arange(seq_len, dtype=np.int64) + table.positions[0] - wanted[0]
                q, k = self._rotated(table, every, *self.given)
                table.heads = q[:, wanted], k[:, wanted]
        return np.ascontiguousarray(table.heads[key][head])

    def _rotated(
        self, table: _Instance, at: Positions, q: FloatArray, k: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return all heads of q and k rotated. Shapes: (s,), (h, s, d), (g, s, d) -> like q and k."""
        with np.errstate(over="ignore"):  # a number that the dtype does not hold
            given = [
                round_to(x[..., self.into], self.dtype).astype(self.dtype.carrier)[None]
                for x in ((q,) if k is q else (q, k))
            ]
        try:
            results = table.rotator.rotate_both(given[0], given[-1], at)
        except (Ended, Late):
            self.ended = True
            raise
        for x, rotated in zip((given[0], given[-1]), results, strict=True):
            if rotated.shape != x.shape:
                raise WrongShape(f"returns the shape {rotated.shape[2:]} for {x.shape[2:]}")
        return results[0][0][..., self.back], results[1][0][..., self.back]

    def distinct_positions(self, positions: Positions) -> int:
        """Return how many positions rotate ones to distinct finite vectors."""
        rotated = self.rotate(np.ones((positions.size, self.setting.head_dim)), self.table(positions, 0))
        finite = rotated[np.isfinite(rotated).all(axis=1)]
        return int(np.unique(finite, axis=0).shape[0])
