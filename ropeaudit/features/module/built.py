"""The rotary module that transformers builds from a config: its frequencies and factors.

Only that class is built, without weights; code in the folder is not executed.
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
    """Frequencies and factors of a rotary class by layer type, "" if it has only one.

    frequencies: (p,) in radians per token. factors: of cos and sin.
    """

    name: str
    frequencies: Mapping[str, NDArray[np.float64]]
    factors: Mapping[str, float]


def rotary(config: Mapping[str, Any]) -> Rotary:
    """Build the rotary class of a config's text model.

    Raises: BadInput if transformers has not exactly one such class; ValueError if the class raises.
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
            cls = _rotary_class(whole, text)
            called = cls.__name__ if cls else called
            module = cls(text) if cls else None
        except Exception as error:  # transformers may raise anything
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


def _rotary_class(whole: Any, text: Any) -> Any:
    """Return the rotary class of a modeling file, or None.

    Of several, the one whose argument is annotated with the text config, or else the whole config.
    """
    place = type(text).__module__.replace("configuration_", "modeling_")
    if find_spec(place) is None:
        return None
    by_config = dict[str, list[Any]]()
    for name, cls in vars(import_module(place)).items():
        if isinstance(cls, type) and cls.__module__ == place and name.endswith("RotaryEmbedding"):
            parameter = inspect.signature(cls).parameters.get("config")
            if parameter is not None:
                kind = parameter.annotation
                by_config.setdefault(getattr(kind, "__name__", str(kind)), []).append(cls)
    every = [cls for classes in by_config.values() for cls in classes]
    configs = type(text).__name__, type(whole).__name__
    for classes in (*(by_config.get(name, []) for name in configs), every):
        if classes:
            return classes[0] if len(classes) == 1 else None
    return None
