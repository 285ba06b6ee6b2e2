"""Where a module's RoPE buffers are: in an nn.Module that a factory makes, or in a checkpoint's tensors."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropeaudit.errors import BadInput, RopeAuditError
from ropeaudit.files import checkpoint
from ropeaudit.files.checkpoint import Stored
from ropeaudit.rope import hf_config, hf_json
from ropeaudit.rope.hf_config import ModelRope
from ropeaudit.subjects.patience import patiently

_GIVE = "give file.py:function or package.module:function, which returns a torch.nn.Module"
_FREQUENCIES = ("inv_freq", "inv_freqs", "freqs", "frequencies")
_COS = ("cos", "cos_cached", "cos_cache", "cos_table", "freqs_cos")
_BOTH = ("freqs_cis", "freqs_complex", "cos_sin_cache")
# last part of a name -> what the buffer holds
KINDS: dict[str, str] = {
    **dict.fromkeys(_FREQUENCIES, "inv_freq"),
    **dict.fromkeys(_COS, "cos"),
    **{name.replace("cos", "sin"): "sin" for name in _COS},
    **dict.fromkeys(_BOTH, "both"),
}


@dataclass(frozen=True, slots=True)
class Source:
    """RoPE buffers, how many tensors there are in all, and the model's RoPE if a config says it.

    made: by a factory, so that buffers are those that would be used. notes: what the reader must know.
    """

    spec: str
    made: bool
    buffers: list[Stored]
    tensors: int
    model: ModelRope | None
    notes: list[str]


def kind(name: str) -> str:
    """Return what a buffer holds by its name: inv_freq, cos, sin, both; nothing for others."""
    last = name.rpartition(".")[2].lower()
    return "inv_freq" if last.endswith("inv_freq") else KINDS.get(last, "")


def load(spec: str, config: str | None, base: float | None) -> Source:
    """Return the buffers behind a path or a factory; `config` and `base` say what the file does not.

    Raises: BadInput.
    """
    factory = _factory(spec)
    told = hf_config.read(config, base) if config is not None else None
    if factory is not None:
        return _made(spec, factory, told, base)
    path = Path(spec)
    found, count = checkpoint.read(checkpoint.files(path), lambda name: bool(kind(name)))
    notes: list[str] = []
    beside = (path if path.is_dir() else path.parent) / "config.json"
    if told is None and beside.is_file():
        data = hf_json.load(str(beside))
        if isinstance(data, Mapping) and data.get("auto_map"):
            notes.append(
                "config.json names custom code (auto_map), which was not executed: tensors were read"
            )
        told = _read(data, path.name, str(beside), base, notes)
    return Source(spec, False, _shaped(found), count, told, notes)


def _read(data: Any, name: str, source: str, base: float | None, notes: list[str]) -> ModelRope | None:
    """What a config says; where it is not understood, a note, and buffers are compared without it."""
    try:
        return hf_config.from_config(data, name, repr(source), base)
    except BadInput as error:
        notes.append(f"{error}; bases are guessed from the values")
        return None


def _shaped(found: list[Stored]) -> list[Stored]:
    """Those that have the shape of what their name says: (p,) frequencies, (n, p) tables."""
    return [one for one in found if one.values.size and one.values.squeeze().ndim in _axes(one.name)]


def _axes(name: str) -> tuple[int, ...]:
    """How many axes longer than 1 a buffer of this name may have."""
    return {"inv_freq": (0, 1), "both": (2, 3)}.get(kind(name), (2,))


def _factory(spec: str) -> Callable[[], Any] | None:
    """The function that a spec names; None where it names a path. Importing executes the file."""
    place, colon, name = spec.rpartition(":")
    if not colon or not name.isidentifier() or Path(spec).exists():
        return None
    try:
        module = patiently(
            lambda: _from_file(place) if place.endswith(".py") else importlib.import_module(place),
            f"import of {place}",
            endless=True,
        )
    except RopeAuditError:
        raise
    except Exception as error:  # whatever other people's code raises
        raise BadInput(f"{spec!r}: cannot be imported: {_said(error)}; {_GIVE}") from None
    found = getattr(module, name, None)
    if not callable(found):
        raise BadInput(f"{spec!r}: {place} has no function {name}; {_GIVE}")
    made: Callable[[], Any] = found
    return made


def _from_file(place: str) -> Any:
    path = Path(place)
    if not path.is_file():
        raise BadInput(f"{place!r}: no such file; {_GIVE}")
    name = f"_ropeaudit_factory_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise BadInput(f"{place!r}: is no Python file; {_GIVE}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickles look their module up
    spec.loader.exec_module(module)
    return module


def _made(spec: str, factory: Callable[[], Any], told: ModelRope | None, base: float | None) -> Source:
    """Call the factory and walk what it returns."""
    import torch

    try:
        module = patiently(factory, spec, endless=True)
    except RopeAuditError:
        raise
    except Exception as error:
        raise BadInput(
            f"{spec!r}: raised {_said(error)}; {_GIVE} when it is called without arguments"
        ) from None
    if not isinstance(module, torch.nn.Module):
        raise BadInput(f"{spec!r}: returned a {type(module).__name__}; {_GIVE}")
    notes: list[str] = []
    config = getattr(module, "config", None)
    if told is None and config is not None and hasattr(config, "to_dict"):
        told = _read(config.to_dict(), type(module).__name__, spec, base, notes)
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for prefix, part in module.named_modules():  # plain attributes are not moved or cast with the module
        for name, value in vars(part).items():
            if isinstance(value, torch.Tensor):
                named.setdefault(f"{prefix}.{name}".lstrip("."), value)
    unreal = [name for name, value in named.items() if kind(name) and value.is_meta]
    if unreal:
        notes.append(f"{unreal[0]} is on the meta device and holds no values; load the weights first")
    found = [checkpoint.of_tensor(n, v) for n, v in named.items() if kind(n) and n not in unreal]
    return Source(spec, True, _shaped(found), len(named), told, notes)


def _said(error: Exception) -> str:
    """An exception in a line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
