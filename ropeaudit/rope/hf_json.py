"""Reading of a config.json, also damaged or hostile: keys, checked values, rotating layers.

A message tells on one line the key, its value, and what would be right. Facts about model types are in
`ropeaudit.rope.model_types`.
"""

from __future__ import annotations

import codecs
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ropeaudit.errors import BadInput
from ropeaudit.rope.model_types import is_listed, of_type, unread
from ropeaudit.rope.scaling import HF_NAMES

Config = Mapping[str, Any]

DICTS = ("rope_scaling", "rope_parameters")
BASES = ("rope_theta", "rotary_emb_base")
FRACTIONS = ("partial_rotary_factor", "rotary_pct", "rope_pct")
LOCAL_BASE, LAYER_BASES = "rope_local_base_freq", "layer_rope_theta"
LAYER_TYPES = (
    *("full_attention", "sliding_attention", "chunked_attention", "hybrid", "hybrid_sliding"),
    *("main", "compress"),  # DeepSeek-V4
)
HEADS = ("num_attention_heads", "n_head", "n_heads")
HIDDEN = ("hidden_size", "n_embd", "d_model")
POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
MISSING = "is missing, and its default is not in the file; add it there"
_TOP = {*DICTS, *BASES, *FRACTIONS, LOCAL_BASE, "rotary", "rotary_dim", "rope_interleave", "qk_rope_head_dim"}
# which layers do not rotate; those that do are audited
_TOP |= {"no_rope_layers", "no_rope_layer_interval", "use_mem_rope", LAYER_BASES}
STRAY = (*DICTS, *BASES)  # keys of RoPE that are named where a type does not read them
INNER = {*HF_NAMES, "rope_theta", "rope_type", "type", "mrope_section", "mrope_interleaved"}
# no frequencies: whether weights were trained with it; how queries grow with position
INNER |= {"finetuned", "llama_4_scaling_beta", "interleaved"}  # the last beside mrope_interleaved
_RULES = ("use_dynamic_ntk", "attention_head_dim")  # change frequencies or heads by unknown rules

_FULL, _SLIDING = LAYER_TYPES[:2]
_PATTERN, _INTERVAL = "sliding_window_pattern", "no_rope_layer_interval"
_LISTED = 8  # numbers of layers that a sentence lists
_USUAL_INTERVAL = 4  # every so many layers one does not rotate, by the code of some types
_MOST = 10_000  # layers that are counted one by one

VERSION = "5.23.0"  # of transformers, of which the tables are
_LARGEST_FILE = 2**24  # bytes; configs are kilobytes
_LARGEST = 1e18  # of any number; keeps integers of a thousand digits from float() and str()
_DIGITS = 40  # of an integer that are read: one with more is too large to use


class NotRotated(BadInput):
    """A config of a model that does not encode positions by rotation."""

    @classmethod
    def because(cls, reason: str) -> NotRotated:
        """Return the error with its reason."""
        return cls(f"the model does not encode positions by rotation ({reason}); there is no RoPE to audit")


class Unjudged(BadInput):
    """A file that is no model's config, or a config that cannot be judged."""


def load(path: str) -> Any:
    """Read a JSON file, or the config.json in a folder. Raises: BadInput."""
    file = Path(path)
    try:
        if folder := file.is_dir():
            file /= "config.json"
        if not file.is_file():
            told = "a folder without config.json" if folder else "no such file, and nothing is downloaded"
            raise FileNotFoundError(0, told)
        with file.open("rb") as stream:
            content = stream.read(_LARGEST_FILE + 1)
        if len(content) > _LARGEST_FILE:
            raise BadInput("is larger than 16 MiB; give a config.json, which is a few kilobytes")
        if content.startswith(codecs.BOM_UTF8):
            fault = "begins with a byte-order mark, with which transformers does not load it"
            raise BadInput(f"{fault}; save it as UTF-8 without one")
        text = content.decode("utf-8")
        return json.loads(text, object_pairs_hook=_unique, parse_int=lambda digits: int(digits[:_DIGITS]))
    except RecursionError:
        reason = "is nested too deeply; give the config.json of a model"
    except BadInput as error:
        reason = str(error)
    except OSError as error:
        reason = f"{error.strerror or error}; give a file that can be read"
    except ValueError as error:
        reason = f"is not JSON in UTF-8: {str(error)[:100]}; give a config.json"
    raise BadInput(f"{path!r}: {reason}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise BadInput(f"the key {shown(key)} stands there twice in one object; keep one")
        values[key] = value
    return values


def shown(value: Any) -> str:
    """Return a short text on one line for any value, however long or deep."""
    if isinstance(value, str):
        return repr(value if len(value) <= 40 else value[:37] + "...")
    if value is None or isinstance(value, (bool, float)):
        return json.dumps(value)
    if isinstance(value, int):
        return str(value) if abs(value) < _LARGEST else "an integer beyond 1e18"
    return "an object" if isinstance(value, Mapping) else f"a {type(value).__name__}"


def first(config: Config, keys: Sequence[str]) -> tuple[str, Any]:
    """Return the first of some keys that has a value, and the value; else the first key and None."""
    return next(((key, config[key]) for key in keys if config.get(key) is not None), (keys[0], None))


def number(key: str, value: Any) -> float:
    """Return a JSON number as a float. Raises: BadInput for others, or beyond 1e18."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadInput(f"{key} = {shown(value)} is not a number")
    if not -_LARGEST <= value <= _LARGEST:
        raise BadInput(f"{key} = {shown(value)} is not a finite number up to 1e18")
    return float(value)


def numbers(key: str, value: Any) -> float | tuple[float, ...]:
    """Return a JSON number or a list of at most 2^15 numbers. Raises: BadInput."""
    if not isinstance(value, (list, tuple)):
        return number(key, value)
    if len(value) > 2**15:
        raise BadInput(f"{key} is a list of {len(value)} elements; give one per pair")
    return tuple(number(f"{key}[{i}]", item) for i, item in enumerate(value))


def count(config: Config, keys: Sequence[str], largest: int = 2**16) -> int | None:
    """Return a positive integer under one of some spellings, or None. Raises: BadInput."""
    key, value = first(config, keys)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= largest:
        raise BadInput(f"{key} = {shown(value)} is not an integer from 1 to {largest}; give one")
    return value


def needed(config: Config, keys: Sequence[str], largest: int = 2**16) -> int:
    """Return a positive integer under one of some keys. Raises: BadInput if it is missing."""
    value = count(config, keys, largest)
    if value is None:
        raise BadInput(f"{first(config, keys)[0]} {MISSING}")
    return value


def flag(config: Config, key: str) -> bool | None:
    """Return a boolean, or None if it is not given. Raises: BadInput."""
    value = config.get(key)
    if value is not None and not isinstance(value, bool):
        raise BadInput(f"{key} = {shown(value)} is not true or false")
    return value


def check_keys(config: Config, model: str = "") -> None:
    """Raise BadInput for an unknown key about RoPE outside the RoPE parameters."""
    known = _TOP | {of_type(model, "base_times", ""), *of_type(model, "bases", {}).values()}
    known |= {*of_type(model, "rotates_if", {}), *of_type(model, "unjudged", {})}
    for key, value in config.items():
        if not isinstance(key, str):
            raise BadInput(f"the key {shown(key)} is not text")
        about = key in _RULES or key.startswith(("rope", "rotary")) or "rope_" in key
        if about and value is not None and value is not False:
            check_known("key", key, known)


def check_known(called: str, key: str, known: Iterable[str] = INNER) -> None:
    """Raise BadInput for an unknown name. called: its kind, for the message."""
    if key not in known:
        listed = sorted(filter(None, known))
        raise BadInput(f"the {called} {shown(key)} is not understood; {nearest(key, listed)}")


def nearest(given: object, known: Sequence[str]) -> str:
    """Return a question about the names nearest to an unknown one, else all that are known."""
    from difflib import get_close_matches  # in-function: it is needed for errors alone

    close = " or ".join(get_close_matches(str(given), known, n=2, cutoff=0.75))
    return f"did you mean {close}?" if close else f"known: {', '.join(known)}"


def rope_dict(config: Config) -> Config:
    """Return the dict of RoPE parameters, empty if there is none. Raises: BadInput."""
    given: list[Config] = []
    for key in DICTS:
        value = config.get(key)
        if value is not None and not isinstance(value, Mapping):
            raise BadInput(f"{key} = {shown(value)} is not an object {{...}} or null")
        given += [value] if value else []
    if len(given) == 2 and given[0] != given[1]:
        raise BadInput("rope_scaling and rope_parameters are both given and differ; keep one")
    return given[0] if given else {}


def with_usual_names(config: Config, model: str) -> Config:
    """Rename a model type's own keys to the usual ones, and drop keys that it does not read."""
    names: Mapping[str, str] = of_type(model, "names", {})
    gone = {*names.values(), *of_type(model, "ignored", ()), *(own.partition(".")[0] for own in names)}
    gone |= unread(model)
    usual = {key: value for key, value in config.items() if key not in gone}
    for own, name in names.items():
        outer, _, inner = own.rpartition(".")
        holder = config.get(outer) if outer else config
        if not isinstance(holder, Mapping) or inner not in holder:
            continue
        place, _, key = name.rpartition(".")
        if place:
            usual[place] = {**usual.get(place, {}), key: holder[inner]}
        else:
            usual[key] = holder[inner]
    return usual


def by_layer(config: Config, given: Config) -> dict[str, Config]:
    """Return the RoPE parameters of each layer type, empty if none is named. Raises: BadInput.

    Parameters beside the layer types count for all of them.
    """
    layers = {key: value for key, value in given.items() if isinstance(value, Mapping)}
    listed = config.get("layer_types")
    own = [one for one in listed if isinstance(one, str)] if isinstance(listed, list) else []
    known = {*LAYER_TYPES, *own}
    for name in layers:
        check_known("layer type", name, known)
    # A layer type of null does not rotate.
    rest = {k: v for k, v in given.items() if k not in layers and not (v is None and k in known)}
    if not layers and len(rest) < len(given):
        raise BadInput("every layer type of the RoPE parameters is null; there is no RoPE to audit")
    return {name: {**rest, **rope} for name, rope in layers.items()}


def of_layers(config: Config, layer: str, key: str) -> int | None:
    """Return the value of a key in per_layer_config for layers of a type; None if not given.

    Raises: BadInput if layers of the type have different values.
    """
    given, kinds = config.get("per_layer_config"), config.get("layer_types")
    if not isinstance(given, Mapping) or not isinstance(kinds, list):
        return None
    own = {int(n): inner for n, inner in given.items() if str(n).isdigit() and isinstance(inner, Mapping)}
    members = [n for n, kind in enumerate(kinds) if kind == layer]
    values = {count(own.get(n, {}), [key]) for n in members}
    if len(values) > 1:
        raise BadInput(f"per_layer_config gives several {key} to {layer} layers, which is not supported")
    return next(iter(values), None)


def rotating(config: Config, model: str, layers: dict[str, Config]) -> dict[str, Config]:
    """Return the RoPE parameters of the layer types that rotate. Raises: BadInput."""
    kinds = kinds_of_layers(config, model)
    listed = set(kinds)
    layers = _with_bases(config, kinds, layers)
    if sliding_alone(config, model):
        if listed and _SLIDING not in listed:
            raise NotRotated.because(f"no layer is {_SLIDING}, and no other rotates in {model}")
        return {_SLIDING: layers.get(_SLIDING, layers.get(_FULL, {}))}
    if not listed or len(layers) < 2:
        return layers
    return {name: rope for name, rope in layers.items() if name in listed} or layers


def sliding_alone(config: Config, model: str) -> bool:
    """Return whether no layer rotates but the sliding ones."""
    if not is_listed(model, "sliding_alone") or config.get("force_rope"):
        return False
    return not is_listed(model, "all_without_window") or config.get("sliding_window", 1) is not None


def kinds_of_layers(config: Config, model: str) -> list[str]:
    """Return the type of each layer, empty if the config does not give them. Raises: BadInput.

    sliding_window_pattern is an interval, every so many layers being a full one, or letters: "LLLG", and the
    last layer is a full one.
    Source: transformers 5.23.0, models/cohere2 and models/exaone4 (read).
    """
    kinds, total = config.get("layer_types"), count(config, LAYERS)
    if isinstance(kinds, list):
        return [kind if isinstance(kind, str) else "" for kind in kinds]
    pattern = config.get(_PATTERN, of_type(model, "sliding_pattern"))
    if not pattern or not total or total > _MOST:
        return []
    if isinstance(pattern, str):
        letters = itertools.islice(itertools.cycle(pattern), total - 1)
        return [_SLIDING if letter == "L" else _FULL for letter in letters] + [_FULL]
    every = needed({_PATTERN: pattern}, [_PATTERN])
    return [_FULL if (n + 1) % every == 0 else _SLIDING for n in range(total)]


def unrotated(config: Config, model: str) -> tuple[list[int], str]:
    """Return the known layers that do not rotate, and a sentence about them.

    Layers are counted from 0. Raises: BadInput, NotRotated where none rotates.
    """
    layers, total, why = _still(config, model)
    if not layers:
        return [], why if layers is None else ""
    if len(layers) == total:
        raise NotRotated(f"no layer of {total} rotates ({why}); there is no RoPE to audit")
    named = ", ".join(map(str, layers[:_LISTED])) + (f", ... {layers[-1]}" if len(layers) > _LISTED else "")
    verb = "does" if len(layers) == 1 else "do"
    return layers, f"{len(layers)} of {total} layers {verb} not rotate: {named} ({why})"


def _still(config: Config, model: str) -> tuple[list[int] | None, int, str]:
    """Return the layers that do not rotate, counted from 0, the number of layers, and the reason.

    None and a sentence if they are not known. no_rope_layers has, despite its name, 1 for layers that
    rotate; values past the last layer are unread. Raises: BadInput.
    Source: transformers 5.23.0, models/smollm3 and models/llama4 (read).
    """
    key = of_type(model, "still", "no_rope_layers")
    marks, by_code = config.get(key), is_listed(model, "no_rope_layers")
    if marks is not None and not isinstance(marks, list):
        raise BadInput(f"no_rope_layers = {shown(marks)} is not a list of 0 and 1")
    if marks:
        total = count(config, LAYERS)
        if odd := [mark for mark in marks if mark not in (0, 1)]:
            seen = shown(odd[0])
            raise BadInput(f"no_rope_layers holds {seen}; 1 is a layer that rotates, 0 another")
        if total and len(marks) < total:
            raise BadInput(
                f"no_rope_layers has {len(marks)} values for {LAYERS[0]} = {total}; give one for each layer"
            )
        marks = marks[: total or None]
        return [n for n, mark in enumerate(marks) if not mark], len(marks), "no_rope_layers"
    if isinstance(bases := config.get(LAYER_BASES), list):
        return [n for n, base in enumerate(bases) if not base], len(bases), LAYER_BASES
    if by_code and marks is not None and not is_listed(model, "no_rope_layers_empty"):
        raise BadInput(
            f"no_rope_layers is empty, and the code of {model} reads it for each layer; leave it out"
        )
    every, why = count(config, [_INTERVAL]), _INTERVAL
    if every is None and by_code:
        state, every = "missing" if marks is None else "empty", _USUAL_INTERVAL
        why = f"no_rope_layers is {state}: each {every}th, by the code of {model}"
    if every is not None:
        total = count(config, LAYERS)
        if not total or total > _MOST:
            return None, 0, f"one layer in {every} does not rotate ({why})"
        return [n for n in range(total) if (n + 1) % every == 0], total, why
    given = rope_dict(config)
    still = [key for key, value in given.items() if value is None and key in LAYER_TYPES]
    if sliding_alone(config, model) and _FULL not in still:
        still.append(_FULL)
    kinds, why = kinds_of_layers(config, model) if still else [], " and ".join(still)
    if still and not kinds:
        return None, 0, f"{why} layers do not rotate"
    return [n for n, kind in enumerate(kinds) if kind in still], len(kinds), why


def _with_bases(config: Config, kinds: list[Any], layers: dict[str, Config]) -> dict[str, Config]:
    """Set the bases of layer_rope_theta, by layer type; layers with 0 do not rotate."""
    bases = config.get(LAYER_BASES)
    if bases is None:
        return layers
    if not isinstance(bases, list) or not bases:
        raise BadInput(f"{LAYER_BASES} = {shown(bases)} is not a list of numbers")
    given = [number(f"{LAYER_BASES}[{n}]", base) for n, base in enumerate(bases)]
    if not any(given):
        raise BadInput(f"{LAYER_BASES} holds zeros alone; there is no RoPE to audit")
    common: Mapping[str, Any] = next(iter(layers.values()), {})
    if len(set(filter(None, given))) == 1:
        return {_FULL: {**common, "rope_theta": max(given)}}
    results: dict[str, Config] = {}
    for kind, base in zip(kinds or [_FULL] * len(given), given, strict=False):
        if base and results.setdefault(kind, {**common, "rope_theta": base})["rope_theta"] != base:
            raise BadInput(f"{LAYER_BASES} gives several bases to {kind} layers, which is not supported")
    return results
