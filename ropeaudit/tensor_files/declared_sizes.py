"""What a file of tensors declares, held against its real size and the free memory before it is read."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np

from ropeaudit.errors import BadInput
from ropeaudit.runtime import run_metadata

_WIDE = 8  # bytes of a number in float64, which all become
_PACKED, _FREE_OF_DOUBT = 100, 2**28  # times that an honest archive is packed; bytes that may be more


def check(path: Path) -> None:
    """Raise BadInput for a file that declares more than its bytes can hold, or than there is room for.

    Of .safetensors the library itself holds the header against the file.
    """
    if zipfile.is_zipfile(path):  # .npz, .pt and .pth
        with zipfile.ZipFile(path) as archive:
            _check_archive(path, archive)
    elif path.suffix.lower() == ".npy":
        with path.open("rb") as file:
            _check_array(path, file, path.stat().st_size)


def check_room(path: Path, numbers: int) -> None:
    """Raise BadInput unless so many numbers find room in float64."""
    if (needed := numbers * _WIDE) > (free := run_metadata.free_bytes()):
        raise BadInput(
            f"{str(path)!r} declares {numbers:,} numbers, {needed / 2**30:,.1f} GiB in float64, and "
            f"{free / 2**30:,.1f} GiB are free; give a smaller part of it"
        )


def _check_archive(path: Path, archive: zipfile.ZipFile) -> None:
    members, size = archive.infolist(), path.stat().st_size
    declared = sum(member.file_size for member in members)
    if declared > max(_PACKED * size, _FREE_OF_DOUBT):
        raise BadInput(
            f"{str(path)!r} has {size:,} bytes and declares {declared:,}, more than tensors can be packed; "
            "give the file unpacked if it is right"
        )
    if declared > run_metadata.free_bytes():
        check_room(path, declared // _WIDE)
    for member in members:
        if member.filename.endswith(".npy") and not member.flag_bits & 1:  # 1: encrypted, and refused later
            with archive.open(member) as file:
                _check_array(path, file, member.file_size)


def _check_array(path: Path, file: IO[bytes], size: int) -> None:
    """Raise BadInput for an array whose header declares more than its bytes; NumPy refuses the rest."""
    form: Any = np.lib.format
    try:
        version = form.read_magic(file)
        read = form.read_array_header_1_0 if version == (1, 0) else form.read_array_header_2_0
        shape, _, dtype = read(file)
    except (ValueError, OSError, zipfile.BadZipFile):
        return
    if dtype.hasobject:
        return
    declared = math.prod(shape) * dtype.itemsize
    here = size - file.tell()
    if declared > here:
        raise BadInput(
            f"{str(path)!r} declares an array of {shape}, {declared:,} bytes, and holds {here:,}; it was cut "
            "short or changed: write it again"
        )
    check_room(path, math.prod(shape))
