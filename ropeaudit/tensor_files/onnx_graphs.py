"""The constants of an ONNX model, and the nodes that use them. No graph is executed.

Constants are initializers and Constant nodes, with the conversions before the nodes that compute with them.
Source: github.com/onnx/onnx, onnx/onnx.proto (TensorProto, AttributeProto).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ropeaudit.errors import BadInput, MissingPackage, one_line
from ropeaudit.runtime import run_metadata

# TensorProto.DataType -> NumPy's name
_FLOATS = {1: "float32", 10: "float16", 11: "float64", 14: "complex64", 15: "complex128", 16: "bfloat16"}
_GRAPH = 5  # AttributeProto.AttributeType
_CARRIES = ("Cast", "Identity", "Unsqueeze", "Squeeze", "Expand", "Reshape", "Transpose", "Tile")
_TURNS = ("Transpose", "MatMul", "Gemm", "Einsum")  # which may take a table's axes in another order
_TIMES = 3  # bytes in memory of a byte in the file
_STEPS = 256  # nodes that are followed from a constant


@dataclass(frozen=True, slots=True)
class Use:
    """The use of a constant in a graph.

    nodes: those that compute with it, in words. through: the dtypes of conversions before, in order; empty
    if nodes differ in them: `mixed`. operand: cos or sin, if nodes name their operand so. transposed: whether
    a node may transpose it.
    """

    nodes: tuple[str, ...] = ()
    through: tuple[str, ...] = ()
    mixed: bool = False
    operand: str = ""
    transposed: bool = False

    def rounded(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return values in float64 after the conversions; complex ones are never converted."""
        if np.iscomplexobj(values):
            return values
        with np.errstate(over="ignore"):
            for dtype in self.through:
                values = values.astype(np.dtype(dtype)).astype(np.float64)
        return values

    @property
    def words(self) -> str:
        """The first node, the number of others, and the last conversion, in words."""
        if not self.nodes:
            return "no node"
        more = f" and {len(self.nodes) - 1} more" if len(self.nodes) > 1 else ""
        return f"{self.nodes[0]}{more}{f', as {self.through[-1]}' if self.through else ''}"


class Constant(NamedTuple):
    """A constant of a graph. floats: whether it holds floating-point numbers. read: returns its values."""

    name: str
    shape: tuple[int, ...]
    floats: bool
    use: Use
    read: Callable[[], NDArray[Any]]


def constants(path: Path) -> Iterator[Constant]:
    """Yield the constants of an .onnx file. Raises: BadInput, MissingPackage, parser errors."""
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
    bodies = [(model.graph.node, model.graph.initializer), *((one.node, ()) for one in model.functions)]
    for body in bodies:
        named, consumers = list[tuple[str, Any]](), defaultdict[str, list[tuple[Any, str]]](list)
        _add(named, consumers, *body)
        for name, tensor in named:
            floats = tensor.data_type in _FLOATS
            use = _use_of(name, consumers) if floats else Use()
            yield Constant(name, tuple(tensor.dims), floats, use, partial(_values, path, name, tensor))


def _add(
    constants: list[tuple[str, Any]],
    consumers: dict[str, list[tuple[Any, str]]],
    nodes: Any,
    initializers: Any,
) -> None:
    """Add the constants of nodes and their subgraphs; and value name -> nodes that take it, operand."""
    from onnx import TensorProto

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
                floats = attributes["value_floats"].floats
                made = TensorProto(data_type=1, dims=[len(floats)], float_data=floats)
                constants.append((node.output[0], made))
        for attribute in node.attribute:
            for graph in [attribute.g] if attribute.type == _GRAPH else attribute.graphs:
                _add(constants, consumers, graph.node, graph.initializer)


def _values(path: Path, name: str, tensor: Any) -> NDArray[Any]:
    """Return the values of a tensor, by the package onnx. Raises: BadInput."""
    from onnx import numpy_helper

    try:
        return np.asarray(numpy_helper.to_array(tensor, str(path.parent)))
    except Exception as error:  # whatever it makes of a damaged or hostile file
        raise BadInput(
            f"{str(path)!r}: constant {name[:60]!r} cannot be read: {one_line(error, 200)}; copy all files "
            "of the model again"
        ) from None


def _use_of(key: str, consumers: Mapping[str, list[tuple[Any, str]]]) -> Use:
    """Return the use of a value, following nodes that convert or reshape it."""
    followed: list[tuple[str, tuple[str, ...]]] = [(key, ())]
    uses: dict[tuple[str, tuple[str, ...]], str] = {}
    transposed = False
    for value, dtypes in followed:  # grows
        for node, operand in consumers.get(value, ()):
            transposed |= node.op_type in _TURNS
            if node.op_type in _CARRIES and len(followed) < _STEPS:
                to = [one.i for one in node.attribute if node.op_type == "Cast" and one.name == "to"]
                path = (*dtypes, *(_FLOATS[number] for number in to if number in _FLOATS))
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
