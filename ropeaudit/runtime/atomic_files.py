"""Files written beside their place and then put into it, even by several runs.

It is locked while it is open; what nobody has locked was left by a killed run.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

_SUFFIX = ".ropeaudit"
_LONGEST = 40  # characters of a name that stay
LEFT = re.compile(
    r"(\..+\.)[a-z0-9_]{8}" + re.escape(_SUFFIX), re.DOTALL
)  # being written, or left by a killed run


def lock(number: int) -> bool | None:
    """Lock an open file; return whether that worked, None without locks."""
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return None
    return True


@contextlib.contextmanager
def opened(target: Path) -> Iterator[IO[bytes]]:
    """Yield a new file beside `target`, removed unless put elsewhere or `Kept`.

    Those that killed runs left are cleared. Raises: OSError.
    """
    prefix, name, stays = _prefix(target.name), "", ""
    _clear(target.parent, prefix)
    try:
        while True:
            # named before it is made: a signal may come at any moment
            name = os.path.join(target.parent, f"{prefix}{os.urandom(4).hex()}{_SUFFIX}")
            with open(name, "x+b", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
                if lock(file.fileno()) is not False and os.path.exists(name):
                    yield file
                    return
                # another run took it for one that was left, in the moment before it was locked
    except Kept as error:
        stays = error.filename
        raise
    finally:
        if stays != name:
            try:  # noqa: SIM105 a call before `unlink` would let a signal in
                os.unlink(name)
            except OSError:
                pass


def fill(file: IO[bytes], content: bytes, target: Path) -> None:
    """Write a file of `opened` with the mode of `target`. Raises: OSError."""
    file.write(content)
    file.flush()
    os.fsync(file.fileno())
    os.chmod(file.fileno() if os.chmod in os.supports_fd else file.name, _mode(target))


class Kept(OSError):
    """A file could not be written; filename: where its content stands."""


def put(file: IO[bytes], target: Path) -> None:
    """Put a file of `opened` in the place of `target`.

    Where `target` cannot be replaced, as a bind mount or in a folder that only grows, it is written into.
    Raises: Kept.
    """
    if os.name == "nt":  # there open files are not moved, and none is locked
        file.close()
    try:
        os.replace(file.name, target)
    except OSError:
        copy = Path(file.name)
        try:
            with open(target, "r+b" if target.exists() else "xb") as there:
                there.write(copy.read_bytes())
                there.truncate()
                there.flush()
                os.fsync(there.fileno())
        except OSError as error:
            kept = target.with_name(f"{target.name}.new")
            try:
                os.replace(copy, kept)
            except OSError:
                kept = copy
            raise Kept(error.errno, error.strerror, str(kept)) from None


def write(contents: Mapping[Path, bytes]) -> None:
    """Write files in full, or leave what was there. Raises: Kept, OSError."""
    with contextlib.ExitStack() as stack:
        files = {target: stack.enter_context(opened(target)) for target in contents}
        for target, file in files.items():
            fill(file, contents[target], target)
        for target, file in files.items():
            put(file, target)


@contextlib.contextmanager
def folder(target: Path) -> Iterator[Path]:
    """Yield a new folder beside `target`, which takes its place whole at the end of the block.

    Where the block raises, `target` is as it was. One that cannot be moved, as where it is mounted, is
    emptied and filled anew. Raises: OSError.
    """
    import shutil
    import tempfile

    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(_SUFFIX, _prefix(target.name), target.parent) as place:
        beside, old = Path(place, "new"), Path(place, "old")
        beside.mkdir()
        yield beside
        mode = _mode(target)
        beside.chmod(mode | (mode & 0o444) >> 2)
        try:
            if target.exists():
                os.rename(target, old)
            os.rename(beside, target)
        except OSError:
            if not target.is_dir():
                raise
            _empty(target)
            try:
                shutil.copytree(beside, target, dirs_exist_ok=True)
            except BaseException:
                _empty(target)
                raise


def _empty(folder: Path) -> None:
    import shutil

    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _mode(target: Path) -> int:
    """Return the permissions of the file that is replaced, or those of a new one."""
    try:
        return stat.S_IMODE(os.stat(target).st_mode)
    except OSError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask


def _prefix(name: str) -> str:
    """Return how the files of a name begin; long names may share it."""
    return f".{name[:_LONGEST]}."


def _clear(folder: Path, prefix: str) -> None:
    """Remove the files that no run has open; where that is unknown, none."""
    names: list[str] = []
    with contextlib.suppress(OSError):  # a folder may be for writing alone
        names = [name for name in os.listdir(folder) if (left := LEFT.fullmatch(name)) and left[1] == prefix]
    for path in (os.path.join(folder, name) for name in names):
        with contextlib.suppress(OSError):
            number = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
            try:
                if lock(number):
                    os.unlink(path)
            finally:
                os.close(number)
