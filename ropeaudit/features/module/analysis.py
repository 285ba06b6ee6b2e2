"""Whether RoPE buffers were cast, and are right: of files and loaded modules; what is expected of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ropeaudit.audits import arguments
from ropeaudit.audits.arguments import Names
from ropeaudit.audits.cases import Case
from ropeaudit.audits.results import Result
from ropeaudit.errors import BadInput, UnknownName, UsageError
from ropeaudit.features.module.buffers import FREQUENCIES as FREQUENCIES
from ropeaudit.features.module.buffers import Buffer as Buffer
from ropeaudit.features.module.buffers import may_be_buffer, recognised, run
from ropeaudit.recognition import stored_values
from ropeaudit.recognition.stored_values import Lost
from ropeaudit.reference import exact_frequencies
from ropeaudit.rope import gguf_metadata, hf_config, hf_json
from ropeaudit.rope import scaling as scalings
from ropeaudit.rope.gguf_metadata import GgufRope
from ropeaudit.rope.hf_config import ModelRope
from ropeaudit.rope.scaling import DEFAULT, Scaling, Served
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.tensor_files import gguf_files
from ropeaudit.tensor_files import tensors as tensorfiles
from ropeaudit.tensor_files.tensors import StoredTensor

_LOADED = ("bfloat16", "float16", "float32", "float64")


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
class ModuleAudit(Result):
    """Where RoPE buffers are from, what they should be, and what was found.

    kind: module, gguf, dump (which is explained pair by pair), graph or checkpoint. found: the buffers before
    they are judged. tensors: how many there are in all. module: what was built. modes: of loading. own:
    whether the module's own config says what is expected. gguf: what its file says. lost: what a conversion
    to GGUF lost.
    """

    report_module: ClassVar[str] = "ropeaudit.features.module.report"
    spec: str
    kind: str
    found: Sequence[Buffer]
    tensors: int
    expected: Expected
    notes: list[str]
    module: Any = None
    modes: Sequence[str] = ()
    own: bool = False
    gguf: GgufRope | None = None
    buffers: Sequence[Buffer] = ()
    lost: Sequence[Lost] = ()

    @property
    def explicit(self) -> bool:
        """Whether anything says what its frequencies should be."""
        return self.expected.model is not None or self.expected.base is not None

    @property
    def noun(self) -> str:
        """What its tensors are called."""
        return {"gguf": "setting", "dump": "table", "graph": "constant"}.get(self.kind, "buffer")

    @property
    def wrong(self) -> bool:
        """Whether any buffer is wrong, or anything was lost."""
        return bool(self.lost) or any(one.wrong for one in self.buffers)

    @property
    def judged(self) -> bool:
        """Whether there was anything to judge, and all of it was."""
        if self.wrong:
            return True
        if self.kind == "gguf" and not self.explicit:
            return False
        return bool(self.buffers) and all(one.judged for one in self.buffers)


@arguments.checked
def module(
    source: str,
    *,
    config: str | None = None,
    model: str | None = None,
    base: float | None = None,
    scaling: str | None = None,
    head_dim: int | None = None,
    rotary_dim: int | None = None,
    loaded: Names | None = None,
    dtypes: Names = ("bf16",),
    build: Mapping[str, Any] | None = None,
) -> ModuleAudit:
    """Find RoPE buffers that were cast, be it to bfloat16 and back, or that are not what they should be.

    source: a checkpoint (a folder, a .safetensors or .pt file), an .onnx graph or a .gguf file, of
    which nothing is executed; a dumped table (.npz, .npy or "cos.npy,sin.npy"), whose every pair is compared;
    or "file.py:name" or "package.module:name", a function that returns a module, or a class, which is built
    from its default config or usual sizes, with the arguments in `build`. Its forward is never called.
    loaded: the modes of loading (`built.MODES`), in each of `dtypes`; by default of a class all that it has.
    What the frequencies should be: those of a config.json or its folder, of a named model, or with this
    base, scaling and dims; without any, of a config beside the source, and else a base is guessed.
    Raises: UsageError, UnknownName, BadShape, BadInput.
    """
    from ropeaudit.features.module import built  # in-function: it makes audits

    asked = Case(model=model, config=config, base=base, head_dim=head_dim, rotary_dim=rotary_dim)
    modes = None if loaded is None else arguments.listed(loaded)
    for name in modes or ():
        if name not in built.MODES:
            raise UnknownName("way of loading", name, built.MODES)
    formats = arguments.formats(dtypes)
    for fmt in formats:
        if fmt.name not in _LOADED:
            raise UnknownName("dtype of a module", fmt.name, _LOADED)
    given = None if scaling is None else scalings.parse(scaling)
    expected = Expected(asked.declared(), base, given, head_dim, rotary_dim)
    expected.plain(None, 10000.0 if base is None else base)  # what is no setting is refused before any work
    if built.is_code(source):
        audit = built.opened(source, expected, build or {}, modes, formats)
        judged = [one for one in run(audit) if one.loaded in audit.modes]
        return replace(audit, buffers=sorted(judged, key=lambda one: audit.modes.index(one.loaded)))
    for flag, value in {"--loaded": modes, "--build": build}.items():
        if value:
            raise UsageError(f"{flag} says how a module is built, and {source!r} is a file; leave it out")
    audit = opened(source, expected)
    audit = replace(audit, buffers=list(run(audit)))
    file, declared = audit.gguf, audit.expected.model
    if file is None or declared is None:
        return audit
    changed = [setting for _, setting in audit.expected.settings(None) if setting.length == 0]
    rotated = [layer for layer, setting in declared.layers.items() if setting.pairs]
    declared = replace(declared, layers=dict(zip(rotated, changed, strict=True)))
    audit.notes.extend(stored_values.unseen(file, declared))
    return replace(audit, lost=stored_values.lost(file, declared))


def opened(spec: str, expected: Expected) -> ModuleAudit:
    """Return the buffers of a path; `expected` overrules a config beside it. Raises: BadInput.

    spec: "cos.npy,sin.npy" is a path too.
    """
    path = tensorfiles.paths(spec)[0]
    notes: list[str] = []
    gguf = None
    if gguf_files.is_gguf(path):
        file = gguf_files.read(path)
        gguf = gguf_metadata.of_file(file, path.stem, repr(spec))
        buffers, count = [], file.tensors
        for layer, setting in gguf.model.layers.items():
            name = "rope" if len(gguf.model.layers) == 1 else f"rope ({layer})"
            ends = (" (short)", " (long)") if setting.scaling.kind == "longrope" else ("",)
            for end, one in zip(ends, setting.short_and_long(), strict=True):
                values = np.array([float(theta) for theta in exact_frequencies.frequencies(one)])
                stored = StoredTensor(f"{gguf.architecture}.{name}{end}", "float32", values.shape, values)
                buffers.append(Buffer(stored, "inv_freq"))
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
    return ModuleAudit(spec, kind, buffers, count, expected, notes, gguf=gguf)


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
