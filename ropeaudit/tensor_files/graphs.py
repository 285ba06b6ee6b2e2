"""Constants of a graph that was exported, and the nodes that use them. No graph is executed.

What a reader of a format (`onnx_graphs`, `openvino_graphs`) hands over: the values as they are stored, and
what the graph does with them before anything is computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropeaudit.errors import BadInput
from ropeaudit.runtime import run_metadata

_CONVERTS = ("Cast", "Convert")
_CARRIES = ("Identity", "Unsqueeze", "Squeeze", "Expand", "Broadcast", "Reshape", "Transpose", "Tile")
_TURNS = ("Transpose", "MatMul", "Gemm", "Einsum")  # which may take a table's axes in another order
_TIMES = 3  # bytes in memory of a byte in the file
_STEPS = 256  # nodes that are followed from a constant


@dataclass(frozen=True, slots=True)
class Node:
    """A node that takes a value: its type, its name, and the keys of the values that it yields.

    to: the dtype that it converts to, if it does. decompression: whether it is marked as the inverse of a
    compression of weights. operand: what it calls the value that it takes: cos, sin, or nothing.
    """

    op: str
    name: str
    results: tuple[str, ...]
    to: str = ""
    decompression: bool = False
    operand: str = ""

    @property
    def words(self) -> str:
        """Return its type and name."""
        return self.op if self.name in ("", self.op) else f"{self.op} {self.name}"


@dataclass(frozen=True, slots=True)
class Use:
    """What a graph does with a constant.

    nodes: those that compute with it, in words; none where no node does. through: dtypes that it is
    converted to before, in this order; none where nodes differ in that, which `mixed` says. op: the type of
    the first of them. operand: cos or sin, where they name what they take so. decompression:
    whether that is marked as the inverse of a compression of weights. transposed: whether a node may
    transpose it.
    """

    nodes: tuple[str, ...] = ()
    through: tuple[str, ...] = ()
    decompression: bool = False
    mixed: bool = False
    op: str = ""
    operand: str = ""
    transposed: bool = False

    @property
    def converted(self) -> str:
        """The dtype that it has in the end, where it is converted."""
        return next(reversed(self.through), "")

    def rounded(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return values in float64 as the nodes get them; complex ones are never converted."""
        if np.iscomplexobj(values):
            return values
        with np.errstate(over="ignore"):
            for dtype in self.through:
                values = values.astype(np.dtype(dtype)).astype(np.float64)
        return values

    @property
    def words(self) -> str:
        """Return the first node, how many more there are, and what it is converted to before."""
        if not self.nodes:
            return "no node"
        more = f" and {len(self.nodes) - 1} more" if len(self.nodes) > 1 else ""
        return f"{self.nodes[0]}{more}{f', as {self.converted}' if self.converted else ''}"


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant: its name, its values as they are stored (None where they are no floats), its use."""

    name: str
    values: NDArray[Any] | None
    use: Use


def use_of(key: str, consumers: Callable[[str], Sequence[Node]]) -> Use:
    """Return what becomes of a value, followed through nodes that convert it or only give it a shape."""
    followed: list[tuple[str, tuple[str, ...], bool]] = [(key, (), False)]
    uses: dict[tuple[str, tuple[str, ...]], Node] = {}
    marked = transposed = False
    for value, dtypes, decompressed in followed:  # grows
        for node in consumers(value):
            transposed |= node.op in _TURNS
            if node.op in (*_CONVERTS, *_CARRIES) and len(followed) < _STEPS:
                path = (*dtypes, node.to) if node.to else dtypes
                followed += [(one, path, decompressed or node.decompression) for one in node.results]
            else:
                uses[node.words, dtypes] = node
                marked |= decompressed
    paths = {dtypes for _, dtypes in uses}
    ordered = sorted(uses, key=lambda use: use[1] != ())  # those that take it as it is stored first
    names, mixed = tuple(dict.fromkeys(name for name, _ in ordered)), len(paths) > 1
    operands = {node.operand for node in uses.values()}
    return Use(
        names,
        () if mixed or not paths else paths.pop(),
        marked,
        mixed,
        uses[ordered[0]].op if ordered else "",
        operands.pop() if len(operands) == 1 else "",
        transposed,
    )


def stored(seen: str, data: NDArray[np.uint8], dtype: Any, shape: Sequence[int]) -> NDArray[Any]:
    """Return bytes as an array. seen: how an error begins. Raises: BadInput unless they are as many."""
    declared = math.prod(shape) * np.dtype(dtype).itemsize
    if any(size < 0 for size in shape) or declared != data.size:
        sizes = "x".join(map(str, shape[:8])) or "scalar"
        raise BadInput(
            f"{seen} has shape {sizes} ({declared:,} bytes) and holds {data.size:,} bytes; the file was cut "
            "short or changed: write it again"
        )
    return np.asarray(data.view(dtype).reshape(shape))


def mapped(seen: str, path: Path, offset: int, length: int) -> NDArray[np.uint8]:
    """Return bytes of a file, which are read when they are used. Raises: BadInput if it has fewer."""
    try:
        size = path.stat().st_size
    except (OSError, ValueError):
        raise BadInput(
            f"{seen} lies in {path.name!r}, which is not beside it; copy all files of the model"
        ) from None
    if offset < 0 or length < 0 or offset + length > size:
        raise BadInput(
            f"{seen} lies at bytes {offset:,} to {offset + length:,} of {path.name!r}, which has {size:,}; "
            "copy all files of the model again"
        )
    if not length:
        return np.zeros(0, np.uint8)
    return np.memmap(path, np.uint8, "r", offset, (length,))


def check_size(path: Path) -> None:
    """Raise BadInput for a graph that is too large to be read: its bytes, and the nodes made of them."""
    needed, free = _TIMES * path.stat().st_size, run_metadata.free_bytes()
    if needed > free:
        raise BadInput(
            f"{str(path)!r}: to read this graph takes about {needed / 2**30:,.1f} GiB, and "
            f"{free / 2**30:,.1f} GiB are free; save it with its weights in a file of their own"
        )
