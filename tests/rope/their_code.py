"""What the code of transformers computes of a config: models on the meta device, their rotary modules."""

import contextlib
import functools
import importlib
import importlib.util
import inspect
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from ropeaudit import parse
from ropeaudit.rope import scaled
from ropeaudit.rope.frequencies import frequencies
from ropeaudit.rope.hf_config import ModelRope


@functools.cache
def models(name: str, kind: Any) -> list[Any]:
    """Return the classes of models of a type, or of its configuration class, the plainest first."""
    transformers = importlib.import_module("transformers")
    own = importlib.util.find_spec(path := kind.__module__.replace("configuration", "modeling"))
    found = [
        one
        for one in (vars(importlib.import_module(path)).values() if own else ())
        if inspect.isclass(one) and not one.__name__.endswith("PreTrainedModel")
        if one.__module__ == path and getattr(one, "config_class", None) is kind
    ]
    named = transformers.models.auto.modeling_auto.MODEL_MAPPING_NAMES.get(name, "")
    named = named if isinstance(named, str) else named[0]
    found += [getattr(transformers, named)] if hasattr(transformers, named) else []
    return sorted(found, key=lambda one: (not one.__name__.endswith("Model"), len(one.__name__)))


def built(name: str, its: Any) -> Any:
    """Return a model of a type, without numbers."""
    with torch.device("meta"):
        return models(name, type(its))[0](its)


def rotary(model: Any, its: Any) -> dict[str, list[tuple[Any, float]]]:
    """Return the frequencies, and the factors, of a model's rotary modules by layer type or ""."""
    kinds = {type(one): one for one in model.modules() if any("inv_freq" in name for name in one._buffers)}
    found: dict[str, list[tuple[Any, float]]] = {}
    for kind, one in kinds.items():
        own = kind(getattr(one, "config", its))
        for name, held in own.named_buffers():
            if name.endswith("inv_freq") and "original" not in name:
                prefix = name.removesuffix("inv_freq")
                factor = getattr(own, f"{prefix}attention_scaling", 1.0)
                found.setdefault(prefix.strip("_"), []).append((held.double().numpy(), factor))
    return found


def softmax_scales(model: Any, its: Any, layer: str) -> set[float]:
    """Return the softmax scales of a model's attention, in the layers of a type where these are told."""
    kinds = getattr(its, "layer_types", None) or []
    found: dict[bool, set[float]] = {True: set(), False: set()}
    for one in model.modules():
        number = getattr(one, "layer_idx", None)
        scale = getattr(one, "scaling", getattr(one, "inv_norm_factor", None))
        if type(one).__name__.endswith(("Attention", "MLA")) and isinstance(scale, (int, float)):
            within = number is not None and number < len(kinds) and kinds[number] == layer
            found[within].add(float(scale))
    return found[True] or found[False]


def layout(model: Any, its: Any) -> str:
    """Return which dims a model's code rotates together: "half", "interleaved", or "" if none is seen.

    Vectors that are 1 in one dim each are rotated; two that reach the same dims are a pair.
    """
    functions = {
        (name, function)
        for kind in {type(one) for one in model.modules()}
        if kind.__module__.startswith("transformers.models.") and "Indexer" not in kind.__name__
        for name in re.findall(r"\b(apply_\w*rotary\w*)\(", inspect.getsource(kind))
        if (function := vars(importlib.import_module(kind.__module__)).get(name)) and "vision" not in name
    }
    if len(functions) > 1:
        interleave = bool(getattr(its, "rope_interleave", False))
        functions = {one for one in functions if ("interleave" in one[0]) == interleave}
    return " or ".join(sorted({_layout(function) for _, function in functions}))


@functools.cache
def _layout(function: Any) -> str:
    angles, ones = torch.arange(1.0, 9.0).expand(1, 16, 8), torch.eye(16)
    for table in (torch.cat((angles, angles), -1), angles):
        for vectors in (ones[None, None], ones[None, :, None]):
            known = dict.fromkeys(("q", "k", "v", "x", "tensor", "xq", "xk"), vectors)
            known |= {"cos": table.cos(), "sin": table.sin(), "position_ids": torch.arange(16)[None]}
            known |= {"freqs_cis": torch.polar(torch.ones_like(angles), angles)}
            wanted = inspect.signature(function).parameters
            given = {name: known[name] for name in wanted if name in known}
            if "v" in wanted:  # which takes a row of each position
                given |= {"cos": table[0].cos(), "sin": table[0].sin()}
            with contextlib.suppress(RuntimeError):
                made = function(**given)
                reach = (made[0] if isinstance(made, tuple) else made).reshape(16, 16).abs() > 1e-6
                pair = next(n for n in range(1, 16) if torch.equal(reach[n], reach[0]))
                return {1: "interleaved", 8: "half"}[pair]
    return "in none of the ways that are known"


def differences(read: ModelRope, model: Any, its: Any) -> Iterator[str]:
    """Yield what is read of a config and is not what a model of it has."""
    theirs = rotary(model, its)
    for layer, setting in read.layers.items():
        mine = frequencies(setting, "inverse_power", parse("fp32")).astype(float)
        factor = scaled.attention_factor(setting.scaling)
        known = theirs.get(layer, []) + theirs.get("", [])
        if not any(
            held.shape == mine.shape and np.allclose(held, mine, rtol=2e-6, atol=0) and _equal(factor, own)
            for held, own in known
        ):
            told = [(len(held), held[:2], own) for held, own in known]
            yield f"{layer}: {len(mine)} frequencies {mine[:2]}, factor {factor}; theirs {told}"
        scales = softmax_scales(model, its, layer)
        if scales and not any(_equal(setting.scale, one) for one in scales):
            yield f"{layer}: softmax scale {setting.scale}; theirs {scales}"
    mine, seen = {one.layout for one in read.layers.values()}, layout(model, its)
    if mine != {seen}:
        yield f"layout {mine}; theirs {seen or 'not seen'}"
    if read.declared != (length := getattr(its, "max_position_embeddings", None)):
        yield f"range {read.declared}; theirs {length}"
    if read.heads != (heads := its.to_dict().get("num_attention_heads", read.heads)):
        yield f"heads {read.heads}; theirs {heads}"


def _equal(seen: float, expected: float) -> bool:
    return bool(abs(seen / expected - 1) < 1e-12)
