"""Which layer types of a model rotate, by its config and by what the code of its type does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ropeaudit.errors import BadInput
from ropeaudit.rope import hf_json, hf_models
from ropeaudit.rope.hf_json import Config, NotRotated

_FULL, _SLIDING = hf_json.LAYER_TYPES[:2]


def rotating(config: Config, model: str, layers: dict[str, Config]) -> dict[str, Config]:
    """Return the RoPE parameters by layer type, of those types alone that rotate. Raises: BadInput."""
    kinds = config.get("layer_types")
    listed = set(map(str, kinds)) if isinstance(kinds, list) else set()
    layers = _with_bases(config, kinds if isinstance(kinds, list) else [], layers)
    if sliding_alone(config, model):
        if listed and _SLIDING not in listed:
            raise NotRotated.because(f"no layer is {_SLIDING}, and no other rotates in {model}")
        return {_SLIDING: layers.get(_SLIDING, layers.get(_FULL, {}))}
    if not listed or len(layers) < 2:
        return layers
    return {name: rope for name, rope in layers.items() if name in listed} or layers


def sliding_alone(config: Config, model: str) -> bool:
    """Return whether no layer rotates but the sliding ones."""
    if model not in hf_models.SLIDING_ALONE or config.get("force_rope"):
        return False
    return not model.startswith("exaone") or config.get("sliding_window", 1) is not None


def _with_bases(config: Config, kinds: list[Any], layers: dict[str, Config]) -> dict[str, Config]:
    """Return them with the bases that layer_rope_theta gives, a layer each; 0 does not rotate."""
    bases = config.get(hf_json.LAYER_BASES)
    if bases is None:
        return layers
    if not isinstance(bases, list) or not bases:
        raise BadInput(f"{hf_json.LAYER_BASES} = {hf_json.shown(bases)} is not a list of numbers")
    given = [hf_json.number(f"{hf_json.LAYER_BASES}[{n}]", base) for n, base in enumerate(bases)]
    if not any(given):
        raise BadInput(f"{hf_json.LAYER_BASES} holds zeros alone; there is no RoPE to audit")
    common: Mapping[str, Any] = next(iter(layers.values()), {})
    if len(set(filter(None, given))) == 1:
        return {_FULL: {**common, "rope_theta": max(given)}}
    results: dict[str, Config] = {}
    for kind, base in zip(kinds or [_FULL] * len(given), given, strict=False):
        if base and results.setdefault(kind, {**common, "rope_theta": base})["rope_theta"] != base:
            raise BadInput(
                f"{hf_json.LAYER_BASES} gives several bases to {kind} layers, which is not supported"
            )
    return results
