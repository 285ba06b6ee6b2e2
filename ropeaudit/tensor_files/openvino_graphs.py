"""Constants of OpenVINO IR: the layers of an .xml file, and the values in the .bin file beside it.

Source: docs.openvino.ai, "Operation Sets", Const, and IR versions 10 and 11.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.parsers import expat

import numpy as np
from numpy.typing import NDArray

from ropeaudit.errors import BadInput
from ropeaudit.tensor_files import graphs
from ropeaudit.tensor_files.graphs import Constant, Node

_FLOATS = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16"}
_OPERANDS = {"1": "cos", "2": "sin"}  # ports of the layer RoPE that a fused graph has
_OLDEST = 10  # version of IR
_GIVE = "give the .xml file of OpenVINO IR, with its .bin file beside it"


@dataclass(slots=True)
class _Layer:
    name: str
    type: str
    data: dict[str, str] = field(default_factory=dict)
    decompression: bool = False


@dataclass(slots=True)
class _Net:
    """A graph, or the body of a loop or a branch: layers by their ids, and where each leads to.

    edges: layers and their ports.
    """

    layers: dict[str, _Layer] = field(default_factory=dict)
    edges: dict[str, list[tuple[str, str]]] = field(default_factory=dict)

    def consumers(self, key: str) -> Iterator[Node]:
        """Yield the layers that take what one yields."""
        for other, port in self.edges.get(key, ()):
            if (layer := self.layers.get(other)) is not None:
                to = layer.data.get("destination_type", "") if layer.type == "Convert" else ""
                operand = _OPERANDS.get(port, "") if layer.type == "RoPE" else ""
                yield Node(
                    layer.type, layer.name, (other,), _FLOATS.get(to, ""), layer.decompression, operand
                )


class _Reader:
    """Collects nets from the elements of a document. No text, and no entity, is needed."""

    def __init__(self, path: Path) -> None:
        self.path, self.nets = path, list[_Net]()
        self._open: list[str] = []
        self._at: dict[int, _Net] = {}  # depth of `layers` -> the net that is being read there
        self._layers: dict[int, _Layer] = {}  # depth of `layer` -> the one that is being read there

    def doctype(self, *_: Any) -> None:
        """Refuse a document type: it may declare entities, which IR has none of."""
        raise BadInput(f"{str(self.path)!r}: declares a document type, which IR does not; {_GIVE}")

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        """Take an element."""
        depth = len(self._open)
        if not depth:
            self._check_root(tag, attributes)
        above = self._open[-1] if self._open else ""
        self._open.append(tag)
        if tag == "layers":
            self._at[depth] = _Net()
            self.nets.append(self._at[depth])
        elif tag == "layer" and above == "layers":
            layer = _Layer(attributes.get("name", ""), attributes.get("type", ""))
            self._layers[depth] = self._at[depth - 1].layers[attributes.get("id", "")] = layer
        elif tag == "data" and above == "layer" and depth - 1 in self._layers:
            self._layers[depth - 1].data = attributes
        elif tag == "attribute" and above == "rt_info" and depth - 2 in self._layers:
            self._layers[depth - 2].decompression |= attributes.get("name") == "decompression"
        elif tag == "edge" and above == "edges" and depth - 1 in self._at:
            net = self._at[depth - 1]
            to = attributes.get("to-layer", ""), attributes.get("to-port", "")
            net.edges.setdefault(attributes.get("from-layer", ""), []).append(to)

    def end(self, _: str) -> None:
        """Leave an element."""
        self._open.pop()

    def _check_root(self, tag: str, attributes: dict[str, str]) -> None:
        if tag != "net":
            raise BadInput(f"{str(self.path)!r}: is <{tag[:40]}> and no OpenVINO IR; {_GIVE}")
        version = attributes.get("version", "")
        if not version.isdecimal() or int(version[:9]) < _OLDEST:
            raise BadInput(
                f"{str(self.path)!r}: is IR of version {version[:20] or 'unknown'}, and {_OLDEST} and 11 can "
                "be read; save it with a current OpenVINO"
            )


def read(path: Path) -> Iterator[Constant]:
    """Yield the constants of an .xml file of IR. Raises: BadInput, and whatever a parser raises."""
    graphs.check_size(path)
    reader, parser = _Reader(path), expat.ParserCreate()
    parser.StartDoctypeDeclHandler = reader.doctype
    parser.StartElementHandler, parser.EndElementHandler = reader.start, reader.end
    with path.open("rb") as file:
        parser.ParseFile(file)
    for net in reader.nets:
        for key, layer in net.layers.items():
            if layer.type == "Const":
                yield _constant(path, net, key, layer)


def _constant(path: Path, net: _Net, key: str, layer: _Layer) -> Constant:
    dtype = _FLOATS.get(layer.data.get("element_type", ""), "")
    if not dtype:
        return Constant(layer.name, None, graphs.Use())
    values = _values(path, layer, dtype)
    return Constant(layer.name, values, graphs.use_of(key, lambda one: list(net.consumers(one))))


def _values(path: Path, layer: _Layer, dtype: str) -> NDArray[Any]:
    import ml_dtypes  # noqa: F401  (registers bfloat16 with NumPy)

    seen = f"{str(path)!r}: constant {layer.name[:60]!r}"
    try:
        offset, size = (int(layer.data[name]) for name in ("offset", "size"))
        shape = [int(one) for one in layer.data.get("shape", "").split(",") if one.strip()]
    except (KeyError, ValueError):
        raise BadInput(
            f"{seen} has no offset, size and shape in whole numbers; write the file again"
        ) from None
    data = graphs.mapped(seen, path.with_suffix(".bin"), offset, size)
    return graphs.stored(seen, data, np.dtype(dtype), shape)
