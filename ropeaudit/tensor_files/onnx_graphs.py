"""Constants of an ONNX model, and the nodes that use them. No graph is executed.

They are initializers and Constant nodes, also those whose data lies in other files: the values as they are
stored, and what the graph does with them before anything is computed.
Source: github.com/onnx/onnx, onnx/onnx.proto (TensorProto, AttributeProto) and docs/ExternalData.md.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropeaudit.errors import BadInput, MissingPackage
from ropeaudit.runtime import run_metadata

# TensorProto.DataType -> NumPy's name, the field of values that are not raw, and the dtype of its items
_FLOATS = {
    1: ("float32", "float_data", "float32"),
    10: ("float16", "int32_data", "uint16"),
    11: ("float64", "double_data", "float64"),
    14: ("complex64", "float_data", "float32"),
    15: ("complex128", "double_data", "float64"),
    16: ("bfloat16", "int32_data", "uint16"),
}
_GRAPH, _GRAPHS = 5, 10  # AttributeProto.AttributeType
_EXTERNAL = 1  # TensorProto.DataLocation
_CARRIES = ("Cast", "Identity", "Unsqueeze", "Squeeze", "Expand", "Reshape", "Transpose", "Tile")
_TURNS = ("Transpose", "MatMul", "Gemm", "Einsum")  # which may take a table's axes in another order
_TIMES = 3  # bytes in memory of a byte in the file
_STEPS = 256  # nodes that are followed from a constant


@dataclass(frozen=True, slots=True)
class Node:
    """A node that takes a value: its type, its name, and the keys of the values that it yields.

    to: the dtype that it converts to, if it does. operand: what it calls the value that it takes: cos, sin,
    or nothing.
    """

    op: str
    name: str
    results: tuple[str, ...]
    to: str = ""
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
    the first of them. operand: cos or sin, where they name what they take so. transposed: whether a node may
    transpose it.
    """

    nodes: tuple[str, ...] = ()
    through: tuple[str, ...] = ()
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


@dataclass(slots=True)
class _Scope:
    """A graph with those inside its nodes, or a function: its constants, and the nodes by their inputs."""

    constants: list[tuple[str, Any]] = field(default_factory=list)  # name, tensor or numbers
    consumers: dict[str, list[Node]] = field(default_factory=lambda: defaultdict(list))


def read(path: Path) -> Iterator[Constant]:
    """Yield the constants of an .onnx file. Raises: BadInput, MissingPackage, whatever a parser raises."""
    if find_spec("onnx") is None:
        raise MissingPackage(f"{str(path)!r} needs onnx to be read; pip install 'ropeaudit[onnx]'")
    import ml_dtypes  # noqa: F401  (registers bfloat16 with NumPy)
    import onnx

    needed, free = _TIMES * path.stat().st_size, run_metadata.free_bytes()
    if needed > free:
        raise BadInput(
            f"{str(path)!r}: to read this graph takes about {needed / 2**30:,.1f} GiB, and "
            f"{free / 2**30:,.1f} GiB are free; save it with its weights in a file of their own"
        )
    model = onnx.ModelProto()
    model.ParseFromString(path.read_bytes())
    if not model.HasField("graph") or not (model.graph.node or model.graph.initializer):
        raise BadInput(f"{str(path)!r}: holds no graph; give a model in ONNX's format")
    scopes = [_Scope()]
    _add_graph(scopes[0], model.graph)
    for function in model.functions:
        scopes.append(_Scope())
        _add_nodes(scopes[-1], function.node)
    for scope in scopes:
        for name, tensor in scope.constants:
            values = tensor if isinstance(tensor, np.ndarray) else _values(path, name, tensor)
            use = Use() if values is None else _use_of(name, scope.consumers.__getitem__)
            yield Constant(name, values, use)


def _add_graph(scope: _Scope, graph: Any) -> None:
    scope.constants += [(tensor.name, tensor) for tensor in graph.initializer]
    _add_nodes(scope, graph.node)


def _add_nodes(scope: _Scope, nodes: Any) -> None:
    for node in nodes:
        attributes = {attribute.name: attribute for attribute in node.attribute}
        to = attributes["to"].i if node.op_type == "Cast" and "to" in attributes else 0
        known = Node(node.op_type, node.name, tuple(node.output), _FLOATS[to][0] if to in _FLOATS else "")
        if node.op_type != "RotaryEmbedding":
            named = {}
        else:
            named = {2: "cos", 3: "sin"} if node.domain == "com.microsoft" else {1: "cos", 2: "sin"}
        for number, name in enumerate(node.input):
            if name not in node.input[:number]:
                operand = named.get(number, "")
                scope.consumers[name].append(replace(known, operand=operand))
        if node.op_type == "Constant" and len(node.output) == 1:
            if "value" in attributes:
                scope.constants.append((node.output[0], attributes["value"].t))
            elif "value_floats" in attributes:
                floats = np.array(attributes["value_floats"].floats, np.float32)
                scope.constants.append((node.output[0], floats))
        for attribute in node.attribute:
            if attribute.type == _GRAPH:
                _add_graph(scope, attribute.g)
            elif attribute.type == _GRAPHS:
                for graph in attribute.graphs:
                    _add_graph(scope, graph)


def _values(path: Path, name: str, tensor: Any) -> NDArray[Any] | None:
    """Return the values of a tensor; None where they are no floats. Raises: BadInput."""
    if tensor.data_type not in _FLOATS:
        return None
    dtype, items, item = _FLOATS[tensor.data_type]
    seen = f"{str(path)!r}: constant {name[:60]!r}"
    if tensor.data_location == _EXTERNAL:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location, folder = entries.get("location", ""), path.parent.resolve()
        try:
            place = (folder / location).resolve()
            offset = int(entries.get("offset") or 0)
            length = int(entries["length"]) if "length" in entries else place.stat().st_size - offset
        except (OSError, ValueError):
            raise BadInput(
                f"{seen} lies in {location[:60]!r}, which cannot be read; copy all files of the model"
            ) from None
        if not location or not place.is_relative_to(folder):
            raise BadInput(
                f"{seen} lies in {location[:60]!r}, outside of the model's folder; put it beside the model"
            )
        try:
            size = place.stat().st_size
        except (OSError, ValueError):
            raise BadInput(
                f"{seen} lies in {place.name!r}, which is not beside it; copy all files of the model"
            ) from None
        if offset < 0 or length < 0 or offset + length > size:
            raise BadInput(
                f"{seen} lies at bytes {offset:,} to {offset + length:,} of {place.name!r}, which has "
                f"{size:,}; copy all files of the model again"
            )
        data = np.memmap(place, np.uint8, "r", offset, (length,)) if length else np.zeros(0, np.uint8)
    elif tensor.HasField("raw_data"):
        data = np.frombuffer(tensor.raw_data, np.uint8)
    else:
        listed = np.array(getattr(tensor, items))  # float16 numbers are bits in integers
        data = listed.astype(item).view(np.uint8) if listed.size else np.zeros(0, np.uint8)
    shape = list(tensor.dims)
    declared = math.prod(shape) * np.dtype(dtype).itemsize
    if any(size < 0 for size in shape) or declared != data.size:
        sizes = "x".join(map(str, shape[:8])) or "scalar"
        raise BadInput(
            f"{seen} has shape {sizes} ({declared:,} bytes) and holds {data.size:,} bytes; the file was cut "
            "short or changed: write it again"
        )
    return np.asarray(data.view(np.dtype(dtype)).reshape(shape))


def _use_of(key: str, consumers: Callable[[str], Sequence[Node]]) -> Use:
    """Return what becomes of a value, followed through nodes that convert it or only give it a shape."""
    followed: list[tuple[str, tuple[str, ...]]] = [(key, ())]
    uses: dict[tuple[str, tuple[str, ...]], Node] = {}
    transposed = False
    for value, dtypes in followed:  # grows
        for node in consumers(value):
            transposed |= node.op in _TURNS
            if node.op in _CARRIES and len(followed) < _STEPS:
                path = (*dtypes, node.to) if node.to else dtypes
                followed += [(one, path) for one in node.results]
            else:
                uses[node.words, dtypes] = node
    paths = {dtypes for _, dtypes in uses}
    ordered = sorted(uses, key=lambda use: use[1] != ())  # those that take it as it is stored first
    names, mixed = tuple(dict.fromkeys(name for name, _ in ordered)), len(paths) > 1
    operands = {node.operand for node in uses.values()}
    return Use(
        names,
        () if mixed or not paths else paths.pop(),
        mixed,
        uses[ordered[0]].op if ordered else "",
        operands.pop() if len(operands) == 1 else "",
        transposed,
    )
