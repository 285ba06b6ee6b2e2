"""Read named tensors out of a file: .npy, .npz, .safetensors, .pt, .pth and .bin.

Nothing in a file is ever executed: no pickles.
"""

from __future__ import annotations

import functools
import math
import warnings
import zipfile
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from ropeaudit.errors import BadInput, MissingPackage, required_packages
from ropeaudit.runtime import run_metadata

if TYPE_CHECKING:
    from ropeaudit.tensor_files.onnx_graphs import Use

Tensors: TypeAlias = Mapping[str, NDArray[Any]]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Part:
    """A tensor of a file that is read when it is asked for.

    read: its values, or those of an index of it, unrounded. shape: None where only its values tell it.
    floats: whether it may hold numbers. dtype: where it is not that of the values. use: a graph's.
    """

    name: str
    read: Callable[[Any], NDArray[Any]]
    shape: tuple[int, ...] | None = None
    floats: bool = True
    dtype: str = ""
    use: Use | None = None

    @property
    def sizes(self) -> tuple[int, ...]:
        """Its shape."""
        return np.shape(self.read(...)) if self.shape is None else self.shape


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
    """Return what `read` gives; errors become BadInput beginning with `seen`."""
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


def parts(path: Path, pair: str = "cos sin") -> Iterator[Part]:
    """Yield a file's tensors. pair: names of two without. Raises: parser errors."""
    check_declared(path)
    suffix = path.suffix.lower()
    if suffix in (".npy", ".npz"):
        yield from _numpy(path)
    else:
        yield from _torch(path, pair) if suffix in (".pt", ".pth", ".bin") else _safetensors(path)


def read(path: Path, wanted: Container[str]) -> Tensors:
    """Return all names of a file, with the values of those wanted, and no values of the others.

    Two tensors without names are called q and k. Raises: whatever a parser raises.
    """
    return {one.name: one.read(...) if one.name in wanted else np.zeros(0) for one in parts(path, "q k")}


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


def _numpy(path: Path) -> Iterator[Part]:
    """Yield the arrays of a .npy file or an .npz archive."""
    with path.open("rb") as file:  # NumPy leaves it open where the archive is damaged
        content = np.load(file, allow_pickle=False)
        if not isinstance(content, np.lib.npyio.NpzFile):
            yield Part(path.stem, content.__getitem__)
            return
        with content:
            for name in content.files:
                load = functools.cache(functools.partial(content.__getitem__, name))

                def numbers(index: Any, load: Callable[[], Any] = load) -> Any:
                    return load() if index is ... else load()[index]

                yield Part(name, numbers)


_FLOATS = ("F64", "F32", "F16", "BF16", "C64", "C128")


def _safetensors(path: Path) -> Iterator[Part]:
    import ml_dtypes  # noqa: F401  (registers bfloat16 with NumPy)
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as archive:
        for name in archive.keys():  # noqa: SIM118  (no dictionary)
            one = archive.get_slice(name)
            shape = tuple(one.get_shape())

            def numbers(
                index: Any,
                name: str = name,
                one: Any = one,
                size: int = math.prod(shape),
            ) -> Any:
                if index is not ...:
                    return one[index]
                check_room(path, size)
                return archive.get_tensor(name)

            yield Part(name, numbers, shape, one.get_dtype() in _FLOATS)


def _torch(path: Path, pair: str) -> Iterator[Part]:
    import torch

    loaded = torch.load(path, map_location="cpu", weights_only=True)
    if isinstance(loaded, torch.Tensor):
        loaded = {path.stem: loaded}
    if isinstance(loaded, (tuple, list)) and [isinstance(one, torch.Tensor) for one in loaded] == [True] * 2:
        loaded = dict(zip(pair.split(), loaded, strict=True))
    if not isinstance(loaded, dict):
        raise BadInput(f"{str(path)!r}: holds a {type(loaded).__name__}; give a dict of tensors")
    for name, value in _flat("", loaded):
        if isinstance(value, torch.Tensor):
            yield of_torch(name, value, path)


def of_torch(name: str, tensor: Any, path: Path | None = None) -> Part:
    """Return a torch tensor. path: its file, which may declare more than fits."""

    def numbers(index: Any) -> NDArray[Any]:
        import torch

        if path is not None and index is ...:
            check_room(path, tensor.numel())  # an expanded one is small in the file
        some = tensor[index].detach().cpu()
        if floats:  # NumPy knows neither bfloat16 nor float8
            some = some.to(torch.complex128 if some.is_complex() else torch.float64)
        return np.asarray(some.numpy())

    floats = bool(tensor.is_floating_point() or tensor.is_complex())
    return Part(name, numbers, tuple(tensor.shape), floats, str(tensor.dtype).removeprefix("torch."))


def _flat(prefix: str, loaded: Mapping[Any, Any], depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield names and values of a state dict, which may stand inside another."""
    for name, value in loaded.items():
        if isinstance(value, dict) and depth < 4:
            yield from _flat(f"{prefix}{name}.", value, depth + 1)
        else:
            yield f"{prefix}{name}", value


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
