"""Buffers of a loaded model's rotary modules, compared with those that their class builds.

Loading may leave uninitialised or cast buffers, which no shift shows.
Letters: p pairs. Frequencies in radians per token.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.errors import RopeAuditError
from ropeaudit.features.model.load import Folder
from ropeaudit.recognition import allowance
from ropeaudit.recognition.check import check
from ropeaudit.recognition.diagnosis import Diagnosis
from ropeaudit.recognition.faults import of_frequencies
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.tensor_files import tensors
from ropeaudit.tensor_files.rope_values import Dump

_NEAR = 2.0**-14  # relative: float32 stays below, a cast to float16 reaches 2^-12
_LEAST, _MOST = 1e-25, 1e4  # radians per token: no model has slower or faster pairs
_NARROW = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class Held:
    """A buffer or factor that differs from what its class builds. name: in the model."""

    name: str
    diagnosis: Diagnosis

    @property
    def layer(self) -> int | None:
        """The number of its layer; None if layers share it."""
        return next((int(part) for part in self.name.split(".") if part.isdecimal()), None)


def compare(model: Any, folder: Folder) -> tuple[Held, ...]:
    """Return the buffers and factors of a loaded model that differ from its config.

    If a class cannot be built from a config alone, the setting of config.json is compared.
    """
    rope, found = folder.rope, dict[str, Diagnosis | None]()
    read = [layer for layer in rope.layers.values() if layer.pairs] if rope else []
    settings = [some for layer in read for some in layer.short_and_long()]
    for name, module in rotary_modules(model).items():
        built = build_module(module, model.config)
        expected = {} if built is None else frequencies(built)
        for key, values in frequencies(module).items():
            found[f"{name}.{key}"] = _frequency_fault(values, expected.get(key), settings)
            seen, asked = factor(module, key), None if built is None else factor(built, key)
            if seen is not None and asked is not None and not abs(seen - asked) <= _NEAR * abs(asked):
                place = f"{name}.{key}".replace("inv_freq", "attention_scaling")
                found[place] = Diagnosis("attention-factor", {"seen": seen, "asked": asked})
    for name, module in modules_with_tables(model).items():
        tables = computed_tables(build_module(module, model.config))
        for key, table in computed_tables(module).items():
            values, right = array(table).reshape(-1), tables.get(key)
            other = right is not None and right.shape == table.shape and not tables_agree(table, right)
            if other or not np.isfinite(values).all():
                found[f"{name}.{key}"] = _impossible_values(values) or Diagnosis("unexplained")
    return tuple(Held(name.lstrip("."), fault) for name, fault in found.items() if fault is not None)


def ignored_frequencies(model: Any, files: Sequence[Path]) -> str:
    """Return which stored frequencies a loaded model does not hold, as a sentence or nothing."""
    held = [values for module in rotary_modules(model).values() for values in frequencies(module).values()]
    names = list[str]()
    for part in itertools.chain.from_iterable(map(tensors.parts, files)):
        if part.name.endswith("inv_freq"):
            values = np.asarray(part.read(...), np.float64).reshape(-1)
            names += [] if any(_are_alike(values, other) for other in held) else [part.name]
    if not names:
        return ""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]}{more}: stored, and ignored by transformers; what runs instead was judged"


def diagnosis_with_layers(found: Sequence[tuple[int | None, Diagnosis]]) -> Diagnosis | None:
    """Return the first diagnosis, with the layers that share it; None without any.

    found: layer, or None for a shared module, and diagnosis.
    """
    if not found:
        return None
    first = found[0][1]
    layers = {layer for layer, diagnosis in found if diagnosis == first}
    own = tuple(sorted(layer for layer in layers if layer is not None))
    return replace(first, where=replace(first.where, layers=own if None not in layers else ()))


def array(x: Any) -> Array:
    """Return the values of a tensor in float64."""
    return np.array(x.detach().cpu().double().numpy())


def rotary_modules(model: Any) -> dict[str, Any]:
    """Return the modules that hold rotary frequencies, by name."""
    return {name: module for name, module in model.named_modules() if frequencies(module, original=True)}


def frequencies(module: Any, *, original: bool = False) -> dict[str, Array]:
    """Return the frequencies of a module, (p,), by the names of their buffers.

    original: with the unscaled ones that some modules keep.
    """
    return {
        key: array(values).reshape(-1)
        for key, values in module._buffers.items()
        if values is not None and key.endswith("inv_freq") and (original or "original" not in key)
    }


def factor(module: Any, key: str) -> float | None:
    """Return the factor of cos and sin for a buffer; None if the module has none."""
    own = getattr(module, key.replace("inv_freq", "attention_scaling"), None)
    own = getattr(module, "attention_scaling", None) if own is None else own
    return float(own) if isinstance(own, (int, float)) else None


def _frequency_fault(
    values: Array,
    built: Array | None,
    settings: list[RopeSetting],
) -> Diagnosis | None:
    """Return the diagnosis of frequencies that differ from the built ones; None if they agree."""
    asked = [(setting, allowance.frequencies(setting)) for setting in settings]
    if any(
        _are_alike(values, right) for right in ([theta for _, theta in asked] if built is None else [built])
    ):
        return None
    if found := _impossible_values(values):
        return found
    alike = [theta.shape == values.shape if built is None else _are_alike(theta, built) for _, theta in asked]
    setting = next((setting for (setting, _), fits in zip(asked, alike, strict=True) if fits), None)
    try:
        if setting is None and built is not None:
            setting = of_frequencies(RopeSetting.of(2 * values.size), built)
        if setting is None:
            return None
        finding = check(Dump("", "inv_freq", frequencies=values), setting)
    except RopeAuditError:  # numbers that no setting may have, or of other dims
        return Diagnosis("unexplained")
    known = finding.agrees or (finding.diagnosis and finding.diagnosis.certainty != "resembles")
    return finding.diagnosis if known else Diagnosis("unexplained")


def _are_alike(values: Array, built: Array) -> bool:
    """Return whether frequencies are alike within float32 rounding. Shapes: (p,), (p,)."""
    sizes = np.where(built == 0, np.abs(built).max(initial=0.0), np.abs(built))
    with np.errstate(invalid="ignore", over="ignore"):
        return values.shape == built.shape and bool((np.abs(values - built) <= _NEAR * sizes).all())


def _impossible_values(values: Array) -> Diagnosis | None:
    """Return the diagnosis of numbers that fit no model, else None. Shapes: (n,)."""
    sizes = np.abs(values)
    if not np.isfinite(values).all():
        return Diagnosis("nonfinite")
    if sizes.size and not _LEAST <= sizes.max() <= _MOST:
        return Diagnosis("uninitialised", {"value": float(values[int(sizes.argmax())])})
    tiny = sizes[(sizes > 0) & (sizes < _LEAST)]
    return Diagnosis("uninitialised", {"value": float(tiny.min())}) if tiny.size else None


def _wider(kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    given = dict(kwargs or {})
    return given | {"dtype": torch.float64} if given.get("dtype") in _NARROW else given


class _RequestedDtype(TorchFunctionMode):
    """Replaces narrower formats where a tensor is created."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        return func(*args, **_wider(kwargs))


class _Float64Mode(TorchDispatchMode):
    """Replaces narrower formats by float64. narrow: operations that still returned one."""

    def __init__(self, narrow: set[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.narrow = narrow

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        result = func(*args, **_wider(kwargs))
        for value in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype != torch.float64:
                self.narrow.add(str(func))
        return result


@contextlib.contextmanager
def wide(narrow: set[str]) -> Iterator[None]:
    """Within the block, compute in float64; `narrow` gets the operations that do not."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _RequestedDtype(), _Float64Mode(narrow):
            yield
    finally:
        torch.set_default_dtype(before)


def widen(model: Any) -> list[str]:
    """Convert a model with its rotary modules to float64; return the names of narrow tables.

    Frequencies and factors keep the loaded numbers. A table, whose roundings a shift would show, is built
    again if it agrees with the one of its class.
    """
    model.double()
    for module in rotary_modules(model).values():
        for name, value in vars(module).items():  # such as frequencies of short texts
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                vars(module)[name] = value.double()
    narrow = []
    for name, module in modules_with_tables(model).items():
        own, made = computed_tables(module), computed_tables(build_module(module, model.config))
        if all(key in made and tables_agree(table, made[key]) for key, table in own.items()):
            module._buffers.update(made)
        else:
            narrow.append(name)
    return narrow


def build_module(module: Any, config: Any) -> Any:
    """Build a module from its config in float64; None if that fails."""
    numbered = {"layer_idx": module.layer_idx} if hasattr(module, "layer_idx") else {}
    try:
        with wide(set()):
            return type(module)(getattr(module, "config", config), **numbered)
    except Exception:  # a constructor of the model's own that takes something else
        return None


def tables_agree(table: Any, built: Any) -> bool:
    """Return whether a table agrees with the built one, up to rounding of it and of float32 angles.

    Shapes: alike, a row for each position.
    """
    if table.shape != built.shape:
        return False
    rounding = torch.finfo(table.dtype).eps + len(table) * 2.0**-22
    return bool((np.abs(array(table) - array(built)) <= rounding).all())


def modules_with_tables(model: Any) -> dict[str, Any]:
    """Return the modules that computed a table when built, mostly of sines and cosines."""
    known, modules = rotary_modules(model), model.named_modules()
    return {name: module for name, module in modules if name not in known and computed_tables(module)}


def computed_tables(module: Any) -> dict[str, Any]:
    """Return such a module's tables, by buffer name; none without a module."""
    own = [] if module is None else module._non_persistent_buffers_set
    tables = {key: module._buffers[key] for key in own if module._buffers.get(key) is not None}
    return {key: table for key, table in tables.items() if table.is_floating_point() and table.ndim > 1}
