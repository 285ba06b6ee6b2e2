"""Files and folders that are written beside their target and then replace it in one step.

A temporary file is locked while it is open: one without a lock was abandoned by a killed run.
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
_NAME_CHARACTERS = 40  # of the target's name, at the start of a temporary name
TEMPORARY_NAME = re.compile(r"(\..+\.)[a-z0-9_]{8}" + re.escape(_SUFFIX), re.DOTALL)


def lock(number: int) -> bool | None:
    """Lock an open file for this process; return whether it is, None where there are no locks."""
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
def temporary_file(target: Path) -> Iterator[IO[bytes]]:
    """Yield a new file beside `target`; at the end it is removed, unless it was moved or `NotReplaced`.

    Files that killed runs abandoned there are removed first. Raises: OSError.
    """
    prefix, name, retained = _temporary_prefix(target.name), "", ""
    _remove_abandoned(target.parent, prefix)
    try:
        while True:
            # named before it is made: a signal may come at any moment
            name = os.path.join(target.parent, f"{prefix}{os.urandom(4).hex()}{_SUFFIX}")
            with open(name, "x+b", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
                if lock(file.fileno()) is not False and os.path.exists(name):
                    yield file
                    return
                # another run took it for an abandoned one, in the moment before it was locked
    except NotReplaced as error:
        retained = error.filename
        raise
    finally:
        if retained != name:
            try:  # noqa: SIM105 a call before `unlink` would let a signal in
                os.unlink(name)
            except OSError:
                pass


def fill(file: IO[bytes], content: bytes, target: Path) -> None:
    """Write a temporary file, with the permissions of `target`. Raises: OSError."""
    file.write(content)
    file.flush()
    os.fsync(file.fileno())
    os.chmod(file.fileno() if os.chmod in os.supports_fd else file.name, _permissions(target))


class NotReplaced(OSError):
    """A file that could not replace its target. filename: where its content is instead."""


def put(file: IO[bytes], target: Path) -> None:
    """Replace `target` with a temporary file.

    A target that cannot be replaced, such as a bind mount, is overwritten. Raises: NotReplaced.
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
            rescued = target.with_name(f"{target.name}.new")
            try:
                os.replace(copy, rescued)
            except OSError:
                rescued = copy
            raise NotReplaced(error.errno, error.strerror, str(rescued)) from None


def write(contents: Mapping[Path, bytes]) -> None:
    """Write all of these files, or leave every target as it was. Raises: NotReplaced, OSError."""
    with contextlib.ExitStack() as stack:
        files = {target: stack.enter_context(temporary_file(target)) for target in contents}
        for target, file in files.items():
            fill(file, contents[target], target)
        for target, file in files.items():
            put(file, target)


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder beside `target`, which it replaces at the end of the block.

    Where the block raises, `target` stays as it was. A folder that cannot be moved, such as a mount point, is
    emptied and its new content copied into it. Raises: OSError.
    """
    import shutil
    import tempfile

    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(_SUFFIX, _temporary_prefix(target.name), target.parent) as place:
        beside, old = Path(place, "new"), Path(place, "old")
        beside.mkdir()
        yield beside
        mode = _permissions(target)
        beside.chmod(mode | (mode & 0o444) >> 2)
        try:
            if target.exists():
                os.rename(target, old)
            os.rename(beside, target)
        except OSError:
            if not target.is_dir():
                raise
            _empty_folder(target)
            try:
                shutil.copytree(beside, target, dirs_exist_ok=True)
            except BaseException:
                _empty_folder(target)
                raise


def _empty_folder(folder: Path) -> None:
    import shutil

    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _permissions(target: Path) -> int:
    try:
        return stat.S_IMODE(os.stat(target).st_mode)
    except OSError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask


def _temporary_prefix(name: str) -> str:
    """Return how the names of the temporary files of a target begin; long names may share it."""
    return f".{name[:_NAME_CHARACTERS]}."


def _remove_abandoned(folder: Path, prefix: str) -> None:
    """Remove the temporary files that no run has locked; none where files cannot be locked."""
    names: list[str] = []
    with contextlib.suppress(OSError):  # a folder that cannot be listed may still be written to
        names = [
            name
            for name in os.listdir(folder)
            if (left := TEMPORARY_NAME.fullmatch(name)) and left[1] == prefix
        ]
    for path in (os.path.join(folder, name) for name in names):
        with contextlib.suppress(OSError):
            number = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
            try:
                if lock(number):
                    os.unlink(path)
            finally:
                os.close(number)
