"""Messages between a door and its child: our data as JSON and the bytes of arrays; no code, no pickle.

The child runs code that is not ours and may write anything to a descriptor. A message that does not have this
form is `Malformed`, and nothing of it is used.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from ropeaudit import errors
from ropeaudit.errors import ForeignError, RopeAuditError

Arrays = Mapping[str, npt.NDArray[Any]]

_MAGIC = b"rope"
_PREFIX = struct.Struct("<4sI")  # the magic, the length of the header
_LONGEST_HEADER = 2**26  # bytes
_LARGEST = 2**36  # bytes of arrays in one message
_KINDS = "fciub"  # of NumPy's dtypes: no objects and no text
_PLAIN = (type(None), bool, int, float, str)
_LISTED = {"tuple": tuple, "set": set, "frozenset": frozenset}
_FORGED = (  # exceptions caused by a message that `packed` did not make
    *(ArithmeticError, AttributeError, LookupError, RecursionError, RopeAuditError),
    *(StopIteration, TypeError, ValueError),
)
# before others patch them
_write, _encoded, _decoded = os.write, json.JSONEncoder().encode, json.JSONDecoder().decode


# our exceptions, by name, which the parent raises again; those of others' code become `Raised`
OWN_ERRORS: dict[str, type[Exception]] = {
    name: one
    for name, one in vars(errors).items()
    if isinstance(one, type) and issubclass(one, RopeAuditError)
}


class Malformed(ForeignError):
    """Bytes that are no message."""


def rebuild_error(name: str, text: str) -> Exception:
    """Rebuild an exception of `OWN_ERRORS` that the other side raised. text: its full message.

    Raises: Malformed for another name.
    """
    if name not in OWN_ERRORS:
        raise Malformed("an exception that is none of ours")
    error = OWN_ERRORS[name].__new__(OWN_ERRORS[name])
    error.args, vars(error)["fault"] = (text,), text
    return error


@dataclass(frozen=True, slots=True)
class Message:
    """A header of JSON values, and arrays by name."""

    header: dict[str, Any]
    arrays: dict[str, npt.NDArray[Any]] = field(default_factory=dict)


def encode(
    header: Mapping[str, Any],
    arrays: Arrays | None = None,
) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a message. Raises: TypeError, ValueError if it cannot be JSON."""
    held = {name: np.asarray(array, order="C") for name, array in (arrays or {}).items()}
    listed = [[name, array.dtype.str, list(array.shape)] for name, array in held.items()]
    if refused := [name for name, array in held.items() if array.dtype.kind not in _KINDS]:
        raise TypeError(f"arrays of {held[refused[0]].dtype} are not sent")
    text = _encoded({"header": dict(header), "arrays": listed}).encode()
    yield _PREFIX.pack(_MAGIC, len(text)) + text
    for array in held.values():
        if array.size:
            yield memoryview(array.reshape(-1).view(np.uint8).data)


def send(descriptor: int, header: Mapping[str, Any], arrays: Arrays | None = None) -> None:
    """Write a message. Raises: OSError where nobody reads any more."""
    for piece in encode(header, arrays):
        write(descriptor, piece)


def write(descriptor: int, data: bytes | memoryview) -> None:
    """Write bytes, all of them. Raises: OSError where nobody reads any more."""
    left = memoryview(data)
    while left:
        left = left[_write(descriptor, left) :]


def read_message(take: Callable[[memoryview], int]) -> Message:
    """Read the next message. take: waits, reads into a memoryview, and returns the number of bytes.

    Raises: BrokenPipeError where nobody writes any more; Malformed.
    """

    def filled(size: int) -> memoryview:
        try:
            whole = np.empty(size, np.uint8).data
        except MemoryError:
            raise Malformed("arrays larger than the memory") from None
        left = whole
        while left:
            if not (count := take(left)):
                raise BrokenPipeError
            left = left[count:]
        return whole

    magic, length = _PREFIX.unpack(filled(_PREFIX.size))
    if magic != _MAGIC or length > _LONGEST_HEADER:
        raise Malformed("bytes that are no message")
    try:
        whole = _decoded(bytes(filled(length)).decode())
        header, listed = whole["header"], whole["arrays"]
        named = [(str(name), np.dtype(dtype), tuple(map(int, shape))) for name, dtype, shape in listed]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise Malformed(f"a header that is none: {type(error).__name__}") from None
    wrong = any(dtype.kind not in _KINDS or min(shape, default=0) < 0 for _, dtype, shape in named)
    if not isinstance(header, dict) or wrong:
        raise Malformed("a header of other values")
    described = [(name, dtype, shape, dtype.itemsize * math.prod(shape)) for name, dtype, shape in named]
    if sum(size for *_, size in described) > _LARGEST:
        raise Malformed("arrays larger than any that are asked for")
    arrays = {name: np.frombuffer(filled(size), kind).reshape(shape) for name, kind, shape, size in described}
    return Message(header, arrays)


class Values:
    """Converts values to JSON and back: plain values, arrays, known dataclasses, constants.

    A number, text, True, False, None and lists stay as they are; anything else becomes an object with its
    kind. A dataclass is sent as its fields, and built by its constructor on the other side.
    constants: single objects, such as the formats, which are sent by number.
    """

    def __init__(self, classes: Iterable[type], constants: Iterable[Any] = ()) -> None:
        self._classes = {f"{one.__module__}.{one.__qualname__}": one for one in classes}
        self._names = {one: name for name, one in self._classes.items()}
        self._constants = list(constants)

    def packed(self, value: Any, arrays: dict[str, npt.NDArray[Any]]) -> Any:
        """Convert a value to JSON, with its arrays added to `arrays`. Raises: TypeError."""
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
        """Convert JSON back to a value. Raises: Malformed where it is invalid."""
        try:
            return self._rebuilt(told, arrays)
        except _FORGED as error:
            raise Malformed(f"wrote no value of ours where ropeaudit reads: {type(error).__name__}") from None

    def _rebuilt(self, told: Any, arrays: Arrays) -> Any:
        if type(told) in _PLAIN:
            return told
        if isinstance(told, list):
            return [self._rebuilt(one, arrays) for one in told]
        kind, content = next(iter(told.items()))
        if kind == "constant":
            return self._constants[content]
        if kind in _LISTED:
            return _LISTED[kind](self._rebuilt(one, arrays) for one in content)
        if kind == "dict":
            return {self._rebuilt(name, arrays): self._rebuilt(one, arrays) for name, one in content}
        if kind == "array":
            return arrays[content][()] if told["scalar"] else arrays[content]
        if kind == "fraction":
            return Fraction(*content)
        if kind == "error":
            error = rebuild_error(content, str(told["message"]))
            vars(error)["fault"] = str(told["fault"])
            return error
        fields = {name: self._rebuilt(one, arrays) for name, one in told["fields"].items()}
        return self._classes[told["class"]](**fields)
