"""Stored RoPE buffers: of a checkpoint, dump, graph or GGUF file (modules: `built`).

They are known by their values, whatever they are called; and by usual names where the values tell nothing.
Of a dump the names tell first, for its values are what is in question; a tensor that is alone needs no name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropeaudit.errors import BadInput
from ropeaudit.reference import exact_frequencies
from ropeaudit.rope import gguf_metadata, hf_config, hf_json
from ropeaudit.rope.gguf_metadata import GgufRope
from ropeaudit.rope.hf_config import ModelRope
from ropeaudit.rope.scaling import DEFAULT, Scaling, Served
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.tensor_files import checkpoints, gguf_files, rope_values
from ropeaudit.tensor_files import tensors as tensorfiles
from ropeaudit.tensor_files.checkpoints import StoredTensor

_FREQUENCIES = ("inv_freq", "inv_freqs", "freqs", "frequencies")
_COS = ("cos", "cos_cached", "cos_cache", "cos_table", "freqs_cos")
_BOTH = ("freqs_cis", "freqs_complex", "cos_sin_cache", "cos_sin")
# last part of a name -> what the buffer holds
_KINDS: dict[str, str] = {
    **dict.fromkeys(_FREQUENCIES, "inv_freq"),
    **dict.fromkeys(_COS, "cos"),
    **{name.replace("cos", "sin"): "sin" for name in _COS},
    **dict.fromkeys(_BOTH, "both"),
}
_AXES = {"": (), "inv_freq": (0, 1), "both": (2, 3)}  # that are longer than 1; 2 of cos and sin


@dataclass(frozen=True, slots=True)
class Expected:
    """What is known of the frequencies, or None; options stand above the model."""

    model: ModelRope | None = None
    base: float | None = None
    scaling: Scaling | None = None
    head_dim: int | None = None
    rotary_dim: int | None = None

    def settings(self, pairs: int | None) -> list[tuple[str, RopeSetting]]:
        """Return what is expected, by name: a setting per layer type, also for long sequences.

        pairs: those of a table, where nothing says how many there should be.
        """
        if self.model is None:
            plain = [] if self.base is None else [self.plain(pairs, self.base)]
            return [(self.words(f"base {setting.base:.8g}"), setting) for setting in plain]
        expected: list[tuple[str, RopeSetting]] = []
        for layer, setting in self.model.layers.items():
            name = self.model.name if len(self.model.layers) == 1 else f"{self.model.name}/{layer}"
            head_dim = setting.head_dim if self.head_dim is None else self.head_dim
            usual = head_dim if setting.rotary_dim == setting.head_dim else setting.rotary_dim
            changed = replace(
                setting,
                head_dim=head_dim,
                rotary_dim=usual if self.rotary_dim is None else self.rotary_dim,
                base=setting.base if self.base is None else self.base,
                scaling=self.scaling or setting.scaling,
            )
            expected.append((label := self.words(name), changed))
            if changed.scaling.kind == "longrope":
                beyond = int(changed.scaling.original or 0) + 1
                expected.append((f"{label} (long)", replace(changed, length=beyond)))
        return [(label, setting) for label, setting in expected if setting.pairs]

    def pairs(self) -> list[tuple[str, int]]:
        """Return how many pairs there should be, by what says so."""
        if self.model is not None:
            return [(label, setting.pairs) for label, setting in self.settings(None)]
        given = {"--rotary-dim": self.rotary_dim, "--head-dim": self.head_dim}
        return [(f"{flag} {dim}", dim // 2) for flag, dim in given.items() if dim is not None][:1]

    @property
    def positions(self) -> int | None:
        """The number of positions that the model serves; None where nothing says it."""
        if self.model is None:
            return None
        scalings = (setting.scaling for _, setting in self.settings(None))
        return Served.of(self.model.declared, scalings).positions

    def words(self, begin: str) -> str:
        """Return what the options say, behind the name of a model or a base."""
        given = {"scaling": self.scaling, "head_dim": self.head_dim, "rotary_dim": self.rotary_dim}
        said = {name: getattr(value, "kind", value) for name, value in given.items() if value is not None}
        parts = [f"{name} {value}" for name, value in said.items()]
        if self.model is not None and self.base is not None:
            parts.insert(0, f"base {self.base:.8g}")
        return ", ".join([begin, *parts])

    def plain(self, pairs: int | None, base: float) -> RopeSetting:
        """Return a setting of this base and the options, with `pairs` pairs by default."""
        asked = (self.rotary_dim, self.head_dim, None if pairs is None else 2 * pairs, 128)
        rotary_dim = next(dims for dims in asked if dims is not None)
        head_dim = rotary_dim if self.head_dim is None else self.head_dim
        return RopeSetting.of(head_dim, rotary_dim, base, scaling=self.scaling or DEFAULT)


@dataclass(frozen=True, slots=True)
class RopeBuffer:
    """A tensor and what it holds: inv_freq, periods, angles, cos, sin, or both.

    transposed: whether its values are a table whose columns are positions; `values` has them in rows. loaded:
    the loading mode of its module; none in a file. as_built: the same tensor of the module as built, where
    it was loaded in another mode.
    """

    stored: StoredTensor
    what: str
    transposed: bool = False
    loaded: str = "none"
    as_built: StoredTensor | None = None

    @property
    def values(self) -> NDArray[Any]:
        """Its values, a table's positions first."""
        return self.stored.values.squeeze().T if self.transposed else self.stored.values

    @property
    def imaginary_lost(self) -> bool:
        """Whether it is complex as built and real now, so that sin is lost."""
        was = self.as_built
        return was is not None and np.iscomplexobj(was.values) and not np.iscomplexobj(self.stored.values)


@dataclass(frozen=True, slots=True)
class Source:
    """RoPE buffers, how many tensors there are in all, and what their frequencies should be.

    kind: module (of code), gguf, dump (a table, which is explained pair by pair), graph or checkpoint.
    notes: what the reader must know. module: what was built. modes: the loading modes that are reported.
    own: whether the module's own config says what is expected. gguf: what a GGUF file says.
    """

    spec: str
    kind: str
    buffers: list[RopeBuffer]
    tensors: int
    expected: Expected
    notes: list[str]
    module: Any = None
    modes: Sequence[str] = ()
    own: bool = False
    gguf: GgufRope | None = None

    @property
    def explicit(self) -> bool:
        """Whether anything says what its frequencies should be."""
        return self.expected.model is not None or self.expected.base is not None

    @property
    def noun(self) -> str:
        """What its tensors are called."""
        return {"gguf": "setting", "dump": "table", "graph": "constant"}.get(self.kind, "buffer")


def opened(spec: str, expected: Expected) -> Source:
    """Return the buffers of a path; `expected` overrules a config beside it. Raises: BadInput.

    spec: "cos.npy,sin.npy" is a path too.
    """
    path = tensorfiles.paths(spec)[0]
    notes: list[str] = []
    gguf = None
    if gguf_files.is_gguf(path):
        file = gguf_files.read(path)
        gguf = gguf_metadata.of_file(file, path.stem, repr(spec))
        buffers, count = _of_metadata(gguf), file.tensors
        notes += [f"{key} is missing: {default}" for key, default in gguf.missing.items()]
    else:
        buffers, count = _of_files(spec)
    beside = (path if path.is_dir() else path.parent) / "config.json"
    if expected.model is None and beside.is_file():
        data, name = hf_json.load(str(beside)), path.name if gguf is None else beside.name
        if isinstance(data, Mapping) and data.get("auto_map"):
            notes.append(
                "config.json names custom code (auto_map), which was not executed: tensors were read"
            )
        expected = replace(expected, model=of_config(data, name, str(beside), expected.base, notes))
    kinds = {
        "gguf": gguf,
        "dump": checkpoints.is_dump(Path(spec)),
        "graph": checkpoints.is_graph(Path(spec)),
    }
    kind = next((name for name, is_it in kinds.items() if is_it), "checkpoint")
    return Source(spec, kind, buffers, count, expected, notes, gguf=gguf)


def _of_metadata(rope: GgufRope) -> list[RopeBuffer]:
    """Return the frequencies of a GGUF file by layer type: longrope has two."""
    buffers = []
    for layer, setting in rope.model.layers.items():
        name = "rope" if len(rope.model.layers) == 1 else f"rope ({layer})"
        ends = {"": 0}
        if setting.scaling.kind == "longrope":
            ends = {" (short)": 0, " (long)": int(setting.scaling.original or 0) + 1}
        for end, length in ends.items():
            theta = exact_frequencies.frequencies(replace(setting, length=length))
            values = np.array([float(one) for one in theta])
            stored = StoredTensor(f"{rope.architecture}.{name}{end}", "float32", values.shape, values)
            buffers.append(RopeBuffer(stored, "inv_freq"))
    return buffers


def _of_files(spec: str) -> tuple[list[RopeBuffer], int]:
    """Return the buffers in files, and how many tensors these hold. Raises: BadInput."""
    paths = tensorfiles.paths(spec)
    if len(paths) > 2:
        raise BadInput(f"{spec!r}: names {len(paths)} files; give one, or cos.npy,sin.npy")
    files = [file for path in paths for file in checkpoints.files(path)]
    dumped = checkpoints.is_dump(paths[0])
    tensors, count = checkpoints.read(files, (lambda *_: True) if dumped else may_be_buffer)
    if len(paths) == 2:
        tensors = [replace(one, name=name) for one, name in zip(tensors, ("cos", "sin"), strict=True)]
    lone = count == 1 and not checkpoints.is_graph(paths[0])
    if lone and not tensors:
        tensors, _ = checkpoints.read(files, lambda *_: True)
    buffers = recognised(tensors, dumped, lone)
    if dumped and not buffers:
        held = ", ".join(f"{one.name[:40]} of shape {one.shape}" for one in tensors[:8]) or "nothing"
        raise BadInput(
            f"{spec!r}: no inv_freq, cos and sin, or freqs_cis; it holds {held}; give frequencies on one "
            "axis, or cos and sin of (positions, pairs), side by side or apart, for 2 positions at least"
        )
    return buffers, count


def of_config(data: Any, name: str, source: str, base: float | None, notes: list[str]) -> ModelRope | None:
    """Return what a config says, or None with a note where it is not understood."""
    try:
        return hf_config.from_config(data, name, repr(source), base)
    except BadInput as error:
        notes.append(f"{error.typed}; bases are guessed from the values")
        return None


def may_be_buffer(name: str, shape: tuple[int, ...], head: Callable[[], NDArray[Any]]) -> bool:
    """Return whether a tensor may be a RoPE buffer, by its name or by its first rows."""
    return bool(kind_by_name(name, shape)) or (
        rope_values.may_hold(shape) and bool(rope_values.known(head()))
    )


def recognised(
    tensors: Iterable[StoredTensor],
    dumped: bool = False,
    lone: bool = False,
) -> list[RopeBuffer]:
    """Return tensors with what they hold: as their values say, else as their names do.

    dumped: whether somebody wrote them to look at them. lone: whether there is but one.
    """
    buffers = []
    for tensor in tensors:
        by_name = (tensor.use and tensor.use.operand) or kind_by_name(tensor.name, tensor.shape)
        if dumped and by_name in ("inv_freq", "both") and by_name != _kind_by_shape(tensor.values):
            by_name = ""
        by_value = rope_values.known(tensor.values)
        turned = "" if by_value or not by_name else rope_values.known(tensor.values.squeeze().T)
        transposed = turned in ("cos", "sin") and not (tensor.use and tensor.use.transposed)
        by_value = turned if transposed else by_value
        named_first = dumped or {by_name, by_value} == {"cos", "sin"}  # swapped: a fault, not another name
        what = (by_name or by_value) if named_first else (by_value or by_name)
        what = what or (_kind_by_shape(tensor.values) if lone else "")
        buffers.append(RopeBuffer(tensor, what, transposed=transposed))
    return [buffer for buffer in buffers if buffer.what and buffer.stored.values.size]


def kind_by_name(name: str, shape: tuple[int, ...]) -> str:
    """Return what a name says: (p,) frequencies, (n, p) tables, else ""."""
    last = name.rpartition(".")[2].lower()
    kind = "inv_freq" if last.endswith("inv_freq") else _KINDS.get(last, "")
    return kind if sum(size != 1 for size in shape) in _AXES.get(kind, (2,)) else ""


def _kind_by_shape(values: NDArray[Any]) -> str:
    """Return what a shape says: frequencies on one axis, else cos and sin."""
    sizes, is_complex = np.squeeze(values).shape, np.iscomplexobj(values)
    if len(sizes) < 2:
        return "" if is_complex else "inv_freq"
    halves = is_complex or sizes[-1] % 2 == 0
    return "both" if halves and (len(sizes) == 2 or (len(sizes) == 3 and sizes[-1] == 2)) else ""
