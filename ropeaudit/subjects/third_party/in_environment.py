"""Other people's implementations in an environment: built in it, called in it, torch put back behind each."""

from __future__ import annotations

from typing import Any

from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime import process_state
from ropeaudit.subjects import Positions
from ropeaudit.subjects.calling.code import Alike, Code
from ropeaudit.subjects.calling.environments import Environment
from ropeaudit.subjects.third_party.adapter import Adapter


class InEnvironment(Code):
    """An adapter in an environment."""

    clean: Adapter

    def __init__(self, adapter: Adapter, environment: Environment) -> None:
        self.clean, self.environment = adapter, environment
        self.name, self.engine = adapter.name, adapter.engine
        self.layouts, self.device = adapter.layouts, adapter.device

    @property
    def version(self) -> str:
        """That of its package."""
        return self.clean.version

    def refuses(self, setting: RopeSetting, dtype: Format) -> str:
        """Return why a setting, a dtype or the environment is not taken; empty where all are."""
        if self.environment.kind == "compile":
            return "compile takes your own code, FILE.py:NAME; an adapter calls this, with arrays of its own"
        return self.environment.lacking(self.engine, dtype, self.device.name) or self.clean.refuses(
            setting, dtype
        )

    def rotator(self, setting: RopeSetting, dtype: Format) -> Alike:
        """Return a new instance, made for a dtype, which takes the others too."""
        with process_state.foreign(self.environment.builds(None)):
            rotation = self.clean.instance(setting, dtype)
        called: Any = self.environment.wrapped(rotation, self.device.name)

        def rotate(x: FloatArray, at: Positions, fmt: Format) -> FloatArray:
            with process_state.foreign(self.environment.calls(None, self.device.name)):
                rotated: FloatArray = called(x, at, fmt)
            return rotated

        return Alike(rotate, dtype)
