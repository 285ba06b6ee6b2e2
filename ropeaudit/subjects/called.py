"""Real code under audit: a function that rotates, called with real arrays, as a subject.

What is audited is the rotation alone: scores are formed in float64 from what the code returns.
Letters: h heads, s positions, d head_dim.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from ropeaudit.errors import RopeAuditError
from ropeaudit.formats import FP32, FP64, FloatArray, Format
from ropeaudit.rope.setting import Layout, RopeSetting
from ropeaudit.subjects import Positions

# x (h, s, d), which holds numbers of the dtype under audit in its carrier, and positions (s,) -> (h, s, d);
# what is returned may be wider than what went in
Rotate: TypeAlias = Callable[[FloatArray, Positions], FloatArray]


class Implementation(Protocol):
    """Code that rotates. One small file each in `ropeaudit.subjects.third_party`.

    engine: what computes, such as torch. version: of the package. layouts: those that it can be asked for.
    """

    name: str
    engine: str
    version: str
    layouts: tuple[Layout, ...]

    def refuses(self, setting: RopeSetting, dtype: Format) -> str:
        """Say why a setting or dtype is not taken; empty where it is."""

    def fresh(self, setting: RopeSetting, dtype: Format) -> Rotate:
        """Return the function of a new instance, which has seen no other dtype and no other positions."""


@dataclass(slots=True)
class _Table:
    """One instance at some positions. Instances may keep state: one thread at a time calls them."""

    rotate: Rotate
    positions: Positions
    lock: threading.Lock


class Called:
    """An implementation in a dtype, on a RoPE setting; implements `ropeaudit.subjects.Subject`."""

    device = "cpu"
    accumulate = score = FP64
    softmax = FP32
    scale_after_store = False

    def __init__(self, implementation: Implementation, setting: RopeSetting, dtype: Format) -> None:
        """Keep what is to be called; nothing is called here."""
        self.implementation, self.setting = implementation, setting
        self.name, self.backend = implementation.name, implementation.engine
        self.version = implementation.version
        self.dtype = self.input = self.output = dtype
        self.narrowest = dtype.precision

    def stages(self) -> dict[str, str]:
        """Return what is known: how q, k and the scores are held; the order of axes that was asked for."""
        held = {"input": self.input.name, "accumulate": self.accumulate.name, "score": self.score.name}
        order = getattr(self.implementation, "order", None)
        return held | ({"order": order.lower()} if order else {})

    def refusal(self, seq_len: int, offset: int) -> str:
        """Say why positions offset ... offset + seq_len - 1 cannot be audited: try the first and the last."""
        if reason := refusal(self.implementation, self.setting, self.dtype):
            return reason
        ends = np.unique(np.array([0, seq_len - 1]))
        for start in ends:
            try:
                self.rotate(np.ones((1, self.setting.head_dim)), self.table(ends[ends == start], offset))
            except RopeAuditError:
                raise
            except Exception as error:  # whatever other people's code raises is a finding
                return said(error)
        return ""

    def table(self, positions: Positions, offset: int) -> Any:
        """Return a new instance and the positions at which it is to rotate."""
        made = self.implementation.fresh(self.setting, self.dtype)
        return _Table(made, positions + offset, threading.Lock())

    def rotate(self, x: FloatArray, table: _Table) -> FloatArray:
        """Return x turned by the implementation. Shapes: (s, d) -> (s, d)."""
        given = np.ascontiguousarray(x, dtype=self.dtype.carrier)[None]
        with table.lock:
            found = table.rotate(given, table.positions)
        if found.shape != given.shape:
            raise ValueError(f"it returns the shape {found.shape[1:]} for {given.shape[1:]}")
        return np.ascontiguousarray(found[0])

    def distinct_positions(self, positions: Positions) -> int:
        """Count the positions that turn a vector of ones differently, and to finite numbers."""
        turned = self.rotate(np.ones((positions.size, self.setting.head_dim)), self.table(positions, 0))
        finite = turned[np.isfinite(turned).all(axis=1)]
        return int(np.unique(finite, axis=0).shape[0])


def refusal(implementation: Implementation, setting: RopeSetting, dtype: Format) -> str:
    """Say why an implementation does not take a setting or dtype; empty where it does."""
    if setting.layout not in implementation.layouts:
        own = " or ".join(implementation.layouts)
        return f"it pairs dims in the layout {own} alone; type --layout {own}"
    if setting.clipped:
        return "it has no clipped angles; leave out --clip"
    return implementation.refuses(setting, dtype)


def said(error: Exception) -> str:
    """Return an exception in a line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
