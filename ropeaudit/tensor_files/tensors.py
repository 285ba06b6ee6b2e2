"""Read named tensors out of a file: .npy, .npz, .safetensors, .pt and .pth.

Nothing in a file is ever executed: no pickles.
"""

from __future__ import annotations

import functools
import math
import warnings
import zipfile
from collections.abc import Callable, Container, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from ropeaudit.errors import BadInput, MissingPackage, required_packages
from ropeaudit.runtime import run_metadata

Tensors: TypeAlias = Mapping[str, NDArray[Any]]
_Named: TypeAlias = Iterator[tuple[str, Callable[[], NDArray[Any]]]]  # names, and what reads the values
T = TypeVar("T")


class Unnamed(Exception):
    """A file that holds something else than tensors by name; `args` names it."""


def paths(spec: str) -> list[Path]:
    """Return the path that a value names, or the .npy paths with commas between them."""
    return [Path(part) for part in spec.split(",")] if spec.endswith(".npy") else [Path(spec)]


def wrong(path: Path) -> str:
    """Return why a path leads to no file with content, if so."""
    try:
        if path.is_dir():
            return "is a folder"
        if not path.is_file():
            return "no such file"
        return "" if path.stat().st_size else "the file is empty"
    except (OSError, ValueError) as error:
        return str(getattr(error, "strerror", None) or error)


def guarded(seen: str, path: Path, read: Callable[[], T]) -> T:
    """Return what `read` gives; whatever it raises becomes a BadInput that begins with `seen`."""
    try:
        with warnings.catch_warnings(), required_packages(seen):
            # what a parser thinks of a file is in its error
            warnings.simplefilter("ignore")
            return read()
    except BadInput as error:
        flag, text = seen.partition(" ")[0], error.typed
        raise BadInput(f"{flag} {text}" if flag.startswith("--") and flag not in text else text) from None
    except MissingPackage:
        raise
    except ImportError as error:
        raise BadInput(f"{seen}: cannot be read without {error.name}") from None
    except Exception as error:  # whatever a parser makes of a damaged or hostile file
        first = (str(error).strip().splitlines() or [""])[0].partition(". ")[0]
        reason = (first if len(first) > 3 else "it is damaged")[:160]
        if "ickle" in str(error) or "weights_only" in str(error):  # whose advice is to execute them
            reason = "it holds Python objects, or is damaged; give tensors alone"
        raise BadInput(f"{seen}: not a readable {path.suffix} file: {reason}") from None


def read_npy(path: Path) -> NDArray[Any]:
    """Return the one array of a .npy file."""
    check_declared(path)
    with path.open("rb") as file:
        return np.asarray(np.load(file, allow_pickle=False))


def read(path: Path, wanted: Container[str] | None = None) -> Tensors:
    """Return all names of a file, with the values of those wanted, all if None, and no values of the others.

    Two tensors without names are called q and k. A file whose suffix is not among `SUFFIXES` is a KeyError.
    Raises: Unnamed, and whatever a parser raises.
    """
    reader = _READERS[path.suffix.lower()]
    check_declared(path)
    return {name: load() if wanted is None or name in wanted else np.zeros(0) for name, load in reader(path)}


def real(seen: str, tensor: Any) -> NDArray[Any]:
    """Return a tensor of real numbers. Raises: BadInput that begins with `seen`.

    bfloat16, which NumPy's own files hand back as two bytes, is one again.
    """
    if not isinstance(tensor, np.ndarray):  # .npz archives may hold files that are no arrays
        raise BadInput(f"{seen} is no array; give real numbers")
    if tensor.dtype.kind == "V" and tensor.dtype.itemsize == 2:
        import ml_dtypes

        tensor = np.asarray(tensor.view(ml_dtypes.bfloat16))
    if tensor.dtype.kind in "VOcSUbMm" and "float" not in tensor.dtype.name:
        raise BadInput(f"{seen} holds {tensor.dtype}; give real numbers")
    return np.asarray(tensor)


def listed(tensors: Tensors) -> str:
    """Return the first names of a file as text."""
    return ", ".join(repr(name[:40])[1:-1] for name in sorted(tensors)[:8]) or "nothing"


def _npz(path: Path) -> _Named:
    with path.open("rb") as file:  # NumPy leaves it open where the archive is damaged
        archive = np.load(file, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise Unnamed("one array", archive)
        with archive:
            yield from ((name, functools.partial(archive.__getitem__, name)) for name in archive.files)


def _safetensors(path: Path) -> _Named:
    import ml_dtypes  # noqa: F401  (registers bfloat16 with NumPy)
    from safetensors import safe_open

    def numbers(name: str) -> NDArray[Any]:
        check_room(path, math.prod(archive.get_slice(name).get_shape()))
        return np.asarray(archive.get_tensor(name))

    with safe_open(path, framework="numpy") as archive:
        for name in archive.keys():  # noqa: SIM118  (no dictionary)
            yield name, functools.partial(numbers, name)


def _torch(path: Path) -> _Named:
    import torch

    def numbers(value: torch.Tensor) -> NDArray[Any]:
        detached = value.detach()
        check_room(path, detached.numel())  # an expanded one is small in the file
        if detached.dtype.is_floating_point:
            detached = detached.to(torch.float64)  # NumPy knows neither bfloat16 nor float8
        return np.asarray(detached.numpy())

    loaded = torch.load(path, map_location="cpu", weights_only=True)
    if isinstance(loaded, (tuple, list)) and len(loaded) == 2:
        loaded = dict(zip("qk", loaded, strict=True))
    if not isinstance(loaded, dict):
        lone = numbers(loaded) if isinstance(loaded, torch.Tensor) else None
        raise Unnamed(f"a {type(loaded).__name__}", lone)
    for name, value in loaded.items():
        if isinstance(value, torch.Tensor):
            yield str(name), functools.partial(numbers, value)


_READERS: dict[str, Callable[[Path], _Named]] = {
    ".safetensors": _safetensors,
    ".npz": _npz,
    ".pt": _torch,
    ".pth": _torch,
}
SUFFIXES = tuple(_READERS)


_WIDE = 8  # bytes of a number in float64, which all become
_PACKED, _FREE_OF_DOUBT = 100, 2**28  # times that an honest archive is packed; bytes that may be more


def check_declared(path: Path) -> None:
    """Raise BadInput for a file that declares more than its bytes can hold, or than there is room for.

    Of .safetensors the library itself holds the header against the file.
    """
    size = path.stat().st_size
    if not zipfile.is_zipfile(path):
        if path.suffix.lower() == ".npy":
            with path.open("rb") as file:
                _check_array(path, file, size)
        return
    with zipfile.ZipFile(path) as archive:  # .npz, .pt and .pth
        members = archive.infolist()
        declared = sum(member.file_size for member in members)
        if declared > max(_PACKED * size, _FREE_OF_DOUBT):
            raise BadInput(
                f"{str(path)!r} has {size:,} bytes and declares {declared:,}, more than tensors can be "
                "packed; give the file unpacked if it is right"
            )
        if declared > run_metadata.free_bytes():
            check_room(path, declared // _WIDE)
        for member in members:
            if member.filename.endswith(".npy") and not member.flag_bits & 1:  # encrypted: refused later
                with archive.open(member) as file:
                    _check_array(path, file, member.file_size)


def check_room(path: Path, numbers: int) -> None:
    """Raise BadInput unless so many numbers find room in float64."""
    if (needed := numbers * _WIDE) > (free := run_metadata.free_bytes()):
        raise BadInput(
            f"{str(path)!r} declares {numbers:,} numbers, {needed / 2**30:,.1f} GiB in float64, and "
            f"{free / 2**30:,.1f} GiB are free; give a smaller part of it"
        )


def _check_array(path: Path, file: IO[bytes], size: int) -> None:
    """Raise BadInput for an array with fewer bytes than its header declares."""
    form: Any = np.lib.format
    try:
        version = form.read_magic(file)
        read = form.read_array_header_1_0 if version == (1, 0) else form.read_array_header_2_0
        shape, _, dtype = read(file)
    except (ValueError, OSError, zipfile.BadZipFile):
        return
    if dtype.hasobject:
        return
    declared = math.prod(shape) * dtype.itemsize
    here = size - file.tell()
    if declared > here:
        raise BadInput(
            f"{str(path)!r} declares an array of {shape}, {declared:,} bytes, and holds {here:,}; it was cut "
            "short or changed: write it again"
        )
    check_room(path, math.prod(shape))
