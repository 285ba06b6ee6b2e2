"""A small config of every type that transformers builds as a causal language model.

Names of keys make the default config of a type small; small_configs.json has what that cannot do.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

# Key -> its small value, of the text part and of those for images and sound alike; what a type needs beside,
# keys of its config and those of a part after a point; settings of a type that its defaults do not show.
_TABLES = json.loads(Path(__file__).with_suffix(".json").read_text())
SMALL: dict[str, int] = {key: value for value, names in _TABLES["small"] for key in names.split()}
OWN: dict[str, dict[str, Any]] = _TABLES["own"]
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = _TABLES["variants"]
_IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def small(name: str) -> Any:
    """Return the config of a type, or of a variant, made small."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    model_type, more = VARIANTS.get(name, (name, {}))
    own = OWN.get(model_type, {}) | more
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        known = CONFIG_MAPPING[model_type]
        first = own.get("first", {})
        values = json.loads(known(**first).to_json_string(use_diff=False))
        changed = made_small(values)
        for path, value in own.items():
            if path == "first":
                continue
            inner = changed
            *folders, name = path.split(".")
            for folder in folders:
                inner = inner[folder]
            inner[name] = value
        return known(**{k: v for k, v in changed.items() if k != "model_type"})


def made_small(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config's values with the sizes of `SMALL`, and as few layers as hold one of each kind."""
    count = next((values[k] for k in ("num_hidden_layers", "n_layer", "num_layers") if values.get(k)), 0)
    lists = {k: v for k, v in values.items() if isinstance(v, list) and count > 1 and len(v) == count}
    chosen = _chosen(list(lists.values()), count)
    of_layers = values.get("per_layer_config") or {}
    if of_layers and not lists:
        raise ValueError("per_layer_config without a list of layers")
    result: dict[str, Any] = {}
    for key, value in values.items():
        if key == "per_layer_config" and value:
            own = {int(layer): made_small(inner) for layer, inner in value.items()}
            result[key] = {new: own[old] for new, old in enumerate(chosen) if old in own}
        elif isinstance(value, Mapping) and (key.endswith("_config") or key in ("encoder", "decoder")):
            result[key] = made_small(value)
        elif isinstance(value, list) and {"__float__": "Infinity"} in value:
            result[key] = [math.inf if isinstance(item, dict) else item for item in value]
        elif key in lists:
            result[key] = [value[i] for i in chosen]
        elif key.endswith(("_token_id", "_token_index")) and value is not None:
            result[key] = _IDS.get(key, 3)
        elif key in SMALL and isinstance(value, int) and not isinstance(value, bool):
            result[key] = SMALL[key]
        else:
            result[key] = value
    if "qk_rope_head_dim" in values and "head_dim" in values:  # there it is that of the rotated part
        result["head_dim"] = SMALL["qk_rope_head_dim"]
    if "kv_lora_rank" in values and values.get("num_key_value_heads"):
        result["num_key_value_heads"] = result["num_attention_heads"]
    for key in ("num_hidden_layers", "n_layer", "num_layers"):
        if key in result and isinstance(values[key], int):
            result[key] = len(chosen) if lists else min(4, values[key])
    return result


def _chosen(lists: Sequence[list[Any]], count: int) -> list[int]:
    """Return which layers to keep: the first and the last of each kind, four at least."""
    kinds = [repr([each[i] for each in lists]) for i in range(count)]
    ends = {
        i for kind in dict.fromkeys(kinds) for i in (kinds.index(kind), count - 1 - kinds[::-1].index(kind))
    }
    for i in range(count):
        if len(ends) >= 4:
            break
        ends.add(i)
    return sorted(ends)


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Keep the library's advice off the terminal."""
    import transformers

    transformers.logging.set_verbosity(50)  # type: ignore[no-untyped-call]
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def types() -> list[str]:
    """Return the model types of transformers' mapping of causal language models."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def build(model_type: str, folder: Path) -> str | None:
    """Write a small random model; return why it cannot be built, if it cannot."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    try:
        with silent():
            config = small(model_type)
            model = AutoModelForCausalLM.from_config(config)
            for name, values in model.named_parameters():
                if "bias" not in name and not values.any():  # a temperature of 0 would leave nothing to see
                    torch.nn.init.constant_(values, 0.5)
            model.save_pretrained(folder)
            if model.config.model_type not in types():  # a part of the model's; checkpoints have the whole
                config.save_pretrained(folder)
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:150]}"
    return None
