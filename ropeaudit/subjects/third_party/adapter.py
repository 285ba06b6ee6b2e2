"""What the adapters share: what they take, and how an instance is called.

Letters: b batch, h heads, s positions, d head_dim.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self, TypeAlias

from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.errors import UsageError
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions
from ropeaudit.subjects.calling.arrays import Engine
from ropeaudit.subjects.calling.backward import Backward, mirrored
from ropeaudit.subjects.calling.code import Code, Rotator
from ropeaudit.subjects.calling.conventions import Convention
from ropeaudit.subjects.calling.devices import of_torch
from ropeaudit.subjects.calling.environments import Environment
from ropeaudit.subjects.calling.signatures import Signature
from ropeaudit.subjects.third_party.entries import Entry

# x (h, s, d) and positions (s,), int64 -> (h, s, d): tensors, or arrays of NumPy
Turn: TypeAlias = Callable[[Any, Any], Any]
_SIGNATURE = Signature(((None, "x"), (None, "positions")))

LONGEST_TABLE = 2**21  # positions of a table that is built from 0; a GiB at head_dim 128
_STEP = 2**14


class Adapter(Code):
    """Code as its entry describes it, built and called in an environment.

    clean: the same without an environment.
    """

    clean: Adapter | None = None

    def __init__(self, entry: Entry) -> None:
        self.entry, self.name, self.engine = entry, entry.name, entry.engine
        self.layouts, self._version = entry.layouts, entry.version
        # what makes its arrays, whatever computes
        self.takes: Engine = "torch" if entry.engine == "torch" else "numpy"
        self.differentiable = self.takes == "torch"
        self.movable = entry.movable and self.differentiable

    def on(self, device: str | None) -> Self:
        """Return it for calls on a device. Raises: UsageError where that is impossible."""
        if device is not None and not self.movable and device.strip().lower() != "cpu":
            raise UsageError(f"--device {device}: {self.name} is called on the CPU alone; leave it out")
        self.device = of_torch(device)
        return self

    @property
    def version(self) -> str:
        """That of its package."""
        return self._version

    def refuses(self, setting: RopeSetting, dtype: Format) -> str:
        """Return why a setting, dtype or environment is refused; empty if none is."""
        if (kind := self.environment.kind) in ("compile", "to"):
            return f"{kind} takes your own code, FILE.py:NAME; an adapter calls this, with arrays of its own"
        if lacking := self.environment.lacking(self.engine, dtype, self.device.name):
            return lacking
        if self.entry.whole_base and setting.base != int(setting.base):
            return f"its base is a whole number, and {setting.base} is not"
        if dtype.name not in self.entry.dtypes:
            return f"it is audited in {', '.join(self.entry.dtypes)}"
        if setting.rotary_dim != setting.head_dim and not (self.entry.partial and setting.rotary_dim):
            return "it is audited over the whole head; leave out --rotary-dim"
        if setting.scaling.kind not in self.entry.scalings:
            return f"it is audited with the scaling {' or '.join(self.entry.scalings)}"
        return ""

    def rotator(self, setting: RopeSetting, dtype: Format) -> _Calls:
        """Return a new instance, made for a dtype, which takes the others too."""
        with self.environment.built():
            turn = self.environment.wrapped(self.instance(setting, dtype), self.device.name)
        return _Calls(self, turn, setting, dtype)

    def under(self, environment: Environment) -> Self:
        """Return the code as called in an environment; itself in the clean one."""
        if environment.kind == "none":
            return self
        other = copy.copy(self)
        other.clean, other.environment, other.findings = self, environment, []
        return other

    @abstractmethod
    def instance(self, setting: RopeSetting, dtype: Format) -> Turn:
        """Return a new instance's function, made for a dtype; it takes others too."""


@dataclass(slots=True)
class _Calls(Rotator):
    """An instance that is called, which does not know whether it rotates q or k.

    backwards: whether its backward pass is called as if it rotated.
    """

    code: Adapter
    turn: Turn
    setting: RopeSetting
    dtype: Format
    backwards: bool = False

    def rotate_one(self, x: FloatArray, at: Positions, key: bool) -> FloatArray:
        """Return x rotated."""
        rotated: FloatArray = self._rotated(x[None], at)[0]
        return rotated

    def rotate_both(self, q: FloatArray, k: FloatArray, at: Positions) -> tuple[FloatArray, FloatArray]:
        """Return q and k rotated, a batch element at a time."""
        return self._rotated(q, at), self._rotated(k, at)

    def otherwise(self, dtype: Format, environment: Environment | None = None) -> _Calls:
        """Return the same instance, called in another dtype."""
        return replace(self, dtype=dtype)

    def backward(self) -> _Calls:
        """Return what calls the backward pass of a new instance."""
        turn = Backward(self.code.instance(self.setting, self.dtype), _SIGNATURE)
        return replace(self, turn=turn, backwards=True)

    def _rotated(self, x: FloatArray, at: Positions) -> FloatArray:
        device = self.code.device
        called = Convention(_SIGNATURE, "hsd", self.code.takes, device=device)
        given = mirrored(x, self.setting) if self.backwards else x
        with self.code.environment.entered(device.name):
            values = called(self.turn, given, at, self.setting, self.dtype).values
        return mirrored(values, self.setting) if self.backwards else values


def table_end(largest: int, smallest: int) -> int:
    """Return how long a table from position 0 is made: whole steps, as a few serve many calls.

    Raises: ValueError if it cannot be made.
    """
    if smallest < 0:
        raise ValueError(f"its table has no position {smallest}; positions go up from 0")
    if largest >= LONGEST_TABLE:
        raise ValueError(f"its table is built from 0; it is audited up to position {LONGEST_TABLE - 1}")
    return (largest // _STEP + 1) * _STEP
