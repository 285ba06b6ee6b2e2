"""The order of axes in code's arguments: joined axes, tokens in one row, one array of q, k and v.

An order names axes by letters: b batch, h heads, s positions, d head_dim; t is the tokens of all batch
elements in one row. Brackets join axes: t(hd) joins heads and dims. In packed arrays 3 is an axis of q, k
and v, and H the heads of q, of k and of v, one after the other. g is heads of k.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ropeaudit import data
from ropeaudit.arithmetic.formats import FloatArray
from ropeaudit.errors import ForeignError
from ropeaudit.subjects import Positions

ORDERS = tuple(data.table("calls.toml")["orders"])
TOKENS = ("thd", "t(hd)")  # of packed sequences, whose lengths are given
PACKED = tuple(data.table("calls.toml")["packed"])
PACKED_TOKENS = tuple(order for order in PACKED if order[0] == "t")
_AXIS = re.compile(r"\(\w+\)|\w")
Sizes = Mapping[str, int]
# (b, s): numbers of tokens, counted over all rows; ~number for padding, not kept
Tokens: TypeAlias = NDArray[np.int64]


@functools.cache
def letters(order: str) -> str:
    """Return the axes of an order, separate or joined, in the order bhsd."""
    return "".join(axis for axis in "bhsd" if axis in _single(order))


def has(order: str, letter: str) -> bool:
    """Return whether an order has an axis, separate or joined, for a letter."""
    return letter in order.replace("t", "bs").replace("H", "h")


@functools.cache
def _single(order: str) -> str:
    """Return all axes of an order, without brackets."""
    return re.sub(r"[()]", "", order.replace("t", "s").replace("H", "h"))


@functools.cache
def _parts(order: str) -> list[str]:
    """Return the axes of an order, joined ones as one string in brackets."""
    return _AXIS.findall(order.replace("t", "s").replace("H", "h"))


@functools.cache
def axis_letters(order: str) -> str:
    """Return a letter for each axis of the array; a joined axis has its last letter."""
    return "".join(axis.strip("()")[-1] for axis in _parts(order))


@functools.cache
def axis(order: str, letter: str) -> int:
    """Return the number of a letter's axis; 0 if there is none."""
    return next((number for number, part in enumerate(_parts(order)) if letter in part), 0)


def returned_orders(order: str) -> tuple[str, ...]:
    """Return the orders in which code may return packed q, k and v separately."""
    apart = order.replace("3", "").replace("H", "h").replace("(d)", "d")
    turned = "bhsd" if "b" in order else "htd"
    return tuple(dict.fromkeys((apart, re.sub(r"[()]", "", apart), turned)))


def arrange(x: FloatArray, order: str, letters: str) -> FloatArray:
    """Transpose an array with axes `letters` into an order, joining axes; it is contiguous."""
    if order == letters:
        return np.ascontiguousarray(x)
    single = _single(order)
    turned = x.transpose([letters.index(letter) for letter in single])
    return np.ascontiguousarray(turned).reshape(shape(order, dict(zip(single, turned.shape, strict=True))))


class WrongShape(ForeignError):
    """A call returned something that is no rotated array."""


def restore(
    x: FloatArray,
    order: str,
    letters: str,
    sizes: Sizes,
    what: str = "",
) -> FloatArray:
    """Undo `arrange`. Raises: WrongShape where the sizes, of `what`, do not fit."""
    if x.shape != (expected := shape(order, sizes)):
        raise WrongShape(f"returns the shape {x.shape} for {what}{expected}")
    if order == letters:
        return x
    single = _single(order)
    apart = x.reshape([sizes[letter] for letter in single])
    return apart.transpose([single.index(letter) for letter in letters])


def shape(order: str, sizes: Sizes) -> tuple[int, ...]:
    """Return the shape of an array of these sizes in an order."""
    return tuple(math.prod(sizes[letter] for letter in part.strip("()")) for part in _parts(order))


def packed(three: tuple[FloatArray, FloatArray, FloatArray], order: str, letters: str) -> FloatArray:
    """Pack q, k and v in one array. Shapes: axes `letters`; heads differ only with H."""
    if "3" in order:
        return arrange(np.stack(three), order, "3" + letters)
    return arrange(np.concatenate(three, axis=letters.index("h")), order, letters)


def unpacked(
    x: FloatArray,
    order: str,
    letters: str,
    sizes: Sizes,
    keys: int,
) -> list[FloatArray]:
    """Split a packed array into q, k and v. sizes: of q. keys: heads of k. Raises: WrongShape."""
    if "3" in order:
        return list(restore(x, order, "3" + letters, {**sizes, "3": 3}))
    heads = sizes["h"]
    joined = restore(x, order, letters, {**sizes, "h": heads + 2 * keys})
    return np.split(joined, [heads, heads + keys], axis=letters.index("h"))


@dataclass(frozen=True, slots=True)
class Part:
    """The part of q and of k that one call gets: tokens and heads.

    at: positions (s,) or (b, s). lengths: of packed sequences. room: the same with padding behind each.
    """

    tokens: tuple[Tokens, Tokens]
    at: Positions
    lengths: tuple[int, ...] = ()
    room: tuple[int, ...] = ()
    heads: tuple[slice, slice] = (slice(None), slice(None))


def split_rows(part: Part) -> Iterator[Part]:
    """Yield each row of the batch of a part."""
    for row, (q, k) in enumerate(zip(*part.tokens, strict=True)):
        yield replace(part, tokens=(q[None], k[None]), at=part.at[row] if part.at.ndim == 2 else part.at)


def split_grid(part: Part, count: int) -> Iterator[Part]:
    """Yield parts with all tokens of a grid; results of tokens outside the part are dropped."""
    steps = part.at % count
    times, order = np.empty_like(steps), np.argsort(steps, kind="stable")
    times[order] = np.arange(len(steps)) - np.searchsorted(steps[order], steps[order])
    for turn in range(int(times.max(initial=-1)) + 1):  # a grid has each token once
        some = times == turn
        every = [np.repeat(~one[:, :1], count, axis=1) for one in part.tokens]
        for one, tokens in zip(every, part.tokens, strict=True):
            one[:, steps[some]] = tokens[:, some]
        yield replace(part, tokens=(every[0], every[1]), at=np.arange(count))


def runs(positions: Positions) -> Iterator[tuple[slice, int]]:
    """Yield the runs of consecutive positions, each as a slice and its first position.

    For code that takes a first position alone, whose roundings may depend on it.
    """
    starts = [0, *(np.flatnonzero(np.diff(positions) != 1) + 1).tolist(), positions.size]
    for start, stop in itertools.pairwise(starts):
        yield slice(start, stop), int(positions[start])


@functools.lru_cache(maxsize=4)
def all_tokens(rows: int, length: int) -> Tokens:
    """Return the numbers of all tokens of some rows, read-only. Shapes: -> (b, s)."""
    tokens = np.arange(rows * length).reshape(rows, length)
    tokens.flags.writeable = False
    return tokens


def _is_all(tokens: Tokens, shape: tuple[int, ...]) -> bool:
    """Return whether these are all tokens of vectors (b, h, s, d), in order."""
    whole = all_tokens(shape[0], shape[2])
    return tokens is whole or np.array_equal(tokens, whole)


def select(x: FloatArray, tokens: Tokens, heads: slice) -> FloatArray:
    """Return some tokens and heads of vectors (b, h, s, d). Shapes: -> that of tokens, h and d."""
    if _is_all(tokens, x.shape):
        return x[:, heads]
    rows, places = np.divmod(np.maximum(tokens, ~tokens), x.shape[2])
    return x[rows, heads, places].swapaxes(1, 2)


def scatter(
    shape: tuple[int, ...],
    parts: list[Part],
    back: list[FloatArray],
    side: int,
) -> FloatArray:
    """Put the results of parts at their tokens and heads. Shapes: -> (b, h, s, d)."""
    if len(parts) == 1 and _is_all(parts[0].tokens[side], shape):
        return back[0].reshape(shape)
    result = np.zeros(shape, np.result_type(*back))
    for part, values in zip(parts, back, strict=True):
        tokens = part.tokens[side]
        rows, places = np.divmod(tokens[tokens >= 0], shape[2])
        every = values.reshape(len(tokens), -1, tokens.shape[1], shape[3]).swapaxes(1, 2)  # (b, s, h, d)
        result[rows, part.heads[side], places] = every[tokens >= 0]
    return result
