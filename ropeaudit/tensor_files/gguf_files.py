"""Reading of a GGUF file's facts about RoPE: metadata, and tensors that divide frequencies.

Source: github.com/ggml-org/ggml, docs/gguf.md; the names of keys are those of the package gguf.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ropeaudit.errors import BadInput, MissingPackage
from ropeaudit.tensor_files import tensors as tensorfiles

Value: TypeAlias = float | bool | str | tuple[float, ...]
DIVISORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
_KEYS = ("rope.", "attention.", "context_length", "embedding_length")  # behind the architecture


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A file's architecture, its keys without that prefix, and tensors (p,) that divide frequencies.

    tensors: the number of all tensors.
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
    """Read a GGUF file. Raises: BadInput, MissingPackage."""
    if wrong := tensorfiles.why_no_content(path):
        raise BadInput(f"{str(path)!r}: {wrong}; give a .gguf file")
    if find_spec("gguf") is None:
        raise MissingPackage(f"{str(path)!r} needs gguf to be read; pip install 'ropeaudit[gguf]'")
    return tensorfiles.read_or_refuse(repr(str(path)), path, functools.partial(_read, path))


def _read(path: Path) -> GgufFile:
    from gguf import GGUFReader

    class Within(GGUFReader):
        """Reads nothing past the end, where the package finds endless empty arrays."""

        def _get(
            self,
            offset: int,
            dtype: Any,
            count: int = 1,
            override_order: Any = None,
        ) -> Any:
            if offset + int(count) * np.dtype(dtype).itemsize > len(self.data):
                raise BadInput(
                    f"{str(path)!r}: declares more than it holds; it was cut short or changed: copy it again"
                )
            return super()._get(offset, dtype, count, override_order)

    reader = Within(path)
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
