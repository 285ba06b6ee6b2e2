"""Calling conventions of code that rotates: its arguments, and the value of each.

Letters: b batch, h heads, g heads of k, s positions, t tokens of all sequences, d head_dim, p pairs.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.errors import Raised, UnknownName
from ropeaudit.rope.grids import Grid
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime import chance
from ropeaudit.subjects import Positions, torch_arrays
from ropeaudit.subjects.calling import arrays, shapes, signatures
from ropeaudit.subjects.calling.arrays import Engine, Strides
from ropeaudit.subjects.calling.environments import CPU, Device
from ropeaudit.subjects.calling.shapes import ORDERS, Part, Tokens, runs
from ropeaudit.subjects.calling.signatures import value_of_role
from ropeaudit.subjects.calling.stages import NO_CHANGES, Changes

_ROTATED = ("q", "x", "k", "qkv")  # roles of arrays that are rotated
ARRAYS = {"numpy": "NumPy arrays", "jax": "jax arrays", "torch": "torch tensors"}
# widths of what is a tuple of cos and sin -> of each
TUPLES = {f"tuple {width}": width for width in ("half", "interleaved", "pairs")}
ROW_ROLES = {"row_offset", "padding", "lengths", "totals"}  # what is told of each row: see `_placing_value`
_BESIDE = ("v", "positions", "cu_seqlens", *signatures.TABLES, "sin")
_PADDED = 2**20  # tokens of a call whose sequences have to begin at position 0


# is told of each call before it, as a process waits a limited time for each
begins: Callable[[str], None] = lambda what: None  # noqa: E731


@contextlib.contextmanager
def contain_exits() -> Iterator[None]:
    """Turn SystemExit and its like, and exceptions whose text cannot be read, into `Raised`."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        try:
            str(error)
        except BaseException:
            name = type(error).__name__
            raise Raised(name, f"{name}, whose text cannot be read") from None
        raise
    except BaseException as stop:
        name, code = type(stop).__name__, getattr(stop, "code", None)
        text = name if code is None or not isinstance(stop, SystemExit) else f"{name}: {code}"
        raise Raised(name, text).with_traceback(stop.__traceback__) from None


@dataclass(frozen=True, slots=True)
class _CallContext:
    """The function, setting, dtype and changes that are common to the calls of one answer."""

    function: Any
    setting: RopeSetting
    dtype: Format
    changes: Changes


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a call: q as values (b, h, s, d), and keys. changed: whether it changed q, k or x.

    keys_dtype: of k, or of the values where k is not returned. in_place: it returned nothing, or its input.
    changed_beside: the roles of other arrays that it changed. device: of the returned tensor, empty for
    arrays. held: the returned arrays themselves.
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


@dataclass(frozen=True)
class Convention:
    """A way to call a function: arguments, axes, device, and NumPy, torch or jax.

    arguments: the role of each, with its keyword where it is passed by one.
    order: see `shapes`. rank: axes of positions or tables; 4 are those of sbhd, for tokens in a row; of an
    offset, 1 is an integer, 0 an array (1,), 2 one (b,); of a grid's sizes, 1 is a tuple, 2 an array (b, a).
    width: of tables, p pairs or d dims in a layout. strides: of vectors. index: the integers that positions
    are. narrow: whether cos and sin have the dtype of the vectors. back: the order of q, k and v that come
    back apart, where they were given packed. composed: whether the function returns cos and sin, with which
    vectors are rotated here. heads: "k without h": called once for each head of k, as it has no axis of them;
    "q in groups": q has two, those of k and how many of q share one: (b, s, g, h / g, d).
    axes: of positions with several, a, the order of all. blocks: whether the dims of each axis are a block.
    doubtful: a name says otherwise, or nothing says where tokens stand, so that it is right or not meant.
    keywords: whether positions that are not named are offered to **kwargs, or left out.
    """

    arguments: tuple[tuple[str | None, str], ...]
    order: str = "bhsd"
    engine: Engine = "torch"
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
    blocks: bool = False
    doubtful: bool = False
    keywords: Literal["", "offered", "left out"] = ""

    @functools.cached_property
    def roles(self) -> tuple[str, ...]:
        """The roles of the arguments, in order."""
        return tuple(role for _, role in self.arguments)

    def takes(self, *roles: str) -> bool:
        """Return whether one of the arguments has one of these roles."""
        return any(role in self.roles for role in roles)

    @property
    def takes_lengths(self) -> bool:
        """Whether it takes sequence lengths in place of positions."""
        return any(role == "positions" and name in signatures.LENGTHS for name, role in self.arguments)

    @property
    def vectorless(self) -> bool:
        """Whether it takes no vectors, so that it returns cos and sin."""
        return not self.takes(*signatures.VECTORS)

    @functools.cached_property
    def unplaced(self) -> bool:
        """Whether no argument places tokens: the first is at position 0."""
        counted = not self.vectorless or self.takes("until")
        return counted and not self.takes(*signatures.PLACING, "sin")

    @property
    def tables(self) -> bool:
        """Whether it takes cos and sin, or angles."""
        return self.takes(*signatures.TABLES, "sin")

    @property
    def full_tables(self) -> bool:
        """Whether tables begin at position 0 and other arguments select rows of them."""
        return self.tables and self.takes("positions", "offset", *signatures.GRID)

    @property
    def by_batch(self) -> bool:
        """Whether each batch element can have positions, or tables, of its own."""
        if "t" in self.order:
            return not self.takes("offset") or self.takes("cu_seqlens")
        placed = self.takes("positions", "offset", "mask") or (self.tables and not self.full_tables)
        return "b" in self.order and (self.of_rows or (self.rank >= 2 and placed))

    @property
    def of_rows(self) -> bool:
        """Whether it takes the start or the length of each row."""
        return self.takes(*ROW_ROLES) and not self.takes("positions")

    @property
    def for_rows(self) -> Convention:
        """The same convention with a row of positions for each batch element."""
        as_it_is = self.of_rows or (self.by_batch and self.takes("positions"))
        return self if as_it_is else replace(self, rank=max(2, self.rank))

    @property
    def padded(self) -> bool:
        """Whether every sequence begins at position 0, as the code takes no positions."""
        packed = self.takes("cu_seqlens") and not self.takes("positions", "offset", *signatures.TABLES)
        return packed or self.unplaced

    @property
    def grouped(self) -> bool:
        """Whether k may have fewer heads than q; packed qkv must then state the numbers."""
        return not self.takes("qkv") or ("H" in self.order and self.takes("heads", "kv_heads"))

    @property
    def called(self) -> str:
        """The call as code, such as f(q, k, positions)."""
        return f"f({', '.join(name or role for name, role in self.arguments)})"

    def __str__(self) -> str:
        order = f"{self.order} ({self.heads})" if self.heads else self.order
        axes = f", positions ({', '.join(self.axes)}) of a axes" if self.axes else ""
        called = f"{self.called} with {ARRAYS[self.engine]} {order}{axes}{self.device.words}"
        if self.takes("offset") and not self.of_rows and self.rank != 1:
            called += f", offset of shape ({'b' if self.rank else 1},)"
        called += ", the dims of each axis apart" if self.blocks else ""
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
        """Rotate x and k, by as many calls as the axes need; k is x where it is None.

        changes: formats of stages of the tables that are made for it.
        Shapes: x (b, h, s, d), k (b, g, s, d), positions (s,), or (b, s) where it takes them.
        """
        k, call = x if k is None else k, _CallContext(function, setting, dtype, changes)
        letters = shapes.letters(self.order)
        missing = 4 - len(letters)  # leading axes that the function does not have
        group = x.shape[1] // k.shape[1] if missing > 1 or not self.grouped else 1
        dims: Any = setting.grid.in_blocks() if self.blocks and setting.grid else slice(None)
        sides = x[..., dims], (k.repeat(group, 1) if group > 1 else k)[..., dims]
        parts, answers = list(self._parts(positions, *sides, setting.grid)), list[Answer]()
        with contain_exits():  # what it returns may be an object of its own
            for part in parts:
                given = [shapes.select(*one) for one in zip(sides, part.tokens, part.heads, strict=True)]
                first, second = (one.reshape(one.shape[missing:]) for one in given)
                answers.append(self._single_call(call, part, first, second, letters))
        back = np.argsort(dims) if self.blocks else dims
        values = shapes.scatter(x.shape, parts, [answer.values for answer in answers], 0)[..., back]
        keys = [answer.keys for answer in answers if answer.keys is not None]
        every = len(keys) == len(parts)
        return replace(
            answers[0],
            values=values,
            keys=shapes.scatter(sides[1].shape, parts, keys, 1)[:, ::group, :, back] if every else None,
            changed=any(answer.changed for answer in answers),
            in_place=all(answer.in_place for answer in answers),
            changed_beside=tuple(dict.fromkeys(role for one in answers for role in one.changed_beside)),
            held=tuple(array for one in answers for array in one.held),
        )

    def _parts(
        self,
        at: Positions,
        x: FloatArray,
        k: FloatArray,
        grid: Grid | None,
    ) -> Iterator[Part]:
        """Yield the part of the tokens and heads that each call gets.

        Code that takes a first position is called for each consecutive run; code without an axis of the
        batch, or of heads, for each row, or head; code that takes sizes of a grid, with all of the grid.
        """
        missing = 4 - len(shapes.letters(self.order))
        of_q, of_k = (shapes.all_tokens(len(one), one.shape[2]) for one in (x, k))
        begins = self.unplaced or self.takes("offset", "totals")
        begins = begins or (self.takes("row_offset") and self.of_rows)
        parts = [Part((of_q, of_k), at)]
        if grid is not None and self.takes(*signatures.GRID):
            rows = list(shapes.split_rows(parts[0])) if at.ndim == 2 else parts
            parts = [whole for one in rows for whole in shapes.split_grid(one, grid.count)]
        elif "t" in self.order:
            parts = list(self._packed(at, of_q))
        elif begins and not (at.ndim == 2 and (np.diff(at) == 1).all()):
            rows = list(shapes.split_rows(parts[0])) if at.ndim == 2 else parts
            parts = [
                Part((one.tokens[0][:, run], one.tokens[1][:, run]), one.at[run])
                for one in rows
                for run, _ in runs(one.at)
            ]
        if self.unplaced and "t" not in self.order:
            parts = [self._padded(*one.tokens, one.at) for one in parts]
        parts = [row for one in parts for row in shapes.split_rows(one)] if missing else parts
        if missing <= 1 and self.heads != "k without h":
            yield from parts
            return
        alone = [slice(head, head + 1) for head in range(k.shape[1])]
        heads = [(head if missing > 1 else slice(None), head) for head in alone]
        yield from (replace(one, heads=both) for one in parts for both in heads)

    def _padded(self, q: Tokens, k: Tokens, at: Positions) -> Part:
        """Return the part with padding in front, so that every row can begin at position 0 or before.

        For code that takes lengths the padding stands on the right.
        """
        if self.takes("lengths") and q.shape == k.shape and at.ndim == 2:
            places = np.arange(at.max() + 1)
            index = np.take_along_axis(q, np.clip(places - at[:, :1], 0, q.shape[1] - 1), 1)
            ended = places > at[:, -1:]
            index = np.where(ended | (places < at[:, :1]), ~index, index)
            return Part((index, index), np.where(ended, -1, places))
        before = int(at[..., 0].max())
        first, second = (np.c_[np.repeat(~one[:, :1], before, 1), one] for one in (q, k))
        return Part((first, second), np.arange(before + k.shape[1]) + at[..., :1] - before)

    def _packed(self, at: Positions, tokens: Tokens) -> Iterator[Part]:
        """Yield parts with the batch packed in one row: each consecutive run is a sequence.

        Without positions, sequences begin at the first row of tables or at the offset, and those with the
        same start share a call. Without either they begin at position 0, and others are padded.
        """
        rows = np.broadcast_to(at, tokens.shape)
        pieces = [
            (row[run], first) for row, each in zip(tokens, rows, strict=True) for run, first in runs(each)
        ]
        packed = self.takes("cu_seqlens")
        behind = int(self.takes("cu_padded"))  # tokens of padding of each
        groups, pads = np.zeros(len(pieces), np.int64), False
        if not packed and self.takes("offset"):
            groups = np.arange(len(pieces))
        elif packed and not self.takes("positions") and any(first for _, first in pieces):
            groups, pads = np.array([first for _, first in pieces]), self.padded
            if pads:
                groups = np.cumsum([first + len(index) for index, first in pieces]) // _PADDED
        together: dict[int, list[tuple[Tokens, int]]] = {}
        for group, piece in zip(groups.tolist(), pieces, strict=True):
            together.setdefault(group, []).append(piece)
        for some in together.values():
            given = [
                np.r_[np.repeat(~index[:1], first if pads else 0), index, np.repeat(~index[-1:], behind)]
                for index, first in some
            ]
            room, every = tuple(map(len, given)), np.concatenate(given)[None]
            there = rows.reshape(-1)[np.maximum(every, ~every)[0]]
            where = np.concatenate([np.arange(size) for size in room]) if pads else there
            yield Part((every, every), where, tuple(size - behind for size in room), room)

    def _single_call(
        self,
        call: _CallContext,
        part: Part,
        x: FloatArray,
        k: FloatArray,
        letters: str,
    ) -> Answer:
        """Make one call and read its result. Shapes: x and k have the axes `letters`."""
        sizes = dict(zip(letters, x.shape, strict=True))
        of_keys = {"h": 1, **dict(zip(letters, k.shape, strict=True))}
        v = np.ascontiguousarray(k[..., ::-1]) if self.takes("v", "qkv") else k
        order = shapes.returned_orders(self.order)[0] if self.takes("qkv") else self.order
        given = {
            role: shapes.arrange({"k": k, "v": v}.get(role, x), order, letters)
            if role != "qkv"
            else shapes.packed((x, k, v), self.order, letters)
            for role in self.roles
            if role in (*_ROTATED, "v")
        }
        shape, plain = next(iter(given.values()), x).shape, shapes.axis_letters(self.order)
        laid = arrays.VectorBuffer(given, call.dtype, self.engine, self.strides, plain, self.device)
        numbers = sizes.get("h", 1), of_keys["h"]
        arguments = {
            role: laid.views[role] if role in given else self._argument(role, shape, part, call, numbers)
            for role in self.roles
        }
        vectors = [arguments[role] for role in _ROTATED if role in arguments]
        before = [arrays.raw_bits(vector) for vector in vectors]
        beside = {role: arrays.fingerprint(arguments[role]) for role in _BESIDE if role in arguments}
        returned = self._invoke(call, arguments)
        laid.check_around()
        changed = any(arrays.raw_bits(x) != old for x, old in zip(vectors, before, strict=True))
        changed_beside = tuple(r for r, old in beside.items() if arrays.fingerprint(arguments[r]) != old)
        if returned is None:  # it rotated in place
            returned = tuple(vectors) if "k" in arguments else vectors[0] if vectors else None
        if self.composed:
            returned = arrays.apply_tables(returned, x, letters, call.setting, call.dtype, self.width)
            dtype = torch_arrays.torch_name(call.dtype)
            return Answer(returned, None, dtype, changed, "", False, changed_beside)
        first, second, last = arrays.split_returned(returned, self.takes("k", "qkv"))
        keys, third, keys_dtype = None, None, ""
        if "qkv" in arguments and second is None:
            results, dtype = arrays.values(first)
            values, keys, third = shapes.unpacked(results, self.order, letters, sizes, of_keys["h"])
        else:
            values, dtype = self._rotated(first, sizes, letters)
            if second is not None:
                keys, keys_dtype = self._rotated(second, of_keys, letters, "k ")
            if last is not None:
                third, _ = self._rotated(last, of_keys, letters, "v ")
        if third is not None and not np.array_equal(third, v, equal_nan=True):
            changed_beside = tuple(dict.fromkeys((*changed_beside, "v")))
        return Answer(
            values=values,
            keys=keys,
            dtype=dtype,
            changed=changed,
            keys_dtype=keys_dtype or dtype,
            in_place=arrays.shares_memory(first, vectors[0])
            and (second is None or arrays.shares_memory(second, arguments.get("k", vectors[0]))),
            changed_beside=changed_beside,
            device=str(getattr(first, "device", "")) if self.engine == "torch" else "",
            held=(first,) if second is None else (first, second),
        )

    def _invoke(self, call: _CallContext, arguments: Mapping[str, Any]) -> Any:
        """Call the function with the arguments by role; return its result with the usual axes."""
        given, axis = dict(arguments), shapes.axis(self.order, "h")
        if self.heads:
            q, k = arguments["q"], arguments["k"]
            if self.heads == "k without h":
                given["k"] = k[(slice(None),) * axis + (0,)]
            else:
                given["q"] = q.reshape(*q.shape[:axis], k.shape[axis], -1, *q.shape[axis + 1 :])
        as_jax = self.device.put if self.engine == "jax" else lambda value: value
        filled = [
            (name, as_jax(given[role]) if hasattr(given[role], "ndim") else given[role])
            for name, role in self.arguments
        ]
        begins("call")
        chance.begin(chance.number())
        plain = [one for name, one in filled if not name]
        named = {name: one for name, one in filled if name}
        returned = arrays.as_numpy(arrays.call_quietly(call.function, plain, named, self.device))
        if not self.heads or (both := arrays.split_returned(returned, True)[:2])[0] is None:
            return returned
        for role, one in zip("qk", both, strict=True):
            if getattr(one, "shape", None) != given[role].shape:
                raise shapes.WrongShape(f"does not return {role} as {tuple(given[role].shape)}")
        return tuple(one.reshape(arguments[role].shape) for role, one in zip("qk", both, strict=True))

    def _rotated(
        self, returned: Any, sizes: shapes.Sizes, letters: str, what: str = ""
    ) -> tuple[FloatArray, str]:
        """Return the values of a result in the axes `letters`, and their dtype."""
        values, dtype = arrays.values(returned)
        return shapes.restore(values, self.back or self.order, letters, sizes, what), dtype

    def _argument(
        self, role: str, shape: tuple[int, ...], part: Part, call: _CallContext, heads: tuple[int, int]
    ) -> Any:
        """Return the value of an argument that is no vector. shape: of a vector. heads: of q and k."""
        batch = shape[shapes.axis(self.order, "b")] if "b" in self.order else 1
        if role in (*signatures.TABLES, "sin"):
            return self._table(role, part, call)
        grid = call.setting.grid
        if grid is not None and role in signatures.GRID:
            told: Any = grid.sizes
            if role != "grid":
                told = dict(zip(grid.rope.axes, told, strict=True)).get(role, 1)
            elif self.rank == 2:
                told = np.tile(np.array(told, self.index), (batch, 1))
        elif grid is not None and role == "positions" and self.axes:
            # on each axis that turns a pair; integers where all are
            turning, at = np.unique(grid.of_pairs()), part.at
            every = grid.positions(at.reshape(-1))[:, turning].reshape(*at.shape, -1)
            places = np.moveaxis(every, -1, 0)
            if "b" in self.axes and at.ndim == 1:
                places = np.repeat(places[:, None], batch, axis=1)
            letters = "abs" if "b" in self.axes else "as"
            told = np.ascontiguousarray(places.transpose([letters.index(axis) for axis in self.axes]))
            told = told.astype(self.index if (told % 1 == 0).all() else np.float32)
        else:
            told = self._placing_value(role, part, batch)
        if told is not None:
            tensor = self.engine == "torch" and isinstance(told, np.ndarray)
            return arrays.tensor(told, self.device) if tensor else told
        along = shapes.axis(self.order, "s")
        numbers = {
            "seq_dim": along,
            "seq_dim_from_end": along - len(shapes.axis_letters(self.order)),
            "head_axis": shapes.axis(self.order, "h"),
            "heads": heads[0],
            "kv_heads": heads[1],
            "max_seqlen": max(part.lengths, default=part.at.shape[-1]),
        }
        if role in numbers:
            return numbers[role]
        return value_of_role(role, call.setting, dtype=call.dtype, engine=self.engine)

    def _placing_value(self, role: str, part: Part, batch: int) -> int | NDArray[Any] | None:
        """Return the value of a role that places tokens; None for other roles.

        Shapes: by row (b,), or (b, 1) of rank 2 but for offset. Row roles are 0 beside positions.
        """
        at, length = part.at, part.at.shape[-1]
        if role == "positions":
            given = at if self.rank == at.ndim else np.repeat(at[None], batch, axis=0)
            return np.ascontiguousarray(given + self.takes_lengths, dtype=self.index)
        if role == "until":
            return length if self.takes("offset") else int(at.max(initial=-1)) + 1
        if role in ("cu_seqlens", "cu_padded"):
            sizes = part.lengths if role == "cu_seqlens" else part.room
            return np.cumsum([0, *(sizes or [length])]).astype(np.int32)
        if role not in ("offset", "mask", *ROW_ROLES):
            return None
        first = int(at[..., 0].min() if self.takes("row_offset") else at[..., 0].max())
        if role == "offset" and (self.rank not in (0, 2) or (self.rank == 2 and self.of_rows)):
            return first
        rows = np.broadcast_to(at, (batch, length))
        firsts, of_call = rows[:, 0], first if self.takes("offset") else 0
        if role in ROW_ROLES and self.takes("positions"):
            told: NDArray[Any] = np.zeros((batch, 1) if role == "row_offset" else batch)
        elif role == "offset":
            told = firsts if self.rank else np.asarray(first)
        elif role == "mask":
            told = rows >= 0
        else:
            told = {
                "lengths": (rows >= 0).sum(axis=1),
                "totals": rows[:, -1] + 1,
                "row_offset": firsts - of_call,
                "padding": of_call - firsts,
            }[role]
            told = told[:, None] if self.rank == 2 else told
        return np.ascontiguousarray(told, dtype=self.index)

    def _table(self, role: str, part: Part, call: _CallContext) -> Any:
        """Return a table, or a tuple of cos and sin, at the part's positions or, if `whole`, all from 0.

        Shapes: at (s,) or (b, s) -> (s, w), (1, s, w) or (b, s, w), or the axes of the order but h and d.
        """
        at = part.at
        if self.width in TUPLES:
            apart = replace(self, width=TUPLES[self.width])
            both = ("sin", "cos") if role == "sin_cos" else ("cos", "sin")
            return tuple(apart._table(one, part, call) for one in both)
        if self.full_tables:
            changes = tuple(sorted(call.changes.items()))
            key = (role, self.width, self.narrow, self.engine, self.device, call.dtype, call.setting, changes)
            last = max(call.setting.grid.sizes) if call.setting.grid else at.max(initial=0)
            return arrays.whole_table(key, max(int(last), 0))
        if self.takes("cu_seqlens"):
            at = np.arange(max(part.lengths, default=1), dtype=np.int64) + at[0]
        table, held = arrays.table(role, self.width, call.dtype, call.setting, call.changes, at)
        table = table.reshape(*at.shape, *(columns := table.shape[1:]))
        if self.rank == 2:
            table = table.reshape(-1, at.shape[-1], *columns)
        if self.rank >= 3:
            sizes = dict(zip("bs"[-at.ndim :], at.shape, strict=True))
            order = "sbhd" if self.rank == 4 else shapes.axis_letters(self.order)
            if at.ndim == 2 and order.index("s") < order.index("b"):
                table = table.swapaxes(0, 1)
            table = table.reshape([*(sizes.get(axis, 1) for axis in order[:-1]), *columns])
        return arrays.to_engine(table, call.dtype if self.narrow else held, self.engine, self.device)


def call_scores(
    function: Any,
    q: FloatArray,
    k: FloatArray,
    at: Positions,
    dtype: Format,
    order: str,
    engine: Engine,
    device: Device = CPU,
) -> FloatArray:
    """Call f(q, k, positions) for all heads; return the scores. Shapes: q, k (h, s, d), at (s,)."""
    if sorted(order) not in (sorted("bhsd"), sorted("hsd")):
        raise UnknownName("order", order, [known for known in ORDERS if "h" in known])
    batch = "b" in order
    vectors = [shapes.arrange(x[None] if batch else x, order, "bhsd"[not batch :]) for x in (q, k)]
    arguments = [arrays.new_array(x, dtype, engine, device) for x in vectors]
    arguments.append(arrays.tensor(at, device) if engine == "torch" else at.copy())
    if engine == "jax":
        arguments = [device.put(one) for one in arguments]
    with contain_exits():
        returned = arrays.call_quietly(function, arguments, {}, device)
    return arrays.values(arrays.as_numpy(returned))[0]
