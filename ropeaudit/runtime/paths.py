"""What a path stands for: the file behind a link, or a stream, never replaced."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

_DESCRIPTOR = re.compile(r"/dev/fd/(\d+)|/proc/(?:self|\d+)/fd/(\d+)")
_NAMED = {"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2}
_MOST_LINKS = 40
INSTALLED = {"site-packages", "dist-packages"}  # folders of packages


def shown_path(path: str | Path) -> str:
    """Return how reports name a file: from this folder, packages, or whole."""
    whole = Path(os.path.abspath(path))
    for at, part in enumerate(whole.parts):
        if part in INSTALLED:
            return "/".join(whole.parts[at + 1 :])
    try:
        return whole.resolve().relative_to(Path.cwd().resolve()).as_posix()
    except (OSError, ValueError):
        return str(whole)


def behind(path: str) -> str:
    """Return the file that a link leads to; any other path as it is."""
    return os.path.realpath(path) if os.path.islink(path) else path


def descriptor(path: str) -> int | None:
    """Return the descriptor that a path such as /dev/stdout names."""
    target = os.path.abspath(path)
    for _ in range(_MOST_LINKS):
        if target in _NAMED:
            return _NAMED[target]
        if match := _DESCRIPTOR.fullmatch(target):
            return int(match[1] or match[2])
        if not os.path.islink(target):
            return None
        link = os.readlink(target)
        target = os.path.normpath(os.path.join(os.path.dirname(target), link))
    return None


def is_stream(path: str) -> bool:
    """Return whether a path is a pipe, a device or an open file's number."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        return True
    return stat.S_ISREG(mode) and descriptor(path) is not None


def same(path: str, other: str) -> bool:
    """Return whether two paths are one file: by name, links or hard links.

    Of missing files, names that differ in case alone are one, as in some folders.
    """
    try:
        one, two = os.path.realpath(path), os.path.realpath(other)
        if one == two:
            return True
        if os.path.lexists(one) or os.path.lexists(two):
            return os.path.samefile(one, two)
        (folder, name), (elsewhere, again) = os.path.split(one), os.path.split(two)
        return name.casefold() == again.casefold() and os.path.samefile(folder, elsewhere)
    except (OSError, ValueError):
        return False


def is_still_at(number: int, path: str) -> bool:
    """Return whether an open file is still at a path, not behind a link."""
    try:
        return os.path.samestat(os.fstat(number), os.lstat(path))
    except OSError:
        return False
