"""A file of own code executed anew: what it then makes has no past, whatever it keeps at module level."""

from __future__ import annotations

import contextlib
import copy
import inspect
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ropeaudit.arithmetic.formats import Format
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime import process_state
from ropeaudit.runtime.own_modules import OwnModules
from ropeaudit.runtime.process_state import State
from ropeaudit.subjects.calling.timeout import patiently

if TYPE_CHECKING:
    from ropeaudit.subjects.calling.own_code import OwnCode

_COMPILED = "_torchdynamo_orig_callable"  # what torch.compile leaves on what, made anew, it compiles anew
DEAR = 0.5  # seconds of CPU of executing it and of a call of one token, above which it is executed once
_LONG = 10.0  # seconds of waiting, for a download say, above which it is too: a busy machine's are fewer


Made: TypeAlias = tuple[Any, State]  # what a file makes, and the modules that its calls need


@dataclass(slots=True)
class Source:
    """The modules of the file that makes what is called, and its name there.

    usable: whether executing it again works and is not dear; None before that was tried.
    """

    modules: OwnModules
    name: str
    usable: bool | None = None

    def thing(self, call: Callable[[Made], None]) -> Made | None:
        """Execute the file, and what it imports from its folder, and return what the name then is.

        None where that raises, or is dear: with the first it is called, for some code compiles itself then.
        Modules that were imported before stay those that others import.
        """
        if self.usable is None:
            self.usable, began = True, (time.process_time(), time.perf_counter())
            first = self.thing(call)
            with contextlib.suppress(Exception):  # whatever it raises: the checks will show it
                if first is not None:
                    call(first)
            busy, waited = time.process_time() - began[0], time.perf_counter() - began[1]
            self.usable &= busy < DEAR and waited < _LONG
        if not self.usable:
            return None
        try:
            with process_state.at_home(None):
                made: Made = patiently(self._executed, f"import of {self.modules.file}")
                return made
        except Exception:  # whatever other people's code raises: it can be executed but once
            self.usable = False
            return None

    def _executed(self) -> Made:
        process_state.seed()
        modules = self.modules.again()
        return named(modules.load(), self.name), {"modules": modules}


def thing(own: OwnCode, setting: RopeSetting, dtype: Format) -> Made | None:
    """Return what the file of own code makes, executed anew; None where there is none, or it is dear."""
    if own.source is None or hasattr(own.thing, _COMPILED):
        return None

    def call(made: Made) -> None:
        x = np.ones((1, 1, 1, setting.head_dim), dtype.carrier)
        own.of(*made).rotator(setting, dtype).rotate_both(x, x, np.zeros(1, np.int64))

    return own.source.thing(call)


def named(module: Any, name: str) -> Any:
    """Return what a dotted name is in a module. Raises: AttributeError."""
    for part in name.split("."):
        module = getattr(module, part)
    return module


def is_module(thing: Any) -> bool:
    """Return whether it is an instance of torch.nn.Module; torch is not imported to find out."""
    torch: Any = sys.modules.get("torch")
    return hasattr(torch, "nn") and isinstance(thing, torch.nn.Module)


def can_be_copied(thing: Any) -> bool:
    """Return whether a deep copy shares no state: what functions close over is not copied."""
    if inspect.isroutine(thing) or not hasattr(thing, "__dict__"):
        return False
    parts = thing.modules() if is_module(thing) else [thing]
    return not any(
        inspect.isfunction(value) and value.__closure__ for part in parts for value in vars(part).values()
    )


def copied(thing: Any) -> Any:
    """Return a deep copy, torch's tensors by copy on write: of 262,144 rows every copy took 0.1 s.

    Raises: whatever its parts raise that cannot be copied.
    """
    storages: dict[int, Any] = {}
    torch: Any = sys.modules.get("torch")
    if hasattr(torch, "Tensor"):
        for tensor in _tensors(thing, torch):
            # sparse tensors and those of odd backends have no lazy clone, an older torch has none at all
            with contextlib.suppress(AttributeError, RuntimeError, NotImplementedError):
                lazy = torch._lazy_clone(tensor.detach()).untyped_storage()
                storages.setdefault(tensor.untyped_storage()._cdata, lazy)
    memo: dict[Any, Any] = {"torch": storages}  # where torch looks for storages that were copied
    return copy.deepcopy(thing, memo)


def _tensors(thing: Any, torch: Any) -> Iterator[Any]:
    parts = thing.modules() if is_module(thing) else [thing] if hasattr(thing, "__dict__") else []
    for part in parts:
        held = [vars(part)]
        held += [part._buffers, part._parameters] if is_module(part) else []
        for values in held:
            yield from (value for value in values.values() if isinstance(value, torch.Tensor))
