"""What a path refers to: a file, the target of a link, or a stream."""

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
    """Return a path as reports show it: relative to this folder or to site-packages, else absolute."""
    absolute = Path(os.path.abspath(path))
    for place, part in enumerate(absolute.parts):
        if part in INSTALLED:
            return "/".join(absolute.parts[place + 1 :])
    try:
        return absolute.resolve().relative_to(Path.cwd().resolve()).as_posix()
    except (OSError, ValueError):
        return str(absolute)


def link_target(path: str) -> str:
    """Return the file that a link points to; any other path unchanged."""
    return os.path.realpath(path) if os.path.islink(path) else path


def descriptor(path: str) -> int | None:
    """Return the file descriptor that a path such as /dev/stdout names, None for other paths."""
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
    """Return whether a path is a pipe, a device or a file descriptor."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        return True
    return stat.S_ISREG(mode) and descriptor(path) is not None


def same_file(path: str, other: str) -> bool:
    """Return whether two paths are one file: by name, links or hard links.

    Names of missing files that differ in case alone count as one: some file systems ignore it.
    """
    try:
        first, second = os.path.realpath(path), os.path.realpath(other)
        if first == second:
            return True
        if os.path.lexists(first) or os.path.lexists(second):
            return os.path.samefile(first, second)
        (folder, name), (other_folder, other_name) = os.path.split(first), os.path.split(second)
        return name.casefold() == other_name.casefold() and os.path.samefile(folder, other_folder)
    except (OSError, ValueError):
        return False


def is_still_at(number: int, path: str) -> bool:
    """Return whether an open file is still the one at a path, and not a link's target."""
    try:
        return os.path.samestat(os.fstat(number), os.lstat(path))
    except OSError:
        return False
