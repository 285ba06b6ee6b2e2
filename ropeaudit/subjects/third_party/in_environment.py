"""Other people's implementations in an environment: built in it, called in it, torch put back behind each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime import process_state
from ropeaudit.subjects import Positions
from ropeaudit.subjects.calling.environments import Environment
from ropeaudit.subjects.calling.implementation import Implementation, Rotate, device_of


class InEnvironment:
    """An adapter in an environment; an `Implementation`, and its instances can be called again."""

    def __init__(self, adapter: Implementation, environment: Environment) -> None:
        self.clean, self.environment = adapter, environment
        self.name, self.engine = adapter.name, adapter.engine
        self.version, self.layouts = adapter.version, adapter.layouts
        self.device = device_of(adapter)

    def refuses(self, setting: RopeSetting, dtype: Format) -> str:
        """Return why a setting, a dtype or the environment is not taken; empty where all are."""
        if self.environment.kind == "compile":
            return "compile takes your own code, FILE.py:NAME; an adapter calls this, with arrays of its own"
        if not hasattr(self.clean, "instance"):
            return "its instances cannot be called again"
        return self.environment.lacking(self.engine, dtype, self.device.name) or self.clean.refuses(
            setting, dtype
        )

    def fresh(self, setting: RopeSetting, dtype: Format) -> Rotate:
        """Return the function of a new instance."""
        rotate = self.instance(setting, dtype)
        return lambda x, positions: rotate(x, positions, dtype)

    def instance(
        self, setting: RopeSetting, dtype: Format
    ) -> Callable[[FloatArray, Positions, Format], FloatArray]:
        """Return the function of a new instance, made for a dtype, which takes the others too."""
        with process_state.foreign(self.environment.builds(None)):
            rotation: Any = cast(Any, self.clean).instance(setting, dtype)
        called = self.environment.wrapped(rotation, self.device.name)

        def rotate(x: FloatArray, at: Positions, fmt: Format) -> FloatArray:
            with process_state.foreign(self.environment.calls(None, self.device.name)):
                rotated: FloatArray = called(x, at, fmt)
            return rotated

        return rotate
