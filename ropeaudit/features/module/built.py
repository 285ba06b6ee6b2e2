"""A module that code builds, and the RoPE buffers that it holds in each loading mode.

A class is built anew for each mode, from its default config or usual sizes. `forward` is never called.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ropeaudit.arithmetic.formats import Format, parse
from ropeaudit.errors import BadInput, RopeAuditError, one_line
from ropeaudit.features.module import analysis, buffers
from ropeaudit.features.module.analysis import Expected, ModuleAudit
from ropeaudit.features.module.buffers import Buffer
from ropeaudit.runtime.streams import quiet_transformers
from ropeaudit.subjects.calling import loading, signatures
from ropeaudit.subjects.calling.environments import Environment
from ropeaudit.subjects.calling.signatures import Builder
from ropeaudit.tensor_files import tensors as tensorfiles
from ropeaudit.tensor_files.tensors import of_torch

BUILT = "built"
# loading mode, with a dtype behind a colon unless it is the first -> how a module was loaded
MODES = {
    BUILT: "as built",
    "to": "after .to(torch.{})",
    "default-dtype": "built under the default dtype {}",
    "from-pretrained": "after from_pretrained in {}",
}
_IMAGINARY = ".*discards the imaginary part"


def is_code(spec: str) -> bool:
    """Return whether a spec is FILE.py:NAME or PACKAGE.MODULE:NAME, and no file."""
    _, colon, name = spec.rpartition(":")
    return bool(colon) and name.isidentifier() and not Path(spec).exists()


def in_words(mode: str) -> str:
    """Return how a module was loaded, as in: after .to(torch.bfloat16)."""
    name, _, short = mode.partition(":")
    return MODES[name].format(parse(short).name if short else "")


def opened(
    spec: str,
    expected: Expected,
    arguments: Mapping[str, Any],
    modes: Sequence[str] | None,
    dtypes: Sequence[Format],
) -> ModuleAudit:
    """Return the buffers of a module as built, and in each mode. Raises: BadInput, UsageError.

    arguments: of the code. modes: None for all that a class has, and as built of a function.
    """
    target = loading.here(spec)[0].thing
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", message=_IMAGINARY)
        builder = signatures.builder(spec, target, arguments)
        module = builder.build()
    notes = [f"built as {builder.words}"] if builder.words else []
    notes += [f"building it: {one.message}".partition(" (Triggered")[0] for one in caught]
    config, own = getattr(module, "config", None), False
    if expected.model is None and config is not None and hasattr(config, "to_dict"):
        own = True
        model = analysis.of_config(config.to_dict(), type(module).__name__, spec, expected.base, notes)
        expected = replace(expected, model=model)
    tensors = _tensors(module)
    unreal = [name for name, one in tensors.items() if one.is_meta]
    if named := [name for name in unreal if buffers.kind_by_name(name, tuple(tensors[name].shape))]:
        notes.append(f"{named[0]} is on the meta device and holds no values; load the weights first")
    real = [of_torch(name, one) for name, one in tensors.items() if name not in unreal]
    stored, _ = tensorfiles.chosen(real, buffers.may_be_buffer)
    found = buffers.recognised(stored, loaded=BUILT)
    if modes is None:
        modes = [BUILT] if builder.cls is None else list(MODES)[: 4 if _library(builder.cls) else 3]
    wanted = dict.fromkeys(BUILT if one == BUILT else f"{one}:{x.short}" for one in modes for x in dtypes)
    loaded = list(found)
    for mode in wanted:
        if found and mode != BUILT:
            loaded += _loaded(builder, mode, found, notes)
    notes = list(dict.fromkeys(notes))
    return ModuleAudit(spec, "module", loaded, len(tensors), expected, notes, module, list(wanted), own)


def _tensors(module: Any) -> dict[str, Any]:
    """Return the parameters, the buffers, and the attributes that are tensors, by name."""
    import torch

    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for prefix, part in module.named_modules():  # plain attributes are not moved
        for name, value in vars(part).items():
            if isinstance(value, torch.Tensor):
                tensors.setdefault(f"{prefix}.{name}".lstrip("."), value)
    return tensors


def _loaded(
    builder: Builder,
    mode: str,
    found: Sequence[Buffer],
    notes: list[str],
) -> Iterator[Buffer]:
    """Yield the same buffers of a new module that is loaded in a mode; note if there are none."""
    name, _, short = mode.partition(":")
    kind: Any = "none" if name == "from-pretrained" else name
    environment, said = Environment(mode, kind, "", parse(short)), ""
    try:
        with environment.built():
            module = builder.build()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=_IMAGINARY)  # the values show it
            if kind == "none":
                module = _from_pretrained(builder, module, parse(short), notes)
            tensors = _tensors(environment.moved(module))
    except BadInput as error:
        said = error.typed
    except RopeAuditError:
        raise
    except Exception as error:  # whatever other people's code raises
        said = f"raised {one_line(error)}"
    if said:
        notes.append(f"{mode} was not tried: {said}")
        return
    for one in found:
        was, tensor = one.stored, tensors.get(one.stored.name)
        if tensor is None or tensor.is_meta:
            notes.append(f"{was.name} holds no values {in_words(mode)}")
            continue
        now = tensorfiles.stored(of_torch(was.name, tensor))
        if now.dtype == was.dtype and np.array_equal(now.values, was.values, equal_nan=True):
            now = was  # shared: tables may be large
        yield replace(one, stored=now, loaded=mode, as_built=was)


def _from_pretrained(builder: Builder, module: Any, dtype: Format, notes: list[str]) -> Any:
    """Return a module that was saved and loaded, within a model of one parameter if it is none.

    Raises: BadInput.
    """
    import torch

    library, model = _library(type(module)), module
    if not library:
        raise BadInput("neither transformers nor diffusers loads it")
    if not hasattr(module, "save_pretrained"):
        model = _holder(builder, library)
        notes.append(
            f"from_pretrained loaded a model of one parameter that holds the {type(module).__name__}"
        )
    options: dict[str, Any] = {"dtype": getattr(torch, dtype.name)}
    if library == "diffusers":
        options = {"torch_dtype": options["dtype"], "low_cpu_mem_usage": False}
    hushed = quiet_transformers() if library == "transformers" else contextlib.nullcontext()
    with tempfile.TemporaryDirectory() as folder, hushed:
        model.save_pretrained(folder)
        result = type(model).from_pretrained(folder, **options).eval()
    return result if model is module else result.held


def _library(cls: type[Any]) -> str:
    """Return whose from_pretrained loads a class or its holder; "" for others."""
    names = [base.__module__.partition(".")[0] for base in cls.__mro__]
    return next((name for name in names if name in ("transformers", "diffusers")), "")


def _holder(builder: Builder, library: str) -> Any:
    """Return a model of one parameter that holds a module and remakes its buffers. Raises: BadInput."""
    import torch

    config = next((value for value in builder.arguments.values() if hasattr(value, "to_dict")), None)
    if library == "diffusers":
        from diffusers import ConfigMixin, ModelMixin

        bases: Any = (ModelMixin, ConfigMixin)
    else:
        place = builder.cls.__module__ if builder.cls else ""
        beside = vars(sys.modules.get(place, sys)).items()
        kinds = [one for name, one in beside if name.endswith("PreTrainedModel")]
        bases = tuple(one for one in kinds if one.__module__ == place)[:1]
        if not bases or config is None:
            raise BadInput("it is no PreTrainedModel, nor is there one of its kind to hold it")

    class Holder(*bases):  # type: ignore[misc,unused-ignore]
        config_name, config_class = "config.json", type(config)

        def __init__(self, *configs: Any) -> None:
            super().__init__(*configs)
            self.held = builder.build()
            self.weight = torch.nn.Parameter(torch.zeros(1))
            finish = self.post_init if configs else self.register_to_config
            finish()

    return Holder() if library == "diffusers" else Holder(config)
