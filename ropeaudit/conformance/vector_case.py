"""A case of vectors: a folder with q, k and positions for a kernel that Python cannot call.

Its parameters determine the names and shapes of its files. `manifest.json` holds all that a kernel and its
judge need; `manifest.txt` holds the same for programs without JSON.
Letters: b batch elements, h heads of q, g of k, s positions, d head_dim, p pairs.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.formats import FloatArray, Format, parse
from ropeaudit.audits.cases import check_positions
from ropeaudit.errors import BadInput, RopeAuditError, UnknownName, UsageError, one_line
from ropeaudit.rope import scaling
from ropeaudit.rope.scaled import attention_factor
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions, torch_arrays

WANTS = ("rotated", "gradient")
INTEGERS = ("int64", "int32")  # of positions
BATCH = 2  # elements, so that what mixes them up is seen
SEQ_LEN, LONGEST = 256, 8192  # tokens of a call: as usual, at most
Entry: TypeAlias = dict[str, Any]  # name, dtype, shape of a file; of inputs a digest
FORMAT = "ropeaudit-vectors"
VERSIONS = 1, 2  # 2: calls have sizes of their own
MANIFEST, FLAT = "manifest.json", "manifest.txt"
TENSORS, RETURNED = "inputs.safetensors", "outputs.safetensors"
_REMEDY = "write the case anew with `ropeaudit vectors`"
_HEADS = ("heads", "kv_heads", "seq_len")
_SIZES = ("batch", *_HEADS)  # of a call, where they are not those of the case


@dataclass(frozen=True, slots=True)
class CaseSpec:
    """The parameters of a case. offsets: the first positions of the calls, from 0 up.

    context: positions that frequencies are computed for, also in `setting`. want: the results to write.
    positions: their dtype. served: whether to add calls as servers make them.
    Raises: UsageError, UnknownName for values that no case has.
    """

    setting: RopeSetting
    dtype: Format
    heads: int
    kv_heads: int
    seq_len: int
    seed: int
    offsets: tuple[int, ...]
    context: int
    want: str = "rotated"
    positions: str = "int64"
    model: str = "none"
    served: bool = False

    def __post_init__(self) -> None:
        for kind, value, known in (("want", self.want, WANTS), ("positions", self.positions, INTEGERS)):
            if value not in known:
                hint = "(scores are judged from rotated q and k)" if value == "scores" else ""
                raise UnknownName(kind, value, known, hint)
        file_dtype(self.dtype)
        if not 2 <= self.seq_len <= LONGEST:
            raise UsageError(f"--seq-len {self.seq_len} is not from 2 to {LONGEST}; try --seq-len {SEQ_LEN}")
        if self.served and self.seq_len < SERVED_LEAST:
            raise UsageError(f"--served takes --seq-len {SERVED_LEAST} or more, not {self.seq_len}")
        if self.context < 1:
            raise UsageError(f"--context {self.context} is not a number of positions from 1 up")
        if self.offsets[0] < 0:
            raise UsageError(f"offset {self.offsets[0]} is negative; vectors begin at positions from 0 up")
        check_positions(self.offsets, self.seq_len)
        if self.positions == "int32" and self.end > 2**31:
            raise UsageError(f"positions up to {self.end - 1} are past int32; give --positions int64")

    @property
    def end(self) -> int:
        """The last position plus 1."""
        return self.offsets[-1] + self.seq_len

    @property
    def served_calls(self) -> tuple[CaseCall, ...]:
        """The calls as servers make them, if requested, at positions of the other calls.

        The first row of a batch has the largest positions, so that a wrap does not map others to them. No
        call has more numbers of q or k than two batch elements of the case.
        """
        heads, kv_heads, length, half = self.heads, self.kv_heads, self.seq_len, self.seq_len // 2

        def ragged(key: str, batch: int, length: int) -> CaseCall:
            first = self.end - length
            step = (first // (batch + 1) - 1) | 1  # odd: none of a wrap
            return CaseCall(key, batch, heads, kv_heads, length, first, -step)

        bounds = 0, half, half + 1, length + length // 4, 2 * length  # one sequence of a token too
        calls = (
            ragged("ragged", _ROWS, half),
            ragged("one-token", _DECODED, 1),
            CaseCall("packed", 1, heads, kv_heads, 2 * length, 0, bounds=bounds),
            CaseCall("groups", 1, 4 * heads, max(kv_heads, 2), half, self.end - half),
            CaseCall("one-key-head", 1, 4 * heads, 1, half, self.end - half),
        )
        return calls if self.served else ()

    @property
    def calls(self) -> tuple[CaseCall, ...]:
        """All calls: those at offsets, then those that servers make."""
        sizes = BATCH, self.heads, self.kv_heads, self.seq_len
        return tuple(CaseCall(offset, *sizes, offset) for offset in self.offsets) + self.served_calls

    def inputs(self) -> dict[str, Entry]:
        """Return name -> file of the input vectors, which all offsets share."""
        sides = ("q", "k", "grad_rotated_q", "grad_rotated_k")[: 4 if self.want == "gradient" else 2]
        heads = {"q": self.heads, "k": self.kv_heads}
        shapes = {name: (BATCH, heads[name[-1]], self.seq_len, self.setting.head_dim) for name in sides}
        return {name: _entry(name, self.dtype.name, shape) for name, shape in shapes.items()}

    def call_inputs(self, call: CaseCall) -> dict[str, Entry]:
        """Return name -> file of the further inputs of a call."""
        files = {"positions": _entry(f"positions.{call.key}", self.positions, call.positions().shape)}
        if call.bounds:
            files["cu_seqlens"] = _entry(f"cu_seqlens.{call.key}", "int32", (len(call.bounds),))
        return files

    def outputs(self, call: CaseCall) -> dict[str, Entry]:
        """Return name -> file of the results to write for a call."""
        names = ("grad_q", "grad_k") if self.want == "gradient" else ("q", "k")
        rest = call.seq_len, self.setting.head_dim
        shapes = ((call.batch, heads, *rest) for heads in (call.heads, call.kv_heads))
        each = zip(names, shapes, strict=True)
        return {name: _entry(f"{name}.{call.key}", self.dtype.name, shape) for name, shape in each}


def _entry(name: str, dtype: str, shape: tuple[int, ...]) -> Entry:
    return {"file": f"{name}.bin", "dtype": dtype, "shape": list(shape)}


def sha256(content: bytes) -> str:
    """Return "sha256:" and the digest, as sha256sum writes it."""
    return "sha256:" + hashlib.sha256(content).hexdigest()


def manifest(spec: CaseSpec, digests: Mapping[str, str]) -> dict[str, Any]:
    """Return the content of manifest.json. digests: of the input files, by name."""

    def with_digests(files: Mapping[str, Entry]) -> dict[str, Entry]:
        return {name: {**file, "digest": digests.get(file["file"])} for name, file in files.items()}

    def of_call(call: CaseCall) -> dict[str, Any]:
        sizes = {"call": call.key} | {name: getattr(call, name) for name in _SIZES}
        own = sizes if call.served else {"offset": call.key}
        return own | {"inputs": with_digests(spec.call_inputs(call)), "outputs": spec.outputs(call)}

    setting, parameters = spec.setting, spec.setting.scaling.parameters().items()
    scaled = {name: list(value) if isinstance(value, tuple) else value for name, value in parameters}
    content = {
        "format": FORMAT,
        "version": VERSIONS[spec.served],
        "want": spec.want,
        "model": spec.model,
        "dtype": spec.dtype.name,
        "batch": BATCH,
        **{name: getattr(spec, name) for name in _HEADS},
        **{name: getattr(setting, name) for name in ("head_dim", "rotary_dim", "layout", "base")},
        "softmax_scale": setting.scale,
        "scaling": {"kind": setting.scaling.kind, **scaled},
        "context": spec.context,
        "attention_factor": attention_factor(setting.scaling),
        "positions_dtype": spec.positions,
        "seed": spec.seed,
        "offsets": list(spec.offsets),
        **({"served": True} if spec.served else {}),
        "inputs": with_digests(spec.inputs()),
        "calls": [of_call(call) for call in spec.calls],
        "safetensors": {"inputs": TENSORS, "digest": digests.get(TENSORS), "outputs": RETURNED},
    }
    return content | {"digest": digest_of(content)}


def digest_of(content: Mapping[str, Any]) -> str:
    """Return the digest of a manifest without its digest."""
    rest = {name: value for name, value in content.items() if name != "digest"}
    return sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode())


def as_json(content: Mapping[str, Any]) -> bytes:
    """Return the bytes of manifest.json."""
    return (json.dumps(content, indent=1) + "\n").encode()


def flat_text(content: Mapping[str, Any]) -> bytes:
    """Return the bytes of manifest.txt: a key and a value a line."""
    plain = {name: value for name, value in content.items() if not isinstance(value, (dict, list))}
    digest = plain.pop("digest")
    for name, value in content["scaling"].items():
        items = enumerate(value) if isinstance(value, list) else ()
        plain |= {f"scaling.{name}.{number}": item for number, item in items} or {f"scaling.{name}": value}
    lines = [f"{name.replace('scaling.kind', 'scaling')} {_word(value)}" for name, value in plain.items()]
    lines.append(f"calls {len(content['calls'])}")
    for call in content["calls"]:
        if "offset" in call:
            lines.append(f"offset {call['offset']}")
        else:
            lines += [f"call {call['call']}", *(f"call.{name} {call[name]}" for name in _SIZES)]
            if packed := call["inputs"].get("cu_seqlens"):
                lines.append(f"call.sequences {packed['shape'][0] - 1}")
    return ("\n".join([*lines, f"digest {digest}"]) + "\n").encode()


def _word(value: Any) -> str:
    """Return a value as C code reads it, without blanks; true is 1, false 0."""
    if isinstance(value, bool):
        return str(int(value))
    return repr(value) if isinstance(value, float) else "_".join(str(value).split())


def spec_of(content: Mapping[str, Any]) -> CaseSpec:
    """Return the parameters in a manifest. Raises: BadInput."""
    try:
        shape, context = dict(content["scaling"]), int(content["context"])
        scale = scaling.from_mapping(str(shape.pop("kind")), shape)
        head_dim, rotary_dim = int(content["head_dim"]), int(content["rotary_dim"])
        given = float(content["base"]), content["layout"], float(content["softmax_scale"])
        return CaseSpec(
            RopeSetting.of(head_dim, rotary_dim, *given, scale, scale.length_for(context)),
            parse(str(content["dtype"])),
            **{name: int(content[name]) for name in (*_HEADS, "seed")},
            offsets=tuple(sorted({0, *map(int, content["offsets"])})),
            context=context,
            want=str(content["want"]),
            positions=str(content["positions_dtype"]),
            model=str(content["model"]),
            served=content.get("served") is True,
        )
    except (RopeAuditError, LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise BadInput(f"a parameter is missing, or is not that of a case: {one_line(error)}") from None


@dataclass(frozen=True, slots=True)
class VectorCase:
    """A case as it was written. digest: of its manifest. files: names of all."""

    folder: Path
    spec: CaseSpec
    digest: str
    files: frozenset[str]

    def vectors(self) -> dict[str, FloatArray]:
        """Return the numbers of the inputs that all offsets share, by name."""
        kind, vectors = file_dtype(self.spec.dtype), dict[str, FloatArray]()
        for name, entry in self.spec.inputs().items():
            content = np.frombuffer((self.folder / entry["file"]).read_bytes(), kind)
            vectors[name] = from_file(content.reshape(entry["shape"]), self.spec.dtype)
        return vectors


def read(folder: str | Path) -> VectorCase:
    """Return the case of a folder, all checked. Raises: BadInput."""
    path = Path(folder)
    path = path.parent if path.name == MANIFEST else path
    seen = f"case {str(path)!r}"
    content = read_manifest(path / MANIFEST)
    spec, digests = spec_of(content), digests_of(content)
    if manifest(spec, digests) != content:
        raise BadInput(f"{seen}: its files are not those that its parameters make; {_REMEDY}")
    if content_of(path / FLAT, seen) != flat_text(content):
        raise BadInput(f"{seen}: {FLAT} does not say what {MANIFEST} says; {_REMEDY}")
    for name, digest in digests.items():
        if sha256(content_of(path / name, seen)) != digest:
            raise BadInput(f"{seen}: {name} is not the file that was written, its digest differs; {_REMEDY}")
    return VectorCase(path, spec, content["digest"], frozenset({MANIFEST, FLAT, *digests}))


def read_manifest(path: Path) -> dict[str, Any]:
    """Read an unchanged manifest. Raises: BadInput."""
    seen = repr(str(path))
    content = content_of(path, f"case {str(path.parent)!r}")
    try:
        parsed: dict[str, Any] = json.loads(content)
        version = parsed["format"], parsed["version"]
        digest, right = parsed["digest"], digest_of(parsed)
        digests_of(parsed)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        raise BadInput(
            f"{seen} is no manifest of `ropeaudit vectors`; give the folder that it wrote"
        ) from None
    if version not in [(FORMAT, number) for number in VERSIONS]:
        known = f"{FORMAT} versions {' and '.join(map(str, VERSIONS))} are understood"
        raise BadInput(f"{seen} is of {version[0]} version {version[1]}; {known}")
    if digest != right:
        raise BadInput(f"{seen} was changed after it was written: its digest does not hold; {_REMEDY}")
    return parsed


def holds_only_case(folder: Path) -> bool:
    """Return whether a folder holds only an unchanged case."""
    try:
        known = {MANIFEST, FLAT, *digests_of(read_manifest(folder / MANIFEST))}
    except BadInput:
        return False
    return {path.name for path in folder.iterdir()} <= known


def digests_of(content: Mapping[str, Any]) -> dict[str, str]:
    """Return file name -> digest of all input files in a manifest."""
    files = [content["inputs"], *(call["inputs"] for call in content["calls"])]
    digests = {str(file["file"]): str(file["digest"]) for some in files for file in some.values()}
    return digests | {TENSORS: str(content["safetensors"]["digest"])}


def content_of(path: Path, seen: str) -> bytes:
    """Return the bytes of a file. seen: the case, for errors. Raises: BadInput."""
    try:
        if path.exists() and not path.is_file():
            raise OSError(0, "it is no file")
        return path.read_bytes()
    except FileNotFoundError:
        hint = "give the folder that `ropeaudit vectors` wrote" if path.name == MANIFEST else _REMEDY
        raise BadInput(f"{seen}: there is no {path.name}; {hint}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadInput(f"{seen}: {path.name} cannot be read: {reason}") from None


def file_dtype(dtype: Format) -> np.dtype[Any]:
    """Return the dtype of a format in a file. Raises: UsageError for tf32, which float32 holds."""
    if dtype.name not in torch_arrays.DTYPES:
        raise UsageError(f"no file holds {dtype.name}; give one of {', '.join(torch_arrays.DTYPES)}")
    kind: np.dtype[Any] = torch_arrays.numpy_dtype(dtype)
    return kind.newbyteorder("<") if kind.kind == "f" else kind


def array(x: FloatArray, dtype: Format) -> NDArray[Any]:
    """Return numbers that a format holds exactly in the dtype of files."""
    return np.ascontiguousarray(x).astype(file_dtype(dtype))


def to_bytes(x: NDArray[Any]) -> bytes:
    """Return the bytes of an array, little-endian."""
    return np.ascontiguousarray(x, x.dtype.newbyteorder("<") if x.dtype.kind in "iuf" else None).tobytes()


def from_file(x: NDArray[Any], dtype: Format) -> FloatArray:
    """Convert a file's array to its format's carrier, with only quiet nans."""
    with np.errstate(invalid="ignore"):
        values: FloatArray = x.astype(dtype.carrier)
    values[np.isnan(values)] = np.nan
    return values


SERVED_LEAST = 48  # tokens from which on rows of served calls stand apart
_ROWS, _DECODED = 4, 33  # of a ragged batch, and of one with a token each

Key: TypeAlias = int | str  # of a call: its offset, or the name of a served one


@dataclass(frozen=True, slots=True)
class CaseCall:
    """One call of a case: its sizes and positions.

    key: in the names of its files. first: the position of the first token; step: from one batch element to
    the next. bounds: start and end of packed sequences in the row, each from position 0; empty for a run.
    """

    key: Key
    batch: int
    heads: int
    kv_heads: int
    seq_len: int
    first: int
    step: int = 0
    bounds: tuple[int, ...] = ()

    @property
    def served(self) -> bool:
        """Whether it is one of `served_calls`, with own sizes and positions by batch element."""
        return isinstance(self.key, str)

    def row(self) -> Positions:
        """Return the positions of the first batch element. Shapes: -> (s,)."""
        at: Positions = np.arange(self.seq_len, dtype=np.int64) + self.first
        for start in self.bounds[1:-1]:
            at[start:] = np.arange(self.seq_len - start)
        return at

    def positions(self) -> Positions:
        """Return the positions. Shapes: -> (s,), of served calls (b, s)."""
        rows: Positions = self.row() + self.step * np.arange(self.batch, dtype=np.int64)[:, None]
        return rows if self.served else rows[0]

    def part(self, x: FloatArray, key: bool) -> FloatArray:
        """Return its q, or k: the first numbers of x, in its shape."""
        shape = (self.batch, self.kv_heads if key else self.heads, self.seq_len, x.shape[-1])
        return x.reshape(-1)[: math.prod(shape)].reshape(shape)
