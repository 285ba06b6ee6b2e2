"""The rotary module that transformers builds from a config at load: its frequencies and factors.

The class alone is built, without weights. Code that a folder brings is not executed.
Letters: p pairs.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropeaudit.errors import BadInput, one_line
from ropeaudit.runtime.streams import quiet_transformers


@dataclass(frozen=True, slots=True)
class Rotary:
    """A class, and what it holds by layer type, "" where it has but one.

    frequencies: (p,) in radians per token. factors: what cos and sin are multiplied by.
    """

    name: str
    frequencies: Mapping[str, NDArray[np.float64]]
    factors: Mapping[str, float]


def rotary(config: Mapping[str, Any]) -> Rotary:
    """Return what the rotary class of a config's text model holds when it is built from it.

    Raises: BadInput where transformers has no one such class, with the reason; ValueError where
    that takes no such config, with what it raised.
    """
    kind = str(config.get("model_type"))
    if find_spec("transformers") is None:
        raise BadInput("transformers is not installed; pip install 'ropeaudit[model]'")
    with quiet_transformers():
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING

        if kind not in CONFIG_MAPPING:
            raise BadInput(f"the installed transformers has no model type {kind[:40]!r}")
        called, cls, module = CONFIG_MAPPING[kind].__name__, None, None
        try:
            whole = CONFIG_MAPPING[kind].from_dict(dict(config))
            text = whole.get_text_config()
            cls = _class_of(whole, text)
            called = cls.__name__ if cls else called
            module = cls(text) if cls else None
        except Exception as error:  # whatever transformers makes of a config
            raise ValueError(f"{called} raises {type(error).__name__}: {one_line(error, 160)}") from None
    if module is None:
        raise BadInput(f"transformers has no one rotary class that takes the config of {kind}")
    frequencies, factors = dict[str, NDArray[np.float64]](), dict[str, float]()
    for name, values in module._buffers.items():
        if name.endswith("inv_freq") and "original" not in name and values is not None:
            layer = name.removesuffix("inv_freq").strip("_")
            frequencies[layer] = values.detach().double().numpy().reshape(-1)
            factor = getattr(module, name.replace("inv_freq", "attention_scaling"), None)
            if isinstance(factor, int | float):
                factors[layer] = float(factor)
    if not frequencies:
        raise BadInput(f"{called} holds no inv_freq")
    return Rotary(called, frequencies, factors)


def _class_of(whole: Any, text: Any) -> Any:
    """Return the one class of a modeling file that is built from a text model's config, or None.

    Of several it is that whose argument is annotated with that config, or with the whole one.
    """
    place = type(text).__module__.replace("configuration_", "modeling_")
    if find_spec(place) is None:
        return None
    taken = dict[str, list[Any]]()
    for name, one in vars(import_module(place)).items():
        if isinstance(one, type) and one.__module__ == place and name.endswith("RotaryEmbedding"):
            parameter = inspect.signature(one).parameters.get("config")
            if parameter is not None:
                kind = parameter.annotation
                taken.setdefault(getattr(kind, "__name__", str(kind)), []).append(one)
    every = [one for some in taken.values() for one in some]
    for some in (taken.get(type(text).__name__, ()), taken.get(type(whole).__name__, ()), every):
        if some:
            return some[0] if len(some) == 1 else None
    return None
