"""From options to cases: the cross product of everything that takes a list."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ropeaudit.console import values
from ropeaudit.errors import UsageError

if TYPE_CHECKING:
    from ropeaudit.audits.cases import Case
    from ropeaudit.rope.setting import RopeSetting

_MOST_CASES = 100_000

# option -> how its lists are read; those that a command does not have are left out
_AXES = {
    "qk": None,
    "seq_len": values.integers,
    "model": values.names,
    "config": None,
    "layer": values.names,
    "scaling": None,
    "head_dim": values.integers,
    "rotary_dim": values.integers,
    "base": values.numbers,
    "clip": values.numbers,
    "layout": values.names,
    "mrope": None,
    "axis": values.names,
    "mask": values.masks,
    "seed": values.integers,
}


@dataclass(frozen=True, slots=True)
class Chosen:
    """A setting, what to call it, and the number of positions that its model is made for."""

    label: str
    setting: RopeSetting
    maximum: int | None


def chosen(options: dict[str, Any]) -> list[Chosen]:
    """Return the settings that the options of `cli.options.rope_options` choose.

    Raises: UsageError, UnknownName, BadInput, BadShape.
    """
    results = []
    several = {name for name in _AXES if len(options.get(name) or ()) > 1 or _is_list(options.get(name))}
    for case in cases({name: options[name] for name in (*_AXES, "scale") if name in options}):
        setting = case.setting(case.maximum or 0)
        words = [] if case.model_name == "none" else [case.model_name]
        for name in ("scaling", "head_dim", "rotary_dim", "base", "clip", "layout"):
            if name in several or (not words and name == "base"):
                words.append(f"{name}={_text(getattr(setting, name))}")
        results.append(Chosen(" ".join(words), setting, case.maximum))
    return results


def cases(options: dict[str, Any]) -> Iterator[Case]:
    """Yield the cross product of all settings, in the order of the options."""
    from itertools import product
    from math import prod

    from ropeaudit.audits.cases import Case

    lists: dict[str, Sequence[Any]] = {}
    for name, read in _AXES.items():
        typed = options.get(name) or ()
        lists[name] = (read(typed, _flag(name)) if read else list(typed)) or [None]
    lists["model"] = _all_models(lists["model"])
    count = prod(map(len, lists.values()))
    if count > _MOST_CASES:
        raise UsageError(f"these lists make {count} settings; at most {_MOST_CASES} are allowed: shorten one")
    single = _single(options)
    for combination in product(*lists.values()):
        given: dict[str, Any] = {name: v for name, v in zip(lists, combination, strict=True) if v is not None}
        layer = given.pop("layer", None)
        case = Case(**given, **single)
        for one in case.layers() if layer == "all" else [layer]:
            extra: dict[str, Any] = {"layer": one} if one else {}
            yield Case(**given, **single, **extra)


def _single(options: dict[str, Any]) -> dict[str, Any]:
    """The options that take one value."""
    results: dict[str, Any] = {
        name: values.integer(options[name], _flag(name))
        for name in ("heads", "kv_heads", "sample")
        if options.get(name) is not None
    }
    if options.get("scale") is not None:
        results["scale"] = values.number(options["scale"], "--scale", "0.125")
    if options.get("length") is not None:
        results["length"] = options["length"]
    return results


def _all_models(names: Sequence[Any]) -> Sequence[Any]:
    if "all" not in names:
        return names
    from ropeaudit.rope import presets

    return [model.name for model in presets.all_presets()]


def _is_list(given: Any) -> bool:
    return bool(given) and any("," in item for item in given)


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
