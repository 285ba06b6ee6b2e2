"""What the conversion of a model lost: a file's rotary embedding against the one that its config declares.

What a file cannot say is not compared: whether YaRN's range is truncated, which layers rotate.
Letters: p pairs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ropeaudit.recognition import faults
from ropeaudit.recognition.check import check
from ropeaudit.recognition.diagnosis import Diagnosis, Value
from ropeaudit.recognition.faults import called
from ropeaudit.reference import exact_frequencies
from ropeaudit.rope.gguf_metadata import GgufRope
from ropeaudit.rope.hf_config import ModelRope
from ropeaudit.rope.scaling import DEFAULT, Scaling
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.tensor_files.rope_values import Dump

_SAME = 1e-5  # relative: what float32 metadata and divisors, computed in float32, leave of numbers
# scaling -> where a file says it, if always there
_KEYS = dict.fromkeys(("llama3", "proportional"), "rope_freqs.weight") | {
    "longrope": "rope_factors_short.weight, rope_factors_long.weight"
}
_BETAS = {"beta_fast": 32.0, "beta_slow": 1.0}  # where a config gives none
_LISTED = ("original", "short", "long")


@dataclass(frozen=True, slots=True)
class Lost:
    """One difference and the layer type that has it. keys: where the file says it."""

    layer: str
    diagnosis: Diagnosis
    keys: str


def lost(file: GgufRope, declared: ModelRope) -> list[Lost]:
    """Return the differences between a file and a config; none where they are the same."""
    found = []
    for layer, asked in declared.layers.items():
        seen = file.model.layers.get(layer)
        if seen is not None:
            found += [Lost(layer, *one) for one in _of_layer(file, seen, asked)]
    if len(found) and len(declared.layers) == 1:
        found = [Lost("", one.diagnosis, one.keys) for one in found]
    here, there = ("/".join(map(str, one.sections)) if one else "none" for one in (file.axes, declared.axes))
    if declared.axes and here != there:  # M-RoPE's
        told = Diagnosis("other-sections", {"seen": here, "asked": there})
        found.append(Lost("", told, "rope.dimension_sections"))
    return found


def unseen(file: GgufRope, declared: ModelRope) -> list[str]:
    """Return what was not compared, in words."""
    said = [
        f"the file says nothing of {layer} layers (rope.freq_base_swa): not compared"
        for layer in declared.layers
        if layer not in file.model.layers
    ]
    halves = {one.layout for one in declared.layers.values()} == {"half"}
    if file.setting.layout == "interleaved" and halves:
        said.append(
            f"architecture {file.architecture} pairs neighbours and the config pairs halves: conversion "
            "permutes the weights of q and k for that, which is not seen here"
        )
    if file.model.declared != declared.declared and None not in (file.model.declared, declared.declared):
        said.append(f"context_length {file.model.declared}: the config declares {declared.declared}")
    return said


def _of_layer(
    file: GgufRope,
    seen: RopeSetting,
    asked: RopeSetting,
) -> Iterator[tuple[Diagnosis, str]]:
    """Yield what differs in a layer type, with the keys of the file that say it."""
    if not _near(seen.base, asked.base):
        yield Diagnosis("wrong-base", {"base": seen.base, "asked": asked.base}), "rope.freq_base"
    if seen.head_dim != asked.head_dim:
        dims: dict[str, Value] = {"seen": seen.head_dim, "asked": asked.head_dim}
        yield Diagnosis("other-head-dim", dims), "attention.key_length"
    if seen.rotary_dim != asked.rotary_dim:
        dims = {"seen": seen.rotary_dim, "asked": asked.rotary_dim, "head_dim": asked.head_dim}
        yield Diagnosis("partial-rotation", dims), "rope.dimension_count"
        if "explicit" in (seen.scaling.kind, asked.scaling.kind):
            return  # lists for other pairs
    found = _scaling(seen, asked)
    if found is not None:
        keys = "rope_freqs.weight" if "rope_freqs.weight" in file.divisors else "rope.scaling.*"
        yield found, _KEYS.get(asked.scaling.kind, keys)
        if found.code == "missing-scaling":
            return  # its attention factor is missing with it
        usual = replace(seen.scaling, attention_factor=None)
        if _near(*(float(exact_frequencies.attention_factor(one)) for one in (seen.scaling, usual))):
            return  # it follows from that scaling
    factors = [float(exact_frequencies.attention_factor(one.scaling)) for one in (seen, asked)]
    if not _near(*factors):
        values = dict(zip(("seen", "asked"), factors, strict=True))
        yield Diagnosis("attention-factor", values), "rope.scaling.attn_factor"


def _scaling(seen: RopeSetting, asked: RopeSetting) -> Diagnosis | None:
    """Return what is another scaling; None where frequencies are the same."""
    here, there = seen.scaling, asked.scaling
    changes_nothing = there.kind == "default" or (there.kind == "linear" and there.factor == 1)
    if here.kind == "default" and changes_nothing:
        return None
    if here.kind == "explicit":
        listed = np.array(seen.scaling.frequencies)
        if not _near(seen.base, asked.base):  # which is told by itself: as if the base were right
            exponents = 2 * np.arange(seen.pairs) / seen.rotary_dim
            listed = listed * (seen.base / asked.base) ** exponents
        even, theta = faults.theta(replace(asked, scaling=DEFAULT)), faults.theta(asked)
        if listed.shape != theta.shape or np.all(np.abs(listed - theta) <= _SAME * np.abs(theta)):
            return None
        found = check(Dump("", "rope_freqs", frequencies=listed), asked).diagnosis
        if found is not None and found.certainty != "resembles" and found.code != "wrong-base":  # it is right
            return found
        inverted = np.all(np.abs(listed * theta - even**2) <= _SAME * even**2)
        seen_as = "rope_freqs.weight(inverted)" if inverted else "rope_freqs.weight"
        return Diagnosis("other-scaling", {"seen": seen_as, "asked": called(asked.scaling)})
    if here.kind == "default":
        return Diagnosis("missing-scaling", {"asked": called(there)})
    saying = [_said(one) for one in (here, there)]
    if here.kind == there.kind and all(_near(saying[0][name], saying[1][name]) for name in saying[0]):
        return None
    values: dict[str, Value] = {"seen": called(here), "asked": called(there)}
    differing = [name for name in _LISTED if not _near(saying[0][name], saying[1][name])]
    if values["seen"] == values["asked"] and differing:  # lists, or the length where they change
        for side, one in zip(values, (said[differing[0]] for said in saying), strict=True):
            ends = f"{one[0]:g}..{one[-1]:g}" if isinstance(one, tuple) else f"{one:g}"
            values[side] = f"longrope({differing[0]}={ends})"
    return Diagnosis("other-scaling", values)


def _said(scaling: Scaling) -> dict[str, Any]:
    """Return what a file can say of a scaling. Longrope's lists say by how much it stretches."""
    betas = {name: getattr(scaling, name) or usual for name, usual in _BETAS.items()}
    stretch = None if scaling.kind == "longrope" else scaling.stretch
    return {"stretch": stretch} | betas | {name: getattr(scaling, name) for name in _LISTED}


def _near(first: Any, second: Any) -> bool:
    """Return whether numbers, or lists of them, are equal in float32."""
    if first is None or second is None:
        return first is second
    if isinstance(first, tuple):
        return len(first) == len(second) and all(map(_near, first, second))
    return math.isclose(first, second, rel_tol=_SAME)
