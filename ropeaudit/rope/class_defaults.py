"""The base and the length that a model's configuration class takes where a config.json gives none, as data.

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


@dataclass(frozen=True, slots=True)
class ClassDefault:
    """The defaults of a configuration class. name: the class, "" for none that is known.

    bases: layer type -> base, radians per token of pair i being base^(-2i/d); "" for layers of any type.
    positions: max_position_embeddings, None where the class has none.
    """

    name: str
    bases: Mapping[str, float]
    positions: int | None

    def base(self, layer: str) -> float | None:
        """Return the base of a layer type; None where it is not known."""
        return self.bases.get(layer, self.bases.get(""))


def of(model: str) -> ClassDefault:
    """Return the defaults of a model type, which is named without the ending "_text".

    >>> of("llama").name, of("llama").base("full_attention")
    ('LlamaConfig', 10000.0)
    """
    values = _library().get(model, {})
    others = {key: value for key, value in values.items() if key not in ("class", "positions")}
    bases = {key.replace("rope_theta", ""): value for key, value in others.items()}
    return ClassDefault(values.get("class", ""), bases, values.get("positions"))


@functools.cache
def _library() -> dict[str, dict[str, Any]]:
    return tomllib.loads(data.text("class_defaults.toml"))
