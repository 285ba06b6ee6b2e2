"""What a door and its child exchange: JSON and the bytes of arrays, never a pickle.

The child runs code that is not ours, which may write what it likes where it finds a descriptor: what does not
follow the form is `Malformed`, and nothing of it is believed.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ropeaudit import errors
from ropeaudit.errors import ForeignError, RopeAuditError

Arrays = Mapping[str, npt.NDArray[Any]]
_Described = tuple[str, np.dtype[Any], tuple[int, ...], int]  # an array's name, dtype, shape and bytes

_MAGIC = b"rope"
_PREFIX = struct.Struct("<4sI")  # the magic, the length of the header
_LONGEST_HEADER = 2**26  # bytes
_LARGEST = 2**36  # bytes of arrays in one message
_KINDS = "fciub"  # of NumPy's dtypes: no objects and no text
# before others patch them
_write, _encoded, _decoded = os.write, json.JSONEncoder().encode, json.JSONDecoder().decode


# exceptions that come home as they are, by their names; others' code raises `Raised`
HOME: dict[str, type[Exception]] = {
    name: one
    for name, one in vars(errors).items()
    if isinstance(one, type) and issubclass(one, RopeAuditError)
}


class Malformed(ForeignError):
    """Bytes that are no message."""


def again(name: str, text: str) -> Exception:
    """Return an exception of `HOME` as raised on the other side; text: its whole message.

    Raises: Malformed for another name.
    """
    if name not in HOME:
        raise Malformed("an exception that is none of ours")
    error = HOME[name].__new__(HOME[name])
    if isinstance(error, RopeAuditError):
        RopeAuditError.__init__(error, text)
    else:
        Exception.__init__(error, text)
    return error


@dataclass(frozen=True, slots=True)
class Message:
    """A header of JSON values, and arrays by name."""

    header: dict[str, Any]
    arrays: dict[str, npt.NDArray[Any]] = field(default_factory=dict)


def encoded(
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
    """Write a message whole. Raises: OSError where nobody reads any more."""
    for piece in encoded(header, arrays):
        write(descriptor, piece)


def write(descriptor: int, data: bytes | memoryview) -> None:
    """Write bytes, all of them. Raises: OSError where nobody reads any more."""
    left = memoryview(data)
    while left:
        left = left[_write(descriptor, left) :]


def received(take: Callable[[memoryview], int]) -> Message:
    """Return the next message. take: waits, reads what there is into a room, and returns how many bytes.

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
    header, described = _described(bytes(filled(length)))
    arrays = {name: np.frombuffer(filled(size), kind).reshape(shape) for name, kind, shape, size in described}
    return Message(header, arrays)


def _described(text: bytes) -> tuple[dict[str, Any], list[_Described]]:
    """Return the header and each array's name, dtype, shape and bytes. Raises: Malformed."""
    try:
        whole = _decoded(text.decode())
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
    return header, described
