"""A case of vectors: a folder of q, k and positions for a kernel that Python cannot call.

Its parameters determine the names and shapes of its files. `manifest.json` says all that a kernel and its
judge need; `manifest.txt` says the same, a key and a value a line, for programs without JSON. A case is read
back with every file checked against its digest.
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

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.formats import FloatArray, Format, parse
from ropeaudit.errors import BadInput, RopeAuditError, UsageError, one_line
from ropeaudit.rope import scaling
from ropeaudit.rope.scaled import attention_factor
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions

WANTS = ("rotated", "gradient")
INTEGERS = ("int64", "int32")  # of positions
BATCH = 2  # elements with random numbers of their own, so that what mixes them up is seen
Entry: TypeAlias = dict[str, Any]  # of a file: its name, dtype and shape; of an input its digest too
FORMAT = "ropeaudit-vectors"
VERSION, SERVED_VERSION = 1, 2  # of cases whose calls have sizes of their own, a reader has to know more
MANIFEST, FLAT = "manifest.json", "manifest.txt"
TENSORS, RETURNED = "inputs.safetensors", "outputs.safetensors"
_LONGEST = 2**20  # tokens of a call
_REMEDY = "write the case anew with `ropeaudit vectors`"
_SIZES = ("batch", "heads", "kv_heads", "seq_len")  # of a call, where they are not those of the case


@dataclass(frozen=True, slots=True)
class CaseSpec:
    """All that a case depends on. offsets: the first positions of the calls, 0 the first of them.

    context: the number of positions that frequencies are computed for, where they depend on it; `setting` has
    it. want: what is to be written back. positions: their dtype. served: whether there are calls as servers
    make them, beside those at offsets.
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

    @property
    def served_calls(self) -> tuple[CaseCall, ...]:
        """The calls that servers make; none where they were not asked for."""
        end = self.offsets[-1] + self.seq_len
        return served_calls(self.heads, self.kv_heads, self.seq_len, end) if self.served else ()

    @property
    def calls(self) -> tuple[CaseCall, ...]:
        """All calls: those at offsets, each a run, then those that servers make."""
        sizes = BATCH, self.heads, self.kv_heads, self.seq_len
        return tuple(CaseCall(offset, *sizes, offset) for offset in self.offsets) + self.served_calls

    def inputs(self) -> dict[str, Entry]:
        """Return name -> file of the vectors that are given at all offsets."""
        sides = ("q", "k", "grad_rotated_q", "grad_rotated_k")[: 4 if self.want == "gradient" else 2]
        heads = {"q": self.heads, "k": self.kv_heads}
        shapes = {name: (BATCH, heads[name[-1]], self.seq_len, self.setting.head_dim) for name in sides}
        return {name: _entry(name, self.dtype.name, shape) for name, shape in shapes.items()}

    def call_inputs(self, call: CaseCall) -> dict[str, Entry]:
        """Return name -> file of what is given for a call alone."""
        files = {"positions": _entry(f"positions.{call.key}", self.positions, call.positions().shape)}
        if call.bounds:
            files["cu_seqlens"] = _entry(f"cu_seqlens.{call.key}", "int32", (len(call.bounds),))
        return files

    def outputs(self, call: CaseCall) -> dict[str, Entry]:
        """Return name -> file of what is to be written back for a call."""
        prefix = "grad_" if self.want == "gradient" else ""
        return {
            prefix + name: _entry(
                f"{prefix}{name}.{call.key}",
                self.dtype.name,
                (call.batch, heads, call.seq_len, self.setting.head_dim),
            )
            for name, heads in (("q", call.heads), ("k", call.kv_heads))
        }


def _entry(name: str, dtype: str, shape: tuple[int, ...]) -> Entry:
    return {"file": f"{name}.bin", "dtype": dtype, "shape": list(shape)}


def sha256(content: bytes) -> str:
    """Return "sha256:" and the digest, as sha256sum writes it."""
    return "sha256:" + hashlib.sha256(content).hexdigest()


def manifest(spec: CaseSpec, digests: Mapping[str, str]) -> dict[str, Any]:
    """Return what manifest.json holds. digests: of the files that are given, by name."""

    def given(files: Mapping[str, Entry]) -> dict[str, Entry]:
        return {name: {**file, "digest": digests[file["file"]]} for name, file in files.items()}

    def of_call(call: CaseCall) -> dict[str, Any]:
        sizes = {"call": call.key} | {name: getattr(call, name) for name in _SIZES}
        own = sizes if call.served else {"offset": call.key}
        return own | {"inputs": given(spec.call_inputs(call)), "outputs": spec.outputs(call)}

    setting = spec.setting
    parameters = spec.setting.scaling.parameters().items()
    content = {
        "format": FORMAT,
        "version": SERVED_VERSION if spec.served else VERSION,
        "want": spec.want,
        "model": spec.model,
        "dtype": spec.dtype.name,
        "batch": BATCH,
        **{name: getattr(spec, name) for name in ("heads", "kv_heads", "seq_len")},
        **{name: getattr(setting, name) for name in ("head_dim", "rotary_dim", "layout", "base")},
        "softmax_scale": setting.scale,
        "scaling": {"kind": setting.scaling.kind}
        | {name: list(value) if isinstance(value, tuple) else value for name, value in parameters},
        "context": spec.context,
        "attention_factor": attention_factor(setting.scaling),
        "positions_dtype": spec.positions,
        "seed": spec.seed,
        "offsets": list(spec.offsets),
        **({"served": True} if spec.served else {}),
        "inputs": given(spec.inputs()),
        "calls": [of_call(call) for call in spec.calls],
        "safetensors": {"inputs": TENSORS, "digest": digests[TENSORS], "outputs": RETURNED},
    }
    return content | {"digest": digest_of(content)}


def digest_of(content: Mapping[str, Any]) -> str:
    """Return the digest of a manifest, its own left out."""
    rest = {name: value for name, value in content.items() if name != "digest"}
    return sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode())


def as_json(content: Mapping[str, Any]) -> bytes:
    """Return the bytes of manifest.json."""
    return (json.dumps(content, indent=1) + "\n").encode()


def flat(content: Mapping[str, Any]) -> bytes:
    """Return the bytes of manifest.txt, with a key and a value a line."""
    elsewhere = ("inputs", "calls", "safetensors", "offsets", "scaling", "digest")
    plain = [(name, value) for name, value in content.items() if name not in elsewhere]
    plain.append(("scaling", content["scaling"]["kind"]))
    for name, value in content["scaling"].items():
        if isinstance(value, list):
            plain += [(f"scaling.{name}.{number}", item) for number, item in enumerate(value)]
        elif name != "kind":
            plain.append((f"scaling.{name}", value))
    lines = [f"{name} {_word(value)}" for name, value in plain]
    lines.append(f"calls {len(content['calls'])}")
    for call in content["calls"]:
        if "offset" in call:
            lines.append(f"offset {call['offset']}")
        else:
            lines += [f"call {call['call']}", *(f"call.{name} {call[name]}" for name in _SIZES)]
            if packed := call["inputs"].get("cu_seqlens"):
                lines.append(f"call.sequences {packed['shape'][0] - 1}")
    return ("\n".join([*lines, f"digest {content['digest']}"]) + "\n").encode()


def _word(value: Any) -> str:
    """Return a value as C reads it, without blanks; true is 1, false 0."""
    if isinstance(value, bool):
        return str(int(value))
    return repr(value) if isinstance(value, float) else "_".join(str(value).split())


def spec_of(content: Mapping[str, Any]) -> CaseSpec:
    """Return the parameters in a manifest. Raises: BadInput, without the file's name."""
    try:
        shape = dict(content["scaling"])
        scale = scaling.from_mapping(str(shape.pop("kind")), shape)
        head_dim, rotary_dim, context = (int(content[key]) for key in ("head_dim", "rotary_dim", "context"))
        heads, kv_heads, seq_len, seed = (
            int(content[key]) for key in ("heads", "kv_heads", "seq_len", "seed")
        )
        given = float(content["base"]), content["layout"], float(content["softmax_scale"])
        setting = RopeSetting.of(head_dim, rotary_dim, *given, scale, scale.length_for(context))
        spec = CaseSpec(
            *(setting, parse(str(content["dtype"])), heads, kv_heads, seq_len, seed),
            offsets=tuple(map(int, content["offsets"])),
            context=context,
            want=str(content["want"]),
            positions=str(content["positions_dtype"]),
            model=str(content["model"]),
            served=content.get("served") is True,
        )
    except (RopeAuditError, LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise BadInput(f"a parameter is missing or of a wrong type: {one_line(error)}") from None
    if not 0 < spec.seq_len <= _LONGEST or not all(0 <= offset < 2**62 for offset in spec.offsets):
        raise BadInput("seq_len or offsets are not those of a case")
    if spec.want not in WANTS or spec.positions not in INTEGERS or spec.offsets[:1] != (0,):
        raise BadInput("want, positions_dtype or offsets are not those of a case")
    if spec.served and spec.seq_len < SERVED_LEAST:
        raise BadInput("a case with these parameters has no served calls")
    return spec


@dataclass(frozen=True, slots=True)
class VectorCase:
    """A case whose files are those that were written. digest: of its manifest."""

    folder: Path
    spec: CaseSpec
    digest: str

    def vectors(self) -> dict[str, FloatArray]:
        """Return the numbers of the inputs that all offsets share, by name."""
        kind, vectors = stored(self.spec.dtype), dict[str, FloatArray]()
        for name, entry in self.spec.inputs().items():
            content = np.frombuffer((self.folder / entry["file"]).read_bytes(), kind)
            vectors[name] = carried(content.reshape(entry["shape"]), self.spec.dtype)
        return vectors


def own_files(spec: CaseSpec) -> set[str]:
    """Return the names of the files of a case."""
    files = [spec.inputs(), *map(spec.call_inputs, spec.calls)]
    return {MANIFEST, FLAT, TENSORS, *(entry["file"] for some in files for entry in some.values())}


def read(folder: str | Path) -> VectorCase:
    """Return the case of a folder or manifest, all checked. Raises: BadInput."""
    path = Path(folder)
    path = path.parent if path.name == MANIFEST else path
    seen = f"case {str(path)!r}"
    content = read_manifest(path / MANIFEST)
    spec, digests = spec_of(content), _digests(content)
    if digests.keys() != own_files(spec) - {MANIFEST, FLAT} or manifest(spec, digests) != content:
        raise BadInput(f"{seen}: its files are not those that its parameters make; {_REMEDY}")
    if content_of(path / FLAT, seen) != flat(content):
        raise BadInput(f"{seen}: {FLAT} does not say what {MANIFEST} says; {_REMEDY}")
    for name, digest in digests.items():
        if sha256(content_of(path / name, seen)) != digest:
            raise BadInput(f"{seen}: {name} is not the file that was written, its digest differs; {_REMEDY}")
    return VectorCase(path, spec, content["digest"])


def read_manifest(path: Path) -> dict[str, Any]:
    """Return what a manifest holds, as far as it is that of a case that nobody has changed. Raises: BadInput.

    Its parameters and files are looked at by `spec_of` and `read`.
    """
    seen = repr(str(path))
    content = content_of(path, f"case {str(path.parent)!r}")
    try:
        parsed: dict[str, Any] = json.loads(content)
        version = parsed["format"], parsed["version"]
        digest, right = parsed["digest"], digest_of(parsed)
        _digests(parsed)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        raise BadInput(
            f"{seen} is no manifest of `ropeaudit vectors`; give the folder that it wrote"
        ) from None
    if version not in ((FORMAT, VERSION), (FORMAT, SERVED_VERSION)):
        raise BadInput(
            f"{seen} is of {version[0]} version {version[1]}; {FORMAT} versions {VERSION} and "
            f"{SERVED_VERSION} are understood"
        )
    if digest != right:
        raise BadInput(f"{seen} was changed after it was written: its digest does not hold; {_REMEDY}")
    return parsed


def is_alone(folder: Path) -> bool:
    """Return whether a folder holds just an unchanged case."""
    try:
        known = own_files(spec_of(read_manifest(folder / MANIFEST)))
    except BadInput:
        return False
    return {path.name for path in folder.iterdir()} <= known


def _digests(content: Mapping[str, Any]) -> dict[str, str]:
    """Return file name -> digest of all that a manifest says is given."""
    files = [content["inputs"], *(call["inputs"] for call in content["calls"])]
    digests = {str(file["file"]): str(file["digest"]) for some in files for file in some.values()}
    return digests | {TENSORS: str(content["safetensors"]["digest"])}


def content_of(path: Path, seen: str) -> bytes:
    """Return the bytes of a file. seen: whose it is. Raises: BadInput."""
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


# formats that programs store in files; float32 holds what is computed in tf32
_STORED: dict[str, Any] = {
    "float64": "<f8",
    "float32": "<f4",
    "float16": "<f2",
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
}


def stored(dtype: Format) -> np.dtype[Any]:
    """Return the dtype of a format in a file. Raises: UsageError for tf32."""
    if dtype.name not in _STORED:
        raise UsageError(f"no file holds {dtype.name}; give one of {', '.join(_STORED)}")
    kind: np.dtype[Any] = np.dtype(_STORED[dtype.name])
    return kind


def array(x: FloatArray, dtype: Format) -> NDArray[Any]:
    """Return numbers that a format holds exactly in the dtype of files."""
    return np.ascontiguousarray(x).astype(stored(dtype))


def to_bytes(x: NDArray[Any]) -> bytes:
    """Return the bytes of an array, little-endian."""
    return np.ascontiguousarray(x, x.dtype.newbyteorder("<") if x.dtype.kind in "iuf" else None).tobytes()


def carried(x: NDArray[Any], dtype: Format) -> FloatArray:
    """Return a file's array in its carrier, with only quiet nans."""
    with np.errstate(invalid="ignore"):
        values: FloatArray = x.astype(dtype.carrier)
    values[np.isnan(values)] = np.nan
    return values


SERVED_LEAST = 48  # tokens of a case, from which on the rows of its served calls stand apart
_ROWS, _DECODED = 4, 33  # of a ragged batch, and of one with a token each

Key: TypeAlias = int | str  # of a call: its offset, or the name of a served one


@dataclass(frozen=True, slots=True)
class CaseCall:
    """One call of a case: its sizes, and where its tokens stand.

    key: in the names of its files. first: the position of the first token; step: from one batch element to
    the next. bounds: where packed sequences begin and end in the row, each at position 0; none: a run.
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
        """Whether it has sizes of its own, and positions for each batch element."""
        return isinstance(self.key, str)

    def row(self) -> Positions:
        """Return the positions of the first batch element. Shapes: -> (s,)."""
        at: Positions = np.arange(self.seq_len, dtype=np.int64) + self.first
        for start in self.bounds[1:-1]:
            at[start:] = np.arange(self.seq_len - start)
        return at

    def positions(self) -> Positions:
        """Return the given positions. Shapes: -> (s,), of served calls (b, s)."""
        rows: Positions = self.row() + self.step * np.arange(self.batch, dtype=np.int64)[:, None]
        return rows if self.served else rows[0]

    def part(self, x: FloatArray, key: bool) -> FloatArray:
        """Return its q, or k: the first of the given numbers, in its shape."""
        shape = (self.batch, self.kv_heads if key else self.heads, self.seq_len, x.shape[-1])
        return x.reshape(-1)[: math.prod(shape)].reshape(shape)


def served_calls(heads: int, kv_heads: int, seq_len: int, end: int) -> tuple[CaseCall, ...]:
    """Return the calls of a case as servers make them, at positions below `end`.

    The first row of a batch is the farthest, so that its positions are none to which those of others are cut
    off or wrapped. No call has more numbers of q or k than two batch elements of the case.
    """
    half = seq_len // 2

    def ragged(key: str, batch: int, length: int) -> CaseCall:
        first = end - length
        step = (first // (batch + 1) - 1) | 1  # odd: none of a wrap
        return CaseCall(key, batch, heads, kv_heads, length, first, -step)

    bounds = 0, half, half + 1, seq_len + seq_len // 4, 2 * seq_len  # one sequence of a token too
    return (
        ragged("ragged", _ROWS, half),
        ragged("one-token", _DECODED, 1),
        CaseCall("packed", 1, heads, kv_heads, 2 * seq_len, 0, bounds=bounds),
        CaseCall("groups", 1, 4 * heads, max(kv_heads, 2), half, end - half),
        CaseCall("one-key-head", 1, 4 * heads, 1, half, end - half),
    )
