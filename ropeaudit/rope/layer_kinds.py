"""How many layers of each type a config.json lists, and which of them rotate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from ropeaudit.rope import hf_json, layers_of_models
from ropeaudit.rope.hf_config import ModelRope


def layer_words(config: Mapping[str, Any], model: ModelRope) -> str:
    """Return what a config says of its layers: "5 full_attention, 25 sliding_attention layers".

    Empty where it says nothing. Raises: BadInput.
    """
    part = hf_json.text_part(config)
    count = hf_json.count(part, layers_of_models.LAYERS)
    parts = [f"{count} layers"] if count else []
    kinds, every = part.get("layer_types"), part.get("sliding_window_pattern")
    if isinstance(kinds, list) and kinds and all(isinstance(kind, str) for kind in kinds):
        counted = Counter(map(str, kinds))
        parts = [", ".join(f"{number} {kind}" for kind, number in counted.items()) + " layers"]
    elif isinstance(every, int) and every > 0 and len(model.layers) > 1:
        share = f"{count // every} of them" if count else f"one in {every}"
        parts.append(f"{share} full_attention")
    return "; ".join(filter(None, [*parts, model.unrotated]))


def of_each(config: Mapping[str, Any], model: ModelRope) -> dict[int, str]:
    """Return layer number -> its type, of those types that the model has a setting for. Raises: BadInput."""
    part = hf_json.text_part(config)
    kinds = layers_of_models.kinds_of_layers(part, hf_json.model_type(part))
    return {n: kind for n, kind in enumerate(kinds) if kind in model.layers}
