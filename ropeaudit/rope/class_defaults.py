"""What a model's configuration class takes where its config gives none: base, scaling, sizes.

`data/class_defaults.toml` is what the classes of transformers 5.23.0 say, text part by text part;
`tests/rope/test_class_defaults.py` compares it with them, and writes it.
"""

from __future__ import annotations

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


def of(model: str) -> ClassDefault:
    """Return the defaults of a model type, which is named without the ending "_text".

    >>> of("llama").name, of("llama").base("full_attention"), of("gemma3").sizes["head_dim"]
    ('LlamaConfig', 10000.0, 256)
    """
    values = dict(_library().get(model, {}))
    name, sizes = values.pop("class", ""), {key: values.pop(key) for key in SIZES if key in values}
    scaled, takes_fraction = values.pop("scaled", {}), values.pop("partial_rotary_factor", True)
    bases = {key.replace("rope_theta", ""): value for key, value in values.items()}
    return ClassDefault(name, bases, sizes, scaled, takes_fraction)


@functools.cache
def _library() -> dict[str, dict[str, Any]]:
    return tomllib.loads(data.text("class_defaults.toml"))
