"""How many layers of each type a config.json lists, and which of them rotate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from ropeaudit.rope import hf_json, layers_of_models
from ropeaudit.rope.hf_config import ModelRope

_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")


def layer_words(config: Mapping[str, Any], model: ModelRope) -> str:
    """Return what a config says of its layers: "5 full_attention, 25 sliding_attention layers".

    Empty where it says nothing. no_rope_layers names, in spite of its name, with 1 the layers that rotate.
    Source: transformers 5.23.0, models/smollm3 and models/llama4 (read). Raises: BadInput.
    """
    part = hf_json.text_part(config)
    count = hf_json.count(part, _LAYERS)
    parts = [f"{count} layers"] if count else []
    kinds = part.get("layer_types")
    if isinstance(kinds, list) and kinds and all(isinstance(kind, str) for kind in kinds):
        counted = Counter(map(str, kinds))
        parts = [", ".join(f"{number} {kind}" for kind, number in counted.items()) + " layers"]
        if still := [kind for kind in counted if kind in _without(part)]:
            parts.append(f"no RoPE in {', '.join(still)} layers")
    elif (every := hf_json.count(part, ["sliding_window_pattern"])) and len(model.layers) > 1:
        share = f"{count // every} of them" if count else f"one in {every}"
        parts.append(f"{share} full_attention")
    marks, interval = part.get("no_rope_layers"), hf_json.count(part, ["no_rope_layer_interval"])
    if isinstance(marks, list) and marks:
        parts.append(f"RoPE in {sum(map(bool, marks))} of {len(marks)} layers (no_rope_layers)")
    elif interval:
        parts.append(f"no RoPE in one in {interval} (no_rope_layer_interval)")
    return "; ".join(parts)


def _without(part: Mapping[str, Any]) -> list[str]:
    """Return the layer types that do not rotate: their RoPE parameters are null, or the model's code says."""
    null = [key for key, value in hf_json.rope_dict(part).items() if value is None]
    alone = layers_of_models.sliding_alone(part, hf_json.model_type(part))
    return [*null, hf_json.LAYER_TYPES[0]] if alone else null


def of_each(config: Mapping[str, Any], model: ModelRope) -> dict[int, str]:
    """Return layer number -> its type, of those types that the model has a setting for. Raises: BadInput."""
    part = hf_json.text_part(config)
    kinds = part.get("layer_types")
    if isinstance(kinds, list):
        return {n: kind for n, kind in enumerate(kinds) if isinstance(kind, str) and kind in model.layers}
    every, count = hf_json.count(part, ["sliding_window_pattern"]), hf_json.count(part, _LAYERS)
    if not every or not count:
        return {}
    return {n: hf_json.LAYER_TYPES[0 if (n + 1) % every == 0 else 1] for n in range(count)}
