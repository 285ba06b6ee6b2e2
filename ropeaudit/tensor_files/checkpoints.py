"""The tensors of a checkpoint or a dump, or the constants of a graph.

A checkpoint is a folder with its shards, or one .safetensors, .pt, .pth or .bin file; a graph an .onnx file;
a dump an .npz or .npy file.
Nothing in it is ever executed: no pickles, no graph, and no code that a config.json names.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ropeaudit.errors import BadInput, parser_reason
from ropeaudit.tensor_files import onnx_graphs
from ropeaudit.tensor_files import tensors as tensorfiles
from ropeaudit.tensor_files.onnx_graphs import Use

_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_PICKLED = (".pt", ".pth", ".bin")
_DUMPS = (".npz", ".npy")
_GRAPH = ".onnx"
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.safetensors|\.bin)")
_FLOATS = ("F64", "F32", "F16", "BF16", "C64", "C128")
ROWS = 4  # of a table, by which it is known
_GIVE = "give a folder with config.json and *.safetensors, or one .safetensors, .pt, .npz, .npy or .onnx file"


# (name, shape, what reads the first `ROWS` rows) -> whether the tensor is loaded
IsRequested: TypeAlias = Callable[[str, tuple[int, ...], Callable[[], NDArray[Any]]], bool]


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as it is stored: its dtype's name, its shape, and its values in float64 (complex128).

    use: what a graph does with it, where it is a constant of one; then values are those that its nodes get.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    values: NDArray[Any]
    use: Use | None = None


_Loaded: TypeAlias = Iterator[StoredTensor | None]  # of each tensor of a file, in its order


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
        if path.suffix.lower() not in (".safetensors", *_PICKLED, *_DUMPS, _GRAPH):
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
    """Return the tensors that are requested, and how many there are in all. Raises: BadInput."""
    tensors: list[StoredTensor | None] = []
    for path in paths:
        loaded = _LOADERS.get(path.suffix.lower(), _safetensors)(path, is_requested)
        tensors += tensorfiles.guarded(repr(str(path)), path, functools.partial(list, loaded))
    return [tensor for tensor in tensors if tensor is not None], len(tensors)


def _safetensors(path: Path, is_requested: IsRequested) -> _Loaded:
    import ml_dtypes  # noqa: F401  (registers bfloat16 with NumPy)
    from safetensors import safe_open

    tensorfiles.check_declared(path)
    with safe_open(path, framework="numpy") as archive:
        for name in archive.keys():  # noqa: SIM118  (no dictionary)
            part = archive.get_slice(name)
            shape = tuple(part.get_shape())

            def head(part: Any = part, shape: tuple[int, ...] = shape, name: str = name) -> NDArray[Any]:
                return of_array(name, part[first_rows(shape)] if shape else archive.get_tensor(name)).values

            wanted = part.get_dtype() in _FLOATS and is_requested(name, shape, head)
            yield of_array(name, archive.get_tensor(name)) if wanted else None


def _pickled(path: Path, is_requested: IsRequested) -> _Loaded:
    import torch

    tensorfiles.check_declared(path)
    loaded = torch.load(path, map_location="cpu", weights_only=True)
    if isinstance(loaded, torch.Tensor):
        loaded = {path.stem: loaded}
    if isinstance(loaded, (tuple, list)) and [isinstance(one, torch.Tensor) for one in loaded] == [True] * 2:
        loaded = dict(zip(("cos", "sin"), loaded, strict=True))
    if not isinstance(loaded, dict):
        raise BadInput(f"{str(path)!r}: holds a {type(loaded).__name__}; give a state dict")
    tensors = {name: tensor for name, tensor in _flat("", loaded) if isinstance(tensor, torch.Tensor)}
    yield from chosen(tensors, is_requested, path).values()


def _dumped(path: Path, is_requested: IsRequested) -> _Loaded:
    if path.suffix.lower() == ".npy":
        arrays: tensorfiles.Tensors = {path.stem: tensorfiles.read_npy(path)}
    else:
        arrays = tensorfiles.read(path)
    for name, array in arrays.items():
        numbers = functools.partial(_numbers, path, name, array)
        yield of_array(name, numbers()) if is_requested(name, np.shape(array), numbers) else None


def _numbers(path: Path, name: str, array: Any) -> NDArray[Any]:
    """Return an array of floats or complex numbers. Raises: BadInput."""
    if isinstance(array, np.ndarray) and array.dtype.kind == "c":
        return array
    values = tensorfiles.real(f"{str(path)!r}: {name[:40]}", array)
    return values.astype(np.float64) if values.dtype.kind in "iub" else values


def _graph(path: Path, is_requested: IsRequested) -> _Loaded:
    names: set[str] = set()
    for own, values, use in onnx_graphs.read(path):
        name, count = own, 1
        while name in names:  # bodies of loops and functions have names of their own
            count += 1
            name = f"{own} ({count})"
        names.add(name)

        def head(name: str = name, values: Any = values) -> NDArray[Any]:
            return of_array(name, values[first_rows(values.shape)]).values

        called = use.operand or name  # an operator's word for it
        if values is None or not is_requested(called, values.shape, head):
            yield None
            continue
        tensorfiles.check_room(path, values.size)
        stored = of_array(name, values)
        yield replace(stored, values=use.rounded(stored.values), use=use)


_LOADERS: dict[str, Callable[[Path, IsRequested], _Loaded]] = {
    **dict.fromkeys(_PICKLED, _pickled),
    **dict.fromkeys(_DUMPS, _dumped),
    _GRAPH: _graph,
}


def chosen(
    tensors: Mapping[str, Any], is_requested: IsRequested, path: Path | None = None
) -> dict[str, StoredTensor | None]:
    """Return torch tensors by their names, with nothing for those that are not requested.

    path: the file that they are from, whose tensors may declare more than there is room for.
    """

    def load(name: str, tensor: Any) -> StoredTensor | None:
        shape, real = tuple(tensor.shape), tensor.is_floating_point() or tensor.is_complex()
        if not (
            real and is_requested(name, shape, lambda: of_tensor(name, tensor[first_rows(shape)]).values)
        ):
            return None
        if path is not None:
            tensorfiles.check_room(path, tensor.numel())
        return of_tensor(name, tensor)

    return {name: load(name, tensor) for name, tensor in tensors.items()}


def first_rows(shape: tuple[int, ...]) -> tuple[slice, ...]:
    """Return what picks the first rows of a table: of the first axis that is longer than 1."""
    axis = next((number for number, size in enumerate(shape) if size != 1), None)
    long = axis is not None and sum(size != 1 for size in shape) > 1
    return tuple(slice(0, ROWS) if long and number == axis else slice(None) for number in range(len(shape)))


def _flat(prefix: str, loaded: dict[Any, Any], depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield names and values of a state dict, which may stand inside another."""
    for name, value in loaded.items():
        if isinstance(value, dict) and depth < 4:
            yield from _flat(f"{prefix}{name}.", value, depth + 1)
        else:
            yield f"{prefix}{name}", value


def of_array(name: str, array: NDArray[Any]) -> StoredTensor:
    """Return a NumPy array as a stored tensor; no value is rounded."""
    wide = np.complex128 if array.dtype.kind == "c" else np.float64
    return StoredTensor(name, array.dtype.name, array.shape, array.astype(wide))


def of_tensor(name: str, tensor: Any) -> StoredTensor:
    """Return a torch tensor as a stored tensor; no value is rounded."""
    import torch

    on_cpu = tensor.detach().cpu()
    wide = torch.complex128 if on_cpu.is_complex() else torch.float64
    dtype = str(tensor.dtype).removeprefix("torch.")
    return StoredTensor(name, dtype, tuple(tensor.shape), on_cpu.to(wide).numpy())
