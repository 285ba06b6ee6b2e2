"""A file of own code executed anew: what it then makes has no past, whatever it keeps at module level."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
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

_COMPILED = "_torchdynamo_orig_callable"  # what torch.compile leaves on a function
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
            with contextlib.suppress(
                Exception
            ):  # whatever other people's code raises: the checks will show it
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
    if own.source is None or compiles(own.thing):
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


def compiles(thing: Any) -> bool:
    """Return whether torch.compile made it: executed anew, it is compiled anew."""
    return hasattr(thing, _COMPILED)
