"""Calling conventions of code that rotates, and what each argument is filled with.

Letters: b batch, h heads, g heads of k, s positions, t tokens of all sequences, d head_dim, p pairs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.errors import UnknownName
from ropeaudit.rope.grids import Grid
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime import chance
from ropeaudit.subjects import Positions, torch_arrays
from ropeaudit.subjects.calling import arrays, shapes
from ropeaudit.subjects.calling.arrays import Engine, Strides
from ropeaudit.subjects.calling.building import building_argument
from ropeaudit.subjects.calling.code import NO_CHANGES, Changes, runs
from ropeaudit.subjects.calling.devices import CPU, Device
from ropeaudit.subjects.calling.shapes import ORDERS
from ropeaudit.subjects.calling.signatures import TABLES as _TABLES
from ropeaudit.subjects.calling.signatures import Signature

TABLES = ("position", "frequency", "angle", "trig", "table")  # stages of tables that code may be given
_ROTATED = ("q", "x", "k", "qkv")  # roles of arrays that are rotated; of others that are not
# widths of what is a tuple of cos and sin -> of each
TUPLES = {f"tuple {width}": width for width in ("half", "interleaved", "pairs")}
OF_ROWS = {"row_offset", "padding", "lengths", "totals"}  # what is told of each row: see `_of_rows`
_BESIDE = ("v", "positions", "cu_seqlens", *_TABLES, "sin")
_PADDED = 2**20  # tokens of a call whose sequences have to begin at position 0


# who is told of each call as it begins: a process waits for a call so long, and for many of them longer
begins: Callable[[str], None] = lambda what: None  # noqa: E731


@contextlib.contextmanager
def contained() -> Iterator[None]:
    """Turn sys.exit and the like into an exception whose text can be read."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        try:
            str(error)
        except BaseException:
            raise RuntimeError(f"it raises {type(error).__name__}, whose text cannot be read") from None
        raise
    except SystemExit as stop:
        raise RuntimeError(f"it calls sys.exit({'' if stop.code is None else stop.code})") from None
    except BaseException as stop:
        raise RuntimeError(f"it raises {type(stop).__name__}") from None


@dataclass(frozen=True, slots=True)
class _Call:
    """What all calls of one function share. heads: of q and of k.

    lengths: of packed sequences. room: how many tokens each takes with the padding behind it.
    """

    function: Any
    setting: RopeSetting
    dtype: Format
    changes: Changes
    lengths: tuple[int, ...] = ()
    room: tuple[int, ...] = ()
    heads: tuple[int, int] = (1, 1)


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
        return replace(
            answers[0],
            values=values,
            keys=keys,
            changed=any(answer.changed for answer in answers),
            in_place=all(answer.in_place for answer in answers),
            changed_beside=tuple(dict.fromkeys(role for one in answers for role in one.changed_beside)),
            held=tuple(array for one in answers for array in one.held),
        )


@dataclass(frozen=True, slots=True)
class Convention:
    """How to call a function: its signature, the order of axes, NumPy, torch or jax, and on which device.

    order: see `shapes`. rank: axes of positions or tables; 4 are those of sbhd, for tokens in a row; of an
    offset, 1 is an integer, 0 an array of none, 2 one a batch element. width: of tables, p pairs or d dims in
    a layout.
    strides: how vectors lie in memory. index: the integers that positions are. narrow: whether cos and sin
    are given in the dtype of the vectors. back: the order of q, k and v that come back apart, where they were
    given packed. composed: whether the function returns cos and sin, with which vectors are rotated here.
    heads: "k without h": k has no axis of heads, as one that all heads of q share: called once for each.
    "q in groups": q has two axes of heads, those of k and how many of q share one: (b, s, g, h / g, d).
    axes: where positions have several, the order of theirs, a, with those of the batch and of tokens.
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
    back: str = ""
    composed: bool = False
    heads: Literal["", "k without h", "q in groups"] = ""
    axes: str = ""

    @property
    def by_batch(self) -> bool:
        """Whether positions, or tables, may be given for each batch element."""
        if "t" in self.order:
            return "offset" not in self.signature.roles or "cu_seqlens" in self.signature.roles
        roles, tables = set(self.signature.roles), self.signature.tables and not self.signature.whole
        if self.of_rows:
            return "b" in self.order
        tells = {"positions", "offset", "mask"} & roles or tables
        return self.rank >= 2 and "b" in self.order and bool(tells)

    @property
    def of_rows(self) -> bool:
        """Whether it is told where each row begins, or how many tokens it has, beside what all rows share."""
        roles = set(self.signature.roles)
        return bool(OF_ROWS & roles) and "positions" not in roles

    @property
    def padded(self) -> bool:
        """Whether every sequence begins at position 0, as the code takes no positions."""
        roles = set(self.signature.roles)
        told = "cu_seqlens" in roles and not roles & {"positions", "offset", *_TABLES}
        return told or self.signature.unplaced

    @property
    def takes_keys(self) -> bool:
        """Whether it is given k with q in one call."""
        return bool({"k", "qkv"} & set(self.signature.roles))

    @property
    def grouped(self) -> bool:
        """Whether k may have fewer heads than q; packed qkv must then state the numbers."""
        roles = self.signature.roles
        return "qkv" not in roles or ("H" in self.order and bool({"heads", "kv_heads"} & set(roles)))

    def __str__(self) -> str:
        kind = {"numpy": "NumPy arrays", "jax": "jax arrays", "torch": "torch tensors"}[self.engine]
        order = f"{self.order} ({self.heads})" if self.heads else self.order
        axes = f", positions ({', '.join(self.axes)}) of a axes" if self.axes else ""
        called = f"{self.signature} with {kind} {order}{axes}{self.device.words}"
        return f"{called}, whose cos and sin are applied here" if self.composed else called

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
        if "t" in self.order:
            return self._tokens(call, x, k, positions)
        roles = set(self.signature.roles)
        apart = self.signature.unplaced or bool({"offset", "totals"} & roles)
        apart = apart or ("row_offset" in roles and self.of_rows)
        if not apart or (positions.ndim == 2 and (np.diff(positions) == 1).all()):
            return (self._padded if self.signature.unplaced else self._run)(call, x, k, positions)
        if positions.ndim == 2:
            rows = [slice(row, row + 1) for row in range(len(x))]
            parts = [
                self(function, x[row], at, setting, dtype, k[row], changes)
                for row, at in zip(rows, positions, strict=True)
            ]
        else:
            parts = [
                self._padded(call, x[:, :, run], k[:, :, run], positions[run])
                if self.signature.unplaced
                else self._run(call, x[:, :, run], k[:, :, run], positions[run])
                for run, _ in runs(positions)
            ]
        keys, axis = [part.keys for part in parts if part.keys is not None], 4 - 2 * positions.ndim
        return Answer.joined(
            parts,
            np.concatenate([part.values for part in parts], axis=axis),
            np.concatenate(keys, axis=axis) if len(keys) == len(parts) else None,
        )

    def _padded(self, call: _Call, x: FloatArray, k: FloatArray, at: Positions) -> Answer:
        """Call with as many more tokens in front as stand before the last row, and drop them from the answer.

        Rows that begin earlier are padded on the left: there positions are below 0, which a mask tells. Where
        the code is told how many tokens each row has, those that end earlier are padded on the right.
        """
        if "lengths" in self.signature.roles and x.shape[2] == k.shape[2] and at.ndim == 2:
            places = np.arange(at.max() + 1)
            of_rows = np.clip(places - at[:, :1], 0, x.shape[2] - 1)[:, None, :, None]  # (b, 1, s, 1)
            whole = np.where(places <= at[:, -1:], places, -1)
            long_q, long_k = (np.take_along_axis(one, of_rows, 2) for one in (x, k))
            answer = self._run(call, long_q, long_k, whole)
            rows = at[:, None, :, None]
            keys = None if answer.keys is None else np.take_along_axis(answer.keys, rows, 2)
            return replace(answer, values=np.take_along_axis(answer.values, rows, 2), keys=keys)
        first = int(at[..., 0].max())
        of_q, of_k = (np.r_[np.zeros(first, np.int64), np.arange(one.shape[2])] for one in (x, k))
        whole = np.arange(len(of_k)) + at[..., :1] - first
        answer = self._run(call, x[:, :, of_q], k[:, :, of_k], whole)
        keys = None if answer.keys is None else answer.keys[:, :, first:]
        return replace(answer, values=answer.values[:, :, first:], keys=keys)

    def _tokens(self, call: _Call, x: FloatArray, k: FloatArray, positions: Positions) -> Answer:
        """Call with all batch elements in one row: each run of consecutive positions is a sequence.

        Where no positions are given, sequences begin at the first row of the tables or at the offset, and
        those that begin alike share a call; where there is neither, at position 0: others are padded.
        """
        rows = np.broadcast_to(positions, (len(x), positions.shape[-1]))
        flat = [
            array.transpose(1, 0, 2, 3).reshape(1, array.shape[1], -1, array.shape[3]) for array in (x, k)
        ]
        length, at = rows.shape[1], rows.reshape(-1)
        pieces = [
            (np.arange(part.start, part.stop) + row * length, first)
            for row, each in enumerate(rows)
            for part, first in runs(each)
        ]
        values, keys = np.zeros_like(flat[0]), np.zeros_like(flat[1])  # unwritten parts are cast too
        answers = []
        for group, pad in self._groups(pieces):
            behind = 1 if "cu_padded" in self.signature.roles else 0  # tokens of padding of each sequence
            tokens = np.concatenate(
                [
                    np.r_[[index[0]] * (first if pad else 0), index, [index[-1]] * behind]
                    for index, first in group
                ]
            )
            tokens = tokens.astype(np.int64)
            given = [array[:, :, tokens] for array in flat]
            lengths = tuple(len(index) + (first if pad else 0) for index, first in group)
            room = tuple(length + behind for length in lengths)
            where = np.concatenate([np.arange(size) for size in room]) if pad else at[tokens]
            answer = self._run(replace(call, lengths=lengths, room=room), given[0], given[1], where)
            ends = np.cumsum(room) - behind
            kept = np.concatenate(
                [np.arange(end - len(index), end) for (index, _), end in zip(group, ends, strict=True)]
            )
            there = np.concatenate([index for index, _ in group])
            values = values.astype(answer.values.dtype, copy=False)
            values[:, :, there] = answer.values[:, :, kept]
            if answer.keys is not None:
                keys = keys.astype(answer.keys.dtype, copy=False)
                keys[:, :, there] = answer.keys[:, :, kept]
            answers.append(answer)
        back = [y.reshape(y.shape[1], len(x), length, -1).transpose(1, 0, 2, 3) for y in (values, keys)]
        return Answer.joined(answers, back[0], None if answers[0].keys is None else back[1])

    def _groups(self, pieces: list[_Piece]) -> list[tuple[list[_Piece], bool]]:
        """Return the pieces of each call, and whether it pads up to their positions."""
        roles = set(self.signature.roles)
        if "cu_seqlens" not in roles and "offset" in roles:
            return [([piece], False) for piece in pieces]
        if "cu_seqlens" not in roles or "positions" in roles or not any(first for _, first in pieces):
            return [(pieces, False)]
        if not self.padded:
            alike: dict[int, list[_Piece]] = {}
            for piece in pieces:
                alike.setdefault(piece[1], []).append(piece)
            return [(group, False) for group in alike.values()]
        groups: list[list[_Piece]] = [[]]
        for piece in pieces:
            if groups[-1] and sum(first + len(index) for index, first in (*groups[-1], piece)) > _PADDED:
                groups.append([])
            groups[-1].append(piece)
        return [(group, True) for group in groups]

    def _run(self, call: _Call, x: FloatArray, k: FloatArray, positions: Positions) -> Answer:
        """Call with the axes that the function has, over the others."""
        letters = "".join(axis for axis in "bhsd" if axis in self.order.replace("t", "s").replace("H", "h"))
        missing = 4 - len(letters)  # leading axes that the function does not have
        group = x.shape[1] // k.shape[1] if missing > 1 or not self.grouped else 1
        flat = [
            (array.reshape(-1, *array.shape[missing:]) if missing else array[None])
            for array in (x, k.repeat(group, 1))
        ]
        rows = np.broadcast_to(positions, (len(flat[0]), *positions.shape[-1:])) if missing else [positions]
        with contained():  # what it returns may be an object of its own
            answers = [self._call_once(call, a, b, at, letters) for a, b, at in zip(*flat, rows, strict=True)]
        keys = [answer.keys for answer in answers if answer.keys is not None]
        repeated = (*k.shape[:1], k.shape[1] * group, *k.shape[2:])
        return Answer.joined(
            answers,
            np.stack([answer.values for answer in answers]).reshape(x.shape),
            np.stack(keys).reshape(repeated)[:, ::group] if len(keys) == len(answers) else None,
        )

    def _call_once(self, call: _Call, x: FloatArray, k: FloatArray, at: Positions, letters: str) -> Answer:
        """Call with all axes of the function. Shapes: x and k have the axes `letters`."""
        sizes = dict(zip(letters, x.shape, strict=True))
        of_keys = {"h": 1, **dict(zip(letters, k.shape, strict=True))}
        call = replace(call, heads=(sizes.get("h", 1), of_keys["h"]))
        roles = self.signature.roles
        v = np.ascontiguousarray(k[..., ::-1]) if {"v", "qkv"} & set(roles) else k
        given = {role: self._vector(role, (x, k, v), letters) for role in roles if role in (*_ROTATED, "v")}
        first_given, plain = next(iter(given.values()), x), shapes.plain(self.order)
        buffer = None
        if self.strides in arrays.IN_BUFFER:
            buffer = arrays.Buffer(given, call.dtype, self.engine, self.strides, plain, self.device)
            views = buffer.views
        else:
            new = {
                role: arrays.new_array(x, call.dtype, self.engine, self.device) for role, x in given.items()
            }
            views = {role: arrays.strided(one, self.strides, plain) for role, one in new.items()}
        arguments = {
            role: views[role] if role in views else self._argument(role, first_given, at, call)
            for role in roles
        }
        vectors = [arguments[role] for role in _ROTATED if role in arguments]
        before = [arrays.content(vector) for vector in vectors]
        beside = {role: arrays.fingerprint(arguments[role]) for role in _BESIDE if role in arguments}
        returned = self._returned(call, arguments)
        if buffer:
            buffer.check_around()
        changed = any(arrays.content(x) != old for x, old in zip(vectors, before, strict=True))
        changed_beside = tuple(r for r, old in beside.items() if arrays.fingerprint(arguments[r]) != old)
        if returned is None:  # it rotated in place; at position 0 nothing shows
            returned = tuple(vectors) if "k" in arguments else vectors[0] if vectors else None
        if self.composed:
            returned = arrays.applied(returned, x, letters, call.setting, call.dtype, self.width)
            dtype = torch_arrays.spelled(call.dtype)
            return Answer(returned, None, dtype, changed, "", False, changed_beside)
        parts = arrays.parts(returned, self.takes_keys)
        first, second = parts[:2]
        if "qkv" in arguments and second is None:
            results, dtype = arrays.values(first)
            packed = {**sizes, "3": 3} if "3" in self.order else {**sizes, "h": sizes["h"] + 2 * of_keys["h"]}
            self._check_shape(results, self.order, packed)
            values, keys, third = shapes.unpacked(results, self.order, letters, sizes, of_keys["h"])
            keys_dtype = dtype
        else:
            values, dtype = self._rotated(first, sizes, letters)
            keys, keys_dtype = (
                (None, dtype) if second is None else self._rotated(second, of_keys, letters, "k ")
            )
            third = self._rotated(parts[2], of_keys, letters, "v ")[0] if parts[2] is not None else None
        if third is not None and not np.array_equal(third, v, equal_nan=True):
            changed_beside = tuple(dict.fromkeys((*changed_beside, "v")))
        return Answer(
            values=values,
            keys=keys,
            dtype=dtype,
            changed=changed,
            keys_dtype=keys_dtype,
            in_place=arrays.shared(first, vectors[0])
            and (second is None or arrays.shared(second, arguments.get("k", vectors[0]))),
            changed_beside=changed_beside,
            device=str(getattr(first, "device", "")) if self.engine == "torch" else "",
            held=(first,) if second is None else (first, second),
        )

    def _vector(
        self, role: str, three: tuple[FloatArray, FloatArray, FloatArray], letters: str
    ) -> FloatArray:
        """Return q, k, v or all packed, with axes in the function's order."""
        if role == "qkv":
            return shapes.packed(three, self.order, letters)
        order = self.order if "qkv" not in self.signature.roles else shapes.backs(self.order)[0]
        return shapes.laid(three[{"k": 1, "v": 2}.get(role, 0)], order, letters)

    def _returned(self, call: _Call, arguments: Mapping[str, Any]) -> Any:
        """Return what the function returns, called for each head of k where it has none."""
        if self.heads == "q in groups":
            return self._in_groups(call, arguments)
        if not self.heads:
            return self._once(call, arguments)
        q, k, axis = arguments["q"], arguments["k"], shapes.axis(self.order, "h")
        heads = [k[(slice(None),) * axis + (head,)] for head in range(k.shape[axis])]
        copies = [q, *(arrays.copied(q) for _ in heads[1:])]  # it may rotate q where it lies
        results = [
            arrays.parts(self._once(call, {**arguments, "q": x, "k": one}), True)[:2]
            for x, one in zip(copies, heads, strict=True)
        ]
        first, keys = results[0][0], [one for _, one in results]
        if first is None:
            return None
        if any(one is None or one.shape != heads[0].shape for one in keys):
            raise arrays.WrongShape("returns no k of the shape that it is given")
        return first, k if arrays.shared(keys[0], k) else arrays.stacked(keys, axis)

    def _in_groups(self, call: _Call, arguments: Mapping[str, Any]) -> Any:
        """Return what the function returns, given q with an axis of groups before that of its heads."""
        q, k, axis = arguments["q"], arguments["k"], shapes.axis(self.order, "h")
        apart = q.reshape(*q.shape[:axis], k.shape[axis], -1, *q.shape[axis + 1 :])
        first, second, _ = arrays.parts(self._once(call, {**arguments, "q": apart}), True)
        if first is None or first.shape != apart.shape:
            raise arrays.WrongShape(f"does not return q in groups, {tuple(apart.shape)}")
        return first.reshape(q.shape), second

    def _once(self, call: _Call, arguments: Mapping[str, Any]) -> Any:
        """Return what one call returns, as far as it is an array."""
        given_as = {
            role: (self.device.put(value) if self.engine == "jax" and hasattr(value, "ndim") else value)
            for role, value in arguments.items()
        }
        positional = [given_as[role] for name, role in self.signature.arguments if name is None]
        named = {name: given_as[role] for name, role in self.signature.arguments if name is not None}
        begins("call")
        chance.begin(chance.number())
        return arrays.known(arrays.quietly(call.function, positional, named, self.device))

    def _rotated(
        self, returned: Any, sizes: shapes.Sizes, letters: str, what: str = ""
    ) -> tuple[FloatArray, str]:
        """Return the values that came back, in the original axes, and their dtype."""
        values, dtype = arrays.values(returned)
        order = self.back or self.order
        self._check_shape(values, order, sizes, what)
        rotated: FloatArray = shapes.lifted(values, order, letters, sizes)
        return rotated, dtype

    def _check_shape(self, values: FloatArray, order: str, sizes: shapes.Sizes, what: str = "") -> None:
        if values.shape != (expected := shapes.shape(order, sizes)):
            raise arrays.WrongShape(f"returns the shape {values.shape} for {what}{expected}")

    def _argument(self, role: str, x: FloatArray, at: Positions, call: _Call) -> Any:
        """Return what a role is filled with that is no vector; x is one."""
        batch = x.shape[shapes.axis(self.order, "b")] if "b" in self.order else 1
        of_each = role == "offset" and (self.rank == 0 or (self.rank == 2 and not self.of_rows))
        if of_each or role == "mask" or role in OF_ROWS:
            told = np.ascontiguousarray(self._of_rows(role, at, batch), dtype=self.index)
            return arrays.tensor(told, self.device) if self.engine == "torch" else told
        if role == "positions" and self.axes and call.setting.grid is not None:
            places = self._places(call.setting.grid, at, batch)
            return arrays.tensor(places, self.device) if self.engine == "torch" else places
        if role == "positions":
            rows = at.copy() if self.rank == at.ndim else np.repeat(at[None], batch, axis=0)
            rows = (rows + self.signature.counts).astype(self.index)
            return arrays.tensor(rows, self.device) if self.engine == "torch" else rows
        if role in (*_TABLES, "sin"):
            return self._table(role, at, call)
        if role in ("cu_seqlens", "cu_padded"):
            sizes = call.lengths if role == "cu_seqlens" else call.room
            ends = np.cumsum([0, *(sizes or [at.shape[-1]])]).astype(np.int32)
            return arrays.tensor(ends, self.device) if self.engine == "torch" else ends
        numbers: dict[str, Any] = {
            "offset": self._first(at),
            "until": at.shape[-1] if "offset" in self.signature.roles else int(at.max(initial=-1)) + 1,
            "seq_dim": shapes.axis(self.order, "s"),
            "seq_dim_from_end": shapes.axis(self.order, "s") - len(shapes.plain(self.order)),
            "head_axis": shapes.axis(self.order, "h"),
            "heads": call.heads[0],
            "kv_heads": call.heads[1],
            "max_seqlen": max(call.lengths, default=at.shape[-1]),
        }
        return (
            numbers[role]
            if role in numbers
            else building_argument(role, call.setting, dtype=call.dtype, engine=self.engine)
        )

    def _first(self, at: Positions) -> int:
        """Return the first position of a call whose rows may be told how far theirs is from it."""
        firsts = at[..., 0]
        return int(firsts.min() if "row_offset" in self.signature.roles else firsts.max())

    def _of_rows(self, role: str, at: Positions, batch: int) -> NDArray[Any]:
        """Return what is told of each row: (b,), or (b, 1) of rank 2 but for offset; (b, s) for a mask.

        Beside positions, which say it all, nothing is added: zeros, (b, 1) where they would be added.
        """
        rows = np.broadcast_to(at, (batch, at.shape[-1]))
        firsts = rows[:, 0]
        if role == "mask":
            return rows >= 0
        if role == "offset":
            return firsts if self.rank else np.asarray(self._first(at))
        if "positions" in self.signature.roles:
            return np.zeros((batch, 1) if role == "row_offset" else batch)
        if role == "lengths":
            told = (rows >= 0).sum(axis=1)
        elif role == "totals":
            told = rows[:, -1] + 1
        elif role == "row_offset":
            told = firsts - (self._first(at) if "offset" in self.signature.roles else 0)
        else:
            told = (self._first(at) if "offset" in self.signature.roles else 0) - firsts
        return np.asarray(told[:, None] if self.rank == 2 else told)

    def _places(self, grid: Grid, at: Positions, batch: int) -> NDArray[Any]:
        """Return the positions of tokens of a grid on each axis that rotates a pair, in the order of `axes`.

        Integers where all of them are. Shapes: at (s,) or (b, s).
        """
        turning = np.unique(grid.of_pairs())
        places = np.moveaxis(grid.positions(at.reshape(-1))[:, turning].reshape(*at.shape, -1), -1, 0)
        if "b" in self.axes and at.ndim == 1:
            places = np.repeat(places[:, None], batch, axis=1)
        letters = "abs" if "b" in self.axes else "as"
        ordered = np.ascontiguousarray(places.transpose([letters.index(axis) for axis in self.axes]))
        return ordered.astype(self.index if (ordered % 1 == 0).all() else np.float32)

    def _table(self, role: str, at: Positions, call: _Call) -> Any:
        """Return a table at the positions, or at all from 0 where others say which: see `arrays`.

        A tuple of cos and sin where the width says so.

        Shapes: at (s,) or (b, s) -> (s, w), (1, s, w) or (b, s, w), or the axes of the order but h and d.
        """
        if self.width in TUPLES:
            apart = replace(self, width=TUPLES[self.width])
            both = ("sin", "cos") if role == "sin_cos" else ("cos", "sin")
            return tuple(apart._table(part, at, call) for part in both)
        if self.signature.whole:
            changes = tuple(sorted(call.changes.items()))
            key = (role, self.width, self.narrow, self.engine, self.device, call.dtype, call.setting, changes)
            return arrays.whole_table(key, max(int(at.max(initial=0)), 0))
        if "cu_seqlens" in self.signature.roles:
            at = np.arange(max(call.lengths, default=1), dtype=np.int64) + at[0]
        table, held = arrays.table(role, self.width, call.dtype, call.setting, call.changes, at)
        table = table.reshape(*at.shape, *(columns := table.shape[1:]))
        if self.rank == 2:
            table = table.reshape(-1, at.shape[-1], *columns)
        if self.rank >= 3:
            sizes = dict(zip("bs"[-at.ndim :], at.shape, strict=True))
            order = "sbhd" if self.rank == 4 else shapes.plain(self.order)
            if at.ndim == 2 and order.index("s") < order.index("b"):
                table = table.swapaxes(0, 1)
            table = table.reshape([*(sizes.get(axis, 1) for axis in order[:-1]), *columns])
        return arrays.given_table(table, call.dtype if self.narrow else held, self.engine, self.device)


_Piece = tuple[Positions, int]  # which tokens are a run, and its first position


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
    """Return f(q, k, positions) for all heads at once. Shapes: q, k (h, s, d), at (s,)."""
    letters = order[-3:] if len(order) == 3 else order
    if sorted(letters) not in (sorted("bhsd"), sorted("hsd")):
        raise UnknownName("order", order, [known for known in ORDERS if "h" in known])
    axes = ["bhsd".index(axis) - (4 - len(letters)) for axis in letters]
    vectors = [(x[None] if len(letters) == 4 else x).transpose(axes) for x in (q, k)]
    arguments = [arrays.new_array(np.ascontiguousarray(x), dtype, engine, device) for x in vectors]
    arguments.append(arrays.tensor(at, device) if engine == "torch" else at.copy())
    if engine == "jax":
        arguments = [device.put(one) for one in arguments]
    with contained():
        returned = arrays.quietly(function, arguments, {}, device)
    return arrays.values(arrays.known(returned))[0]
