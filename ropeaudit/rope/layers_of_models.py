"""Which layer types of a model rotate, by its config and its code."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from ropeaudit.errors import BadInput
from ropeaudit.rope import hf_json
from ropeaudit.rope.hf_json import Config, NotRotated

_FULL, _SLIDING = hf_json.LAYER_TYPES[:2]
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_PATTERN, _INTERVAL = "sliding_window_pattern", "no_rope_layer_interval"
_LISTED = 8  # numbers of layers that a sentence lists
_USUAL_INTERVAL = 4  # every so many layers one does not rotate, by the code of some types
_MOST = 10_000  # layers that are counted one by one


def rotating(config: Config, model: str, layers: dict[str, Config]) -> dict[str, Config]:
    """Return the RoPE parameters of the types that rotate. Raises: BadInput."""
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
    if not hf_json.is_one(model, "sliding_alone") or config.get("force_rope"):
        return False
    return not hf_json.is_one(model, "all_without_window") or config.get("sliding_window", 1) is not None


def kinds_of_layers(config: Config, model: str) -> list[str]:
    """Return the type of each layer, empty where the config does not say it. Raises: BadInput.

    sliding_window_pattern is an interval, every so many layers being a full one, or letters: "LLLG", and the
    last layer is a full one.
    Source: transformers 5.23.0, models/cohere2 and models/exaone4 (read).
    """
    kinds, count = config.get("layer_types"), hf_json.count(config, LAYERS)
    if isinstance(kinds, list):
        return [kind if isinstance(kind, str) else "" for kind in kinds]
    pattern = config.get(_PATTERN, hf_json.of_type(model, "sliding_pattern"))
    if not pattern or not count or count > _MOST:
        return []
    if isinstance(pattern, str):
        letters = itertools.islice(itertools.cycle(pattern), count - 1)
        return [_SLIDING if letter == "L" else _FULL for letter in letters] + [_FULL]
    every = hf_json.needed({_PATTERN: pattern}, [_PATTERN])
    return [_FULL if (n + 1) % every == 0 else _SLIDING for n in range(count)]


def unrotated(config: Config, model: str) -> str:
    """Return which layers of a model that rotates do not rotate, in words; empty where all do.

    Raises: BadInput, NotRotated.
    """
    layers, count, why = _still(config, model)
    if not layers:
        return why if layers is None else ""
    if len(layers) == count:
        raise NotRotated(f"no layer of {count} rotates ({why}); there is no RoPE to audit")
    named = ", ".join(map(str, layers[:_LISTED])) + (f", ... {layers[-1]}" if len(layers) > _LISTED else "")
    verb = "does" if len(layers) == 1 else "do"
    return f"{len(layers)} of {count} layers {verb} not rotate: {named} ({why})"


def unrotated_layers(config: Config, model: str) -> list[int]:
    """Return the known numbers of layers that do not rotate. Raises: BadInput."""
    bases = config.get(hf_json.LAYER_BASES)
    if isinstance(bases, list) and not config.get("no_rope_layers"):
        return [n for n, base in enumerate(bases) if not base]
    return _still(config, model)[0] or []


def _still(config: Config, model: str) -> tuple[list[int] | None, int, str]:
    """Return the layers that do not rotate, counted from 0, of how many, and why.

    None and a sentence where their numbers are not known. no_rope_layers has, in spite of its name, 1 for the
    layers that rotate; what is past the last one is read by none. Raises: BadInput.
    Source: transformers 5.23.0, models/smollm3 and models/llama4 (read).
    """
    marks, by_code = config.get("no_rope_layers"), hf_json.is_one(model, "no_rope_layers")
    if marks is not None and not isinstance(marks, list):
        raise BadInput(f"no_rope_layers = {hf_json.shown(marks)} is not a list of 0 and 1")
    if marks:
        count = hf_json.count(config, LAYERS)
        if odd := [mark for mark in marks if mark not in (0, 1)]:
            seen = hf_json.shown(odd[0])
            raise BadInput(f"no_rope_layers holds {seen}; 1 is a layer that rotates, 0 another")
        if count and len(marks) < count:
            raise BadInput(
                f"no_rope_layers has {len(marks)} values for {LAYERS[0]} = {count}; give one for each layer"
            )
        marks = marks[: count or None]
        return [n for n, mark in enumerate(marks) if not mark], len(marks), "no_rope_layers"
    if by_code and marks is not None and not hf_json.is_one(model, "no_rope_layers_empty"):
        raise BadInput(
            f"no_rope_layers is empty, and the code of {model} reads it for each layer; leave it out"
        )
    every, why = hf_json.count(config, [_INTERVAL]), _INTERVAL
    if every is None and by_code:
        state, every = "missing" if marks is None else "empty", _USUAL_INTERVAL
        why = f"no_rope_layers is {state}: each {every}th, by the code of {model}"
    if every is not None:
        count = hf_json.count(config, LAYERS)
        if not count or count > _MOST:
            return None, 0, f"one layer in {every} does not rotate ({why})"
        return [n for n in range(count) if (n + 1) % every == 0], count, why
    given = hf_json.rope_dict(config)
    still = [key for key, value in given.items() if value is None and key in hf_json.LAYER_TYPES]
    if sliding_alone(config, model) and _FULL not in still:
        still.append(_FULL)
    kinds, why = kinds_of_layers(config, model) if still else [], " and ".join(still)
    if still and not kinds:
        return None, 0, f"{why} layers do not rotate"
    return [n for n, kind in enumerate(kinds) if kind in still], len(kinds), why


def _with_bases(config: Config, kinds: list[Any], layers: dict[str, Config]) -> dict[str, Config]:
    """Return them with the bases of layer_rope_theta; 0 does not rotate."""
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
