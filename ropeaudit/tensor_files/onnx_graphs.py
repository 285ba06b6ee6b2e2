"""Constants of an ONNX model, and the nodes that use them. No graph is executed.

They are initializers and Constant nodes, also those whose data lies in other files: the values as they are
stored, and what the graph does with them before anything is computed.
Source: github.com/onnx/onnx, onnx/onnx.proto (TensorProto, AttributeProto) and docs/ExternalData.md.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

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
_GRAPH = 5  # AttributeProto.AttributeType
_EXTERNAL = 1  # TensorProto.DataLocation
_CARRIES = ("Cast", "Identity", "Unsqueeze", "Squeeze", "Expand", "Reshape", "Transpose", "Tile")
_TURNS = ("Transpose", "MatMul", "Gemm", "Einsum")  # which may take a table's axes in another order
_TIMES = 3  # bytes in memory of a byte in the file
_STEPS = 256  # nodes that are followed from a constant


@dataclass(frozen=True, slots=True)
class Use:
    """What a graph does with a constant.

    nodes: those that compute with it, in words; none where no node does. through: dtypes that it is
    converted to before, in this order; none where nodes differ in that, which `mixed` says. operand: cos or
    sin, where they name what they take so. transposed: whether a node may transpose it.
    """

    nodes: tuple[str, ...] = ()
    through: tuple[str, ...] = ()
    mixed: bool = False
    operand: str = ""
    transposed: bool = False

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
        return f"{self.nodes[0]}{more}{f', as {self.through[-1]}' if self.through else ''}"


# Of a graph with those inside its nodes, or of a function: the constants, each a tensor or numbers by a name,
# and by the name of a value the nodes that take it, each with what it calls it: cos, sin, or nothing.
_Scope: TypeAlias = tuple[list[tuple[str, Any]], defaultdict[str, list[tuple[Any, str]]]]


def read(path: Path) -> Iterator[tuple[str, NDArray[Any] | None, Use]]:
    """Yield the constants of an .onnx file: name, values as they are stored (None: no floats), use.

    Raises: BadInput, MissingPackage, whatever a parser raises.
    """
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
    parts = [(model.graph.node, model.graph.initializer), *((one.node, ()) for one in model.functions)]
    scopes: list[_Scope] = [([], defaultdict(list)) for _ in parts]
    for scope, part in zip(scopes, parts, strict=True):
        _add(scope, *part)
    for constants, consumers in scopes:
        for name, tensor in constants:
            values = tensor if isinstance(tensor, np.ndarray) else _values(path, name, tensor)
            yield name, values, Use() if values is None else _use_of(name, consumers)


def _add(scope: _Scope, nodes: Any, initializers: Any) -> None:
    constants, consumers = scope
    constants += [(tensor.name, tensor) for tensor in initializers]
    for node in nodes:
        first = 2 if node.domain == "com.microsoft" else 1
        named = {first: "cos", first + 1: "sin"} if node.op_type == "RotaryEmbedding" else {}
        for number, name in enumerate(node.input):
            if name not in node.input[:number]:
                consumers[name].append((node, named.get(number, "")))
        attributes = {attribute.name: attribute for attribute in node.attribute}
        if node.op_type == "Constant" and len(node.output) == 1:
            if "value" in attributes:
                constants.append((node.output[0], attributes["value"].t))
            elif "value_floats" in attributes:
                floats = np.array(attributes["value_floats"].floats, np.float32)
                constants.append((node.output[0], floats))
        for attribute in node.attribute:
            for graph in [attribute.g] if attribute.type == _GRAPH else attribute.graphs:
                _add(scope, graph.node, graph.initializer)


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


def _use_of(key: str, consumers: Mapping[str, list[tuple[Any, str]]]) -> Use:
    """Return what uses a value, behind nodes that convert or reshape it."""
    followed: list[tuple[str, tuple[str, ...]]] = [(key, ())]
    uses: dict[tuple[str, tuple[str, ...]], str] = {}
    transposed = False
    for value, dtypes in followed:  # grows
        for node, operand in consumers.get(value, ()):
            transposed |= node.op_type in _TURNS
            if node.op_type in _CARRIES and len(followed) < _STEPS:
                to = [one.i for one in node.attribute if node.op_type == "Cast" and one.name == "to"]
                path = (*dtypes, *(_FLOATS[number][0] for number in to if number in _FLOATS))
                followed += [(one, path) for one in node.output]
            else:
                words = node.op_type if node.name in ("", node.op_type) else f"{node.op_type} {node.name}"
                uses[words, dtypes] = operand
    paths, operands = {dtypes for _, dtypes in uses}, set(uses.values())
    ordered = sorted(uses, key=lambda use: use[1] != ())  # those that take it as it is stored first
    return Use(
        tuple(dict.fromkeys(words for words, _ in ordered)),
        paths.pop() if len(paths) == 1 else (),
        len(paths) > 1,
        operands.pop() if len(operands) == 1 else "",
        transposed,
    )
