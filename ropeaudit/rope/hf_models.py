"""What single Hugging Face model types do: data/model_types.toml and data/class_defaults.toml.

Model types are named without the ending "_text".
"""

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ropeaudit import data

SIZES = (
    *("max_position_embeddings", "num_attention_heads", "num_key_value_heads"),
    *("head_dim", "qk_nope_head_dim", "qk_rope_head_dim"),
)


def is_one(model: str, fact: str) -> bool:
    """Return whether a list of data/model_types.toml names a type, or a beginning of it.

    >>> is_one("llama4", "interleaved"), is_one("gemma4_assistant", "scale_one"), is_one("llama", "no_rope")
    (True, True, False)
    """
    names = _library("model_types.toml")[fact]
    return any(model.startswith(name[:-1]) if name.endswith("*") else model == name for name in names)


def of_type(model: str, fact: str, usual: Any = None) -> Any:
    """Return what a table of data/model_types.toml says of a type; `usual` where it says nothing."""
    return _library("model_types.toml")[fact].get(model, usual)


@dataclass(frozen=True, slots=True)
class ClassDefault:
    """The defaults of a configuration class. name: the class, "" for none that is known.

    bases: layer type -> base, radians per token of pair i being base^(-2i/d); "" for layers of any type.
    sizes: those of `SIZES` that the class has a default for; others it computes, or has not.
    scaled: its RoPE parameters, where they ask for a scaling. takes_fraction: False where its code, without a
    scaling, rotates all dims whatever partial_rotary_factor says.
    """

    name: str
    bases: Mapping[str, float]
    sizes: Mapping[str, int]
    scaled: Mapping[str, Any]
    takes_fraction: bool

    def base(self, layer: str) -> float | None:
        """Return the base of a layer type; None where it is not known."""
        return self.bases.get(layer, self.bases.get(""))


def class_default(model: str) -> ClassDefault:
    """Return the defaults of a model type.

    >>> class_default("llama").name, class_default("gemma3").sizes["head_dim"]
    ('LlamaConfig', 256)
    """
    values = dict(_library("class_defaults.toml").get(model, {}))
    name, sizes = values.pop("class", ""), {key: values.pop(key) for key in SIZES if key in values}
    scaled, takes_fraction = values.pop("scaled", {}), values.pop("partial_rotary_factor", True)
    bases = {key.replace("rope_theta", ""): value for key, value in values.items()}
    return ClassDefault(name, bases, sizes, scaled, takes_fraction)


@functools.cache
def _library(file: str) -> dict[str, Any]:
    return tomllib.loads(data.text(file))
