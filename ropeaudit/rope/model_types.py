"""Facts about model types: the defaults of their classes, and the behaviour of their code.

data/model_types.toml has every type of transformers, written by a script; data/remote_types.toml, by hand,
those whose checkpoints bring their code; data/code_facts.toml behaviour that no config shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ropeaudit import data

SIZES = (
    *("max_position_embeddings", "hidden_size", "num_attention_heads", "num_key_value_heads"),
    *("head_dim", "global_head_dim", "qk_nope_head_dim", "qk_rope_head_dim"),
    *("query_pre_attn_scalar", "attention_multiplier"),
)
# keys that few types read: in others they stand for nothing, such as those of an ancestor
OPTIONAL = (
    *("query_pre_attn_scalar", "attention_multiplier", "rope_interleave", "mrope_section"),
    *("no_rope_layers", "no_rope_layer_interval", "rope_local_base_freq", "sliding_window_pattern"),
    *("rotary_emb_base", "rotary_pct", "rope_pct"),
)


def class_default(model: str) -> Mapping[str, Any]:
    """Return the defaults of a model type's class; empty if the type is not known.

    class: its configuration class. rope_theta, or layer types: its bases, radians per token of pair i being
    base^(-2i/d). scaled: its RoPE parameters, where they ask for a scaling. Of `SIZES` those that it has a
    default for. partial_rotary_factor: false where its code, without a scaling, rotates all dims whatever a
    config says of that, else the fraction where none is given. positions: what its code has in place of RoPE.
    parts: key -> model type of the parts that it consists of. flat: keys of its text may stand outside the
    text's part. axial: its positions are rows and columns.

    >>> class_default("llama")["class"], class_default("gemma3")["head_dim"], class_default("Yi")["class"]
    ('LlamaConfig', 256, 'YiConfig')
    """
    own, table = _remote(model), data.table("model_types.toml")
    like: str = own.get("like", "" if own else model)
    usual: Mapping[str, Any] = table.get(f"{like}_text") or table.get(like) or {}
    if not own:
        return usual
    return {**(usual or class_default(like) or {"rope_theta": 1e4}), **own}


def _remote(model: str) -> Mapping[str, Any]:
    """Return a type's row in data/remote_types.toml, where its keys are explained."""
    row: Mapping[str, Any] = data.table("remote_types.toml").get(model, {})
    return row


def composed(model: str) -> Mapping[str, Any]:
    """Return the row of a type itself; `class_default` returns that of its text part."""
    row: Mapping[str, Any] = data.table("model_types.toml").get(model) or _remote(model)
    return row


def is_known(model: str) -> bool:
    """Return whether a model type is in any table.

    >>> is_known("llama"), is_known("baichuan"), is_known("golden_perception")
    (True, True, False)
    """
    return bool(class_default(model)) or any(is_listed(model, fact) for fact in ("own_head_dim", "scale_one"))


def without_rope(model: str) -> str:
    """Return a type's encoding instead of RoPE: "CLIPText has learned positions"; "" if it rotates."""
    row = class_default(model)
    if "parts" in row and not row.keys() & {"positions", "rope_theta", "axial", "reads"}:
        return f"{row['class'].removesuffix('Config')} rotates in none but its parts"
    return "" if of_type(model, "rotates_if") else in_its_place(model)


def in_its_place(model: str) -> str:
    """Return the encoding that a type uses where it does not rotate; "" if not known."""
    row = class_default(model)
    return f"{row['class'].removesuffix('Config')} has {row['positions']}" if "positions" in row else ""


def is_listed(model: str, fact: str) -> bool:
    """Return whether data/code_facts.toml lists a type under a fact, by name or by a prefix with *.

    >>> is_listed("llama4", "interleaved"), is_listed("gemma4_assistant", "scale_one")
    (True, True)
    """
    model = _remote(model).get("like", model)
    names = data.table("code_facts.toml")[fact]
    return any(model.startswith(name[:-1]) if name.endswith("*") else model == name for name in names)


def of_type(model: str, fact: str, usual: Any = None) -> Any:
    """Return a fact of data/remote_types.toml or data/code_facts.toml about a type, or `usual`."""
    own = _remote(model)
    if fact in own:
        return own[fact]
    if own and "like" not in own:
        return [] if fact == "scalings" else usual
    return data.table("code_facts.toml").get(fact, {}).get(own.get("like", model), usual)


def unread(model: str) -> set[str]:
    """Return the keys of `OPTIONAL` that a type of transformers does not read; empty for other types."""
    row = class_default(model)
    return {*OPTIONAL} - {*row["reads"]} if "reads" in row else set()


def takes_fraction(model: str) -> bool:
    """Return whether a model type reads partial_rotary_factor without a scaling."""
    return class_default(model).get("partial_rotary_factor") is not False
