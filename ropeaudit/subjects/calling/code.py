"""Base classes of code that rotates, of an instance that is called, and a subject made of code.

Only the rotation is audited: scores are formed in float64 from the vectors that the code returns.
Letters: b batch, h heads of q, g heads of k, s positions, d head_dim.
"""

from __future__ import annotations

import copy
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.formats import FP32, FP64, FloatArray, Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.errors import Ended, ForeignError, Late, MissingPackage, one_line
from ropeaudit.rope.axes import Layout
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions, Raised
from ropeaudit.subjects.calling.detection import Fit
from ropeaudit.subjects.calling.environments import CLEAN, CPU, Device, Environment, device_advice
from ropeaudit.subjects.calling.shapes import WrongShape
from ropeaudit.subjects.calling.stages import NO_CHANGES, Changes, StageLog

CallOf: TypeAlias = "tuple[FloatArray, FloatArray, Positions]"  # q, k and positions of a call
Both: TypeAlias = tuple[FloatArray, FloatArray]  # q and k
After: TypeAlias = Callable[[Both, Both, Positions, RopeSetting], Both]  # as given, as returned


class Rotator(ABC):
    """One instance of code in a dtype and an environment; it may keep state."""

    @abstractmethod
    def rotate_both(
        self,
        q: FloatArray,
        k: FloatArray,
        at: Positions,
    ) -> tuple[FloatArray, FloatArray]:
        """Rotate q and k, in one call if the code takes both; dims keep their order.

        Shapes: (b, h, s, d), (b, g, s, d), (s,) or (b, s) -> two arrays like q and k.
        """

    def rotate_parts(
        self, q: FloatArray, k: FloatArray, at: Positions, parts: Sequence[tuple[int, int]]
    ) -> tuple[FloatArray, FloatArray]:
        """Rotate q and k in parts, a call for each. parts: first token and end of each."""
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
        """Return the CPU seconds of the fastest of some calls. Raises: what the code raises."""
        taken = []
        for _ in range(times):
            began = time.process_time()
            self.rotate_both(q, k, at)
            taken.append(time.process_time() - began)
        return min(taken)

    def in_dtype(self, dtype: Format, environment: Environment | None = None) -> Rotator:
        """Return the same instance, called in another dtype and, if given, environment.

        Raises: NotImplementedError where a rotator has only one dtype.
        """
        raise NotImplementedError  # some rotators have no other dtype


class Code(ABC):
    """Code that rotates: the user's own, an entry of the list of adapters, or files of a kernel.

    layouts: those that can be requested. environment: in which it is called; clean: the same code without it,
    or None. order: the requested order of axes. changes: formats of the stages of tables that it is given.
    own: whether it is the user's. built: whether it is a class or a factory. loaded_version: `version` before
    any call; empty where no call changes it.
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
        """The package's version, or a digest of the files of own code, which later imports extend."""

    @property
    def has_fresh_instances(self) -> bool:
        """Whether a new instance is free of state; a function that is loaded once is not."""
        return True

    @property
    def environment_label(self) -> str:
        """The name of the environment in rows; "none" for the clean one."""
        return self.environment.label(self.device.name)

    def refuses(self, setting: RopeSetting, dtype: Format) -> str:
        """Return why a setting or dtype is not taken; empty where it is."""
        return self.reason

    def refusal(self, setting: RopeSetting, dtype: Format) -> str:
        """Return why a setting or dtype is refused, the layout included; empty where it is not."""
        if setting.layout not in self.layouts:
            layouts = " or ".join(self.layouts)
            return f"it pairs dims in the layout {layouts} alone; type --layout {layouts}"
        if setting.clipped:
            return "it has no clipped angles; leave out --clip"
        return self.refuses(setting, dtype)

    def fit(self, setting: RopeSetting) -> Fit | None:
        """Return how the code is called; None for an adapter."""
        return None

    def layout(self, setting: RopeSetting) -> Layout:
        """Return the layout that is audited by default. Raises: UsageError."""
        fit = self.fit(setting)
        return fit.layout if fit else self.layouts[0]

    def rotator(self, setting: RopeSetting, dtype: Format) -> Rotator:
        """Return a rotator of a new instance, which nothing has called before."""
        raise MissingPackage(self.reason)

    def logged(
        self,
        setting: RopeSetting,
        dtype: Format,
        x: FloatArray,
        length: int,
    ) -> dict[str, StageLog]:
        """Log the torch operations of one call of a new instance from position 0, by stage.

        x: numbers of the dtype that are rotated. Shapes: x (h, length, d). Raises: what the code raises.
        """
        from ropeaudit.subjects.calling import dispatch_log  # in-function: it imports torch

        at, both = np.arange(length, dtype=np.int64), x[None]
        log = dispatch_log.DispatchLog(len(x), length, setting.head_dim, setting.pairs)
        with log.listening():
            self.rotator(setting, dtype).rotate_both(both, both, at)
        return log.of_stages()

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
        """Return itself: it is called in no environment."""
        return self


_LARGEST = 2**24  # numbers of q and k that one call rotates: 64 MiB of float32
_OF_NUMPY = ("float16", "float32", "float64")


@dataclass(slots=True)
class _Instance:
    """One instance at some positions. It may keep state, so one thread at a time calls it.

    heads: the result of one call for all heads of q and k, at the wanted positions.
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
        """Store the code. instance: None to make a new one for each table."""
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
        """The version of the code."""
        return self.code.version

    def together(self, q: FloatArray, k: FloatArray, wanted: Positions | None = None) -> None:
        """Let one call rotate all heads of q and k, as a call of the model does.

        wanted: the positions among 0, 1, ... whose rows are needed. Above 2^24 numbers each head has a call
        of its own. Shapes: (h, s, d), (g, s, d).
        """
        self.given = (q, k) if q.size + k.size <= _LARGEST else None
        self.wanted = wanted

    @property
    def bytes_together(self) -> int:
        """The bytes that the result of one call takes."""
        return sum(x.size for x in self.given or ()) * int(self.dtype.carrier.itemsize)

    def stages(self) -> dict[str, str]:
        """Return the formats of q, k and scores, and the order of axes if requested."""
        formats = {"input": self.input.name, "accumulate": self.accumulate.name, "score": self.score.name}
        order = self.code.order
        return {**formats, **self.code.changes} | ({"order": order.lower()} if order else {})

    def refusal(self, seq_len: int, offset: int) -> str:
        """Call at the first and at the last position; return why that fails, or nothing."""
        if reason := self.code.refusal(self.setting, self.dtype):
            return reason
        for end in sorted({0, seq_len - 1}):
            try:
                self.rotate(np.ones((1, self.setting.head_dim)), self.table(np.array([end]), offset))
            except ForeignError as error:
                return Raised(one_line(error) + self._hint(error))
        return ""

    def _hint(self, error: Exception) -> str:
        """Return a hint for errors about mixed devices or a dtype that NumPy lacks."""
        if places := device_advice(str(error), self.code.device):
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
        """Return an instance and the positions at which it will rotate."""
        rotator = self.rotator() if self.instance is None else self.instance
        return _Instance(rotator, positions + offset, threading.Lock())

    def rotator(self) -> Rotator:
        """Return a new instance."""
        return self.code.rotator(self.setting, self.dtype)

    def by_batch(self) -> bool:
        """Return whether the code takes a row of positions for each batch element."""
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
        """Rotate a head of q or k, in one call with all heads; alone where head is None.

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
        """Rotate all heads of q and k in one call. Shapes: (s,), (h, s, d), (g, s, d) -> like q and k."""
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
        """Return how many positions rotate a vector of ones to distinct finite vectors."""
        rotated = self.rotate(np.ones((positions.size, self.setting.head_dim)), self.table(positions, 0))
        finite = rotated[np.isfinite(rotated).all(axis=1)]
        return int(np.unique(finite, axis=0).shape[0])
