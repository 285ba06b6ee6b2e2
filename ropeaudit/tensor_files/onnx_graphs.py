"""Constants of an ONNX model: initializers and Constant nodes, also those whose data lies in other files.

Source: github.com/onnx/onnx, onnx/onnx.proto (TensorProto, AttributeProto) and docs/ExternalData.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropeaudit.errors import BadInput, MissingPackage
from ropeaudit.tensor_files import graphs
from ropeaudit.tensor_files.graphs import Constant, Node

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


@dataclass(slots=True)
class _Scope:
    """A graph with those inside its nodes, or a function: its constants, and the nodes by their inputs."""

    constants: list[tuple[str, Any]] = field(default_factory=list)  # name, tensor or numbers
    consumers: dict[str, list[Node]] = field(default_factory=dict)


def read(path: Path) -> Iterator[Constant]:
    """Yield the constants of an .onnx file. Raises: BadInput, MissingPackage, whatever a parser raises."""
    if find_spec("onnx") is None:
        raise MissingPackage(f"{str(path)!r} needs onnx to be read; pip install 'ropeaudit[onnx]'")
    import ml_dtypes  # noqa: F401  (registers bfloat16 with NumPy)
    import onnx

    graphs.check_size(path)
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
            yield _constant(path, scope, name, tensor)


def _add_graph(scope: _Scope, graph: Any) -> None:
    scope.constants += [(tensor.name, tensor) for tensor in graph.initializer]
    _add_nodes(scope, graph.node)


def _add_nodes(scope: _Scope, nodes: Any) -> None:
    for node in nodes:
        attributes = {attribute.name: attribute for attribute in node.attribute}
        to = attributes["to"].i if node.op_type == "Cast" and "to" in attributes else 0
        known = Node(node.op_type, node.name, tuple(node.output), _FLOATS[to][0] if to in _FLOATS else "")
        named = _operands(node.op_type, node.domain)
        for number, name in enumerate(node.input):
            if name not in node.input[:number]:
                operand = named.get(number, "")
                scope.consumers.setdefault(name, []).append(replace(known, operand=operand))
        if node.op_type == "Constant" and len(node.output) == 1:
            _add_constant(scope, node.output[0], attributes)
        for attribute in node.attribute:
            if attribute.type == _GRAPH:
                _add_graph(scope, attribute.g)
            elif attribute.type == _GRAPHS:
                for graph in attribute.graphs:
                    _add_graph(scope, graph)


def _operands(op: str, domain: str) -> dict[int, str]:
    """Return which inputs of an operator are cos and sin: of ONNX's own, and of onnxruntime's."""
    if op != "RotaryEmbedding":
        return {}
    return {2: "cos", 3: "sin"} if domain == "com.microsoft" else {1: "cos", 2: "sin"}


def _add_constant(scope: _Scope, name: str, attributes: dict[str, Any]) -> None:
    if "value" in attributes:
        scope.constants.append((name, attributes["value"].t))
    elif "value_floats" in attributes:
        scope.constants.append((name, np.array(attributes["value_floats"].floats, np.float32)))


def _constant(path: Path, scope: _Scope, name: str, tensor: Any) -> Constant:
    values = tensor if isinstance(tensor, np.ndarray) else _values(path, name, tensor)
    if values is None:
        return Constant(name, None, graphs.Use())
    return Constant(name, values, graphs.use_of(name, lambda one: scope.consumers.get(one, ())))


def _values(path: Path, name: str, tensor: Any) -> NDArray[Any] | None:
    """Return the values of a tensor; None where they are no floats. Raises: BadInput."""
    if tensor.data_type not in _FLOATS:
        return None
    dtype, items, item = _FLOATS[tensor.data_type]
    seen = f"{str(path)!r}: constant {name[:60]!r}"
    if tensor.data_location == _EXTERNAL:
        data = _external(seen, path, tensor)
    elif tensor.HasField("raw_data"):
        data = np.frombuffer(tensor.raw_data, np.uint8)
    else:
        listed = np.array(getattr(tensor, items))  # float16 numbers are bits in integers
        data = listed.astype(item).view(np.uint8) if listed.size else np.zeros(0, np.uint8)
    return graphs.stored(seen, data, np.dtype(dtype), list(tensor.dims))


def _external(seen: str, path: Path, tensor: Any) -> NDArray[np.uint8]:
    """Return the bytes of a tensor in another file of the model's folder. Raises: BadInput."""
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
    return graphs.mapped(seen, place, offset, length)
