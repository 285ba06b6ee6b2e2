"""Ways in which a module comes to be in a dtype: cast, built in it, or by from_pretrained."""

from __future__ import annotations

import contextlib
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from ropeaudit.errors import RopeAuditError, one_line
from ropeaudit.subjects.calling.building import Builder
from ropeaudit.subjects.calling.timeout import patiently

BUILT = "built"
WAYS = (BUILT, "to", "default-dtype", "from-pretrained")
_IMAGINARY = "discards the imaginary part"
HELD = "held"  # the name of a module in the model that is built around it


class NotLoadable(Exception):
    """A module that cannot be loaded in a way, with the reason in words."""


def usual(builder: Builder) -> tuple[str, ...]:
    """Return the ways that are tried unless some are named: of a class all that it has, of a factory one."""
    if builder.cls is None:
        return (BUILT,)
    return WAYS if _library(builder.cls) else WAYS[:3]


def loaded(builder: Builder, way: str, dtype: Any) -> tuple[Any, str]:
    """Return a fresh module that was loaded in a way, in eval mode, and where it stands in what was loaded.

    Raises: NotLoadable, BadInput.
    """
    import torch

    with imaginary_parts():  # what a cast makes of complex tables is seen in what the module returns
        if way == BUILT:
            return builder.build(), ""
        if way == "default-dtype":
            before = torch.get_default_dtype()
            torch.set_default_dtype(dtype)
            try:
                return builder.build(), ""
            finally:
                torch.set_default_dtype(before)
        module = builder.build()
        if way == "to":
            return patiently(lambda: module.to(dtype), f"{builder.spec}.to({dtype})"), ""
        try:
            found: tuple[Any, str] = patiently(
                lambda: _from_pretrained(builder, module, dtype), f"{builder.spec} from-pretrained"
            )
            return found
        except (RopeAuditError, NotLoadable):
            raise
        except Exception as error:  # whatever other people's code raises
            raise NotLoadable(f"raised {one_line(error)}") from None


@contextlib.contextmanager
def imaginary_parts() -> Iterator[list[str]]:
    """Within the block, list torch's warnings that imaginary parts are discarded instead of showing them."""
    import torch

    discarded: list[str] = []
    always = torch.is_warn_always_enabled()
    with warnings.catch_warnings():
        warnings.filterwarnings("always", message=f".*{_IMAGINARY}")
        show = warnings.showwarning

        def listed(message: Warning | str, *more: Any, **named: Any) -> None:
            if _IMAGINARY in str(message):
                discarded.append(str(message))
            else:
                show(message, *more, **named)

        warnings.showwarning = listed
        torch.set_warn_always(True)  # else once in a process
        try:
            yield discarded
        finally:
            torch.set_warn_always(always)


def _from_pretrained(builder: Builder, module: Any, dtype: Any) -> tuple[Any, str]:
    """Return a model that was saved and loaded, or what it holds. Raises: NotLoadable."""
    library = _library(type(module))
    if not library:
        raise NotLoadable("neither transformers nor diffusers loads it")
    model, place = (module, "") if hasattr(module, "save_pretrained") else (_holder(library, builder), HELD)
    options: dict[str, Any] = {"dtype" if library == "transformers" else "torch_dtype": dtype}
    if library == "diffusers":
        options["low_cpu_mem_usage"] = False
    with tempfile.TemporaryDirectory() as folder, _quietly(library):
        model.save_pretrained(folder)
        result = type(model).from_pretrained(folder, **options).eval()
    return (getattr(result, place), place) if place else (result, "")


@contextlib.contextmanager
def _quietly(library: str) -> Iterator[None]:
    """Within the block, show no bars of progress."""
    if library != "transformers":
        yield
        return
    from transformers.utils import logging as quiet

    logging: Any = quiet

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _library(cls: type[Any]) -> str:
    """Return whose from_pretrained loads a class, or a model that holds it; nothing for other classes."""
    for base in cls.__mro__:
        name = base.__module__.partition(".")[0]
        if name in ("transformers", "diffusers"):
            return name
    return ""


def _holder(library: str, builder: Builder) -> Any:
    """Return a model of one parameter that holds a module."""
    import torch

    def fill(model: Any) -> None:
        setattr(model, HELD, builder.build())
        model.weight = torch.nn.Parameter(torch.zeros(1))

    return _of_diffusers(fill) if library == "diffusers" else _of_transformers(builder, fill)


def _of_diffusers(fill: Callable[[Any], None]) -> Any:
    from diffusers import ConfigMixin, ModelMixin
    from diffusers.configuration_utils import register_to_config

    class Holder(ModelMixin, ConfigMixin):  # type: ignore[misc,unused-ignore]
        config_name = "config.json"

        @register_to_config  # type: ignore[untyped-decorator,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            fill(self)

    return Holder()


def _of_transformers(builder: Builder, fill: Callable[[Any], None]) -> Any:
    """Return a model of the kind that holds such a module, which knows how its buffers are made anew.

    Raises: NotLoadable where there is none.
    """
    from transformers import PreTrainedModel

    cls, arguments = builder.cls, builder.arguments or {}
    kinds = [one for one in vars(sys.modules[cls.__module__]).values() if _is_base(one, cls)] if cls else []
    config = next((value for value in arguments.values() if hasattr(value, "to_dict")), None)
    if not kinds or config is None:
        raise NotLoadable("it is no PreTrainedModel, nor is there one of its kind to hold it")
    base: Any = kinds[0]

    class Holder(base):  # type: ignore[misc,unused-ignore]
        config_class = type(config)

        def __init__(self, config: Any) -> None:
            PreTrainedModel.__init__(self, config)
            fill(self)
            self.post_init()

    return Holder(config)


def _is_base(value: Any, cls: type[Any]) -> bool:
    """Return whether a value is the base of all models of a modeling file."""
    return (
        isinstance(value, type)
        and value.__module__ == cls.__module__
        and value.__name__.endswith("PreTrainedModel")
    )


def words(way: str, dtype: str) -> str:
    """Return a way in words: as built, after .to(torch.bfloat16), ..."""
    return {
        BUILT: "as built",
        "to": f"after .to(torch.{dtype})",
        "default-dtype": f"built under the default dtype {dtype}",
        "from-pretrained": f"after from_pretrained in {dtype}",
    }[way]
