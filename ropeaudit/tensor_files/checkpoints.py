"""The tensors of a checkpoint or a dump, or the constants of a graph.

Nothing in them is ever executed: no pickles, no graph, and no code that a config.json names.
"""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ropeaudit.errors import BadInput, parser_reason
from ropeaudit.tensor_files import onnx_graphs
from ropeaudit.tensor_files import tensors as tensorfiles
from ropeaudit.tensor_files.onnx_graphs import Use
from ropeaudit.tensor_files.tensors import Part

_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_CHECKPOINTS = (".safetensors", ".pt", ".pth", ".bin")
_DUMPS = (".npz", ".npy")
_GRAPH = ".onnx"
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.safetensors|\.bin)")
ROWS = 4  # of a table, by which it is known
_GIVE = "give a folder with config.json and *.safetensors, or one .safetensors, .pt, .npz, .npy or .onnx file"


# (name, shape, what reads the first `ROWS` rows) -> whether the tensor is loaded
IsRequested: TypeAlias = Callable[[str, tuple[int, ...], Callable[[], NDArray[Any]]], bool]


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as it is stored: its dtype's name, its shape, its values in float64 (complex128).

    use: what a graph does with its constant; then values are those that its nodes get.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    values: NDArray[Any]
    use: Use | None = None


def is_graph(path: Path) -> bool:
    """Return whether a path is that of a graph with its constants."""
    return path.suffix.lower() == _GRAPH and not path.is_dir()


def is_dump(path: Path) -> bool:
    """Return whether a path is that of arrays that somebody wrote to look at them."""
    return path.suffix.lower() in _DUMPS and not path.is_dir()


def files(path: Path) -> list[Path]:
    """Return the files that hold a checkpoint's tensors.

    Raises: BadInput for a folder without any, a damaged index, and a shard that is not there.
    """
    if not path.is_dir():
        if wrong := tensorfiles.wrong(path):
            raise BadInput(f"{str(path)!r}: {wrong}; {_GIVE}")
        if path.suffix.lower() not in (*_CHECKPOINTS, *_DUMPS, _GRAPH):
            if path.suffix.lower() == ".xml":
                raise BadInput(
                    f"{str(path)!r}: OpenVINO IR is no longer read; give the .onnx file that it is made of"
                )
            raise BadInput(f"{str(path)!r}: unknown kind of file; {_GIVE}")
        return [path]
    shards = sorted(path.glob("*.safetensors")) or sorted(path.glob("pytorch_model*.bin"))
    if index := next((path / name for name in _INDEXES if (path / name).is_file()), None):
        try:
            names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            if not all(isinstance(name, str) and Path(name).name == name for name in names):
                raise ValueError("a shard lies outside the folder")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            reason = parser_reason(error) if type(error) is ValueError else "no weight_map of names"
            raise BadInput(f"{str(index)!r}: {reason}; give the whole checkpoint with its index") from None
        shards = [path / name for name in sorted(names)]
    elif numbered := [match for shard in shards if (match := _SHARD.fullmatch(shard.name))]:
        stem, _, count, suffix = numbered[0].groups()  # of a series, whose missing ones are named below
        shards = [path / f"{stem}-{n:05}-of-{count}{suffix}" for n in range(1, int(count) + 1)]
    if not shards:
        seen = "an empty folder" if not any(path.iterdir()) else "a folder without *.safetensors"
        raise BadInput(f"{str(path)!r}: {seen}; {_GIVE}")
    missing = [shard.name for shard in shards if tensorfiles.wrong(shard)]
    if missing:
        first = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise BadInput(
            f"{str(path)!r}: {len(missing)} of {len(shards)} shards are missing or empty ({first}); "
            "copy the whole checkpoint"
        )
    return shards


def read(paths: list[Path], is_requested: IsRequested) -> tuple[list[StoredTensor], int]:
    """Return the requested tensors and the number of all. Raises: BadInput."""
    tensors, count = list[StoredTensor](), 0
    for path in paths:
        parts = onnx_graphs.parts if is_graph(path) else tensorfiles.parts
        place = f"{str(path)!r}: "
        reading = functools.partial(chosen, parts(path), is_requested, place)
        found = tensorfiles.guarded(repr(str(path)), path, reading)
        tensors, count = tensors + found[0], count + found[1]
    return tensors, count


def chosen(
    parts: Iterable[Part], is_requested: IsRequested, place: str = ""
) -> tuple[list[StoredTensor], int]:
    """Return the requested tensors and the number of all. place: begins an error."""
    tensors, names = list[StoredTensor](), Counter[str]()
    for part in parts:
        names[part.name] += 1  # bodies of loops and functions have names of their own
        name = part.name if names[part.name] == 1 else f"{part.name} ({names[part.name]})"

        def head(part: Part = part) -> NDArray[Any]:
            """Return its first rows: of the first axis that is longer than 1."""
            long = [n for n, size in enumerate(part.sizes) if size != 1]
            first = long[0] if len(long) > 1 else None
            rows = (slice(0, ROWS) if n == first else slice(None) for n in range(len(part.sizes)))
            return stored(part, tuple(rows), place).values

        called = (part.use and part.use.operand) or name  # an operator's word for it
        if part.floats and is_requested(called, part.sizes, head):
            tensors.append(replace(stored(part, ..., place), name=name))
    return tensors, names.total()


def stored(part: Part, index: Any = ..., place: str = "") -> StoredTensor:
    """Return a tensor, or what an index picks, unrounded. Raises: BadInput."""
    array = part.read(index)
    if getattr(array, "dtype", np.dtype("O")).kind != "c":
        array = tensorfiles.real(f"{place}{part.name[:40]}", array)
    wide = np.complex128 if array.dtype.kind == "c" else np.float64
    values = array.astype(wide)
    if part.use is not None:
        values = part.use.rounded(values)
    dtype = part.dtype or ("float64" if array.dtype.kind in "iub" else array.dtype.name)
    return StoredTensor(part.name, dtype, array.shape, values, part.use)
