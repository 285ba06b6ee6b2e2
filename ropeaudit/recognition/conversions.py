"""What the conversion of a model lost: a file's rotary embedding against the one that its config declares.

What a file cannot say is not compared: whether YaRN's range is truncated, which layers rotate.
Letters: p pairs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

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
    both = (file.model.axes, declared.axes)
    here, there = ("/".join(map(str, one.sections)) if one else "none" for one in both)
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
        if {seen.scaling.kind, asked.scaling.kind} & {*faults.BY_PAIR}:
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
    """Return what is another scaling; None where frequencies are the same, short and long.

    What the base makes of them is told by itself: they are compared as if the base were right.
    """
    here, there = seen.scaling, asked.scaling
    if here.kind == "explicit" and not _near(seen.base, asked.base):
        exponents = 2 * np.arange(seen.pairs) / seen.rotary_dim
        listed = np.array(here.frequencies) * (seen.base / asked.base) ** exponents
        here = replace(here, frequencies=tuple(listed.tolist()))
    lengths = sorted({1, *(1 + 2 * int(one.length_before or 0) for one in (here, there))})
    both = [[replace(asked, scaling=one).for_positions(n) for one in (here, there)] for n in lengths]
    dumps = [(Dump("", "rope_freqs", frequencies=faults.theta(own)), right) for own, right in both]
    found = next((one for one in itertools.starmap(check, dumps) if not one.agrees), None)
    if found is None:
        return None
    if here.kind == "default":
        return Diagnosis("missing-scaling", {"asked": called(there)})
    if here.kind != "explicit":
        return Diagnosis("other-scaling", {"seen": _words(here), "asked": _words(there)})
    told = found.diagnosis
    if told is not None and told.certainty != "resembles" and told.code != "wrong-base":  # it is right
        return told
    even, theta = faults.theta(replace(asked, scaling=DEFAULT)), faults.theta(asked)
    inverted = np.all(np.abs(np.array(here.frequencies) * theta - even**2) <= _SAME * even**2)
    seen_as = "rope_freqs.weight(inverted)" if inverted else "rope_freqs.weight"
    return Diagnosis("other-scaling", {"seen": seen_as, "asked": called(there)})


def _words(scaling: Scaling) -> str:
    """Return a scaling in a word; of longrope its length and the ends of its lists."""
    listed = {name: value for name in ("short", "long") if (value := getattr(scaling, name))}
    if not listed:
        return called(scaling)
    ends = " ".join(f"{name}={value[0]:g}..{value[-1]:g}" for name, value in listed.items())
    return f"{scaling.kind}(original={scaling.original:g} {ends})"


def _near(first: float, second: float) -> bool:
    """Return whether numbers are equal in float32."""
    return math.isclose(first, second, rel_tol=_SAME)
