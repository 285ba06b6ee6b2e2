"""Where RoPE buffers are: in a module that a factory makes, a checkpoint, a dumped table or a graph.

They are known by their values, whatever they are called; and by usual names where the values tell nothing.
Of a dump the names tell first, for its values are what is in question; a tensor that is alone needs no name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropeaudit.errors import BadInput, RopeAuditError, UsageError, one_line
from ropeaudit.features.module.expected import Expected
from ropeaudit.reference import exact_frequencies
from ropeaudit.rope import gguf_metadata, hf_config, hf_json
from ropeaudit.rope.gguf_metadata import GgufRope
from ropeaudit.rope.hf_config import ModelRope
from ropeaudit.subjects.calling import building, devices, loading
from ropeaudit.subjects.calling.building import Builder
from ropeaudit.subjects.calling.devices import Device
from ropeaudit.tensor_files import checkpoints, gguf_files, rope_values
from ropeaudit.tensor_files import tensors as tensorfiles
from ropeaudit.tensor_files.checkpoints import StoredTensor

_GIVE = "give file.py:function or package.module:function, which returns a torch.nn.Module, or its class"
_FREQUENCIES = ("inv_freq", "inv_freqs", "freqs", "frequencies")
_COS = ("cos", "cos_cached", "cos_cache", "cos_table", "freqs_cos")
_BOTH = ("freqs_cis", "freqs_complex", "cos_sin_cache", "cos_sin")
# last part of a name -> what the buffer holds
KINDS: dict[str, str] = {
    **dict.fromkeys(_FREQUENCIES, "inv_freq"),
    **dict.fromkeys(_COS, "cos"),
    **{name.replace("cos", "sin"): "sin" for name in _COS},
    **dict.fromkeys(_BOTH, "both"),
}


@dataclass(frozen=True, slots=True)
class RopeBuffer:
    """A tensor and what it holds: inv_freq, periods, angles, cos, sin, or both.

    device: where it lies in a module; none in a file. transposed: whether its values are a table whose
    columns are positions; `values` has them in rows.
    """

    stored: StoredTensor
    what: str
    device: str = "none"
    transposed: bool = False

    @property
    def values(self) -> NDArray[Any]:
        """Its values, a table's positions first."""
        return self.stored.values.squeeze().T if self.transposed else self.stored.values


@dataclass(frozen=True, slots=True)
class Source:
    """RoPE buffers, how many tensors there are in all, and what their frequencies should be.

    kind: module (what a factory built, whose buffers are those that would be used), gguf, dump (a table,
    which is explained pair by pair), graph or checkpoint. notes: what the reader must know. module: what was
    built; builder: how it is built anew. own: whether its own config says what is expected. place: where it
    was moved. gguf: what a GGUF file says, where it is one.
    """

    spec: str
    kind: str
    buffers: list[RopeBuffer]
    tensors: int
    expected: Expected
    notes: list[str]
    module: Any = None
    builder: Builder | None = None
    own: bool = False
    place: Device | None = None
    gguf: GgufRope | None = None

    @property
    def explicit(self) -> bool:
        """Whether anything says what its frequencies should be."""
        return self.expected.model is not None or self.expected.base is not None

    @property
    def noun(self) -> str:
        """What its tensors are called."""
        return {"gguf": "setting", "dump": "table", "graph": "constant"}.get(self.kind, "buffer")


def kind_of_name(name: str) -> str:
    """Return what a buffer's name says: inv_freq, cos, sin, both or ""."""
    last = name.rpartition(".")[2].lower()
    return "inv_freq" if last.endswith("inv_freq") else KINDS.get(last, "")


def load(
    spec: str, expected: Expected, arguments: Mapping[str, Any], length: int, device: str | None = None
) -> Source:
    """Return the buffers of a path, factory or class; `expected` overrules a config there.

    spec: "cos.npy,sin.npy" is a path too. arguments: for a factory or a class. length: positions that a
    class is built for. device: where the module is moved. Raises: BadInput, UsageError.
    """
    place = None if device is None else devices.of_torch(device)
    factory = _factory(spec)
    if factory is not None:
        return _from_factory(spec, building.builder(spec, factory, arguments, length), expected, place)
    if device is not None:
        raise UsageError(
            f"--device {device} is where a module is moved, and {spec!r} is a checkpoint; leave it out"
        )
    path = tensorfiles.paths(spec)[0]
    notes: list[str] = []
    gguf = None
    if gguf_files.is_gguf(path):
        file = gguf_files.read(path)
        gguf = gguf_metadata.of_file(file, path.stem, repr(spec))
        buffers, count = _of_metadata(gguf), file.tensors
        notes += [f"{key} is missing: {default}" for key, default in gguf.missing.items()]
    else:
        buffers, count = _stored(spec)
    beside = (path if path.is_dir() else path.parent) / "config.json"
    if expected.model is None and beside.is_file():
        data, name = hf_json.load(str(beside)), path.name if gguf is None else beside.name
        if isinstance(data, Mapping) and data.get("auto_map"):
            notes.append(
                "config.json names custom code (auto_map), which was not executed: tensors were read"
            )
        expected = replace(expected, model=_read(data, name, str(beside), expected.base, notes))
    whole = Path(spec)
    kind = "dump" if checkpoints.is_dump(whole) else "graph" if checkpoints.is_graph(whole) else "checkpoint"
    kind = kind if gguf is None else "gguf"
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


def _stored(spec: str) -> tuple[list[RopeBuffer], int]:
    """Return the buffers in files, and how many tensors these hold. Raises: BadInput."""
    paths = tensorfiles.paths(spec)
    if len(paths) > 2:
        raise BadInput(f"{spec!r}: names {len(paths)} files; give one, or cos.npy,sin.npy")
    files = [file for path in paths for file in checkpoints.files(path)]
    dumped = checkpoints.is_dump(paths[0])
    tensors, count = checkpoints.read(files, (lambda *_: True) if dumped else _may_be_buffer)
    if len(paths) == 2:
        tensors = [replace(one, name=name) for one, name in zip(tensors, ("cos", "sin"), strict=True)]
    lone = count == 1 and not checkpoints.is_graph(paths[0])
    if lone and not tensors:
        tensors, _ = checkpoints.read(files, lambda *_: True)
    buffers = _buffers(tensors, dumped, lone)
    if dumped and not buffers:
        held = ", ".join(f"{one.name[:40]} of shape {one.shape}" for one in tensors[:8]) or "nothing"
        raise BadInput(
            f"{spec!r}: no inv_freq, cos and sin, or freqs_cis; it holds {held}; give frequencies on one "
            "axis, or cos and sin of (positions, pairs), side by side or apart, for 2 positions at least"
        )
    return buffers, count


def _read(data: Any, name: str, source: str, base: float | None, notes: list[str]) -> ModelRope | None:
    """Return what a config says, or None with a note where it is not understood."""
    try:
        return hf_config.from_config(data, name, repr(source), base)
    except BadInput as error:
        notes.append(f"{error.typed}; bases are guessed from the values")
        return None


def _may_be_buffer(name: str, shape: tuple[int, ...], head: Callable[[], NDArray[Any]]) -> bool:
    """Return whether a tensor may be a RoPE buffer, by its name or by its first rows."""
    return bool(_kind_by_name(name, shape)) or (
        rope_values.may_hold(shape) and bool(rope_values.known(head()))
    )


def _buffers(tensors: Iterable[StoredTensor], dumped: bool = False, lone: bool = False) -> list[RopeBuffer]:
    """Return tensors with what they hold: as their values say, else as their names do."""
    buffers = []
    for tensor in tensors:
        by_name = (tensor.use and tensor.use.operand) or _kind_by_name(tensor.name, tensor.shape)
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


def _kind_by_name(name: str, shape: tuple[int, ...]) -> str:
    """Return what a name says: (p,) frequencies, (n, p) tables, "" for other shapes."""
    axes = {"": (), "inv_freq": (0, 1), "both": (2, 3)}.get(kind_of_name(name), (2,))
    return kind_of_name(name) if sum(size != 1 for size in shape) in axes else ""


def _kind_by_shape(values: NDArray[Any]) -> str:
    """Return what a shape says: frequencies on one axis, else cos and sin."""
    sizes, is_complex = np.squeeze(values).shape, np.iscomplexobj(values)
    if len(sizes) < 2:
        return "" if is_complex else "inv_freq"
    halves = is_complex or sizes[-1] % 2 == 0
    return "both" if halves and (len(sizes) == 2 or (len(sizes) == 3 and sizes[-1] == 2)) else ""


def is_code(spec: str) -> bool:
    """Return whether a spec is FILE.py:NAME or PACKAGE.MODULE:NAME, and no file."""
    _, colon, name = spec.rpartition(":")
    return bool(colon) and name.isidentifier() and not Path(spec).exists()


def _factory(spec: str) -> Callable[[], Any] | None:
    """Return the function that a spec names; None of a path."""
    if not is_code(spec):
        return None
    place, _, name = spec.rpartition(":")
    try:
        if place.endswith(".py") and not Path(place).is_file():
            raise BadInput(f"{place!r}: no such file; {_GIVE}")
        module, _ = loading.imported(place)
    except RopeAuditError:
        raise
    except Exception as error:  # whatever other people's code raises
        raise BadInput(f"{spec!r}: cannot be imported: {one_line(error)}; {_GIVE}") from None
    function = getattr(module, name, None)
    if not callable(function):
        raise BadInput(f"{spec!r}: {place} has no function {name}; {_GIVE}")
    factory: Callable[[], Any] = function
    return factory


def _from_factory(spec: str, builder: Builder, expected: Expected, place: Device | None) -> Source:
    """Return the buffers of a module, built and moved. Raises: BadInput."""
    import torch

    module = moved(spec, builder.build(), place)
    notes = [f"built as {builder.words}"] if builder.words else []
    config, own = getattr(module, "config", None), False
    if expected.model is None and config is not None and hasattr(config, "to_dict"):
        own = True
        model = _read(config.to_dict(), type(module).__name__, spec, expected.base, notes)
        expected = replace(expected, model=model)
    by_name = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for prefix, part in module.named_modules():  # plain attributes are not moved or cast with the module
        for name, value in vars(part).items():
            if isinstance(value, torch.Tensor):
                by_name.setdefault(f"{prefix}.{name}".lstrip("."), value)
    unreal = [name for name, value in by_name.items() if value.is_meta]
    named_unreal = [name for name in unreal if _kind_by_name(name, tuple(by_name[name].shape))]
    if named_unreal:
        notes.append(f"{named_unreal[0]} is on the meta device and holds no values; load the weights first")
    real = {name: value for name, value in by_name.items() if not value.is_meta}
    tensors = [tensor for tensor in checkpoints.chosen(real, _may_be_buffer).values() if tensor is not None]
    buffers = [
        replace(one, device=devices.of_tensor(by_name[one.stored.name]).label) for one in _buffers(tensors)
    ]
    return Source(
        spec=spec,
        kind="module",
        buffers=buffers,
        tensors=len(by_name),
        expected=expected,
        notes=notes,
        module=module,
        builder=builder,
        own=own,
        place=place,
    )


def moved(spec: str, module: Any, place: Device | None) -> Any:
    """Return a module on a device, if one is given. Raises: BadInput."""
    if place is None:
        return module
    try:
        return place.moved(module)
    except Exception as error:  # a module on the meta device, or too large
        raise BadInput(f"{spec!r}: cannot be moved to {place.name}: {one_line(error)}") from None
