"""Write q and k of a model's layers, as they are before RoPE rotates them, for `shift --qk`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ropeaudit.errors import BadInput, RopeAuditError
from ropeaudit.features.model.layers import LayerVectors, RotatedPairs
from ropeaudit.rope import hf_config, layer_kinds
from ropeaudit.runtime import atomic_files, paths

if TYPE_CHECKING:
    from ropeaudit.features.model.load import Folder


@dataclass(frozen=True, slots=True)
class Saved:
    """A file of q and k. kind: the layer type where there are several that rotate, else empty."""

    path: str
    kind: str
    layers: list[int]
    command: str


def save(
    path: str, folder: Folder, layers: Mapping[int, LayerVectors], pairs: Mapping[int, RotatedPairs]
) -> list[Saved]:
    """Write q (layers, h, s, d) and k (layers, g, s, d) of the layers that rotate, a file a layer type.

    They are the float64 run's, rotated back; the rotated dims stand first, in the config's layout.
    Raises: BadInput where there are none, or where it is not known how a layer rotates.
    """
    unknown = sorted(set(layers) - set(pairs))
    if unknown:
        raise BadInput(
            f"--save-qk {path!r}: q and k of layer {unknown[0]} do not move as its frequencies say, so they "
            "cannot be rotated back; leave it out"
        )
    rotated = {layer: pairs[layer] for layer in sorted(layers) if pairs[layer].frequencies.size}
    if not rotated:
        seen = "no layer of this model rotates q and k" if layers else "this model's q and k are not seen"
        raise BadInput(f"--save-qk {path!r}: {seen}; leave it out")
    try:
        model = hf_config.read(str(folder.path))
    except RopeAuditError:  # it is refused with its reason by whoever reads it
        model = None
    kinds = layer_kinds.of_each(folder.config, model) if model and len(model.layers) > 1 else {}
    groups: dict[str, list[int]] = {}
    for layer in rotated:
        groups.setdefault(kinds.get(layer, ""), []).append(layer)
    results = []
    for kind, members in groups.items():
        layout = rotated[members[0]].layout
        if model is not None:
            layout = (model.layers.get(kind) or next(iter(model.layers.values()))).layout
        file = Path(path)
        named = str(file.with_name(f"{file.stem}-{kind or 'other'}{file.suffix}"))
        target = path if len(groups) == 1 else named
        _write(target, path, {n: layers[n] for n in members}, rotated, layout)
        command = f"ropeaudit shift --qk {shlex.quote(target)}"
        if model is not None:
            command += f" --config {shlex.quote(str(folder.path))}"
        if kind and kind != "full_attention":
            command += f" --layer {kind}"
        results.append(Saved(target, kind, members, command))
    return results


def _write(
    target: str,
    path: str,
    layers: Mapping[int, LayerVectors],
    pairs: Mapping[int, RotatedPairs],
    layout: str,
) -> None:
    import safetensors.numpy as safetensors

    parts: dict[str, list[Any]] = {"q": [], "k": []}
    first = pairs[next(iter(layers))]
    for layer, vectors in layers.items():
        own = pairs[layer]
        same = np.array_equal(own.frequencies, first.frequencies) and own.factor == first.factor
        for name, x in (("q", vectors.q), ("k", vectors.k)):
            parts[name].append(own.arranged(own.rotated_back(x), layout))
            if not same or parts[name][0].shape != parts[name][-1].shape:
                raise BadInput(
                    f"--save-qk {path!r}: layers {next(iter(layers))} and {layer} differ in shape or "
                    "frequencies, and config.json does not tell them apart; leave it out"
                )
    named = {"layers": ",".join(map(str, layers)), "layout": layout}
    try:
        atomic_files.write(
            Path(paths.behind(target)),
            # contiguous: safetensors writes the bytes as they lie
            safetensors.save({n: np.ascontiguousarray(np.stack(x)) for n, x in parts.items()}, named),
        )
    except OSError as error:
        raise BadInput(f"--save-qk {target!r} cannot be written: {error.strerror or error}") from None
