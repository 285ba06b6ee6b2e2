"""Named models: the settings in data/models.toml, each with where it was read."""

from __future__ import annotations

import functools

from ropeaudit import data
from ropeaudit.errors import UnknownName
from ropeaudit.rope import scaling
from ropeaudit.rope.hf_config import ModelRope
from ropeaudit.rope.setting import RopeSetting

# settings of much-used models: bases, scalings, head sizes, partial, interleaved
USUAL = (
    *("llama-2-7b", "llama-3.1-8b", "llama-3.2-1b", "qwen3-8b", "gemma-2-9b", "gemma-3-4b"),
    *("phi-3.5-mini", "gpt-oss-20b", "deepseek-v3", "gpt-neox-20b"),
)


def named(name: str) -> ModelRope:
    """Return the model called `name`. Raises: UnknownName.

    >>> named("llama-3.1-8b").layers["full_attention"].base
    500000.0
    """
    library = _library()
    if name not in library:
        hub = "(nothing is downloaded: of a repository of the Hub, give its config.json as --config)"
        raise UnknownName("model", name, library, hub if "/" in name else "")
    return library[name]


def all_presets() -> list[ModelRope]:
    """Return every named model, in the order of data/models.toml."""
    return list(_library().values())


@functools.cache
def _library() -> dict[str, ModelRope]:
    library = {}
    for name, table in data.table("models.toml").items():
        said = {"full_attention": (table["base"], table.get("scaling", "default"))}
        if "sliding_base" in table:
            said["sliding_attention"] = table["sliding_base"], "default"
        sizes, softmax = (table["head_dim"], table["rotary_dim"]), table.get("scale")
        layers = {
            layer: RopeSetting.of(*sizes, float(base), table["layout"], softmax, scaling.parse(scale))
            for layer, (base, scale) in said.items()
        }
        library[name] = ModelRope(
            name=name,
            source=table["source"],
            heads=table["heads"],
            kv_heads=table["kv_heads"],
            declared=table["maximum"],
            layers=layers,
            unrotated=table.get("unrotated", ""),
        )
    return library
