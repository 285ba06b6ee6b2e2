"""Reading of tensors: .npy, .npz, .safetensors, .pt, .pth, .bin, .onnx; of checkpoints and dumps.

Nothing in a file is ever executed: no pickle, no graph, and no code that a config.json names.
"""

from __future__ import annotations

import functools
import json
import math
import re
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from ropeaudit.errors import BadInput, MissingPackage, parser_reason, required_packages
from ropeaudit.runtime import run_metadata
from ropeaudit.tensor_files import onnx_graphs
from ropeaudit.tensor_files.onnx_graphs import Use
from ropeaudit.tensor_files.rope_values import HEAD

Tensors: TypeAlias = Mapping[str, NDArray[Any]]
# (name, shape, what reads the first `HEAD` rows) -> whether the tensor is loaded
IsRequested: TypeAlias = Callable[[str, tuple[int, ...], Callable[[], NDArray[Any]]], bool]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Part:
    """A tensor of a file, which is read on demand.

    read: returns the values at an index, unrounded. shape: None if only the values tell it. floats: whether
    it may hold numbers. dtype: if it is not that of the values. use: in a graph.
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


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A stored tensor: the name of its dtype, its shape, its values in float64 (complex128).

    use: of a graph's constant, whose values are those that its nodes get.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    values: NDArray[Any]
    use: Use | None = None


def paths(spec: str) -> list[Path]:
    """Return the path of a spec, or several .npy paths separated by commas."""
    return [Path(part) for part in spec.split(",")] if spec.endswith(".npy") else [Path(spec)]


def why_no_content(path: Path) -> str:
    """Return why a path is no file with content; empty if it is one."""
    try:
        if path.is_dir():
            return "is a folder"
        if not path.is_file():
            return "no such file"
        return "" if path.stat().st_size else "the file is empty"
    except (OSError, ValueError) as error:
        return str(getattr(error, "strerror", None) or error)


def read_or_refuse(seen: str, path: Path, read: Callable[[], T]) -> T:
    """Call `read`; its errors become BadInput beginning with `seen`."""
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
    """Yield a file's tensors. pair: names for two tensors without names. Raises: parser errors."""
    check_declared(path)
    suffix = path.suffix.lower()
    if suffix in (".npy", ".npz"):
        yield from _numpy_arrays(path)
    else:
        yield from _torch_parts(path, pair) if suffix in (".pt", ".pth", ".bin") else _safetensors(path)


def read(path: Path, wanted: Container[str]) -> Tensors:
    """Return name -> values of a file's tensors; those that are not wanted are empty.

    Two tensors without names are called q and k. Raises: parser errors.
    """
    return {one.name: one.read(...) if one.name in wanted else np.zeros(0) for one in parts(path, "q k")}


def checked_real(seen: str, tensor: Any) -> NDArray[Any]:
    """Return a tensor of real numbers. Raises: BadInput that begins with `seen`.

    Two-byte elements, as which NumPy's files load bfloat16, are converted back.
    """
    if not isinstance(tensor, np.ndarray):  # .npz archives may hold files that are no arrays
        raise BadInput(f"{seen} is no array; give real numbers")
    if tensor.dtype.kind == "V" and tensor.dtype.itemsize == 2:
        import ml_dtypes

        tensor = np.asarray(tensor.view(ml_dtypes.bfloat16))
    if tensor.dtype.kind in "VOcSUbMm" and "float" not in tensor.dtype.name:
        raise BadInput(f"{seen} holds {tensor.dtype}; give real numbers")
    return np.asarray(tensor)


def first_names(tensors: Tensors) -> str:
    """Return the first names of tensors as text."""
    return ", ".join(repr(name[:40])[1:-1] for name in sorted(tensors)[:8]) or "nothing"


def _numpy_arrays(path: Path) -> Iterator[Part]:
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


def _torch_parts(path: Path, pair: str) -> Iterator[Part]:
    import torch

    loaded = torch.load(path, map_location="cpu", weights_only=True)
    if isinstance(loaded, torch.Tensor):
        loaded = {path.stem: loaded}
    if isinstance(loaded, (tuple, list)) and [isinstance(one, torch.Tensor) for one in loaded] == [True] * 2:
        loaded = dict(zip(pair.split(), loaded, strict=True))
    if not isinstance(loaded, dict):
        raise BadInput(f"{str(path)!r}: holds a {type(loaded).__name__}; give a dict of tensors")
    for name, value in _flattened("", loaded):
        if isinstance(value, torch.Tensor):
            yield of_torch(name, value, path)


def of_torch(name: str, tensor: Any, path: Path | None = None) -> Part:
    """Return a torch tensor as a part. path: its file, which may declare more than fits."""

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


def _onnx_constants(path: Path) -> Iterator[Part]:
    for one in onnx_graphs.constants(path):

        def numbers(index: Any, one: onnx_graphs.Constant = one) -> NDArray[Any]:
            check_room(path, math.prod(one.shape))
            return np.asarray(one.read()[index])

        yield Part(one.name, numbers, one.shape, one.floats, use=one.use)


def _flattened(prefix: str, loaded: Mapping[Any, Any], depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield names and values of a state dict and of dicts inside it."""
    for name, value in loaded.items():
        if isinstance(value, dict) and depth < 4:
            yield from _flattened(f"{prefix}{name}.", value, depth + 1)
        else:
            yield f"{prefix}{name}", value


_WIDE = 8  # bytes of a number in float64, which all become
_PACKED, _FREE_OF_DOUBT = 100, 2**28  # times that an honest archive is packed; bytes that may be more


def check_declared(path: Path) -> None:
    """Raise BadInput for a file that declares more than its bytes can hold, or than fits in memory.

    For .safetensors the library itself compares the header with the file.
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
    """Raise BadInput unless this many numbers fit in memory in float64."""
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


_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_CHECKPOINTS = (".safetensors", ".pt", ".pth", ".bin")
_DUMPS = (".npz", ".npy")
_GRAPH = ".onnx"
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.safetensors|\.bin)")
_GIVE = "give a folder with config.json and *.safetensors, or one .safetensors, .pt, .npz, .npy or .onnx file"


def is_graph(path: Path) -> bool:
    """Return whether a path is an ONNX file."""
    return path.suffix.lower() == _GRAPH and not path.is_dir()


def is_dump(path: Path) -> bool:
    """Return whether a path is a dump of arrays, .npy or .npz."""
    return path.suffix.lower() in _DUMPS and not path.is_dir()


def files(path: Path) -> list[Path]:
    """Return the tensor files of a checkpoint.

    Raises: BadInput for a folder without any, a damaged index, and a missing shard.
    """
    if not path.is_dir():
        if fault := why_no_content(path):
            raise BadInput(f"{str(path)!r}: {fault}; {_GIVE}")
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
        alone = "; `ropeaudit check` of it judges config.json" if (path / "config.json").is_file() else ""
        raise BadInput(f"{str(path)!r}: {seen}; {_GIVE}{alone}")
    missing = [shard.name for shard in shards if why_no_content(shard)]
    if missing:
        first = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise BadInput(
            f"{str(path)!r}: {len(missing)} of {len(shards)} shards are missing or empty ({first}); "
            "copy the whole checkpoint"
        )
    return shards


def search_files(paths: list[Path], is_requested: IsRequested) -> tuple[list[StoredTensor], int]:
    """Return the requested tensors and the number of all. Raises: BadInput."""
    tensors, count = list[StoredTensor](), 0
    for path in paths:
        held = _onnx_constants(path) if is_graph(path) else parts(path)
        reading = functools.partial(select, held, is_requested, f"{str(path)!r}: ")
        found = read_or_refuse(repr(str(path)), path, reading)
        tensors, count = tensors + found[0], count + found[1]
    return tensors, count


def select(
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
            rows = (slice(0, HEAD) if n == first else slice(None) for n in range(len(part.sizes)))
            return read_unrounded(part, tuple(rows), place).values

        called = (part.use and part.use.operand) or name  # an operator's word for it
        if part.floats and is_requested(called, part.sizes, head):
            tensors.append(replace(read_unrounded(part, ..., place), name=name))
    return tensors, names.total()


def read_unrounded(part: Part, index: Any = ..., place: str = "") -> StoredTensor:
    """Return a tensor, or what an index picks, unrounded. Raises: BadInput."""
    array = part.read(index)
    if getattr(array, "dtype", np.dtype("O")).kind != "c":
        array = checked_real(f"{place}{part.name[:40]}", array)
    wide = np.complex128 if array.dtype.kind == "c" else np.float64
    values = array.astype(wide)
    if part.use is not None:
        values = part.use.rounded(values)
    dtype = part.dtype or ("float64" if array.dtype.kind in "iub" else array.dtype.name)
    return StoredTensor(part.name, dtype, array.shape, values, part.use)
