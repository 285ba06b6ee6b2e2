"""Calling conventions of code that rotates, and what each argument is filled with.

Letters: b batch, h heads, g heads of k, s positions, d head_dim, p pairs.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from ropeaudit import recipes
from ropeaudit.arithmetic.formats import FP64, FloatArray, Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.errors import UnknownName
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions
from ropeaudit.subjects.calling import arrays, signatures
from ropeaudit.subjects.calling.arrays import Engine, Strides
from ropeaudit.subjects.calling.code import NO_CHANGES, Changes, runs
from ropeaudit.subjects.calling.devices import CPU, Device
from ropeaudit.subjects.calling.signatures import Signature
from ropeaudit.subjects.calling.timeout import patiently
from ropeaudit.subjects.emulated import Emulated

ORDERS = ("bhsd", "bshd", "sbhd", "hsd", "shd", "sd")
TABLES = ("position", "frequency", "angle", "trig", "table")  # stages of tables that code may be given
TABLE_ROLES = ("cos", "sin", "freqs")
_BESIDE = ("positions", *TABLE_ROLES)  # roles of arrays that are not rotated


@dataclass(frozen=True, slots=True)
class _Call:
    """What all calls of one function share."""

    function: Any
    setting: RopeSetting
    dtype: Format
    changes: Changes


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call returned: values (b, h, s, d), those of k where both are rotated. changed: q, k or x.

    keys_dtype: of k, that of the values where k is not returned. in_place: it returned nothing, or its input.
    changed_beside: the roles of other arrays that it changed: positions, cos, sin, freqs.
    device: where what it returned lies, as torch spells it; empty for arrays. held: what it returned, as it
    is.
    """

    values: FloatArray
    keys: FloatArray | None
    dtype: str
    changed: bool
    keys_dtype: str
    in_place: bool
    changed_beside: tuple[str, ...] = ()
    device: str = ""
    held: tuple[Any, ...] = ()

    @staticmethod
    def joined(answers: list[Answer], values: FloatArray, keys: FloatArray | None) -> Answer:
        """Return what several calls came to as one answer, with these values and keys."""
        first, changed = answers[0], any(answer.changed for answer in answers)
        in_place = all(answer.in_place for answer in answers)
        return replace(
            first,
            values=values,
            keys=keys,
            changed=changed,
            in_place=in_place,
            changed_beside=tuple(dict.fromkeys(role for one in answers for role in one.changed_beside)),
            held=tuple(array for one in answers for array in one.held),
        )


@dataclass(frozen=True, slots=True)
class Convention:
    """How to call a function: its signature, the order of axes, NumPy, torch or jax, and on which device.

    rank: axes of positions or tables. width: of tables, p pairs or d dims in a layout. strides: how vectors
    lie in memory. index: the integers that positions are. narrow: whether cos and sin are given in the dtype
    of the vectors.
    """

    signature: Signature
    order: str
    engine: Engine
    rank: int = 1
    width: str = "pairs"
    strides: Strides = "contiguous"
    index: Literal["int64", "int32"] = "int64"
    narrow: bool = False
    device: Device = CPU

    @property
    def tells_rows(self) -> bool:
        """Whether what says where tokens stand has an axis for them."""
        return not {"positions", *TABLE_ROLES}.isdisjoint(self.signature.roles)

    @property
    def by_batch(self) -> bool:
        """Whether positions, or tables, may be given for each batch element."""
        return self.rank >= 2 and "b" in self.order and self.tells_rows

    def __str__(self) -> str:
        kind = {"numpy": "NumPy arrays", "jax": "jax arrays", "torch": "torch tensors"}[self.engine]
        return f"{self.signature} with {kind} {self.order}{self.device.words}"

    def __call__(
        self,
        function: Any,
        x: FloatArray,
        positions: Positions,
        setting: RopeSetting,
        dtype: Format,
        k: FloatArray | None = None,
        changes: Changes = NO_CHANGES,
    ) -> Answer:
        """Return x rotated by the function, called as often as its axes need; k is x where it is None.

        changes: of the stages of tables that are made for it.
        Shapes: x (b, h, s, d), k (b, g, s, d), positions (s,), or (b, s) where it takes them.
        """
        k, call = x if k is None else k, _Call(function, setting, dtype, changes)
        if "offset" not in self.signature.roles:
            return self._run(call, x, k, positions)
        parts = [self._run(call, x[:, :, run], k[:, :, run], positions[run]) for run, _ in runs(positions)]
        keys = [part.keys for part in parts if part.keys is not None]
        return Answer.joined(
            parts,
            np.concatenate([part.values for part in parts], axis=2),
            np.concatenate(keys, axis=2) if len(keys) == len(parts) else None,
        )

    def _run(self, call: _Call, x: FloatArray, k: FloatArray, positions: Positions) -> Answer:
        """Call with the axes that the function has, over the others."""
        letters = "".join(axis for axis in "bhsd" if axis in self.order)
        missing = 4 - len(letters)  # leading axes that the function does not have
        group = x.shape[1] // k.shape[1] if missing > 1 else 1
        flat = [
            (array.reshape(-1, *array.shape[missing:]) if missing else array[None])
            for array in (x, k.repeat(group, 1))
        ]
        rows = np.broadcast_to(positions, (len(flat[0]), *positions.shape[-1:])) if missing else [positions]
        answers = [self._call_once(call, a, b, at, letters) for a, b, at in zip(*flat, rows, strict=True)]
        keys = [answer.keys for answer in answers if answer.keys is not None]
        repeated = (*k.shape[:1], k.shape[1] * group, *k.shape[2:])
        return Answer.joined(
            answers,
            np.stack([answer.values for answer in answers]).reshape(x.shape),
            np.stack(keys).reshape(repeated)[:, ::group] if len(keys) == len(answers) else None,
        )

    def _call_once(self, call: _Call, x: FloatArray, k: FloatArray, at: Positions, letters: str) -> Answer:
        """Call with all axes that the function has. Shapes: x and k have the axes `letters`."""
        axes = [letters.index(axis) for axis in self.order]
        given, given_k = (np.ascontiguousarray(array.transpose(axes)) for array in (x, k))
        vectors = {"q": given, "x": given, "k": given_k}
        vectors = {role: vectors[role] for role in self.signature.roles if role in vectors}
        buffer = None
        if self.strides in arrays.IN_BUFFER:
            buffer = arrays.Buffer(vectors, call.dtype, self.engine, self.strides, self.order, self.device)
        views = buffer.views if buffer else {role: self._vector(x, call) for role, x in vectors.items()}
        arguments = {
            role: views[role] if role in views else self._argument(role, given, at, call)
            for role in self.signature.roles
        }
        watched = _Watched(arguments)
        returned = self._returned(call, arguments)
        if buffer:
            buffer.check_around()
        changed, changed_beside = watched.changed()
        inputs, takes_keys = watched.vectors, "k" in arguments
        if returned is None:  # it rotated its input where it lay; at position 0 nothing shows
            returned = tuple(inputs) if takes_keys else inputs[0]
        first, second = arrays.parts(returned, takes_keys)
        values, dtype = self._rotated(first, given, axes)
        keys, keys_dtype = (None, dtype) if second is None else self._rotated(second, given_k, axes, "k ")
        return Answer(
            values=values,
            keys=keys,
            dtype=dtype,
            changed=changed,
            keys_dtype=keys_dtype,
            in_place=arrays.shared(first, inputs[0])
            and (second is None or arrays.shared(second, arguments["k"])),
            changed_beside=changed_beside,
            device=str(getattr(first, "device", "")) if self.engine == "torch" else "",
            held=(first,) if second is None else (first, second),
        )

    def _vector(self, x: FloatArray, call: _Call) -> Any:
        """Return a new array of its own that holds a vector."""
        vector = arrays.new_array(x, call.dtype, self.engine, self.device)
        return arrays.strided(vector, self.strides, self.order)

    def _returned(self, call: _Call, arguments: Mapping[str, Any]) -> Any:
        """Return what the function returns for each role's argument, as far as it is an array."""
        given_as = {role: self._of_jax(value) for role, value in arguments.items()}
        positional = [given_as[role] for name, role in self.signature.arguments if name is None]
        named = {name: given_as[role] for name, role in self.signature.arguments if name is not None}
        return arrays.known(
            patiently(lambda: arrays.quietly(call.function, positional, named, self.device), "a call")
        )

    def _rotated(
        self, returned: Any, given: FloatArray, axes: list[int], what: str = ""
    ) -> tuple[FloatArray, str]:
        """Return the values of what came back, with axes as they were before, and its dtype.

        Raises: WrongShape.
        """
        values, dtype = arrays.values(returned)
        if values.shape != given.shape:
            raise arrays.WrongShape(f"returns the shape {values.shape} for {what}{given.shape}")
        return values.transpose(np.argsort(axes)), dtype

    def _argument(self, role: str, x: FloatArray, at: Positions, call: _Call) -> Any:
        """Return what a role is filled with that is no vector; x is one."""
        if role == "positions":
            batch = x.shape[self.order.index("b")] if "b" in self.order else 1
            rows = at.copy() if self.rank == at.ndim else np.repeat(at[None], batch, axis=0)
            rows = rows.astype(self.index)
            return arrays.tensor(rows, self.device) if self.engine == "torch" else rows
        if role in TABLE_ROLES:
            return self._table(role, at, call)
        numbers: dict[str, Any] = {
            "offset": int(at.flat[0]),
            "seq_dim": self.order.index("s"),
            "head_axis": self.order.index("h") if "h" in self.order else 0,
        }
        return numbers[role] if role in numbers else building_argument(role, call.setting)

    def _table(self, role: str, at: Positions, call: _Call) -> Any:
        """Return cos, sin or cos + i sin of float64, rounded once to float32 (not at all for float64).

        Where stages are changed they are those; a table that is requested in a dtype has it. `narrow` ones
        are rounded once more, to the dtype, as models do that compute tables in float32.
        Shapes: at (s,) or (b, s) -> (s, w), (1, s, w) or (b, s, w), or the axes of the order but h.
        """
        recipe = recipes.named("fp64-angles").changed(call.changes).resolve(call.dtype)
        cos, sin = _cos_sin(call.dtype, tuple(sorted(call.changes.items())), call.setting, at.tobytes())
        wide = np.float64 if call.dtype is FP64 else np.float32
        if role == "freqs":
            table: Any = np.empty(cos.shape, np.result_type(wide, np.complex64))
            table.real, table.imag = cos, sin
        else:
            table = (cos if role == "cos" else sin).astype(wide)
            if self.width != "pairs":
                table = np.tile(table, 2) if self.width == "half" else np.repeat(table, 2, axis=1)
        table = table.reshape(*at.shape, -1)
        if self.rank == 2:
            table = table.reshape(-1, *table.shape[-2:])
        if self.rank == 3:
            sizes = dict(zip("bs"[-at.ndim :], at.shape, strict=True))
            if at.ndim == 2 and self.order.index("s") < self.order.index("b"):
                table = table.swapaxes(0, 1)
            table = table.reshape([*(sizes.get(axis, 1) for axis in self.order[:-1]), table.shape[-1]])
        held = call.dtype if self.narrow else recipe.table if "table" in call.changes else None
        if role != "freqs" and held and held.storage_bits <= 16:
            rounded = round_to(np.ascontiguousarray(table), held)
            return arrays.new_array(rounded, held, self.engine, self.device)
        return arrays.tensor(table, self.device) if self.engine == "torch" else table

    def _of_jax(self, argument: Any) -> Any:
        """Return an array of NumPy as one of jax where code takes those; anything else as it is."""
        return self.device.put(argument) if self.engine == "jax" and hasattr(argument, "ndim") else argument


class _Watched:
    """The arguments of a call, and what they hold before it."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self.arguments = arguments
        self.vectors = [arguments[role] for role in ("q", "x", "k") if role in arguments]
        self._before = [arrays.content(vector) for vector in self.vectors]
        self._beside = {role: arrays.content(arguments[role]) for role in _BESIDE if role in arguments}

    def changed(self) -> tuple[bool, tuple[str, ...]]:
        """Return whether the call changed q, k or x, and the roles of other arrays that it changed."""
        same = (arrays.content(x) == old for x, old in zip(self.vectors, self._before, strict=True))
        beside = self._beside.items()
        roles = tuple(role for role, old in beside if arrays.content(self.arguments[role]) != old)
        return not all(same), roles


@functools.lru_cache(maxsize=4)
def _cos_sin(
    dtype: Format, changes: tuple[tuple[str, str], ...], setting: RopeSetting, at: bytes
) -> tuple[FloatArray, FloatArray]:
    """Return cos and sin at positions, which q and k share. Shapes: -> (s, p) twice."""
    recipe = recipes.named("fp64-angles").changed(dict(changes)).resolve(dtype)
    cos, sin = Emulated(recipe, setting).table(np.frombuffer(at, np.int64), 0)
    return cos, sin


def scored(
    function: Any,
    q: FloatArray,
    k: FloatArray,
    at: Positions,
    dtype: Format,
    order: str,
    engine: Engine,
    device: Device = CPU,
) -> FloatArray:
    """Return what f(q, k, positions) gives for all heads at once. Shapes: q, k (h, s, d), at (s,)."""
    letters = order[-3:] if len(order) == 3 else order
    if sorted(letters) not in (sorted("bhsd"), sorted("hsd")):
        raise UnknownName("order", order, [known for known in ORDERS if "h" in known])
    axes = ["bhsd".index(axis) - (4 - len(letters)) for axis in letters]
    vectors = [(x[None] if len(letters) == 4 else x).transpose(axes) for x in (q, k)]
    arguments = [arrays.new_array(np.ascontiguousarray(x), dtype, engine, device) for x in vectors]
    arguments.append(arrays.tensor(at, device) if engine == "torch" else at.copy())
    if engine == "jax":
        arguments = [device.put(one) for one in arguments]
    returned = patiently(lambda: arrays.quietly(function, arguments, {}, device), "a call")
    return arrays.values(arrays.known(returned))[0]


def building_argument(role: str, setting: RopeSetting) -> Any:
    """Return what a module or a factory is built from."""
    return {"base": setting.base, "dim": setting.rotary_dim, "length": signatures.LENGTH}[role]
