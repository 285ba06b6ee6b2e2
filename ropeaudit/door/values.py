"""Values of ours as JSON and arrays, and back: only data goes through a door, no code.

A number, text, True, False and None stand as they are, and a list as a list; anything else is an object that
says what it is. Of a dataclass its fields are sent, and it is made by its own constructor on the other side.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from ropeaudit.door.messages import Malformed, again
from ropeaudit.errors import RopeAuditError

_PLAIN = (type(None), bool, int, float, str)
_LISTED = {"tuple": tuple, "set": set, "frozenset": frozenset}
_FORGED = (  # what follows of a message that `packed` did not make
    *(ArithmeticError, AttributeError, LookupError, RecursionError, RopeAuditError),
    *(StopIteration, TypeError, ValueError),
)
Arrays = dict[str, npt.NDArray[Any]]


class Values:
    """What both sides of a door know: dataclasses that are sent, objects sent by name.

    constants: objects of which there is one in a process, such as the formats: they arrive as themselves.
    """

    def __init__(self, classes: Iterable[type], constants: Iterable[Any] = ()) -> None:
        self._classes = {f"{one.__module__}.{one.__qualname__}": one for one in classes}
        self._names = {one: name for name, one in self._classes.items()}
        self._constants = list(constants)

    def packed(self, value: Any, arrays: Arrays) -> Any:
        """Return a value as JSON, its arrays moved to `arrays`. Raises: TypeError."""
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is list:
            return [self.packed(one, arrays) for one in value]
        for number, constant in enumerate(self._constants):
            if value is constant:
                return {"constant": number}
        if kind in _LISTED.values():
            return {kind.__name__: [self.packed(one, arrays) for one in value]}
        if kind is dict:
            return {"dict": [[self.packed(one, arrays) for one in pair] for pair in value.items()]}
        if isinstance(value, np.ndarray | np.generic):  # k that is q is sent once
            name = next((name for name, array in arrays.items() if array is value), str(len(arrays)))
            arrays[name] = np.asarray(value)
            return {"array": name, "scalar": isinstance(value, np.generic)}
        if kind is Fraction:
            return {"fraction": [value.numerator, value.denominator]}
        if isinstance(value, RopeAuditError):
            return {"error": kind.__name__, "message": value.typed, "fault": value.fault}
        if kind in self._names:
            fields = [one.name for one in dataclasses.fields(value) if one.init]
            held = {name: self.packed(getattr(value, name), arrays) for name in fields}
            return {"class": self._names[kind], "fields": held}
        raise TypeError(f"a {kind.__qualname__} is not sent")

    def unpacked(self, told: Any, arrays: Arrays) -> Any:
        """Return the value that JSON describes. Raises: Malformed where it is invalid."""
        try:
            return self._made(told, arrays)
        except _FORGED as error:
            raise Malformed(f"wrote no value of ours where ropeaudit reads: {type(error).__name__}") from None

    def _made(self, told: Any, arrays: Arrays) -> Any:
        if type(told) in _PLAIN:
            return told
        if isinstance(told, list):
            return [self._made(one, arrays) for one in told]
        kind, content = next(iter(told.items()))
        if kind == "constant":
            return self._constants[content]
        if kind in _LISTED:
            return _LISTED[kind](self._made(one, arrays) for one in content)
        if kind == "dict":
            return {self._made(name, arrays): self._made(one, arrays) for name, one in content}
        if kind == "array":
            return arrays[content][()] if told["scalar"] else arrays[content]
        if kind == "fraction":
            return Fraction(*content)
        if kind == "error":
            error = again(content, str(told["message"]))
            vars(error)["fault"] = str(told["fault"])
            return error
        fields = {name: self._made(one, arrays) for name, one in told["fields"].items()}
        return self._classes[told["class"]](**fields)
