"""The tensors of a checkpoint: a folder with its shards, or a single .safetensors, .pt, .pth or .bin file.

Nothing in it is ever executed: no pickles, and no code that a config.json names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ropeaudit.errors import BadInput
from ropeaudit.tensor_files import declared_sizes
from ropeaudit.tensor_files import tensors as tensorfiles

_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_PICKLED = (".pt", ".pth", ".bin")
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.safetensors|\.bin)")
_FLOATS = ("F64", "F32", "F16", "BF16", "C64", "C128")
ROWS = 4  # of a table, by which it is known
_GIVE = "give a folder with config.json and *.safetensors, or one .safetensors or .pt file"


# (name, shape, what reads the first `ROWS` rows) -> whether the tensor is loaded
WantedNames: TypeAlias = Callable[[str, tuple[int, ...], Callable[[], NDArray[Any]]], bool]


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as it is stored: its dtype's name, its shape, and its values in float64 (complex128)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    values: NDArray[Any]


def files(path: Path) -> list[Path]:
    """Return the files that hold a checkpoint's tensors.

    Raises: BadInput for a folder without any, a damaged index, and a shard that is not there.
    """
    if not path.is_dir():
        if wrong := tensorfiles.wrong(path):
            raise BadInput(f"{str(path)!r}: {wrong}; {_GIVE}")
        if path.suffix.lower() not in (".safetensors", *_PICKLED):
            raise BadInput(f"{str(path)!r}: unknown kind of file; {_GIVE}")
        return [path]
    index = next((path / name for name in _INDEXES if (path / name).is_file()), None)
    results = _indexed(index) if index else _unindexed(path)
    if not results:
        seen = "an empty folder" if not any(path.iterdir()) else "a folder without *.safetensors"
        raise BadInput(f"{str(path)!r}: {seen}; {_GIVE}")
    missing = [one.name for one in results if tensorfiles.wrong(one)]
    if missing:
        names = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise BadInput(
            f"{str(path)!r}: {len(missing)} of {len(results)} shards are missing or empty ({names}); "
            "copy the whole checkpoint"
        )
    return results


def _indexed(index: Path) -> list[Path]:
    """The shards that an index names."""
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        if not all(isinstance(name, str) and Path(name).name == name for name in names):
            raise ValueError("a shard lies outside the folder")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = error if type(error) is ValueError else "no weight_map of names"
        raise BadInput(f"{str(index)!r}: {reason}; give the whole checkpoint with its index") from None
    return [index.parent / name for name in sorted(names)]


def _unindexed(folder: Path) -> list[Path]:
    """The files of a folder without an index; numbered ones say by their names how many there are."""
    results = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
    numbered = [match for one in results if (match := _SHARD.fullmatch(one.name))]
    if not numbered:
        return results
    stem, _, count, suffix = numbered[0].groups()
    return [folder / f"{stem}-{n:05}-of-{count}{suffix}" for n in range(1, int(count) + 1)]


def read(paths: list[Path], requested: WantedNames) -> tuple[list[StoredTensor], int]:
    """Return the tensors that are wanted, and how many there are in all. Raises: BadInput."""
    results: list[StoredTensor] = []
    count = 0
    for path in paths:
        stored: dict[str, Any] = {}

        def load(path: Path = path, stored: dict[str, Any] = stored) -> tensorfiles.Tensors:
            declared_sizes.check(path)
            pickled = path.suffix.lower() in _PICKLED
            stored.update(_pickled(path, requested) if pickled else _safetensors(path, requested))
            return {}

        tensorfiles.guarded(repr(str(path)), path, load)
        count += len(stored)
        results += [one for one in stored.values() if one is not None]
    return results, count


def _safetensors(path: Path, requested: WantedNames) -> dict[str, StoredTensor | None]:
    import ml_dtypes  # noqa: F401  (registers bfloat16 with NumPy)
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as archive:
        results: dict[str, StoredTensor | None] = {}
        for name in archive.keys():  # noqa: SIM118  (no dictionary)
            part = archive.get_slice(name)
            shape = tuple(part.get_shape())

            def head(part: Any = part, shape: tuple[int, ...] = shape, name: str = name) -> NDArray[Any]:
                return of_array(name, part[first_rows(shape)] if shape else archive.get_tensor(name)).values

            real = part.get_dtype() in _FLOATS
            results[name] = (
                of_array(name, archive.get_tensor(name)) if real and requested(name, shape, head) else None
            )
        return results


def _pickled(path: Path, requested: WantedNames) -> dict[str, StoredTensor | None]:
    import torch

    loaded = torch.load(path, map_location="cpu", weights_only=True)
    if isinstance(loaded, torch.Tensor):
        loaded = {path.stem: loaded}
    if not isinstance(loaded, dict):
        raise BadInput(f"{str(path)!r}: holds a {type(loaded).__name__}; give a state dict")
    tensors = {name: one for name, one in _flat("", loaded) if isinstance(one, torch.Tensor)}
    return chosen(tensors, requested, path)


def chosen(
    tensors: Mapping[str, Any], requested: WantedNames, path: Path | None = None
) -> dict[str, StoredTensor | None]:
    """Return torch tensors by their names, with nothing for those that are not wanted.

    path: the file that they are from, whose tensors may declare more than there is room for.
    """

    def one(name: str, tensor: Any) -> StoredTensor | None:
        shape = tuple(tensor.shape)
        real = tensor.is_floating_point() or tensor.is_complex()
        head = lambda: of_tensor(name, tensor[first_rows(shape)]).values  # noqa: E731
        if not (real and requested(name, shape, head)):
            return None
        if path is not None:
            declared_sizes.check_room(path, tensor.numel())
        return of_tensor(name, tensor)

    return {name: one(name, tensor) for name, tensor in tensors.items()}


def first_rows(shape: tuple[int, ...]) -> tuple[slice, ...]:
    """Return what picks the first rows of a table: of the first axis that is longer than 1."""
    axis = next((number for number, size in enumerate(shape) if size != 1), None)
    long = axis is not None and sum(size != 1 for size in shape) > 1
    return tuple(slice(0, ROWS) if long and number == axis else slice(None) for number in range(len(shape)))


def _flat(prefix: str, loaded: dict[Any, Any], depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Names and values of a state dict, which may stand inside another."""
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

    stored = tensor.detach().cpu()
    wide = torch.complex128 if stored.is_complex() else torch.float64
    dtype = str(tensor.dtype).removeprefix("torch.")
    return StoredTensor(name, dtype, tuple(tensor.shape), stored.to(wide).numpy())
