"""Read what a kernel wrote back for a case of vectors: raw files or one .safetensors file.

What is not there, of another size, of another case or of no case is refused with the reason. What is there
and wrong is judged by `returned`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from numpy.typing import NDArray

from ropeaudit.arithmetic.formats import FloatArray, Format, parse
from ropeaudit.conformance import raw_arrays
from ropeaudit.conformance.case_calls import Key
from ropeaudit.conformance.vector_case import RETURNED, Entry, VectorCase
from ropeaudit.errors import BadInput
from ropeaudit.tensor_files import tensors as tensorfiles

CASE = "case.txt"  # may stand beside what is written back: the digest of the case that it is of
_LONGEST = 200  # bytes of it that are read

Arrays: TypeAlias = dict[Key, dict[str, FloatArray]]  # call -> name -> numbers, in the carrier


@dataclass(frozen=True, slots=True)
class Returned:
    """What was written back, of each call. named: whether it names the case that it is of."""

    arrays: Arrays
    named: bool


def read(case: VectorCase, output: str | Path) -> Returned:
    """Return what was written back for a case. Raises: BadInput."""
    path = Path(output)
    seen = f"--returned {str(path)!r}"
    try:
        is_folder, exists = path.is_dir(), path.exists()
        names = {item.name for item in path.iterdir()} if is_folder else set()
    except (OSError, ValueError) as error:
        raise BadInput(f"{seen}: {getattr(error, 'strerror', None) or error}") from None
    if path.suffix == ".safetensors" and not is_folder:
        return Returned(*_tensors(case, path, seen))
    if not is_folder:
        what = "is no folder" if exists else "no such folder"
        raise BadInput(f"{seen}: {what}; give the folder that the kernel wrote into")
    expected = {entry["file"] for _, _, entry in _entries(case)}
    raw = expected & names
    if path.resolve() == case.folder.resolve():
        names -= case.own_files()
    tensor_files = {name for name in names if name.endswith(".safetensors")}
    if raw and tensor_files:
        both = f"both {min(raw)} and {min(tensor_files)}"
        raise BadInput(f"{seen}: there are {both}; leave raw files or one .safetensors file")
    _refuse_foreign(case, names - raw - {RETURNED}, seen)
    named = CASE in names
    if named:
        text = _content(path / CASE, seen, _LONGEST).decode("utf-8", "replace").strip()
        _same(case, text, f"{seen}: {CASE}")
    if tensor_files:
        arrays, inside = _tensors(case, path / RETURNED, seen)
        return Returned(arrays, named or inside)
    return Returned(_raw(case, path, names, seen), named)


def _entries(case: VectorCase) -> Iterator[tuple[Key, str, Entry]]:
    for call in case.spec.calls:
        for name, entry in case.spec.outputs(call).items():
            yield call.key, name, entry


def _refuse_foreign(case: VectorCase, names: set[str], seen: str) -> None:
    """Raise BadInput for data files that the case does not ask for: they are of another case or misnamed."""
    foreign = sorted(name for name in names if name.endswith((".bin", ".safetensors")))
    if foreign:
        asked = ", ".join(entry["file"] for _, _, entry in list(_entries(case))[:4])
        raise BadInput(
            f"{seen}: the case does not ask for {', '.join(foreign[:4])}; it asks for {asked} ..., "
            f"or {RETURNED}"
        )


def _same(case: VectorCase, text: str, seen: str) -> None:
    """Raise BadInput if what was written back names another case."""
    if text != case.digest:
        raise BadInput(
            f"{seen} names another case, {text[:19]}..., than {str(case.folder)!r}, {case.digest[:19]}...; "
            "run the kernel on this case, or judge it by the other one"
        )


def _raw(case: VectorCase, path: Path, names: set[str], seen: str) -> Arrays:
    wanted = list(_entries(case))
    missing = [entry["file"] for _, _, entry in wanted if entry["file"] not in names]
    if missing:
        count = f"{len(missing)} of {len(wanted)} files are missing"
        raise BadInput(f"{seen}: {count}, the first {missing[0]}; write all that manifest.json asks for")
    arrays: Arrays = {}
    for key, name, entry in wanted:
        file, dtype, shape = path / entry["file"], parse(entry["dtype"]), tuple(entry["shape"])
        size = math.prod(shape) * raw_arrays.stored(dtype).itemsize
        if not file.is_file():
            raise BadInput(f"{seen}: {file.name} is no file; {_form(entry)}")
        here = file.stat().st_size
        if here != size:
            raise BadInput(f"{seen}: {file.name} has {here:,} bytes instead of {size:,}: {_form(entry)}")
        arrays.setdefault(key, {})[name] = raw_arrays.numbers(_content(file, seen, size), dtype, shape)
    return arrays


def _content(file: Path, seen: str, most: int) -> bytes:
    """Return the first bytes of a file. Raises: BadInput."""
    try:
        if file.is_file():
            with file.open("rb") as stream:
                return stream.read(most)
        reason = "it is no file"
    except OSError as error:
        reason = str(error.strerror or error)
    raise BadInput(f"{seen}: {file.name} cannot be read: {reason}")


def _form(entry: Entry) -> str:
    return f"{entry['dtype']} of shape {tuple(entry['shape'])}, little-endian, is what the case asks for"


def _tensors(case: VectorCase, path: Path, seen: str) -> tuple[Arrays, bool]:
    """Return what a .safetensors file holds: a tensor for each raw file, named like it without .bin."""
    wanted = {entry["file"].removesuffix(".bin"): (key, name, entry) for key, name, entry in _entries(case)}
    if wrong := tensorfiles.wrong(path):
        raise BadInput(f"{seen}: {path.name}: {wrong}; write it again")
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as archive:
            digest = (archive.metadata() or {}).get("case")
    except (SafetensorError, OSError) as error:
        raise BadInput(f"{seen}: {path.name} is no readable .safetensors file: {error}") from None
    if digest is not None:
        _same(case, digest.strip(), f"{seen}: {path.name}")
    tensors = tensorfiles.guarded(
        f"{seen}: {path.name}",
        path,
        lambda: tensorfiles.read(path, lambda names: [name for name in names if name in wanted], ("q", "k")),
    )
    for problem, names in (
        ("lacks", sorted(wanted.keys() - tensors.keys())),
        ("holds, not asked for,", sorted(tensors.keys() - wanted.keys())),
    ):
        if names:
            raise BadInput(
                f"{seen}: {path.name} {problem} {', '.join(names[:4])}; the case asks for {min(wanted)} ..."
            )
    arrays: Arrays = {}
    for stem, (key, name, entry) in wanted.items():
        arrays.setdefault(key, {})[name] = _as_asked(tensors[stem], entry, f"{seen}: {stem}")
    return arrays, digest is not None


def _as_asked(tensor: NDArray[Any], entry: Entry, seen: str) -> FloatArray:
    dtype: Format = parse(entry["dtype"])
    if tensor.dtype != raw_arrays.stored(dtype) or list(tensor.shape) != entry["shape"]:
        raise BadInput(f"{seen} is {tensor.dtype} of shape {tensor.shape}; {_form(entry)}")
    return raw_arrays.carried(tensor, dtype)
