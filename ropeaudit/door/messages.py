"""What a door and its child exchange: JSON and the bytes of arrays, never a pickle.

The child runs code that is not ours, which may write what it likes where it finds a descriptor: what does not
follow the form is `Malformed`, and nothing of it is believed.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Iterator, Mapping
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
_SCRATCH = 2**16  # bytes that are read at once where no array is awaited
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
    whole = [(name, np.asarray(array, order="C")) for name, array in (arrays or {}).items()]
    held = dict(sorted(whole, key=lambda one: -one[1].itemsize))  # each begins where its numbers may
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


class Reader:
    """Messages of a stream: bytes go to `room`, and `took` is told how many."""

    def __init__(self) -> None:
        self._ahead, self._scratch = bytearray(), memoryview(bytearray(_SCRATCH))
        self._head: tuple[dict[str, Any], list[_Described]] | None = None
        self._body, self._filled = memoryview(b""), 0

    def room(self) -> memoryview:
        """Return where the next bytes go."""
        return self._scratch if self._head is None else self._body[self._filled :]

    def took(self, count: int) -> Iterator[Message]:
        """Yield the messages that are complete with so many bytes. Raises: Malformed."""
        if self._head is None:
            self._ahead += self._scratch[:count]
        else:
            self._filled += count
        while (message := self._next()) is not None:
            yield message

    def _next(self) -> Message | None:
        if self._head is None:
            if len(self._ahead) < _PREFIX.size:
                return None
            magic, length = _PREFIX.unpack_from(self._ahead)
            if magic != _MAGIC or length > _LONGEST_HEADER:
                raise Malformed("bytes that are no message")
            if len(self._ahead) < (end := _PREFIX.size + length):
                return None
            self._head = _described(bytes(self._ahead[_PREFIX.size : end]))
            try:
                self._body = np.empty(sum(size for *_, size in self._head[1]), np.uint8).data
            except MemoryError:
                raise Malformed("arrays larger than the memory") from None
            came = self._ahead[end : end + len(self._body)]
            self._filled, self._body[: len(came)] = len(came), came
            del self._ahead[: end + len(came)]
        if self._filled < len(self._body):
            return None
        header, described = self._head
        arrays, start = {}, 0
        for name, dtype, shape, size in described:
            arrays[name] = np.frombuffer(self._body[start : start + size], dtype).reshape(shape)
            start += size
        self._head = None
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
