"""The parts of a model in its config.json: text, images, sound, encoder, decoder; each with its model type.

A part without a model_type has the one that its parent's class gives it. A part is named by its path,
"thinker_config.text_config"; FILE#PATH names it on the command line.
Source: transformers 5.23.0, configuration_utils.py, sub_configs (read).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ropeaudit import data
from ropeaudit.errors import BadInput
from ropeaudit.rope import model_types
from ropeaudit.rope.hf_json import HEADS, HIDDEN, Config, Unjudged, first, shown

_TEXT = ("thinker_config", "text_config", "llm_config", "language_config", "decoder")  # the first of them
_DEPTH = 3  # parts within parts
_ABOUT = ("rope", "rotary")  # in the names of keys


@dataclass(frozen=True, slots=True)
class Part:
    """A part without parts of its own, or one that rotates in addition to them.

    path: the keys that lead to it, empty for the whole config. given: its object. model: its model type, with
    the ending "_text" that it may have. astray: the key under which its class reads, where its keys stand
    outside that. missing: whether it is absent, so that its class fills it in.
    """

    path: tuple[str, ...]
    given: Config
    model: str
    astray: str = ""
    missing: bool = False

    @property
    def name(self) -> str:
        """Its path as text."""
        return ".".join(self.path)

    @property
    def instead(self) -> str:
        """The position encoding of its code instead of RoPE, in words; "" if it rotates."""
        return model_types.without_rope(self.model.removesuffix("_text"))

    @property
    def axial(self) -> bool:
        """Whether its positions are rows and columns instead of token indices."""
        return bool(model_types.composed(self.model).get("axial"))

    @property
    def unjudged(self) -> str:
        """Why it cannot be judged: unsupported axes, or an unknown type without RoPE keys; else ""."""
        if self.missing:
            return f"{self.path[-1]} is missing, and its class fills in what is not known here"
        if self.axial:
            ours = model_types.is_listed(self.model, "axial_halves")
            return "" if ours else "by rows and columns, in a way that is not read"
        known = model_types.is_known(self.model.removesuffix("_text"))
        return "" if known or says_rope(self.given) else f"model_type {shown(self.model)} is not known"


def path_and_part(path: str) -> tuple[str, str]:
    """Return the file of FILE#PART and the part; "" for a part that is not named.

    >>> path_and_part("t5gemma/config.json#encoder"), path_and_part("config.json")
    (('t5gemma/config.json', 'encoder'), ('config.json', ''))
    """
    file, _, part = path.rpartition("#")
    return (file, part) if file and not os.path.exists(path) else (path, "")


def parts(config: Any) -> list[Part]:
    """Return the parts of a model, text first. Raises: BadInput."""
    ranks = {name: rank for rank, name in enumerate(_TEXT)}
    return sorted(_parts(config, (), ""), key=lambda one: [ranks.get(n, len(ranks)) for n in one.path])


def text_part(config: Any) -> Part:
    """Return the text part, or the first that rotates by token index. Raises: BadInput."""
    every = parts(config)
    rotating = [one for one in every if not one.instead] or every
    return next((one for one in rotating if not one.unjudged and not one.axial), rotating[0])


def named(config: Any, path: str) -> Part:
    """Return the part at a path; "" means the text part. Raises: BadInput."""
    if not path:
        return text_part(config)
    every = {one.name: one for one in parts(config)}
    if path not in every:
        known = ", ".join(filter(None, every)) or "none, it is one whole"
        raise Unjudged(f"has no part {shown(path)}; known: {known}")
    return every[path]


def is_a_model(config: Config) -> None:
    """Raise Unjudged for a file that is no model's config, and name what it seems to be."""
    facts = data.table("code_facts.toml")
    sure = next((words for key, words in facts["no_config"].items() if key in config), "")
    if not sure and any(first(config, keys)[1] is not None for keys in (("model_type",), HIDDEN, HEADS)):
        return
    if not sure and (any(one.path for one in parts(config)) or says_rope(config)):
        return
    base = config.get("base_model_name_or_path") or config.get("model_name") or config.get("_name_or_path")
    told = f" ({shown(base)})" if isinstance(base, str) and base else ""
    if sure:
        raise Unjudged(f"is no model's config: {sure.format(base=told)}")
    seen = next((words for key, words in facts["other_files"].items() if key in config), "")
    keys = ", ".join(shown(key) for key in list(config)[:3])
    lacking = "none of model_type, hidden_size and num_attention_heads stands in it"
    what = seen or f"its keys are {keys or 'none'}; give the config.json of a model"
    raise Unjudged(f"is no model's config: {lacking}; {what}")


def says_rope(config: Config) -> bool:
    """Return whether any key of an object is about RoPE and has a value."""
    return any(
        value not in (None, False) and any(word in str(key) for word in _ABOUT)
        for key, value in config.items()
    )


def _parts(config: Any, path: tuple[str, ...], usual: str, outer: str = "") -> Iterator[Part]:
    """Yield the parts of an object. usual: its model type if it gives none, or only its parent's, `outer`."""
    if not isinstance(config, Mapping):
        told = f"holds {shown(config)} where an object {{...}} belongs"
        raise BadInput(f"{told}; give the config.json of a model")
    if len(path) > _DEPTH:
        raise BadInput("holds a text_config within a text_config; give the config.json of a model")
    model = config.get("model_type") or usual
    model = usual if usual and model == outer else model  # Qwen3-VL's parts are said to be of its own type
    if not isinstance(model, str):
        raise BadInput(f"model_type = {shown(model)} is not text")
    key, value, other = model_types.of_type(model.removesuffix("_text"), "other_if", ("", None, ""))
    model = other if key and config.get(key) == value else model
    row = model_types.composed(model)
    declared: Mapping[str, str] = row.get("parts", {})
    inner = {key: value for key, value in config.items() if _is_part(key, value, declared)}
    text = next((key for key in _TEXT if key in (*inner, *declared)), "")
    sized = first(config, HIDDEN)[1] is not None  # keys of a text stand here
    rotates = bool(row.keys() & {"rope_theta", "axial"})  # beside its parts
    by_itself = rotates or not declared
    if text in declared and text not in inner and not by_itself:  # its type has a place of its own
        if sized:
            yield Part(path, config, declared[text], "" if row.get("flat") else text)
        else:
            yield from _filled_in((*path, text), declared[text])
    if not inner and declared and not by_itself and not sized:
        for key in (one for one in declared if one != text):
            yield from _filled_in((*path, key), declared[key])
    elif rotates or (not inner and text not in declared) or (not declared and sized and not text):
        yield Part(path, config, model)
    for key, value in inner.items():
        yield from _parts(value, (*path, key), declared.get(key, ""), model)


def _filled_in(path: tuple[str, ...], model: str) -> Iterator[Part]:
    """Yield the parts of an absent part, which its class fills in with defaults."""
    declared: Mapping[str, str] = model_types.composed(model).get("parts", {})
    if not declared:
        yield Part(path, {}, model, missing=True)
    for key, inner in declared.items():
        yield from _filled_in((*path, key), inner)


def _is_part(key: Any, value: Any, declared: Mapping[str, str]) -> bool:
    if key in declared or key in _TEXT[:-1]:
        return value is not None
    named = isinstance(key, str) and key.endswith("_config") and isinstance(value, Mapping)
    return named and isinstance(value.get("model_type"), str)
