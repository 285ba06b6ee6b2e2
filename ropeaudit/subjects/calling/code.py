"""Code that rotates: what it says of itself, and one instance of it that is called.

Letters: b batch, h heads of q, g heads of k, s positions, d head_dim.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np

from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.rope.setting import Layout, RopeSetting
from ropeaudit.subjects import Positions
from ropeaudit.subjects.calling.devices import CPU, Device
from ropeaudit.subjects.calling.environments import CLEAN, Environment

if TYPE_CHECKING:
    from ropeaudit.subjects.calling.detection import Fit

T = TypeVar("T")
Changes: TypeAlias = Mapping[str, str]
NO_CHANGES: Changes = MappingProxyType({})
# x (h, s, d), numbers of a dtype in its carrier, positions (s,), that dtype -> (h, s, d), which may be wider
Rotation: TypeAlias = Callable[[FloatArray, Positions, Format], FloatArray]


class Rotator(ABC):
    """One instance of code in a dtype and an environment, which may keep state from call to call."""

    @property
    def has_past(self) -> bool:
        """Whether it is a function that may have been called before, and may keep something of that."""
        return False

    def rotate_one(self, x: FloatArray, at: Positions, key: bool) -> FloatArray:
        """Return x rotated as q, or as k. Shapes: (h, s, d), (s,) -> (h, s, d)."""
        rotated: FloatArray = self.rotate_both(x[None], x[None], at)[int(key)][0]
        return rotated

    @abstractmethod
    def rotate_both(self, q: FloatArray, k: FloatArray, at: Positions) -> tuple[FloatArray, FloatArray]:
        """Return q and k as one call rotates them, where it takes both; dims in the order they were given.

        Shapes: (b, h, s, d), (b, g, s, d), (s,) or (b, s) -> two arrays like q and k.
        """

    def rotate_whole(self, q: FloatArray, k: FloatArray, at: Positions) -> tuple[FloatArray, FloatArray]:
        """Return the same with dims in the order in which the code returns them."""
        return self.rotate_both(q, k, at)

    def together(self, calls: Callable[[], T], what: str) -> T:
        """Return what `calls` returns, which calls this instance many times in a row, in one state."""
        return calls()

    def otherwise(self, dtype: Format, environment: Environment | None = None) -> Rotator:
        """Return the same instance, called in another dtype, and in an environment where one is given.

        Raises: NotImplementedError where nothing is called, or in one way alone.
        """
        raise NotImplementedError  # what is looked up, and a way to call an instance, have no other dtype


@dataclass(slots=True)
class Alike(Rotator):
    """Code that rotates an array without knowing whether it is q or k."""

    rotation: Rotation
    dtype: Format

    def rotate_one(self, x: FloatArray, at: Positions, key: bool) -> FloatArray:
        """Return x rotated."""
        return self.rotation(x, at, self.dtype)

    def rotate_both(self, q: FloatArray, k: FloatArray, at: Positions) -> tuple[FloatArray, FloatArray]:
        """Return q and k rotated, a batch element at a time."""
        rows = at if at.ndim == 2 else [at] * len(q)
        first, second = (
            np.stack([self.rotation(element, row, self.dtype) for element, row in zip(x, rows, strict=True)])
            for x in (q, k)
        )
        return first, second

    def otherwise(self, dtype: Format, environment: Environment | None = None) -> Alike:
        """Return the same instance, called in another dtype."""
        return replace(self, dtype=dtype)


class Code(ABC):
    """Code that rotates, loaded from a spec: the user's own, an entry of a list, files of a kernel.

    engine: what computes, such as torch. layouts: those that can be requested. environment: in which it is
    called; clean: the same without it, None for itself. order: of axes that was requested. changes: of the
    stages of tables that it is given. findings: what is worth knowing of how it is called and what it does,
    in the order it was seen.
    """

    name: str
    engine: str
    layouts: tuple[Layout, ...]
    device: Device = CPU
    environment: Environment = CLEAN
    clean: Code | None = None
    order: str | None = None
    changes: Changes = NO_CHANGES
    findings: Sequence[str] = ()

    @property
    @abstractmethod
    def version(self) -> str:
        """Of the package; of own code the digest of its files, which grows where a call imports more."""

    @property
    def loaded_version(self) -> str:
        """What `version` was before any call; empty where no call changes it."""
        return ""

    @property
    def has_instances(self) -> bool:
        """Whether it is more than a function, which is its own instance."""
        return True

    @property
    def environment_label(self) -> str:
        """What a row calls its environment: none for the clean one."""
        return self.environment.label(self.device.name)

    @abstractmethod
    def refuses(self, setting: RopeSetting, dtype: Format) -> str:
        """Return why a setting or dtype is not taken; empty where it is."""

    def refusal(self, setting: RopeSetting, dtype: Format) -> str:
        """Return the same, for its layout too."""
        if setting.layout not in self.layouts:
            layouts = " or ".join(self.layouts)
            return f"it pairs dims in the layout {layouts} alone; type --layout {layouts}"
        if setting.clipped:
            return "it has no clipped angles; leave out --clip"
        return self.refuses(setting, dtype)

    def fit(self, setting: RopeSetting) -> Fit | None:
        """Return how it is called, where that was found out; None of what an adapter calls."""
        return None

    def layout(self, setting: RopeSetting) -> Layout:
        """Return the layout in which it is audited unless another is requested. Raises: UsageError."""
        fit = self.fit(setting)
        return fit.layout if fit else self.layouts[0]

    @abstractmethod
    def rotator(self, setting: RopeSetting, dtype: Format) -> Rotator:
        """Return a new instance, which has seen no other dtype and no other positions."""

    def anew(self, setting: RopeSetting, dtype: Format) -> Rotator:
        """Return an instance without a past: of own code with its file executed anew, where that can be."""
        return self.uncalled(setting, dtype).rotator(setting, dtype)

    def uncalled(self, setting: RopeSetting, dtype: Format) -> Code:
        """Return the same code as nothing has called it; itself where that cannot be or is dear."""
        return self

    def under(self, environment: Environment) -> Code:
        """Return the same code as it is called in an environment; itself in the clean one."""
        return self


def runs(positions: Positions) -> Iterator[tuple[slice, int]]:
    """Yield the runs of consecutive positions, each as a slice and its first position.

    For code that takes a first position alone. What rounds positions after it has counted them from 0 may
    round those of a shorter run differently.
    """
    starts = [0, *(np.flatnonzero(np.diff(positions) != 1) + 1).tolist(), positions.size]
    for start, stop in pairwise(starts):
        yield slice(start, stop), int(positions[start])
