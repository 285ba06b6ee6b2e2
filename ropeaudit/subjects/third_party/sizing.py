"""RoPE classes built with the head_dim and the base that an audit asks for.

Letters: d head_dim.
"""

from __future__ import annotations

import copy
import functools
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ropeaudit.subjects.calling import building, signatures

_LENGTH = 2**12  # positions of a class that wants to know how many
_HIDDEN = ("hidden_size", "embed_dim", "d_model", "n_embd")
_HEADS = ("num_attention_heads", "num_heads", "n_head", "n_heads", "encoder_num_attention_heads")
_DIMS = re.compile(r"(^|_)head_dim$|^kv_channels$|^rotary_dim$|^rotary_ndims$|^rope_dim$")
_BASES = re.compile(r"(theta|rope.*base|rotary.*base|base_freq)$")
_SHARES = ("partial_rotary_factor", "rotary_pct")
_KEPT_TYPES = ("axial", "axial_2d")  # what a scaling is not
_PATCHES = {"patch_size": 2, "patch_size_t": 1}  # one in a frame of 2x2
_SECTIONS = 3  # axes of time, height and width


@functools.lru_cache(maxsize=32)
def variants(cls: Any, dims: int, axes: int, base: float) -> tuple[dict[str, Any], ...]:
    """Return lists of arguments that a class may be built with for heads of `dims` dims.

    One class may be built from several configs. axes: over which dims are shared out where it takes dims of
    axes.
    """
    given: dict[str, Any] = {}
    for name, parameter in inspect.signature(cls).parameters.items():
        if name in signatures.ROLES["dim"] or name == "attention_head_dim":
            given[name] = dims
        elif name in signatures.ROLES["base"]:
            given[name] = base
        elif name in building.AXIS_NAMES:
            given[name] = (dims // axes,) * axes
        elif name in _PATCHES and parameter.annotation in (int, "int"):
            given[name] = _PATCHES[name]
    results: list[dict[str, Any]] = []
    sections = "mrope_section" in inspect.getsource(cls)
    for arguments in building.possible_arguments(cls, given, _LENGTH):
        configs = [name for name in arguments if name == "config" or name.endswith("_config")]
        results.extend(_changed(arguments, configs, dims, base, sections))
    return tuple(results)


def _changed(
    arguments: Mapping[str, Any], configs: list[str], dims: int, base: float, sections: bool
) -> Iterator[dict[str, Any]]:
    """Yield arguments whose config was changed: built with the changes, then set."""
    if not configs:
        yield dict(arguments)
        return
    config = arguments[configs[0]]
    changes = _changes(config, dims, base, sections)
    for change in (_built, _set):
        try:
            yield {**arguments, configs[0]: change(config, changes)}
        except Exception:  # noqa: S112  # of configs that check what they are given
            continue


def _built(config: Any, changes: Mapping[str, Any]) -> Any:
    return type(config)(**changes)


def _set(config: Any, changes: Mapping[str, Any]) -> Any:
    other = copy.deepcopy(config)
    for name, value in changes.items():
        setattr(other, name, value)
    return other


def _changes(config: Any, dims: int, base: float, sections: bool) -> dict[str, Any]:
    """Return what of a config has to change for these dims and this base, the whole head rotating."""
    heads = next((one for name in _HEADS if isinstance(one := _read(config, name), int)), 1)
    changes: dict[str, Any] = {}
    for name in vars(config):
        if name.startswith("_"):
            continue
        value = _read(config, name)
        if name in _HIDDEN and isinstance(value, int):
            changes[name] = dims * heads
        elif _DIMS.search(name) and (value is None or isinstance(value, int)):
            changes[name] = dims
        elif _BASES.search(name) and isinstance(value, int | float):
            changes[name] = base
        elif name in _SHARES and isinstance(value, int | float):
            changes[name] = 1.0
        elif name == "rope_parameters" and isinstance(value, Mapping):
            changes[name] = _parameters(value, dims, base, sections)
    return changes


def _read(config: Any, name: str) -> Any:
    """Return an attribute; None for one that there is not, or that raises."""
    try:
        return getattr(config, name, None)
    except Exception:  # of configs whose layers differ
        return None


def _parameters(given: Mapping[str, Any], dims: int, base: float, sections: bool) -> dict[str, Any]:
    """Return rope_parameters without scaling, of the whole head; those of each layer type likewise."""
    if any(isinstance(value, Mapping) for value in given.values()):
        return {
            key: _parameters(value, dims, base, sections) if isinstance(value, Mapping) else value
            for key, value in given.items()
        }
    kind = given.get("rope_type", "default")
    results = {**given, "rope_type": kind if kind in _KEPT_TYPES else "default", "rope_theta": base}
    if "partial_rotary_factor" in results:
        results["partial_rotary_factor"] = 1.0
    if sections or "mrope_section" in results:
        count = len(results.get("mrope_section") or range(_SECTIONS))
        each = dims // 2 // count
        results["mrope_section"] = [dims // 2 - each * (count - 1), *[each] * (count - 1)]
    return results
