"""What the adapters share: what they take, one instance for several dtypes, runs of positions.

Letters: h heads, s positions, d head_dim.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.errors import UsageError
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions
from ropeaudit.subjects.calling import arrays, backward
from ropeaudit.subjects.calling.code import Alike, Code, Rotation
from ropeaudit.subjects.calling.devices import of_torch
from ropeaudit.subjects.calling.environments import Environment
from ropeaudit.subjects.third_party.entries import Entry

if TYPE_CHECKING:
    import torch

# x (1, h, s, d) and positions (s,), int64 -> (1, h, s, d)
TensorTurn: TypeAlias = "Callable[[torch.Tensor, torch.Tensor], torch.Tensor]"

LONGEST_TABLE = 2**21  # positions of a table that is built from 0; a GiB at head_dim 128
_STEP = 2**14


class Adapter(Code):
    """Code as its entry describes it, built and called in an environment: torch is put back behind each.

    clean: the same without an environment.
    """

    clean: Adapter | None = None

    def __init__(self, entry: Entry) -> None:
        self.entry, self.name, self.engine = entry, entry.name, entry.engine
        self.layouts, self._version = entry.layouts, entry.version
        self.movable = entry.movable and entry.engine == "torch"

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

    def rotator(self, setting: RopeSetting, dtype: Format) -> Alike:
        """Return a new instance, made for a dtype, which takes the others too."""
        device = self.device.name
        with self.environment.built():
            called: Any = self.environment.wrapped(self.instance(setting, dtype), device)

        def rotate(x: FloatArray, at: Positions, fmt: Format) -> FloatArray:
            with self.environment.entered(device):
                rotated: FloatArray = called(x, at, fmt)
            return rotated

        return Alike(rotate, dtype)

    def under(self, environment: Environment) -> Self:
        """Return the code as called in an environment; itself in the clean one."""
        if environment.kind == "none":
            return self
        other = copy.copy(self)
        other.clean, other.environment, other.findings = self, environment, []
        return other

    @abstractmethod
    def instance(self, setting: RopeSetting, dtype: Format) -> Rotation:
        """Return a new instance's function, made for a dtype; it takes others too."""


@dataclass(slots=True)
class _OfTensors(Alike):
    """A rotation of tensors. turn: makes one of a new instance, for backward passes."""

    turn: Callable[[], Alike]

    def backward(self) -> Alike:
        """Return what calls the backward pass of a new instance."""
        return self.turn()


class TorchAdapter(Adapter):
    """An implementation that takes and returns tensors."""

    differentiable = True

    def rotator(self, setting: RopeSetting, dtype: Format) -> Alike:
        """Return a new instance."""

        def turn() -> Alike:
            return backward.of_tensors(self.module(setting, dtype), setting, dtype, self.device)

        return _OfTensors(super().rotator(setting, dtype).rotation, dtype, turn)

    def instance(self, setting: RopeSetting, dtype: Format) -> Rotation:
        """Return the function of a new module."""
        import torch

        from ropeaudit.subjects import torch_arrays

        rotation = self.module(setting, dtype)

        def rotate(x: FloatArray, positions: Positions, fmt: Format) -> FloatArray:
            given = arrays.new_array(x, fmt, "torch", self.device)
            with torch.no_grad(), self.device.current():
                rotated = rotation(given[None], arrays.tensor(positions, self.device))
            return torch_arrays.to_numpy(rotated[0])

        return rotate

    @abstractmethod
    def module(self, setting: RopeSetting, dtype: Format) -> TensorTurn:
        """Return the function that rotates tensors on the device."""


def table_end(largest: int, smallest: int) -> int:
    """Return how long a table from position 0 is made: whole steps, as a few serve many calls.

    Raises: ValueError if it cannot be made.
    """
    if smallest < 0:
        raise ValueError(f"its table has no position {smallest}; positions go up from 0")
    if largest >= LONGEST_TABLE:
        raise ValueError(f"its table is built from 0; it is audited up to position {LONGEST_TABLE - 1}")
    return (largest // _STEP + 1) * _STEP
