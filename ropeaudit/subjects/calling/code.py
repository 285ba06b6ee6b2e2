"""Code that rotates: what it says of itself, and one instance of it that is called.

Letters: b batch, h heads of q, g heads of k, s positions, d head_dim.
"""

from __future__ import annotations

import copy
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Self, TypeAlias

import numpy as np

from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.errors import MissingPackage
from ropeaudit.rope.setting import Layout, RopeSetting
from ropeaudit.subjects import Positions
from ropeaudit.subjects.calling.devices import CPU, Device
from ropeaudit.subjects.calling.environments import CLEAN, Environment

if TYPE_CHECKING:
    from ropeaudit.subjects.calling.detection import Fit

Changes: TypeAlias = Mapping[str, str]
NO_CHANGES: Changes = MappingProxyType({})
CallOf: TypeAlias = "tuple[FloatArray, FloatArray, Positions]"  # q, k and positions of a call
Both: TypeAlias = tuple[FloatArray, FloatArray]  # q and k
After: TypeAlias = Callable[[Both, Both, Positions, RopeSetting], Both]  # as given, as returned


@dataclass(slots=True)
class StageLog:
    """What torch did in one stage: dtypes in order, and the operations.

    products: those that are matrix products, with the dtype of their factors. narrow: the number, file and
    line of the first operation of others' code whose result has fewer bits than float32.
    """

    dtypes: list[str] = field(default_factory=list)
    operations: list[str] = field(default_factory=list)
    products: dict[str, str] = field(default_factory=dict)
    narrow: tuple[int, str, int] | None = None


class Rotator(ABC):
    """One instance of code in a dtype and an environment; it may keep state."""

    @abstractmethod
    def rotate_both(
        self,
        q: FloatArray,
        k: FloatArray,
        at: Positions,
    ) -> tuple[FloatArray, FloatArray]:
        """Return q and k as one call, if it takes both, rotates them; dims in given order.

        Shapes: (b, h, s, d), (b, g, s, d), (s,) or (b, s) -> two arrays like q and k.
        """

    def rotate_parts(
        self, q: FloatArray, k: FloatArray, at: Positions, parts: Sequence[tuple[int, int]]
    ) -> tuple[FloatArray, FloatArray]:
        """Return q and k rotated, one call a part. parts: first token and end of each."""
        rotated = [self.rotate_both(q[:, :, i:j], k[:, :, i:j], at[..., i:j]) for i, j in parts]
        first, second = (np.concatenate(results, axis=2) for results in zip(*rotated, strict=True))
        return first, second

    def seconds(
        self,
        q: FloatArray,
        k: FloatArray,
        at: Positions,
        times: int,
    ) -> float:
        """Return the CPU seconds of the fastest call. Raises: whatever the code raises."""
        taken = []
        for _ in range(times):
            began = time.process_time()
            self.rotate_both(q, k, at)
            taken.append(time.process_time() - began)
        return min(taken)

    def otherwise(self, dtype: Format, environment: Environment | None = None) -> Rotator:
        """Return the instance, called in another dtype and, if given, environment.

        Raises: NotImplementedError where nothing is called, or in one way alone.
        """
        raise NotImplementedError  # some rotators have no other dtype


class Code(ABC):
    """Code that rotates, from a spec: own code, an entry of a list, files of a kernel.

    layouts: those that can be requested. environment: in which it is called; clean: the same without it, None
    for itself. order: of axes that was requested. changes: of the stages of tables that it is given. own:
    whether it is the user's. built: whether it is a class or a factory. loaded_version: what `version` was
    before any call; empty where no call changes it.
    """

    name: str
    engine: str
    layouts: tuple[Layout, ...]
    device: Device = CPU
    environment: Environment = CLEAN
    clean: Self | None = None
    order: str | None = None
    changes: Changes = NO_CHANGES
    findings: Sequence[str] = ()
    own = False
    reason = ""  # why it cannot be called
    built = False
    loaded_version = ""
    differentiable = False  # whether autograd runs through what an adapter calls
    eager = False  # whether what it compiles is called as Python
    flag: Layout | None = None  # the layout that an argument says by default
    needed: Mapping[str, str] = MappingProxyType({})  # its arguments without a default
    layered = ""  # that which is the type of a layer
    told: Sequence[str] = ()  # roles of what an instance is built from
    builders: Sequence[str] = ()  # names of what may make tables
    place = "", 0  # file and line where it is defined
    declared: int | None = None  # the largest position + 1 by its config
    layers: Mapping[str, RopeSetting] = MappingProxyType({})  # settings of a config
    served: int | None = None  # up to where its setting serves
    after: After | None = None  # what is made of q and k that it returned

    @property
    @abstractmethod
    def version(self) -> str:
        """Of the package; of own code a digest of its files, which later imports extend."""

    @property
    def begins_anew(self) -> bool:
        """Whether a new instance has no past: a function that is loaded once has one."""
        return True

    @property
    def environment_label(self) -> str:
        """What a row calls its environment: none for the clean one."""
        return self.environment.label(self.device.name)

    def refuses(self, setting: RopeSetting, dtype: Format) -> str:
        """Return why a setting or dtype is not taken; empty where it is."""
        return self.reason

    def refusal(self, setting: RopeSetting, dtype: Format) -> str:
        """Return the same, for its layout too."""
        if setting.layout not in self.layouts:
            layouts = " or ".join(self.layouts)
            return f"it pairs dims in the layout {layouts} alone; type --layout {layouts}"
        if setting.clipped:
            return "it has no clipped angles; leave out --clip"
        return self.refuses(setting, dtype)

    def fit(self, setting: RopeSetting) -> Fit | None:
        """Return how it is called; None for an adapter."""
        return None

    def layout(self, setting: RopeSetting) -> Layout:
        """Return the layout that is audited by default. Raises: UsageError."""
        fit = self.fit(setting)
        return fit.layout if fit else self.layouts[0]

    def rotator(self, setting: RopeSetting, dtype: Format) -> Rotator:
        """Return a new instance, which has seen no other dtype and no other positions."""
        raise MissingPackage(self.reason)

    def logged(
        self,
        setting: RopeSetting,
        dtype: Format,
        x: FloatArray,
        length: int,
    ) -> dict[str, StageLog]:
        """Return what torch does in one call: see `dispatch_log.logged`."""
        from ropeaudit.subjects.calling import dispatch_log  # in-function: it imports torch

        return dispatch_log.logged(self, setting, dtype, x, length)

    def under(self, environment: Environment) -> Self:
        """Return the same code in an environment; it is called as in the clean one."""
        if environment.kind == "none":
            return self
        other = copy.copy(self)
        other.environment, other.clean, other.findings = environment, self, []
        return other


class Unavailable(Code):
    """Code that cannot be loaded or called, with the reason, as one of several."""

    engine = "none"
    version = ""

    def __init__(
        self,
        name: str,
        reason: str,
        layouts: tuple[Layout, ...],
        version: str = "none",
    ) -> None:
        self.name, self.reason, self.layouts, self.version = name, reason, layouts, version

    def under(self, environment: Environment) -> Self:
        """Return itself, as it is called in none."""
        return self


def runs(positions: Positions) -> Iterator[tuple[slice, int]]:
    """Yield the runs of consecutive positions, each as a slice and its first position.

    For code that takes a first position alone, whose roundings may depend on it.
    """
    starts = [0, *(np.flatnonzero(np.diff(positions) != 1) + 1).tolist(), positions.size]
    for start, stop in pairwise(starts):
        yield slice(start, stop), int(positions[start])
