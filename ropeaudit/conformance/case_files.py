"""Read a case of vectors: what its manifest says, and its files, each checked against its digest."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropeaudit.arithmetic.formats import FloatArray, parse
from ropeaudit.conformance import case_manifest, raw_arrays
from ropeaudit.conformance.case_manifest import FLAT, FORMAT, MANIFEST, TENSORS, VERSION
from ropeaudit.conformance.case_spec import CaseSpec, Entry
from ropeaudit.errors import BadInput
from ropeaudit.tensor_files import declared_sizes

_LARGEST = 2**24  # bytes of a manifest
_REMEDY = "write the case anew with `ropeaudit vectors`"


@dataclass(frozen=True, slots=True)
class VectorCase:
    """A case whose files are those that were written. digest: of its manifest."""

    folder: Path
    spec: CaseSpec
    digest: str

    def vectors(self) -> dict[str, FloatArray]:
        """Return name -> numbers of the vectors that the kernel is given at all offsets."""
        return {
            name: raw_arrays.numbers((self.folder / f"{name}.bin").read_bytes(), self.spec.dtype, shape)
            for name, shape in self.spec.shapes().items()
        }

    def own_files(self) -> set[str]:
        """Return the names of its files."""
        return {MANIFEST, FLAT, TENSORS, *_given(self.spec)}


def _folder(path: Path) -> Path:
    return path.parent if path.name == MANIFEST else path


def read(folder: str | Path) -> VectorCase:
    """Return the case in a folder, or of a manifest, every file of it checked. Raises: BadInput."""
    path = _folder(Path(folder))
    seen = f"case {str(path)!r}"
    content = read_manifest(path / MANIFEST)
    spec = case_manifest.spec_of(content)
    digests = {file["file"]: file["digest"] for file in _entries(content)}
    digests[TENSORS] = str(content["safetensors"]["digest"])
    if case_manifest.manifest(spec, digests) != content:
        raise BadInput(f"{seen}: its files are not those that its parameters make; {_REMEDY}")
    if _content(path / FLAT, seen) != case_manifest.flat(content):
        raise BadInput(f"{seen}: {FLAT} does not say what {MANIFEST} says; {_REMEDY}")
    for name, file in _given(spec).items():
        size = math.prod(file["shape"]) * _item_size(file)
        _check(path / name, seen, digests[name], size)
    _check(path / TENSORS, seen, digests[TENSORS], None)
    return VectorCase(path, spec, content["digest"])


def read_manifest(path: Path) -> dict[str, Any]:
    """Return what a manifest holds, as far as it is that of a case that nobody has changed. Raises: BadInput.

    Its parameters and files are looked at by `case_manifest.spec_of` and `read`.
    """
    seen = repr(str(path))
    content = _content(path, f"case {str(path.parent)!r}")
    try:
        parsed = json.loads(content)
        known = parsed["format"], parsed["version"]
        digest, list_of_calls = parsed["digest"], parsed["calls"]
        right = case_manifest.digest_of(parsed)
        [parsed["inputs"], parsed["safetensors"]["digest"], *(call["inputs"] for call in list_of_calls)]
        for file in _entries(parsed):
            _ = file["file"], file["digest"]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise BadInput(
            f"{seen} is no manifest of `ropeaudit vectors`; give the folder that it wrote"
        ) from None
    if known != (FORMAT, VERSION):
        raise BadInput(
            f"{seen} is of {known[0]} version {known[1]}; {FORMAT} version {VERSION} is understood"
        )
    if digest != right:
        raise BadInput(f"{seen} was changed after it was written: its digest does not hold; {_REMEDY}")
    result: dict[str, Any] = parsed
    return result


def _entries(content: Mapping[str, Any]) -> list[Entry]:
    calls = [file for call in content["calls"] for file in call["inputs"].values()]
    return [*content["inputs"].values(), *calls]


def _given(spec: CaseSpec) -> dict[str, Entry]:
    """Return file name -> entry of all that a case gives."""
    files = [*spec.inputs().values()]
    for offset in spec.offsets:
        files += spec.call_inputs(offset).values()
    return {file["file"]: file for file in files}


def _item_size(file: Entry) -> int:
    if file["dtype"] in ("int64", "int32"):
        return 8 if file["dtype"] == "int64" else 4
    return int(raw_arrays.stored(parse(file["dtype"])).itemsize)


def _check(path: Path, seen: str, digest: str, size: int | None) -> None:
    """Raise BadInput unless a file is there, of its size, and what was written."""
    if size is not None:
        declared_sizes.check_room(path, size // 8)
    content = _content(path, seen)
    if size is not None and len(content) != size:
        raise BadInput(f"{seen}: {path.name} has {len(content):,} bytes instead of {size:,}; {_REMEDY}")
    if case_manifest.sha256(content) != digest:
        raise BadInput(f"{seen}: {path.name} is not the file that was written, its digest differs; {_REMEDY}")


def _content(path: Path, seen: str) -> bytes:
    try:
        size = path.stat().st_size
        if path.exists() and not path.is_file():
            raise OSError(0, "it is no file")
        if size <= _LARGEST or path.name not in (MANIFEST, FLAT):
            return path.read_bytes()
    except FileNotFoundError:
        hint = "give the folder that `ropeaudit vectors` wrote" if path.name == MANIFEST else _REMEDY
        raise BadInput(f"{seen}: there is no {path.name}; {hint}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadInput(f"{seen}: {path.name} cannot be read: {reason}") from None
    raise BadInput(f"{seen}: {path.name} has {size:,} bytes, more than any manifest; {_REMEDY}")
