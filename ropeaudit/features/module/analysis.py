"""`module`: the RoPE buffers that files store, and the values that they should have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from ropeaudit.audits import arguments
from ropeaudit.audits.cases import Case
from ropeaudit.errors import BadInput, UsageError
from ropeaudit.features.module.buffers import (
    Buffer,
    dump_of,
    grouped,
    is_stranger,
    may_be_buffer,
    recognised,
)
from ropeaudit.features.module.judging import Expected, ModuleAudit, judge_buffers
from ropeaudit.recognition import stored_values
from ropeaudit.reference import exact_frequencies
from ropeaudit.rope import config_parts, gguf_metadata, hf_config, hf_json
from ropeaudit.rope import scaling as scalings
from ropeaudit.rope.gguf_metadata import GgufRope
from ropeaudit.rope.hf_json import NotRotated, Unjudged
from ropeaudit.tensor_files import gguf_files
from ropeaudit.tensor_files import tensors as tensorfiles
from ropeaudit.tensor_files.tensors import StoredTensor

_SINUSOIDS = "{}: sinusoids of absolute positions, 10000^(-i/(d/2-1)), which rotate nothing"


def is_code(spec: str) -> bool:
    """Return whether a spec is FILE.py:NAME or PACKAGE.MODULE:NAME, and no file."""
    _, colon, name = spec.rpartition(":")
    return bool(colon) and name.isidentifier() and not Path(spec).exists()


@arguments.public
def module(
    source: str,
    *,
    config: str | None = None,
    model: str | None = None,
    base: float | None = None,
    scaling: str | None = None,
    head_dim: int | None = None,
    rotary_dim: int | None = None,
) -> ModuleAudit:
    """Find stored RoPE buffers that were cast, end too early, or are not what they should be.

    source: a checkpoint (a folder, a .safetensors or .pt file), an .onnx graph or a .gguf file;
    or a dumped table (.npz, .npy or "cos.npy,sin.npy"), which is explained pair by pair.
    Nothing of it is executed.
    What the frequencies should be: those of a config.json or its folder, of a named model, or
    with this base, scaling and dims; else of a config beside the source; else a base is guessed.
    Raises: UsageError, UnknownName, BadShape, BadInput.
    """
    if is_code(source):
        raise UsageError(f"{source!r} is code, which `check` calls; `module` reads files")
    asked = Case(model=model, config=config, base=base, head_dim=head_dim, rotary_dim=rotary_dim)
    given = None if scaling is None else scalings.parse(scaling)
    options = Expected(None, base, given, head_dim, rotary_dim)
    options.plain(None, 10000.0 if base is None else base)  # refuses what is no setting
    unrotated = ""
    try:
        said = replace(options, model=asked.declared(), range=_range_key(config) if config else "")
    except NotRotated as error:
        said, unrotated = options, error.fault
    audit = open_source(source, said, unrotated)
    if audit.unrotated and base is not None:
        raise UsageError(f"{audit.unrotated}; leave out --base")
    audit = replace(audit, buffers=list(judge_buffers(audit)))
    file, declared = audit.gguf, audit.expected.model
    if file is None or declared is None:
        return audit
    changed = [setting for _, setting in audit.expected.settings(None) if setting.length == 0]
    rotated = [layer for layer, setting in declared.layers.items() if setting.pairs]
    declared = replace(declared, layers=dict(zip(rotated, changed, strict=True)))
    audit.notes.extend(stored_values.not_compared(file, declared))
    return replace(audit, lost=stored_values.conversion_losses(file, declared))


def open_source(spec: str, expected: Expected, unrotated: str) -> ModuleAudit:
    """Find the buffers of a source; `expected` overrules a config beside it. Raises: BadInput.

    spec: a path, or "cos.npy,sin.npy". unrotated: why the requested config has no RoPE.
    """
    path, dumped = tensorfiles.paths(spec)[0], tensorfiles.is_dump(Path(spec))
    notes, gguf = list[str](), None
    kind = "graph" if tensorfiles.is_graph(path) else "dump" if dumped else "checkpoint"
    beside = (path if path.is_dir() else path.parent) / "config.json"
    if gguf_files.is_gguf(path):
        kind, file = "gguf", gguf_files.read(path)
        try:
            gguf = gguf_metadata.of_file(file, path.stem, repr(spec))
        except NotRotated as error:
            return ModuleAudit(spec, kind, [], file.tensors, expected, notes, unrotated=error.fault)
        found, count = _gguf_buffers(gguf), file.tensors
        notes += [f"{key} is missing: {default}" for key, default in gguf.missing.items()]
    else:
        found, count = _file_buffers(spec)
    if kind == "checkpoint" and count > 1:
        strange = [buffer for buffer in found if is_stranger(buffer.stored)]
        found = [buffer for buffer in found if not is_stranger(buffer.stored)]
        names = [buffer.stored.name for buffer in strange]
        notes += [f"{name} falls as frequencies do; by its name it is none" for name in names]
    own_code = False
    if expected.model is None and not unrotated and beside.is_file():
        data, name = hf_json.load(str(beside)), path.name if gguf is None else beside.name
        if not isinstance(data, Mapping):
            raise BadInput(f"'{beside}' holds {hf_json.shown(data)}; give the config.json of a model")
        own_code = bool(data.get("auto_map"))
        if own_code:
            notes.append("config.json names custom code (auto_map), which was not executed")
        try:
            model = hf_config.from_config(data, name, repr(str(beside)), expected.base)
            expected = replace(expected, model=model, range=_range_key(str(beside)))
        except NotRotated as error:
            unrotated = error.fault
        except Unjudged as error:
            if expected.base is not None:  # of a model that does not rotate
                raise
            notes.append(f"{error.typed}; bases are guessed from the values")
        except BadInput as error:
            notes.append(f"{error.typed}; bases are guessed from the values")
    if unrotated:
        found = []
    elif expected.model is None and expected.base is None and kind != "gguf":
        tables = ((parts, dump_of(parts)) for parts in grouped(found))
        sinusoids = stored_values.sinusoids
        added = [part for parts, table in tables if table is not None and sinusoids(table) for part in parts]
        found = [buffer for buffer in found if buffer not in added]
        notes += [_SINUSOIDS.format(buffer.stored.name) for buffer in added]
        if added and not found:
            unrotated = _SINUSOIDS.format(added[0].stored.name)
    return ModuleAudit(
        *(spec, kind, found, count, expected, notes, gguf, unrotated, beside.is_file(), own_code)
    )


def _range_key(path: str) -> str:
    """Return the key and value of the number of positions in a config; empty without one."""
    key, value = hf_json.first(config_parts.text_part(hf_json.load(path)).given, hf_json.POSITIONS)
    return f"{key} {value:,}" if isinstance(value, int) else ""


def _gguf_buffers(gguf: GgufRope) -> list[Buffer]:
    """Return the frequencies that the metadata of a GGUF file describe, by layer type."""
    buffers = list[Buffer]()
    for layer, setting in gguf.model.layers.items():
        name = "rope" if len(gguf.model.layers) == 1 else f"rope ({layer})"
        ends = (" (short)", " (long)") if setting.scaling.kind == "longrope" else ("",)
        for end, one in zip(ends, setting.short_and_long(), strict=True):
            values = np.array([float(theta) for theta in exact_frequencies.frequencies(one)])
            stored = StoredTensor(f"{gguf.architecture}.{name}{end}", "float32", values.shape, values)
            buffers.append(Buffer(stored, "inv_freq"))
    return buffers


def _file_buffers(spec: str) -> tuple[list[Buffer], int]:
    """Return the buffers in files, and the number of their tensors. Raises: BadInput."""
    paths = tensorfiles.paths(spec)
    if len(paths) > 2:
        raise BadInput(f"{spec!r}: names {len(paths)} files; give one, or cos.npy,sin.npy")
    files = [file for path in paths for file in tensorfiles.files(path)]
    dumped = tensorfiles.is_dump(paths[0])
    tensors, count = tensorfiles.search_files(files, (lambda *_: True) if dumped else may_be_buffer)
    if len(paths) == 2:
        tensors = [replace(tensor, name=name) for tensor, name in zip(tensors, ("cos", "sin"), strict=True)]
    lone = count == 1 and not tensorfiles.is_graph(paths[0]) and not paths[0].is_dir()
    if lone and not tensors:
        tensors, _ = tensorfiles.search_files(files, lambda *_: True)
    buffers = recognised(tensors, dumped, lone)
    if dumped and not buffers:
        held = ", ".join(f"{tensor.name[:40]} of shape {tensor.shape}" for tensor in tensors[:8]) or "nothing"
        raise BadInput(
            f"{spec!r}: no inv_freq, cos and sin, or freqs_cis; it holds {held}; give frequencies on one "
            "axis, or cos and sin of (positions, pairs), side by side or apart, for 2 positions at least"
        )
    return buffers, count
