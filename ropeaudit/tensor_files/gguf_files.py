"""What a GGUF file says of RoPE: its metadata, and the tensors that divide frequencies. No weight is read.

Source: github.com/ggml-org/ggml, docs/gguf.md; the names of keys are those of the package gguf.
"""

from __future__ import annotations

import functools
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ropeaudit.errors import BadInput, MissingPackage
from ropeaudit.tensor_files import tensors as tensorfiles

Value: TypeAlias = float | bool | str | tuple[float, ...]
DIVISORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
_SCALARS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # type -> bytes
_STRING, _ARRAY = 8, 9
_HEADER, _LEAST_KEY, _LEAST_TENSOR = 24, 13, 32  # bytes
_KEYS = ("rope.", "attention.", "context_length", "embedding_length")  # behind the architecture


@dataclass(frozen=True, slots=True)
class GgufFile:
    """What a file holds: its architecture, keys without that, and tensors (p,) that divide frequencies.

    tensors: how many there are in all.
    """

    architecture: str
    values: Mapping[str, Value]
    divisors: Mapping[str, NDArray[np.float64]]
    tensors: int

    def number(self, key: str) -> float | None:
        """Return a number; None where the key is missing. Raises: BadInput."""
        value = self.values.get(key)
        if value is None or (isinstance(value, float | int) and not isinstance(value, bool)):
            return value
        if isinstance(value, tuple) and len(set(value)) == 1:  # one a layer
            return value[0]
        raise BadInput(f"{self.architecture}.{key} = {str(value)[:60]} is not one number")


def is_gguf(path: str | Path) -> bool:
    """Return whether a path is that of a GGUF file."""
    return Path(path).suffix.lower() == ".gguf" and not Path(path).is_dir()


def read(path: Path) -> GgufFile:
    """Return what a file says of RoPE. Raises: BadInput, MissingPackage."""
    if wrong := tensorfiles.wrong(path):
        raise BadInput(f"{str(path)!r}: {wrong}; give a .gguf file")
    if find_spec("gguf") is None:
        raise MissingPackage(f"{str(path)!r} needs gguf to be read; pip install 'ropeaudit[gguf]'")
    return tensorfiles.guarded(repr(str(path)), path, functools.partial(_read, path))


def _read(path: Path) -> GgufFile:
    from gguf import GGUFReader

    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            tensors, keys = struct.unpack_from("<QQ", data, 8)
            if tensors * _LEAST_TENSOR + keys * _LEAST_KEY > len(data):
                raise ValueError
            at = _HEADER
            for _ in range(keys):
                at = _behind_string(data, at)
                (kind,) = struct.unpack_from("<I", data, at)
                at = _behind_value(data, at + 4, kind)
            for _ in range(tensors):
                at = _behind_string(data, at)
                (axes,) = struct.unpack_from("<I", data, at)
                at += 16 + 8 * axes
                if at > len(data):
                    raise ValueError
        except (struct.error, ValueError, KeyError):
            raise BadInput(
                f"{str(path)!r}: declares more than it holds; it was cut short or changed: copy it again"
            ) from None
    reader = GGUFReader(path)
    known = reader.get_field("general.architecture")
    if known is None:
        raise BadInput(f"{str(path)!r}: has no general.architecture; write it again")
    architecture, values = str(known.contents()), dict[str, Value]()
    for name, field in reader.fields.items():
        key = name.removeprefix(f"{architecture}.")
        if key != name and key.startswith(_KEYS):
            content = field.contents()
            if isinstance(content, list):
                values[key] = tuple(float(one) for one in content)
            else:
                values[key] = content if isinstance(content, bool | str) else float(content)
    divisors = {
        tensor.name: np.array(tensor.data, dtype=np.float64).reshape(-1)
        for tensor in reader.tensors
        if tensor.name in DIVISORS and tensor.data.dtype.kind == "f"
    }
    return GgufFile(architecture, values, divisors, len(reader.tensors))


def _behind_string(data: mmap.mmap, at: int) -> int:
    (length,) = struct.unpack_from("<Q", data, at)
    if length > len(data):
        raise ValueError
    return int(at + 8 + length)


def _behind_value(data: mmap.mmap, at: int, kind: int, depth: int = 0) -> int:
    """Return where a value ends. Raises: ValueError, KeyError, struct.error where it does not."""
    if kind == _STRING:
        return _behind_string(data, at)
    if kind != _ARRAY:
        return at + _SCALARS[kind]
    inner, count = struct.unpack_from("<IQ", data, at)
    at += 12
    if count > len(data) or depth > 1:
        raise ValueError
    if inner in _SCALARS:
        return int(at + count * _SCALARS[inner])
    for _ in range(count):
        at = _behind_value(data, at, inner, depth + 1)
    return at
