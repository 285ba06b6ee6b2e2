"""How q and k lie in code's arguments: order of axes, joined axes, one array of q, k, v.

An order names axes by letters: b batch, h heads, s positions, d head_dim; t is the tokens of all batch
elements in one row, as of packed sequences. In brackets stand axes that are one: t(hd) joins heads and dims.
In packed ones 3 is an axis of q, k and v, and H the heads of q, of k and of v, one after the other.
Letters of sizes: g heads of k.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping

import numpy as np

from ropeaudit.arithmetic.formats import FloatArray

ORDERS = ("bhsd", "bshd", "sbhd", "hsd", "shd", "t(hd)", "bs(hd)", "sd", "bds")
TOKENS = ("thd", "t(hd)")  # of packed sequences, whose lengths are given
PACKED = (
    *("bs3hd", "bs(Hd)", "bsh(3d)", "sbh(3d)", "bsHd", "b3hsd", "sb3hd", "bs(h3d)", "bhs(3d)", "3bhsd"),
    *("t3hd", "t(Hd)", "tHd", "th(3d)"),
)
PACKED_TOKENS = tuple(order for order in PACKED if order[0] == "t")
_AXIS = re.compile(r"\(\w+\)|\w")
Sizes = Mapping[str, int]


def letters(order: str) -> str:
    """Return the axes that an order has, alone or joined, in the order of vectors here."""
    return "".join(axis for axis in "bhsd" if axis in _single(order))


def has(order: str, letter: str) -> bool:
    """Return whether an order has an axis of its own, or a joined one, for a letter."""
    return letter in order.replace("t", "bs").replace("H", "h")


@functools.cache
def _single(order: str) -> str:
    """Return all axes of an order, joined ones one by one."""
    return re.sub(r"[()]", "", order.replace("t", "s").replace("H", "h"))


@functools.cache
def _parts(order: str) -> list[str]:
    """Return the axes of an order, joined ones in their brackets."""
    return _AXIS.findall(order.replace("t", "s").replace("H", "h"))


def plain(order: str) -> str:
    """Return a letter for each axis of the array: that of a joined one is its last."""
    return "".join(axis.strip("()")[-1] for axis in _parts(order))


def axis(order: str, letter: str) -> int:
    """Return the number of the axis that a letter stands in; 0 where none does."""
    return next((number for number, part in enumerate(_parts(order)) if letter in part), 0)


def backs(order: str) -> tuple[str, ...]:
    """Return the orders in which packed q, k and v may come back one by one."""
    apart = order.replace("3", "").replace("H", "h").replace("(d)", "d")
    turned = "bhsd" if "b" in order else "htd"
    return tuple(dict.fromkeys((apart, re.sub(r"[()]", "", apart), turned)))


def laid(x: FloatArray, order: str, letters: str) -> FloatArray:
    """Return a contiguous array with its axes, `letters`, in an order, some joined."""
    single = _single(order)
    turned = x.transpose([letters.index(letter) for letter in single])
    return np.ascontiguousarray(turned).reshape(shape(order, dict(zip(single, turned.shape, strict=True))))


def lifted(x: FloatArray, order: str, letters: str, sizes: Sizes) -> FloatArray:
    """Return the inverse of `laid`; the sizes must fit."""
    single = _single(order)
    apart = x.reshape([sizes[letter] for letter in single])
    return apart.transpose([single.index(letter) for letter in letters])


def shape(order: str, sizes: Sizes) -> tuple[int, ...]:
    """Return the shape of an array of these sizes in an order."""
    return tuple(math.prod(sizes[letter] for letter in part.strip("()")) for part in _parts(order))


def packed(three: tuple[FloatArray, FloatArray, FloatArray], order: str, letters: str) -> FloatArray:
    """Return q, k and v in one array. Shapes: axes `letters`; heads differ only with H."""
    if "3" in order:
        return laid(np.stack(three), order, "3" + letters)
    return laid(np.concatenate(three, axis=letters.index("h")), order, letters)


def unpacked(x: FloatArray, order: str, letters: str, sizes: Sizes, keys: int) -> list[FloatArray]:
    """Return q, k and v out of one array. sizes: those of q. keys: heads of k."""
    if "3" in order:
        return list(lifted(x, order, "3" + letters, {**sizes, "3": 3}))
    heads = sizes["h"]
    joined = lifted(x, order, letters, {**sizes, "h": heads + 2 * keys})
    return np.split(joined, [heads, heads + keys], axis=letters.index("h"))
