"""The ways to call code that rotates, and what each argument is filled with.

Letters: b batch, h heads, g heads of k, s positions, d head_dim, p pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from ropeaudit import recipes
from ropeaudit.arithmetic.formats import FP64, FloatArray, Format
from ropeaudit.errors import UnknownName
from ropeaudit.recipes import Resolved
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions
from ropeaudit.subjects.calling import arrays, signatures
from ropeaudit.subjects.calling.arrays import Engine
from ropeaudit.subjects.calling.implementation import runs
from ropeaudit.subjects.calling.signatures import Form
from ropeaudit.subjects.calling.timeout import patiently
from ropeaudit.subjects.emulated import Emulated

ORDERS = ("bhsd", "bshd", "sbhd", "hsd", "shd", "sd")
TABLES = ("position", "frequency", "angle", "trig", "table")  # stages of tables that code may be given
Changes: TypeAlias = Mapping[str, str]
NONE: Changes = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class _Call:
    """What all calls of one function share."""

    function: Any
    setting: RopeSetting
    dtype: Format
    changes: Changes


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call gave: values (b, h, s, d), those of k where it turns both; whether it changed its input."""

    values: FloatArray
    keys: FloatArray | None
    dtype: str
    changed: bool


@dataclass(frozen=True, slots=True)
class Way:
    """One way to call. rank: axes of positions or tables. width: of tables, p pairs or d dims in a layout."""

    form: Form
    order: str
    engine: Engine
    rank: int = 1
    width: str = "pairs"

    @property
    def by_batch(self) -> bool:
        """Whether positions are given for each batch element."""
        return self.rank == 2 and "b" in self.order and "positions" in self.form.roles

    def __str__(self) -> str:
        return (
            f"{self.form} with {'NumPy arrays' if self.engine == 'numpy' else 'torch tensors'} {self.order}"
        )

    def __call__(
        self,
        function: Any,
        x: FloatArray,
        positions: Positions,
        setting: RopeSetting,
        dtype: Format,
        k: FloatArray | None = None,
        changes: Changes = NONE,
    ) -> Answer:
        """Return x rotated by the function, called as often as its axes need; k is x where it is None.

        changes: of the stages of tables that are made for it.
        Shapes: x (b, h, s, d), k (b, g, s, d), positions (s,), or (b, s) where it takes them.
        """
        k, call = x if k is None else k, _Call(function, setting, dtype, changes)
        if "offset" not in self.form.roles:
            return self._run(call, x, k, positions)
        parts = [
            self._run(call, x[:, :, some], k[:, :, some], positions[some]) for some, _ in runs(positions)
        ]
        keys = [one.keys for one in parts if one.keys is not None]
        return Answer(
            np.concatenate([one.values for one in parts], axis=2),
            np.concatenate(keys, axis=2) if len(keys) == len(parts) else None,
            parts[0].dtype,
            any(one.changed for one in parts),
        )

    def _run(self, call: _Call, x: FloatArray, k: FloatArray, positions: Positions) -> Answer:
        """Call with the axes that the function has, over the others."""
        letters = "".join(axis for axis in "bhsd" if axis in self.order)
        cut = 4 - len(letters)  # leading axes that the function does not have
        group = x.shape[1] // k.shape[1] if cut > 1 else 1
        some = [(one.reshape(-1, *one.shape[cut:]) if cut else one[None]) for one in (x, k.repeat(group, 1))]
        rows = np.broadcast_to(positions, (len(some[0]), *positions.shape[-1:])) if cut else [positions]
        answers = [self._one(call, a, b, at, letters) for a, b, at in zip(*some, rows, strict=True)]
        keys = [one.keys for one in answers if one.keys is not None]
        whole = (*k.shape[:1], k.shape[1] * group, *k.shape[2:])
        return Answer(
            np.stack([one.values for one in answers]).reshape(x.shape),
            np.stack(keys).reshape(whole)[:, ::group] if len(keys) == len(answers) else None,
            answers[0].dtype,
            any(one.changed for one in answers),
        )

    def _one(self, call: _Call, x: FloatArray, k: FloatArray, at: Positions, letters: str) -> Answer:
        axes = [letters.index(axis) for axis in self.order]
        given, keyed = (np.ascontiguousarray(one.transpose(axes)) for one in (x, k))
        built = {
            role: self._argument(role, keyed if role == "k" else given, at, call) for role in self.form.roles
        }
        plain = [built[role] for name, role in self.form.arguments if name is None]
        named = {name: built[role] for name, role in self.form.arguments if name is not None}
        before = arrays.values(built["q" if "q" in built else "x"])[0]
        result = patiently(lambda: arrays.quietly(call.function, plain, named), "a call")
        vector = built["q" if "q" in built else "x"]
        after, name = arrays.values(vector)
        changed = not np.array_equal(before, after, equal_nan=True)
        if result is None:  # it rotated its input where it lay; at position 0 nothing shows
            result = (vector, built["k"]) if "k" in built else vector
        first, second = arrays.parts(result, "k" in built)
        values, name = arrays.values(first)
        others = None if second is None else arrays.values(second)[0]
        if values.shape != given.shape:
            raise arrays.WrongShape(f"returns the shape {values.shape} for {given.shape}")
        if others is not None and others.shape != keyed.shape:
            raise arrays.WrongShape(f"returns the shape {others.shape} for k {keyed.shape}")
        back = np.argsort(axes)
        return Answer(
            values.transpose(back), None if others is None else others.transpose(back), name, changed
        )

    def _argument(self, role: str, x: FloatArray, at: Positions, call: _Call) -> Any:
        """What a role is filled with."""
        if role in ("q", "k", "x"):
            return arrays.built(x, call.dtype, self.engine)
        if role == "positions":
            batch = x.shape[self.order.index("b")] if "b" in self.order else 1
            rows = at.copy() if self.rank == at.ndim else np.repeat(at[None], batch, axis=0)
            return rows if self.engine == "numpy" else arrays.torch().from_numpy(rows)
        if role in ("cos", "sin", "freqs"):
            return self._table(role, at, call)
        numbers: dict[str, Any] = {
            "offset": int(at.flat[0]),
            "seq_dim": self.order.index("s"),
            "head_axis": self.order.index("h") if "h" in self.order else 0,
        }
        return numbers[role] if role in numbers else built(role, call.setting)

    def _table(self, role: str, at: Positions, call: _Call) -> Any:
        """cos, sin or cos + i sin, made in float64, rounded once to float32 (not at all for float64).

        Where stages are changed they are those; a table that is asked for in a dtype comes in it.
        """
        one = given_tables(call.dtype, call.changes)
        cos, sin = Emulated(one, call.setting).table(at, 0)
        wide = np.float64 if call.dtype is FP64 else np.float32
        if role == "freqs":
            table: Any = np.empty(cos.shape, np.result_type(wide, np.complex64))
            table.real, table.imag = cos, sin
        else:
            table = (cos if role == "cos" else sin).astype(wide)
            if self.width != "pairs":
                table = np.tile(table, 2) if self.width == "half" else np.repeat(table, 2, axis=1)
        if self.rank == 2:
            table = table[None]
        if self.rank == 3:
            table = table.reshape([*(len(at) if axis == "s" else 1 for axis in self.order[:-1]), -1])
        if role != "freqs" and "table" in call.changes and one.table and one.table.storage_bits <= 16:
            return arrays.built(np.ascontiguousarray(table), one.table, self.engine)
        return table if self.engine == "numpy" else arrays.torch().from_numpy(np.ascontiguousarray(table))


def given_tables(dtype: Format, changes: Changes) -> Resolved:
    """Return how tables are made that code is given: in float64, rounded once, but for what is changed."""
    return recipes.named("fp64-angles").changed(changes).resolve(dtype)


def scored(
    function: Any,
    q: FloatArray,
    k: FloatArray,
    at: Positions,
    dtype: Format,
    order: str,
    engine: Engine,
) -> FloatArray:
    """Return what f(q, k, positions) gives for all heads at once. Shapes: q, k (h, s, d), at (s,)."""
    letters = order[-3:] if len(order) == 3 else order
    if sorted(letters) not in (sorted("bhsd"), sorted("hsd")):
        raise UnknownName("order", order, [one for one in ORDERS if "h" in one])
    axes = ["bhsd".index(axis) - (4 - len(letters)) for axis in letters]
    x = [(one[None] if len(letters) == 4 else one).transpose(axes) for one in (q, k)]
    plain = [*(arrays.built(np.ascontiguousarray(one), dtype, engine) for one in x), at.copy()]
    if engine == "torch":
        plain[2] = arrays.torch().from_numpy(plain[2])
    return arrays.values(patiently(lambda: arrays.quietly(function, plain, {}), "a call"))[0]


def built(role: str, setting: RopeSetting) -> Any:
    """Return what a module or a factory is built from."""
    return {"base": setting.base, "dim": setting.rotary_dim, "length": signatures.LENGTH}[role]
