"""What a kernel wrote back, as code that is called: each call is looked up among the calls of the case.

A gradient is the inverse rotation. With the second number of each pair negated, before and after, it is the
rotation itself, exactly; so it is judged as one.
Letters: b batch elements, h heads of q, g of k, n positions of a call, s of the case, d head_dim.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from ropeaudit.arithmetic.formats import FloatArray, Format, parse
from ropeaudit.conformance import vector_case
from ropeaudit.conformance.vector_case import RETURNED, CaseCall, Entry, Key, VectorCase
from ropeaudit.errors import BadInput, ForeignError
from ropeaudit.rope.axes import Axes
from ropeaudit.rope.setting import Layout, RopeSetting
from ropeaudit.subjects import Positions, Subject
from ropeaudit.subjects.calling.backward import mirrored
from ropeaudit.subjects.calling.called import Called
from ropeaudit.subjects.calling.code import Code, Rotator
from ropeaudit.subjects.factories import SubjectFactory
from ropeaudit.tensor_files import tensors as tensorfiles

Sides: TypeAlias = tuple[FloatArray, FloatArray]  # q (b, h, s, d) and k (b, g, s, d)


class NotAsked(ForeignError):
    """A call that is not one of the case."""


class ReturnedCode(Code, Rotator):
    """What was written back for a case: each call is looked up."""

    engine = "files"

    def __init__(self, case: VectorCase, arrays: Arrays, name: str) -> None:
        """Read what was given; arrays: what was written back, by call and name."""
        self.case, self.name, self.spec = case, name, case.spec
        setting = self.spec.setting
        self.layouts: tuple[Layout, ...] = (setting.layout,)

        def both(of: Mapping[str, FloatArray], prefix: str) -> Sides:
            if self.spec.want == "gradient":
                return mirrored(of[f"{prefix}q"], setting), mirrored(of[f"{prefix}k"], setting)
            return of["q"], of["k"]

        self.given = both(case.vectors(), "grad_rotated_")
        self.rotated = {key: both(of, "grad_") for key, of in arrays.items()}
        self._rows = {
            (side, row.tobytes()): (b, h, i)
            for side, x in enumerate(self.given)
            for (b, h), rows in ((at, x[at]) for at in np.ndindex(x.shape[:2]))
            for i, row in enumerate(rows)
        }

    @property
    def version(self) -> str:
        """The beginning of the case's digest."""
        return self.case.digest[:19]

    def refuses(self, setting: RopeSetting, dtype: Format) -> str:
        """Return why a setting or dtype is not that of the case."""
        if setting == self.spec.setting and dtype is self.spec.dtype:
            return ""
        return "the case is of another setting or dtype"

    def rotator(self, setting: RopeSetting, dtype: Format) -> ReturnedCode:
        """Return what looks calls up."""
        return self

    def rotate_one(self, x: FloatArray, at: Positions, key: bool) -> FloatArray:
        """Return what was written back for heads of one batch element. Shapes: (h, n, d), (n,) -> (h, n, d).

        Raises: NotAsked.
        """
        results, side = [], int(key)
        for head in x:
            b, h, first = self._rows.get((side, head[:1].tobytes()), (-1, -1, -1))
            part = slice(first, first + len(head))
            if b < 0 or not np.array_equal(self.given[side][b, h, part], head):
                raise NotAsked("vectors that the case does not give")
            results.append(self._call(int(at[0]) - first, first, at)[side][b, h, part])
        return np.stack(results)

    def rotate_both(self, q: FloatArray, k: FloatArray, at: Positions) -> Sides:
        """Return the q and k that were written back. Raises: NotAsked."""
        if at.ndim != 1 or not all(map(np.array_equal, (q, k), self.given)):
            raise NotAsked("vectors that the case does not give")
        return self._call(int(at[0]), 0, at)

    def _call(self, offset: int, first: int, at: Positions) -> Sides:
        if offset not in self.rotated or not np.array_equal(at, np.arange(len(at)) + offset + first):
            raise NotAsked(f"positions from {int(at[0])}, which the case does not ask for")
        return self.rotated[offset]


class ReturnedCall(Rotator):
    """What was written back for a call with its own sizes, to look up."""

    def __init__(self, code: ReturnedCode, call: CaseCall) -> None:
        """Take the call of a case."""
        q, k = code.given
        self.call, self.given, self.rotated = call, (call.part(q, False), call.part(k, True)), code.rotated

    def rotate_both(self, q: FloatArray, k: FloatArray, at: Positions) -> Sides:
        """Return what was written back for q, k and positions. Raises: NotAsked."""
        asked = np.array_equal(np.broadcast_to(at, (len(q), q.shape[2])), self.call.positions())
        if not asked or not all(map(np.array_equal, (q, k), self.given)):
            raise NotAsked(f"vectors or positions that are not those of {self.call.key}")
        return self.rotated[self.call.key]


class ReturnedSubject(Called):
    """What was written back, as a subject of an audit."""

    code: ReturnedCode

    def refusal(self, seq_len: int, offset: int) -> str:
        """Return why an offset cannot be judged; empty for those of the case."""
        return "" if offset in self.code.rotated else "the case does not ask for it"

    def together(self, q: FloatArray, k: FloatArray, wanted: Positions | None = None) -> None:
        """Do nothing: results are looked up and nothing is called."""

    def distinct_positions(self, positions: Positions) -> int:
        """Return the count of positions; random vectors do not show equal ones."""
        return int(positions.size)


def factory(code: ReturnedCode) -> SubjectFactory:
    """Return the maker of a subject."""

    def make(setting: RopeSetting, axes: Axes | None) -> Subject:
        return ReturnedSubject(code, setting, code.spec.dtype)

    dtype = code.spec.dtype
    return SubjectFactory(code.name, dtype, make, {"input": dtype.name}, lambda setting: setting.layout)


CASE = "case.txt"  # may stand beside what is written back: the digest of the case that it is of
_LONGEST = 200  # bytes of it that are read

Arrays: TypeAlias = dict[Key, dict[str, FloatArray]]  # call -> name -> numbers, in the carrier


@dataclass(frozen=True, slots=True)
class Returned:
    """What was written back, by call. named: whether it names its case."""

    arrays: Arrays
    named: bool


def read_returned(case: VectorCase, output: str | Path) -> Returned:
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
    left = names - raw - {RETURNED}
    foreign = sorted(name for name in left if name.endswith((".bin", ".safetensors")))
    if foreign:  # of another case, or misnamed
        asked = ", ".join(entry["file"] for _, _, entry in list(_entries(case))[:4])
        raise BadInput(
            f"{seen}: the case does not ask for {', '.join(foreign[:4])}; it asks for {asked} ..., "
            f"or {RETURNED}"
        )
    if named := CASE in names:
        text = vector_case.content_of(path / CASE, seen, _LONGEST).decode("utf-8", "replace").strip()
        _same(case, text, f"{seen}: {CASE}")
    if tensor_files:
        arrays, inside = _tensors(case, path / RETURNED, seen)
        return Returned(arrays, named or inside)
    return Returned(_raw(case, path, names, seen), named)


def _entries(case: VectorCase) -> Iterator[tuple[Key, str, Entry]]:
    for call in case.spec.calls:
        yield from ((call.key, name, entry) for name, entry in case.spec.outputs(call).items())


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
        size = math.prod(shape) * vector_case.stored(dtype).itemsize
        if not file.is_file():
            raise BadInput(f"{seen}: {file.name} is no file; {_form(entry)}")
        here = file.stat().st_size
        if here != size:
            raise BadInput(f"{seen}: {file.name} has {here:,} bytes instead of {size:,}: {_form(entry)}")
        content = vector_case.content_of(file, seen, size)
        arrays.setdefault(key, {})[name] = vector_case.numbers(content, dtype, shape)
    return arrays


def _form(entry: Entry) -> str:
    return f"{entry['dtype']} of shape {tuple(entry['shape'])}, little-endian, is what the case asks for"


def _tensors(case: VectorCase, path: Path, seen: str) -> tuple[Arrays, bool]:
    """Return the tensors of a .safetensors file, named like raw files without .bin."""
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
        lambda: tensorfiles.read(path, wanted),
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
        tensor, dtype = tensors[stem], parse(entry["dtype"])
        if tensor.dtype != vector_case.stored(dtype) or list(tensor.shape) != entry["shape"]:
            raise BadInput(f"{seen}: {stem} is {tensor.dtype} of shape {tensor.shape}; {_form(entry)}")
        arrays.setdefault(key, {})[name] = vector_case.carried(tensor, dtype)
    return arrays, digest is not None
