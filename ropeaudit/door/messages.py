"""What a door and its child say to each other: a JSON header and the bytes of arrays, never a pickle.

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

from ropeaudit.errors import ForeignError

Arrays = Mapping[str, npt.NDArray[Any]]

_MAGIC = b"rope"
_PREFIX = struct.Struct("<4sI")  # the magic, the length of the header
_LONGEST_HEADER = 2**26  # bytes
_LARGEST = 2**36  # bytes of arrays in one message
_KINDS = "fciub"  # of NumPy's dtypes: numbers and truth values, no objects and no text
# before others patch them
_write, _encoded, _decoded = os.write, json.JSONEncoder().encode, json.JSONDecoder().decode


class Malformed(ForeignError):
    """Bytes that are no message."""


@dataclass(frozen=True, slots=True)
class Message:
    """A header of JSON values, and arrays by name."""

    header: dict[str, Any]
    arrays: dict[str, npt.NDArray[Any]] = field(default_factory=dict)


def encoded(header: Mapping[str, Any], arrays: Arrays | None = None) -> Iterator[bytes | memoryview]:
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


class Reader:
    """Messages out of bytes that come in pieces of any size."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._header: tuple[dict[str, Any], list[tuple[str, np.dtype[Any], tuple[int, ...]]]] | None = None

    def feed(self, data: bytes) -> Iterator[Message]:
        """Yield the messages that are complete with these bytes. Raises: Malformed."""
        self._buffer += data
        while (message := self._next()) is not None:
            yield message

    def _next(self) -> Message | None:
        if self._header is None:
            if len(self._buffer) < _PREFIX.size:
                return None
            magic, length = _PREFIX.unpack_from(self._buffer)
            if magic != _MAGIC or length > _LONGEST_HEADER:
                raise Malformed("bytes that are no message")
            if len(self._buffer) < (end := _PREFIX.size + length):
                return None
            self._header = _described(bytes(self._buffer[_PREFIX.size : end]))
            del self._buffer[:end]
        header, described = self._header
        sizes = [dtype.itemsize * math.prod(shape) for _, dtype, shape in described]
        if len(self._buffer) < sum(sizes):
            return None
        arrays, start = {}, 0
        for (name, dtype, shape), size in zip(described, sizes, strict=True):
            arrays[name] = np.frombuffer(self._buffer[start : start + size], dtype).reshape(shape)
            start += size
        del self._buffer[:start]
        self._header = None
        return Message(header, arrays)


def _described(text: bytes) -> tuple[dict[str, Any], list[tuple[str, np.dtype[Any], tuple[int, ...]]]]:
    """Return the header and each array's name, dtype and shape. Raises: Malformed."""
    try:
        whole = _decoded(text.decode())
        header, listed = whole["header"], whole["arrays"]
        described = [(str(name), np.dtype(dtype), tuple(map(int, shape))) for name, dtype, shape in listed]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise Malformed(f"a header that is none: {type(error).__name__}") from None
    wrong = any(dtype.kind not in _KINDS or min(shape, default=0) < 0 for _, dtype, shape in described)
    if not isinstance(header, dict) or wrong:
        raise Malformed("a header of other values")
    if sum(dtype.itemsize * math.prod(shape) for _, dtype, shape in described) > _LARGEST:
        raise Malformed("arrays larger than any that are asked for")
    return header, described
