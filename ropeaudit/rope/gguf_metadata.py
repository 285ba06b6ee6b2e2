"""The rotary embedding that llama.cpp makes of a GGUF file's metadata and divisors.

Source: llama.cpp, src/llama-model.cpp (what keys default to, which architectures rotate which pairs),
src/llama-context.cpp (YaRN's attention factor) and ggml's rope operator (frequencies are divided), read 2026.
Letters: p pairs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ropeaudit.errors import BadInput, RopeAuditError
from ropeaudit.rope.axes import Axes, Layout
from ropeaudit.rope.hf_config import ModelRope
from ropeaudit.rope.hf_json import NotRotated
from ropeaudit.rope.model_types import is_listed
from ropeaudit.rope.scaled import mscale
from ropeaudit.rope.scaling import DEFAULT, Scaling
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.tensor_files.gguf_files import GgufFile

_FULL, _SLIDING = "full_attention", "sliding_attention"
_TYPES = ("none", "linear", "yarn", "longrope")
_FREQS = "rope_freqs.weight"
_SHORT = "rope_factors_short.weight"
_LONG = "rope_factors_long.weight"


@dataclass(frozen=True, slots=True)
class GgufRope:
    """The rotary embedding of a file. missing: absent key -> llama.cpp's default, in words.

    divisors: the names of its tensors that divide frequencies.
    """

    architecture: str
    model: ModelRope
    missing: Mapping[str, str]
    divisors: tuple[str, ...]

    @property
    def setting(self) -> RopeSetting:
        """The setting of its layers with full attention."""
        return self.model.layers[_FULL]


def of_file(file: GgufFile, name: str, source: str) -> GgufRope:
    """Return the rotary embedding of a file. Raises: BadInput."""
    try:
        if is_listed(file.architecture, "gguf_no_rope"):
            raise NotRotated.because(f"architecture {file.architecture}")
        heads = _needed(file, "attention.head_count")
        head_dim = _natural_number(file, "attention.key_length_mla") or _natural_number(
            file, "attention.key_length"
        )
        missing = {}
        if head_dim is None:
            head_dim = _needed(file, "embedding_length") // heads
            missing["attention.key_length"] = f"embedding_length / head_count, {head_dim}"
        rotary_dim = _natural_number(file, "rope.dimension_count")
        if rotary_dim is None:
            rotary_dim, missing["rope.dimension_count"] = head_dim, f"all {head_dim} dims"
        base = file.number("rope.freq_base")
        if base is None:
            base, missing["rope.freq_base"] = 10000.0, "10000"
        context = _natural_number(file, "context_length")
        scaling = _scaling(file, context, rotary_dim, base, missing)
        layout: Layout = "interleaved" if is_listed(file.architecture, "gguf_neighbours") else "half"
        softmax = file.number("attention.scale") or None
        setting = RopeSetting.of(head_dim, rotary_dim, base, layout, softmax, scaling)
        layers = {_FULL: setting}
        if (sliding := file.number("rope.freq_base_swa")) is not None:  # never scaled
            dims = _natural_number(file, "rope.dimension_count_swa") or rotary_dim
            layers[_SLIDING] = replace(setting, base=sliding, rotary_dim=dims, scaling=DEFAULT)
        axes, sections = None, file.values.get("rope.dimension_sections")
        if isinstance(sections, tuple) and any(sections):  # time, height, width, and one more that is 0
            t, h, w = (int(one) for one in (*sections, 0, 0, 0)[:3])
            in_turns = is_listed(file.architecture, "gguf_sections_in_turns")
            axes = Axes((t, h, w), "interleaved" if in_turns else "split")
        model = ModelRope(
            name=name,
            source=source,
            heads=heads,
            kv_heads=_natural_number(file, "attention.head_count_kv") or heads,
            declared=context,
            layers=layers,
            axes=axes,
        )
        return GgufRope(file.architecture, model, missing, tuple(file.divisors))
    except NotRotated as error:
        raise NotRotated(error.typed, where=source) from None
    except RopeAuditError as error:
        raise BadInput(f"{source}: {error.typed}") from None


def _scaling(
    file: GgufFile,
    context: int | None,
    rotary_dim: int,
    base: float,
    missing: dict[str, str],
) -> Scaling:
    """Return the scaling. missing: absent keys are added to it."""
    kind = file.values.get("rope.scaling.type")
    if kind is not None and kind not in _TYPES:
        raise BadInput(f"rope.scaling.type = {str(kind)[:40]!r} is not one of {', '.join(_TYPES)}")
    stretch = file.number("rope.scaling.factor") or file.number("rope.scale_linear") or 1.0
    stretch = 1.0 if kind == "none" else stretch
    if not (math.isfinite(stretch) and stretch > 0):
        raise BadInput(f"rope.scaling.factor = {stretch:g} is no finite number above 0")
    original = file.number("rope.scaling.original_context_length")
    if original is None and kind in ("yarn", "longrope"):
        missing["rope.scaling.original_context_length"] = f"context_length, {context}"
        original = context
    own = file.number("rope.scaling.attn_factor") or 1.0
    if _SHORT in file.divisors and _LONG in file.divisors:
        short, long = (tuple(file.divisors[name].tolist()) for name in (_SHORT, _LONG))
        return Scaling("longrope", short=short, long=long, original=original or context, attention_factor=own)
    given = own if own != 1 else None
    yarn = kind == "yarn" and stretch > 1 and original is not None
    if yarn and (every := file.number("rope.scaling.yarn_log_multiplier")):  # weights of DeepSeek's files
        first = every if file.architecture == "deepseek2" and every != 1 else 1.0
        given = own * (mscale(stretch, first) / mscale(stretch, every))
    elif yarn and own != 1:
        given = own * mscale(stretch, 1.0)
    if yarn and _FREQS not in file.divisors:
        fast, slow = (file.number(f"rope.scaling.yarn_beta_{name}") or None for name in ("fast", "slow"))
        return Scaling(
            "yarn", factor=stretch, original=original, beta_fast=fast, beta_slow=slow, attention_factor=given
        )
    if _FREQS in file.divisors or stretch < 1 or given is not None:  # which no other kind has
        listed = file.divisors.get(_FREQS, np.ones(rotary_dim // 2)).tolist()
        if len(listed) != rotary_dim // 2:
            raise BadInput(f"{_FREQS} has {len(listed)} elements and {rotary_dim // 2} pairs are rotated")
        if not all(math.isfinite(one) and one > 0 for one in listed):
            raise BadInput(f"{_FREQS} holds divisors that are no finite number above 0")
        theta = tuple(base ** (-2 * i / rotary_dim) / stretch / one for i, one in enumerate(listed))
        return Scaling("explicit", frequencies=theta, attention_factor=given)
    return DEFAULT if stretch == 1 else Scaling("linear", factor=stretch, original=original)


def _natural_number(file: GgufFile, key: str) -> int | None:
    """Read a whole number above 0; None if it is missing or 0. Raises: BadInput."""
    value = file.number(key)
    if value is not None and (value != int(value) or value < 0):
        raise BadInput(f"{file.architecture}.{key} = {value:g} is no whole number from 0 up")
    return int(value) if value else None


def _needed(file: GgufFile, key: str) -> int:
    """Return a whole number. Raises: BadInput where there is none."""
    value = _natural_number(file, key)
    if value is None:
        raise BadInput(f"{file.architecture}.{key} is missing; convert the model again")
    return value
