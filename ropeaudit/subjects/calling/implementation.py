"""Real code under audit: a function that rotates, called with real arrays, as a subject.

What is audited is the rotation alone: scores are formed in float64 from what the code returns.
Letters: h heads, s positions, d head_dim.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np

from ropeaudit.arithmetic.formats import FP32, FP64, FloatArray, Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.errors import RopeAuditError
from ropeaudit.rope.setting import Layout, RopeSetting
from ropeaudit.subjects import Positions, Raised
from ropeaudit.subjects.calling.devices import CPU, Device, advice

_HERE = Path(__file__).parent
_CALLERS = (_HERE, _HERE.parent / "third_party")  # what calls code lies there
# x (h, s, d), which holds numbers of the dtype under audit in its carrier, and positions (s,) -> (h, s, d);
# what is returned may be wider than what went in
Rotate: TypeAlias = Callable[[FloatArray, Positions], FloatArray]


class Rotator(Protocol):
    """One instance of called code, which may keep state from call to call. Letters: b batch, g heads of k."""

    def rotate_one(self, x: FloatArray, at: Positions, key: bool) -> FloatArray:
        """Return x rotated as q, or as k. Shapes: (h, s, d), (s,) -> (h, s, d)."""

    def rotate_both(self, q: FloatArray, k: FloatArray, at: Positions) -> tuple[FloatArray, FloatArray]:
        """Return q and k as one call rotates them, where it takes both; dims in the order they were given.

        Shapes: (b, h, s, d), (b, g, s, d), (s,) or (b, s) -> two arrays like q and k.
        """


@dataclass(slots=True)
class Alike:
    """Code that rotates an array without knowing whether it is q or k; implements `Rotator`."""

    rotate: Rotate

    def rotate_one(self, x: FloatArray, at: Positions, key: bool) -> FloatArray:
        """Return x rotated."""
        return self.rotate(x, at)

    def rotate_both(self, q: FloatArray, k: FloatArray, at: Positions) -> tuple[FloatArray, FloatArray]:
        """Return q and k rotated, a batch element at a time."""
        rows = at if at.ndim == 2 else [at] * len(q)
        first, second = (
            np.stack([self.rotate(element, row) for element, row in zip(x, rows, strict=True)])
            for x in (q, k)
        )
        return first, second


class Implementation(Protocol):
    """Code that rotates. One small file each in `ropeaudit.subjects.third_party`.

    engine: what computes, such as torch. layouts: those that can be requested.
    """

    name: str
    engine: str
    layouts: tuple[Layout, ...]

    @property
    def version(self) -> str:
        """Of the package; of own code the digest of its files."""

    def refuses(self, setting: RopeSetting, dtype: Format) -> str:
        """Return why a setting or dtype is not taken; empty where it is."""

    def fresh(self, setting: RopeSetting, dtype: Format) -> Rotate:
        """Return the function of a new instance, which has seen no other dtype and no other positions."""


_LARGEST = 2**24  # numbers of q and k together that are rotated by one call: of float32 64 MiB
_OF_NUMPY = ("float16", "float32", "float64")


@dataclass(slots=True)
class _Instance:
    """One instance at some positions. Instances may keep state: one thread at a time calls them.

    heads: what one call gave for all heads of q and of k, at the positions that are wanted.
    """

    rotator: Rotator
    positions: Positions
    lock: threading.Lock
    heads: tuple[FloatArray, FloatArray] | None = None


class Called:
    """An implementation in a dtype, on a RoPE setting; implements `ropeaudit.subjects.Subject`."""

    accumulate = score = FP64
    softmax = FP32
    scale_after_store = False

    def __init__(
        self,
        implementation: Implementation,
        setting: RopeSetting,
        dtype: Format,
        instance: Rotator | None = None,
    ) -> None:
        """Keep what is to be called. instance: the one that is; None for a new one wherever it begins."""
        self.implementation, self.setting, self.instance = implementation, setting, instance
        self.name, self.backend = implementation.name, implementation.engine
        self.device = device_of(implementation).label
        self.environment = environment_of(implementation)
        environment = getattr(implementation, "environment", None)
        self.narrowed: Format = environment.narrowed(dtype) if environment else dtype
        self.dtype = self.input = self.output = dtype
        self.narrowest = dtype.precision
        self.given: tuple[FloatArray, FloatArray] | None = None
        self.wanted: Positions | None = None

    @property
    def version(self) -> str:
        """That of the implementation; of own code it changes where a call imports more of its files."""
        return self.implementation.version

    def together(self, q: FloatArray, k: FloatArray, wanted: Positions | None = None) -> None:
        """Let one call rotate all heads of these, where it is at all of their positions.

        wanted: the positions among 0, 1, ... whose rows are asked for alone, of a call at all of them.
        Of more than 2^24 numbers each head has a call of its own. Shapes: (h, s, d), (g, s, d).
        """
        self.given = (q, k) if q.size + k.size <= _LARGEST else None
        self.wanted = wanted

    @property
    def bytes_together(self) -> int:
        """How much memory what one call gives takes."""
        return sum(x.size for x in self.given or ()) * int(self.dtype.carrier.itemsize)

    def stages(self) -> dict[str, str]:
        """Return what is known: how q, k and the scores are held; the order of axes that was requested."""
        formats = {"input": self.input.name, "accumulate": self.accumulate.name, "score": self.score.name}
        order = getattr(self.implementation, "order", None)
        changed: Mapping[str, str] = getattr(self.implementation, "changes", {})
        return {**formats, **changed} | ({"order": order.lower()} if order else {})

    def refusal(self, seq_len: int, offset: int) -> str:
        """Return why positions from `offset` on are refused; the first and the last of them are tried."""
        if reason := refusal(self.implementation, self.setting, self.dtype):
            return reason
        ends = np.unique(np.array([0, seq_len - 1]))
        for start in ends:
            try:
                self.rotate(np.ones((1, self.setting.head_dim)), self.table(ends[ends == start], offset))
            except RopeAuditError:
                raise
            except Exception as error:  # whatever other people's code raises is a finding
                return Raised(one_line(error) + self._hint(error))
        return ""

    def _hint(self, error: Exception) -> str:
        """Return what to do where devices are mixed, or code of NumPy fails for a dtype that it has not."""
        if places := advice(str(error), device_of(self.implementation)):
            return f"; {places}"
        if getattr(self.implementation, "engine", "") != "numpy" or self.dtype.name in _OF_NUMPY:
            return ""
        if not (isinstance(error, TypeError) or "dtype" in str(error) or self.dtype.name in str(error)):
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
        make = getattr(self.implementation, "rotator", None)
        if make is None:
            return Alike(self.implementation.fresh(self.setting, self.dtype))
        rotator: Rotator = make(self.setting, self.dtype)
        return rotator

    def afresh(self) -> Rotator:
        """Return a new instance, of own code with its file executed anew where that can be."""
        make = getattr(self.implementation, "anew", None)
        rotator: Rotator | None = make(self.setting, self.dtype) if make else None
        return rotator or self.rotator()

    def by_batch(self) -> bool:
        """Return whether it takes positions of each batch element."""
        fit = getattr(self.implementation, "fit", None)
        return fit is not None and fit(self.setting).rows is not None

    def rotate(self, x: FloatArray, table: _Instance) -> FloatArray:
        """Return x rotated by the implementation, as q. Shapes: (s, d) -> (s, d)."""
        return self._rotate(x, table, key=False)

    def rotate_key(self, x: FloatArray, table: _Instance) -> FloatArray:
        """Return x rotated by the implementation, as k. Shapes: (s, d) -> (s, d)."""
        return self._rotate(x, table, key=True)

    def rotate_head(self, x: FloatArray, table: _Instance, key: bool, head: int) -> FloatArray:
        """Return x, a head of q or of k, as a call with all heads rotates it. Shapes: (s, d) -> (s, d)."""
        seq_len = 0 if self.given is None else self.given[0].shape[1]
        wanted = np.arange(seq_len, dtype=np.int64) if self.wanted is None else self.wanted
        if self.given is None or table.positions.size != wanted.size:
            return self._rotate(x, table, key)
        with table.lock:
            if table.heads is None:
                first = table.positions[0] - wanted[0]
                every = np.arange(seq_len, dtype=np.int64) + first
                q, k = self._rotated(table.rotator, every, *self.given)
                table.heads = q[:, wanted], k[:, wanted]
        return np.ascontiguousarray(table.heads[key][head])

    def _rotated(self, rotator: Rotator, at: Positions, *given: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return all heads of q and k rotated. Shapes: (s,), (h, s, d), (g, s, d) -> like q and k."""
        with np.errstate(over="ignore"):  # a number that the dtype does not hold
            rounded = [round_to(x, self.dtype).astype(self.dtype.carrier)[None] for x in given]
        rotate: Any = getattr(rotator, "rotate_whole", rotator.rotate_both)
        results = rotate(*rounded, at)
        for x, rotated in zip(rounded, results, strict=True):
            if rotated.shape != x.shape:
                raise ValueError(f"it returns the shape {rotated.shape[2:]} for {x.shape[2:]}")
        return results[0][0], results[1][0]

    def _rotate(self, x: FloatArray, table: _Instance, key: bool) -> FloatArray:
        given = np.ascontiguousarray(x, dtype=self.dtype.carrier)[None]
        with table.lock:
            rotated = table.rotator.rotate_one(given, table.positions, key)
        if rotated.shape != given.shape:
            raise ValueError(f"it returns the shape {rotated.shape[1:]} for {given.shape[1:]}")
        return np.ascontiguousarray(rotated[0])

    def distinct_positions(self, positions: Positions) -> int:
        """Return how many positions rotate a vector of ones differently, and to finite numbers."""
        rotated = self.rotate(np.ones((positions.size, self.setting.head_dim)), self.table(positions, 0))
        finite = rotated[np.isfinite(rotated).all(axis=1)]
        return int(np.unique(finite, axis=0).shape[0])


def runs(positions: Positions) -> Iterator[tuple[slice, int]]:
    """Yield the runs of consecutive positions, each as a slice and its first position.

    For code that takes a first position alone. What rounds positions after it has counted them from 0 may
    round those of a shorter run differently.
    """
    starts = [0, *(np.flatnonzero(np.diff(positions) != 1) + 1).tolist(), positions.size]
    for start, stop in pairwise(starts):
        yield slice(start, stop), int(positions[start])


def environment_of(implementation: Implementation) -> str:
    """Return what code is called under, as a row calls it; none where nothing is changed for it."""
    environment = getattr(implementation, "environment", None)
    return environment.label(device_of(implementation).name) if environment else "none"


def device_of(implementation: Implementation) -> Device:
    """Return where an implementation is called."""
    device: Device = getattr(implementation, "device", CPU)
    return device


def refusal(implementation: Implementation, setting: RopeSetting, dtype: Format) -> str:
    """Return why an implementation does not take a setting or dtype; empty where it does."""
    if setting.layout not in implementation.layouts:
        layouts = " or ".join(implementation.layouts)
        return f"it pairs dims in the layout {layouts} alone; type --layout {layouts}"
    if setting.clipped:
        return "it has no clipped angles; leave out --clip"
    return implementation.refuses(setting, dtype)


def raised_by_code(error: BaseException) -> bool:
    """Return whether an exception comes out of a call of code, and is no fault of the audit."""
    frame = error.__traceback__
    while frame is not None:
        if Path(frame.tb_frame.f_code.co_filename).parent in _CALLERS:
            return True
        frame = frame.tb_next
    return False


def one_line(error: BaseException, longest: int = 200) -> str:
    """Return the type and the message of an exception on one line, without its full stop.

    longest: characters of the message.
    """
    text = " ".join((error.typed if isinstance(error, RopeAuditError) else str(error)).split())
    text = text[:longest].rstrip(" .")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
