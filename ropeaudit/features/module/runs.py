"""Every RoPE module of a target, run in each way of loading and each dtype; a result each."""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ropeaudit.arithmetic.formats import Format
from ropeaudit.errors import BadInput, RopeAuditError, one_line
from ropeaudit.features.module import measurement, references
from ropeaudit.features.module.buffers import CASTS
from ropeaudit.features.module.expected import Expected
from ropeaudit.features.module.measurement import Measurement
from ropeaudit.features.module.references import Known, Reference, TensorPlaces, frequencies_of
from ropeaudit.features.module.source import Source, moved
from ropeaudit.recognition import allowance
from ropeaudit.recognition.diagnosis import Diagnosis
from ropeaudit.runtime.streams import quiet_transformers
from ropeaudit.subjects.calling import devices, forwards
from ropeaudit.subjects.calling.building import Builder
from ropeaudit.subjects.calling.devices import Device
from ropeaudit.subjects.calling.forwards import Fitted, NotFitted

_SAME = 2.0**-20  # relative: what float32 arithmetic on another road leaves of frequencies


@dataclass(frozen=True, slots=True)
class Run:
    """What one RoPE module does, loaded in one way.

    built: the module as built. loaded: the way; dtype: of that way. held: the dtypes of its buffers that hold
    RoPE. buffer_error: what those are off from as built, relative. imaginary_lost: whether a complex table is
    real now. measured: None where it was not run; unfitted says why.
    """

    built: RopeModule
    loaded: str
    dtype: str
    held: str
    buffer_error: float | None
    imaginary_lost: bool
    measured: Measurement | None = None
    unfitted: NotFitted | None = None

    @property
    def module(self) -> str:
        """Its place in what was built, else its class."""
        return self.built.name or self.built.kind

    @property
    def wrong(self) -> bool:
        """Whether its result, or else what it holds, is off beyond float32 rounding."""
        if self.imaginary_lost:
            return True
        if self.measured is not None:
            return not self.measured.excess <= 1 and not self.measured.rounded
        return self.buffer_error is not None and not self.buffer_error <= _SAME

    @property
    def reason(self) -> str:
        """Why it was not run, or what it returned was not understood, in words."""
        return "" if self.unfitted is None else self.unfitted.reason

    @property
    def diagnosis(self) -> Diagnosis | None:
        """What explains that it is off; None where it is not, or nothing does."""
        if self.measured is not None:
            return self.measured.diagnosis
        return Diagnosis("buffer-cast", {"format": self.held}) if self.wrong and self.held in CASTS else None

    @property
    def way(self) -> str:
        """How it was loaded, in words: as built, after .to(torch.bfloat16), ..."""
        return {
            BUILT: "as built",
            "to": f"after .to(torch.{self.dtype})",
            "default-dtype": f"built under the default dtype {self.dtype}",
            "from-pretrained": f"after from_pretrained in {self.dtype}",
        }[self.loaded]


def run(
    source: Source,
    known: Sequence[Known],
    expected: Expected | None,
    ways: Sequence[str] | None,
    dtypes: Sequence[Format],
    up_to: int,
) -> list[Run]:
    """Return what every RoPE module does in every way of loading; notes go to the source.

    known: what the buffers of the built one hold. expected: what was given explicitly, if anything. ways: all
    usual ones where None. up_to: how many positions.
    """
    builder, results = source.builder, list[Run]()
    assert builder is not None  # noqa: S101
    named = list(_candidates(source, known))
    found = [_rope_module(name, module, source, known, expected, up_to) for name, module in named]
    shown = [built for built in found if built.pairs]
    sizes = source.expected.pairs()
    wanted = {count for _, count in sizes}
    if shown and sizes and not known and not any(built.pairs & wanted for built in shown):
        label, count = sizes[0]
        raise BadInput(
            f"{source.spec!r}: what {shown[0].kind} returns is of {min(shown[0].pairs)} pairs and "
            f"{label} has {count}; give what belongs to it with --config, --model, --head-dim or "
            "--rotary-dim"
        )
    if ways is None:  # of a class all that it has
        ways = (BUILT,) if builder.cls is None else WAYS if _library(builder.cls) else WAYS[:3]
    for way in ways if found else ():
        for fmt in dtypes if way != BUILT else dtypes[:1]:
            results += _loaded(source, builder, way, fmt, found)
    return results


def _own_dtype(module: Any) -> Any:
    """Return the dtype of a module's parameters, or float32."""
    import torch

    floats = (one.dtype for one in module.parameters() if one.is_floating_point())
    return next(floats, torch.float32)


def _loaded(
    source: Source, builder: Builder, way: str, fmt: Format, found: Sequence[RopeModule]
) -> Iterator[Run]:
    """Yield a run of every module in a loading mode; else note why not."""
    import torch

    dtype, loaded, holder = getattr(torch, fmt.name), source.module, ""
    if way == BUILT:
        dtype = _own_dtype(loaded)
    else:
        try:
            loaded, holder = loaded_by(builder, way, dtype)
            loaded = moved(builder.spec, loaded, _device(source))
        except BadInput as error:
            source.notes.append(f"{way} was not tried: {error.typed}")
            return
    if holder:
        source.notes.append(f"from_pretrained loaded a model of one parameter that holds the {found[0].kind}")
    for built in found:
        module = loaded.get_submodule(built.name)
        name = str(dtype).removeprefix("torch.")
        result = Run(built, way, name, *built.held(module), built.imaginary_lost(module))
        if isinstance(built.fitted, NotFitted):
            yield replace(result, unfitted=built.fitted)
            continue
        try:
            yield replace(result, measured=built.measured(module, dtype))
        except Exception as raised:  # whatever other people's code raises
            yield replace(result, unfitted=NotFitted(f"raised {one_line(raised)}", "raised"))


def _device(source: Source) -> Device:
    """Return where modules run: the requested device, else their own."""
    return source.place or devices.of_module(source.module) or devices.CPU


_NAMED = re.compile(r"rot(ary|emb)|rope|pos_?emb", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RopeModule:
    """A RoPE module as built: where it is, how it is called, and what it should return.

    fitted: why it cannot be called, where it cannot. own: the dtype of the parameters of what was
    built. pairs: how many a setting may have that what is returned belongs to.
    """

    name: str
    module: Any
    device: str
    known: list[Known]
    own: Any
    fitted: Fitted[TensorPlaces] | NotFitted
    positions: int = 0
    references: Sequence[Reference] = ()
    pairs: frozenset[int] = frozenset()

    @property
    def kind(self) -> str:
        """The name of its class."""
        return type(self.module).__name__

    @property
    def call(self) -> str:
        """How it is called, in words; none where it is not."""
        return self.fitted.calls[0].words if isinstance(self.fitted, Fitted) else "none"

    @property
    def against(self) -> str:
        """What its results are compared with, in words; none where there are none."""
        return self.references[0].words if self.references else "none"

    @property
    def as_built(self) -> bool:
        """Whether that is what the module as built shows."""
        return bool(self.references) and self.references[0].source is None

    def measured(self, module: Any, dtype: Any) -> Measurement:
        """Return what the module returns once loaded. Raises: whatever it raises."""
        fitted = self.fitted
        assert not isinstance(fitted, NotFitted)  # noqa: S101
        call, count = fitted.calls[0], min(forwards.PROBE, self.positions)
        try:
            as_built = call.run(self.module, 0, count, dtype)
        except Exception:  # it does not take them: whatever other people's code raises
            as_built = call.run(self.module, 0, count, self.own)
        usual = fitted.places.dtype(as_built)  # of what the module as built returns for the same
        return measurement.of_positions(module, fitted, self.references, self.positions, dtype, usual)

    def held(self, module: Any) -> tuple[str, float | None]:
        """Return the dtypes of its RoPE buffers, and their largest relative error."""
        dtypes, errors = [], []
        for one in self.known:
            place, values = one.buffer, one.theta if one.held is None else one.held
            tensor = getattr(module, place.rpartition(".")[2], None)
            if tensor is None or tensor.is_meta:
                continue
            dtypes.append(str(tensor.dtype).removeprefix("torch."))
            now = frequencies_of(tensor)
            if now is not None and now.shape == values.shape:
                usable = values != 0
                off = np.abs(now - values)[usable] / np.abs(values[usable])
                errors.append(float(np.max(off, initial=0.0)))
        return ", ".join(dict.fromkeys(dtypes)) or "none", max(errors, default=None)

    def imaginary_lost(self, module: Any) -> bool:
        """Return whether a complex table of the module is real now."""
        was, now = (
            {
                name: one.is_complex()
                for name, one in {**vars(part), **part._buffers}.items()
                if hasattr(one, "is_complex")
            }
            for part in (self.module, module)
        )
        return any(was.get(name) and not still for name, still in now.items())


def _candidates(source: Source, known: Sequence[Known]) -> Iterator[tuple[str, Any]]:
    """Yield modules with RoPE buffers or such names, one per kind and buffers."""
    counts: dict[tuple[Any, ...], int] = {}
    for name, module in source.module.named_modules():
        leaf = next(module.children(), None) is None and next(module.parameters(), None) is None
        own = [one.theta.tobytes() for one in known if one.holder == name]
        if own or (leaf and _NAMED.search(type(module).__name__)):
            key = (type(module), *own)
            counts[key] = counts.get(key, 0) + 1
            if counts[key] == 1:
                yield name, module
    if not counts and next(source.module.children(), None) is None:
        yield "", source.module
    for (kind, *_), count in counts.items():
        if count > 1:
            source.notes.append(
                f"{count} modules {kind.__name__} hold the same values: the first stands for all"
            )


def _rope_module(
    name: str,
    module: Any,
    source: Source,
    known: Sequence[Known],
    expected: Expected | None,
    up_to: int,
) -> RopeModule:
    """Return a module with how it is called, as built."""
    dtype, device = _own_dtype(source.module), _device(source)
    own = [one for one in known if one.holder == name]
    base = RopeModule(name, module, device.label, own, dtype, NotFitted("it does more than RoPE"))
    if next(module.children(), None) is not None and not _NAMED.search(base.kind):
        return base
    given = [] if expected is None else expected.settings(None)
    listed = [*(one.theta for one in own), *(allowance.frequencies(setting) for _, setting in given)]
    misplaced = functools.partial(references.misplaced, listed)
    fitted = forwards.fitted(module, dtype, device.name, references.places, misplaced)
    if isinstance(fitted, NotFitted):
        return replace(base, fitted=fitted)
    built = _with_references(base, fitted, expected, up_to, source.notes)
    code = ""
    with contextlib.suppress(OSError, TypeError):  # there is none
        code = inspect.getsource(type(module).forward)
    if not isinstance(built.fitted, NotFitted) and "self.training" in code:
        source.notes.append(
            f"{built.kind}.forward asks whether it is trained: it was run in eval mode, "
            "without what training adds"
        )
    return built


def _with_references(
    built: RopeModule, fitted: Fitted[TensorPlaces], given: Expected | None, up_to: int, notes: list[str]
) -> RopeModule:
    """Return a module with what each of its calls should return."""
    module, kind = built.module, built.kind
    count = measurement.length(module, fitted, up_to, built.own)
    if count < up_to:
        notes.append(f"{kind} holds {count} positions; it was run at those, and not up to {up_to}")
    axes = fitted.calls[0].axes
    if axes:
        notes.append(f"{kind} was run at {fitted.calls[0].given}")
    before = _state(module)
    if given is not None and any(one.scaling.kind == "dynamic" for _, one in given.settings(None)):
        count = min(count, references.TOGETHER)
        notes.append(f"{kind} is held to what scaling dynamic makes of a call with {count} positions")
    try:
        seen = references.shown(module, fitted, count, built.own)
    except Exception as error:  # whatever other people's code raises
        return replace(built, fitted=NotFitted(f"raised {one_line(error)}", "raised"))
    if columns := fitted.places.theta:
        seen = [replace(one, theta=np.array(columns), uncertain=np.zeros(len(columns))) for one in seen]
    expected = [None if given is None else references.explicit(one, given, axes, count) for one in seen]
    exact = [said or references.exact(one, built.known) for said, one in zip(expected, seen, strict=True)]
    if given is not None and None in expected:
        speeds = references.speeds(seen[expected.index(None)]).size
        base = "what was given" if given.base is None else f"base {given.base:.8g}"
        named = given.words(base if given.model is None else given.model.name)
        notes.append(
            f"{named} was not used for what {kind} returns, which shows {speeds} "
            f"frequencies that are not its: it is compared with {exact[expected.index(None)].words}"
        )
    if _state(module) != before:
        most = min(count, references.TOGETHER)
        notes.append(f"{kind}: its frequencies change with the length; those of {most} positions were run")
        count = most
    pairs = frozenset(count for one in seen for count in references.possible_pairs(one, axes))
    return replace(built, fitted=fitted, positions=count, references=exact, pairs=pairs)


def _state(module: Any) -> list[bytes]:
    buffers = [one for _, one in module.named_buffers() if not one.is_complex() and not one.is_meta]
    return [buffer.detach().cpu().double().numpy().tobytes() for buffer in buffers]


BUILT = "built"
WAYS = (BUILT, "to", "default-dtype", "from-pretrained")
_IMAGINARY = "discards the imaginary part"
HELD = "held"  # the name of a module in the model that is built around it


def loaded_by(builder: Builder, way: str, dtype: Any) -> tuple[Any, str]:
    """Return a fresh module, loaded in a way in eval mode, and its place in what was loaded.

    Raises: BadInput.
    """
    import torch

    with imaginary_parts():  # what a cast makes of complex tables is seen in what the module returns
        if way == "default-dtype":
            before = torch.get_default_dtype()
            torch.set_default_dtype(dtype)
            try:
                return builder.build(), ""
            finally:
                torch.set_default_dtype(before)
        module = builder.build()
        if way == "to":
            return module.to(dtype), ""
        try:
            return _from_pretrained(builder, module, dtype)
        except RopeAuditError:
            raise
        except Exception as error:  # whatever other people's code raises
            raise BadInput(f"raised {one_line(error)}") from None


@contextlib.contextmanager
def imaginary_parts() -> Iterator[list[str]]:
    """Within the block, list torch's warnings of lost imaginary parts, and hide them."""
    import torch

    discarded, always = list[str](), torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # else once in a process
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.filterwarnings("always", message=f".*{_IMAGINARY}")
            yield discarded
    finally:
        torch.set_warn_always(always)
        for one in caught:
            if _IMAGINARY in str(one.message):
                discarded.append(str(one.message))
            else:
                warnings.showwarning(one.message, one.category, one.filename, one.lineno)


def _from_pretrained(builder: Builder, module: Any, dtype: Any) -> tuple[Any, str]:
    """Return a model that was saved and loaded, or what it holds. Raises: BadInput."""
    library = _library(type(module))
    if not library:
        raise BadInput("neither transformers nor diffusers loads it")
    model, place = module, ""
    if not hasattr(module, "save_pretrained"):
        model, place = (_of_diffusers if library == "diffusers" else _of_transformers)(builder), HELD
    options: dict[str, Any] = {"dtype" if library == "transformers" else "torch_dtype": dtype}
    if library == "diffusers":
        options["low_cpu_mem_usage"] = False
    hushed = quiet_transformers() if library == "transformers" else contextlib.nullcontext()
    with tempfile.TemporaryDirectory() as folder, hushed:
        model.save_pretrained(folder)
        result = type(model).from_pretrained(folder, **options).eval()
    return (getattr(result, place), place) if place else (result, "")


def _library(cls: type[Any]) -> str:
    """Return whose from_pretrained loads a class or its holder; "" for others."""
    for base in cls.__mro__:
        name = base.__module__.partition(".")[0]
        if name in ("transformers", "diffusers"):
            return name
    return ""


def _held(model: Any, builder: Builder) -> None:
    """Fill a model of one parameter with a module."""
    import torch

    setattr(model, HELD, builder.build())
    model.weight = torch.nn.Parameter(torch.zeros(1))


def _of_diffusers(builder: Builder) -> Any:
    from diffusers import ConfigMixin, ModelMixin
    from diffusers.configuration_utils import register_to_config

    class Holder(ModelMixin, ConfigMixin):  # type: ignore[misc,unused-ignore]
        config_name = "config.json"

        @register_to_config  # type: ignore[untyped-decorator,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            _held(self, builder)

    return Holder()


def _of_transformers(builder: Builder) -> Any:
    """Return a model to hold the module, which knows how to make buffers anew."""
    from transformers import PreTrainedModel

    cls, arguments = builder.cls, builder.arguments or {}
    beside = vars(sys.modules[cls.__module__]).values() if cls else ()
    own = [one for one in beside if isinstance(one, type) and one.__module__ == cls.__module__]
    kinds = [one for one in own if one.__name__.endswith("PreTrainedModel")]
    config = next((value for value in arguments.values() if hasattr(value, "to_dict")), None)
    if not kinds or config is None:
        raise BadInput("it is no PreTrainedModel, nor is there one of its kind to hold it")
    base: Any = kinds[0]

    class Holder(base):  # type: ignore[misc,unused-ignore]
        config_class = type(config)

        def __init__(self, config: Any) -> None:
            PreTrainedModel.__init__(self, config)
            _held(self, builder)
            self.post_init()

    return Holder(config)
