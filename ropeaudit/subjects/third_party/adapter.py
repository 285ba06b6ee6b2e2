"""What the adapters share: what they take, and the form in which they are called, which is known.

Letters: h heads, s positions, d head_dim.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Self, TypeAlias

from ropeaudit.arithmetic.formats import Format
from ropeaudit.errors import UsageError
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects.calling.arrays import Engine
from ropeaudit.subjects.calling.conventions import Convention
from ropeaudit.subjects.calling.detection import Fit
from ropeaudit.subjects.calling.devices import of_torch
from ropeaudit.subjects.calling.own_code import Local, OwnRotator
from ropeaudit.subjects.calling.signatures import Signature
from ropeaudit.subjects.third_party.entries import Entry

# x (h, s, d) and positions (s,), int64 -> (h, s, d): tensors, or arrays of NumPy
Turn: TypeAlias = Callable[[Any, Any], Any]
_SIGNATURE = Signature(((None, "x"), (None, "positions")))

LONGEST_TABLE = 2**21  # positions of a table that is built from 0; a GiB at head_dim 128
_STEP = 2**14


class Adapter(Local):
    """Code as its entry describes it, built and called in an environment."""

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

    def rotator(self, setting: RopeSetting, dtype: Format) -> OwnRotator:
        """Return what calls a new instance, made for a dtype, which takes the others too."""
        with self.environment.built():
            turn = self.environment.wrapped(self.instance(setting, dtype), self.device.name)
        convention = Convention(_SIGNATURE, "hsd", self.takes, device=self.device)
        return OwnRotator(self, Fit(convention, setting.layout, False, 0.0, ()), setting, dtype, turn)

    @abstractmethod
    def instance(self, setting: RopeSetting, dtype: Format) -> Turn:
        """Return a new instance's function, made for a dtype; it takes others too."""


def table_end(largest: int, smallest: int) -> int:
    """Return how long a table from position 0 is made: whole steps, as a few serve many calls.

    Raises: ValueError if it cannot be made.
    """
    if smallest < 0:
        raise ValueError(f"its table has no position {smallest}; positions go up from 0")
    if largest >= LONGEST_TABLE:
        raise ValueError(f"its table is built from 0; it is audited up to position {LONGEST_TABLE - 1}")
    return (largest // _STEP + 1) * _STEP
