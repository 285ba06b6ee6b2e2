"""Files that store RoPE buffers (modules: `built`), and what is expected of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ropeaudit.errors import BadInput
from ropeaudit.features.module.buffers import Buffer, may_be_buffer, recognised
from ropeaudit.reference import exact_frequencies
from ropeaudit.rope import gguf_metadata, hf_config, hf_json
from ropeaudit.rope.gguf_metadata import GgufRope
from ropeaudit.rope.hf_config import ModelRope
from ropeaudit.rope.scaling import DEFAULT, Scaling, Served
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.tensor_files import gguf_files
from ropeaudit.tensor_files import tensors as tensorfiles
from ropeaudit.tensor_files.tensors import StoredTensor


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
            head_dim, base = self.head_dim or setting.head_dim, self.base or setting.base
            usual = head_dim if setting.rotary_dim == setting.head_dim else setting.rotary_dim
            rotary_dim = usual if self.rotary_dim is None else self.rotary_dim
            scaling = self.scaling or setting.scaling
            changed = replace(setting, head_dim=head_dim, rotary_dim=rotary_dim, base=base, scaling=scaling)
            labels = self.words(name), f"{self.words(name)} (long)"
            expected += zip(labels, changed.short_and_long() if changed.pairs else (), strict=False)
        return expected

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
        base = [f"base {self.base:.8g}"] if self.model is not None and self.base is not None else []
        scaling = self.scaling and self.scaling.kind
        given = {"scaling": scaling, "head_dim": self.head_dim, "rotary_dim": self.rotary_dim}
        said = [f"{name} {value}" for name, value in given.items() if value is not None]
        return ", ".join([begin, *base, *said])

    def plain(self, pairs: int | None, base: float) -> RopeSetting:
        """Return a setting of this base and the options, with `pairs` pairs by default."""
        asked = (self.rotary_dim, self.head_dim, None if pairs is None else 2 * pairs, 128)
        rotary_dim = next(dims for dims in asked if dims is not None)
        head_dim = rotary_dim if self.head_dim is None else self.head_dim
        return RopeSetting.of(head_dim, rotary_dim, base, scaling=self.scaling or DEFAULT)


@dataclass(frozen=True, slots=True)
class Source:
    """RoPE buffers, how many tensors there are in all, and what their frequencies should be.

    kind: module, gguf, dump (which is explained pair by pair), graph or checkpoint. module: what was built.
    modes: of loading. own: whether the module's own config says what is expected. gguf: what its file says.
    """

    spec: str
    kind: str
    buffers: list[Buffer]
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
    kind = "dump" if tensorfiles.is_dump(Path(spec)) else "checkpoint"
    kind = "gguf" if gguf else "graph" if tensorfiles.is_graph(path) else kind
    return Source(spec, kind, buffers, count, expected, notes, gguf=gguf)


def _of_metadata(rope: GgufRope) -> list[Buffer]:
    """Return the frequencies of a GGUF file by layer type: longrope has two."""
    buffers = []
    for layer, setting in rope.model.layers.items():
        name = "rope" if len(rope.model.layers) == 1 else f"rope ({layer})"
        ends = (" (short)", " (long)") if setting.scaling.kind == "longrope" else ("",)
        for end, one in zip(ends, setting.short_and_long(), strict=True):
            values = np.array([float(theta) for theta in exact_frequencies.frequencies(one)])
            stored = StoredTensor(f"{rope.architecture}.{name}{end}", "float32", values.shape, values)
            buffers.append(Buffer(stored, "inv_freq"))
    return buffers


def _of_files(spec: str) -> tuple[list[Buffer], int]:
    """Return the buffers in files, and how many tensors these hold. Raises: BadInput."""
    paths = tensorfiles.paths(spec)
    if len(paths) > 2:
        raise BadInput(f"{spec!r}: names {len(paths)} files; give one, or cos.npy,sin.npy")
    files = [file for path in paths for file in tensorfiles.files(path)]
    dumped = tensorfiles.is_dump(paths[0])
    tensors, count = tensorfiles.searched(files, (lambda *_: True) if dumped else may_be_buffer)
    if len(paths) == 2:
        tensors = [replace(one, name=name) for one, name in zip(tensors, ("cos", "sin"), strict=True)]
    lone = count == 1 and not tensorfiles.is_graph(paths[0])
    if lone and not tensors:
        tensors, _ = tensorfiles.searched(files, lambda *_: True)
    buffers = recognised(tensors, dumped, lone)
    if dumped and not buffers:
        held = ", ".join(f"{one.name[:40]} of shape {one.shape}" for one in tensors[:8]) or "nothing"
        raise BadInput(
            f"{spec!r}: no inv_freq, cos and sin, or freqs_cis; it holds {held}; give frequencies on one "
            "axis, or cos and sin of (positions, pairs), side by side or apart, for 2 positions at least"
        )
    return buffers, count


def of_config(
    data: Any,
    name: str,
    source: str,
    base: float | None,
    notes: list[str],
) -> ModelRope | None:
    """Return what a config says, or None with a note where it is not understood."""
    try:
        return hf_config.from_config(data, name, repr(source), base)
    except BadInput as error:
        notes.append(f"{error.typed}; bases are guessed from the values")
        return None
