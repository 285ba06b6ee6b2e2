"""No command writes over what it reads or writes: looked at before any work, for every option at once."""

from __future__ import annotations

import contextlib
import fnmatch
import itertools
import os
import stat
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ropeaudit import reports
from ropeaudit.console import output_files
from ropeaudit.errors import UnknownName, UsageError
from ropeaudit.runtime import paths, streams

_WRITTEN = {
    "outputs": "-o",
    "save_qk": "--save-qk",
    "junit": "--junit",
    "ticket": "--ticket",
    "write_wrapper": "--write-wrapper",
}
_READ = ("", ".meta.json")  # behind the name of a file
_TENSORS = (".safetensors", ".pt", ".pth", ".bin", ".npz", ".npy")  # beside them a config.json is read
_OF_A_FOLDER = (  # what is read of a checkpoint's or a config's folder
    *("config.json", "*_config.json", "*.index.json", "tokenizer*", "special_tokens_map.json"),
    *("added_tokens.json", "vocab.*", "merges.txt", "chat_template*", "*.safetensors", "*.bin", "*.pt"),
    *("*.pth", "*.py", "*.model"),
    *("manifest.json", "manifest.txt", "case.txt"),  # of a case of vectors, and of what came back for it
)


class _Written(NamedTuple):
    """A file that an option writes. path: the one that it names. file: that, or one that goes with it."""

    flag: str
    path: str
    file: str

    def __str__(self) -> str:
        also = "" if self.file == self.path else f" writes {self.file!r} too, which"
        return f"{self.flag} {self.path!r}{also}"


def refuse_inputs(options: Mapping[str, Any]) -> None:
    """Raise UsageError if an output, or what is written beside it, is a file that the options name."""
    outputs = list(_written(options))
    if not outputs:
        return
    read = [path for name, value in options.items() if name not in _WRITTEN for path in _files(value)]
    for one in outputs:
        if (hit := next((path for path in read if paths.same(one.file, path)), None)) is not None:
            raise UsageError(f"{one} is one of the files to read ({hit!r}); give another name")
        if (code := next((path for path in read if _may_import(path, one.path)), None)) is not None:
            raise UsageError(
                f"{one.flag} {one.path!r} is a Python file beside {code!r}, which may import it; "
                "give another name"
            )


def refuse_meetings(options: Mapping[str, Any]) -> None:
    """Raise UsageError if two files that the options write, stdout and stderr among them, are one."""
    outputs = list(_written(options))
    for one, other in itertools.combinations(outputs, 2):
        if paths.same(one.file, other.file):
            names = f"{one.flag} {one.path!r} and {other.flag} {other.path!r}"
            raise UsageError(f"{names} both write {other.file!r}; give one of them another name")
    for number, stream in ((1, "stdout"), (2, "stderr")):
        for one in outputs:
            if _goes_into(number, one.file):
                raise UsageError(f"{one} is the file that {stream} goes to; give another name, or no `>`")


def _goes_into(number: int, path: str) -> bool:
    """Return whether a descriptor of this process, 1 for stdout or 2 for stderr, leads to a file."""
    try:
        goes = os.fstat(streams.descriptor(number))
        return stat.S_ISREG(goes.st_mode) and os.path.samestat(goes, os.stat(path))
    except (OSError, ValueError):
        return False


def _written(options: Mapping[str, Any]) -> Iterator[_Written]:
    """Yield the files that the options write: no streams."""
    for name, flag in _WRITTEN.items():
        for path in _words(options.get(name)):
            if not paths.is_stream(path):
                yield from (_Written(flag, path, file) for file in _files_of(name, path))
    first = output_files.first_file([*_words(options.get("outputs"))])
    if first is not None and "resume" in options:  # a sweep, whose rows stand there until it is over
        yield _Written("-o", first, output_files.part_of(first))


def _files_of(name: str, path: str) -> Iterator[str]:
    """Yield the files that an option writes for a path: that itself and those that get its name and more."""
    yield path
    if name == "outputs":
        with contextlib.suppress(UnknownName):  # a picture
            if reports.has_file_beside(reports.form_of(path)):
                yield reports.beside(path)
    if name == "save_qk":  # a file a layer type, where a model has several
        from ropeaudit.rope.hf_json import LAYER_TYPES  # in-function: most commands need none of it

        stem, suffix = os.path.splitext(path)
        yield from (f"{stem}-{kind}{suffix}" for kind in (*LAYER_TYPES, "other"))


def _may_import(code: str, path: str) -> bool:
    """Return whether a path is a Python file in the folder of a file of code, or below."""
    written, folder = os.path.realpath(path), os.path.dirname(os.path.realpath(code))
    both = code.endswith(".py") and written.endswith(".py") and os.path.isfile(written)
    return both and written.startswith(os.path.join(folder, ""))


def _files(value: Any) -> Iterator[str]:
    """Yield the files that the words of an option may stand for, as far as they are there."""
    for word in _words(value):
        for path in dict.fromkeys(_paths(word)):
            for end in _READ:
                if os.path.isfile(path + end):
                    yield path + end
            if os.path.isdir(path):
                yield from _known(path)
            elif path.lower().endswith(_TENSORS):
                yield os.path.join(os.path.dirname(path), "config.json")
            elif os.path.basename(path) == "manifest.json":
                yield from _known(os.path.dirname(path) or ".")


def _paths(word: str) -> Iterator[str]:
    """Yield a word, the parts of a list, and what stands before a function's name or changes in brackets."""
    for part in (word, *word.split(",")):
        place, colon, _ = part.strip().rpartition(":")
        yield from (part, part.strip(), part.strip().partition("[")[0])
        if colon:
            yield from (place, place.replace(".", os.sep) + ".py")


def _known(folder: str) -> Iterator[str]:
    """Yield the files of a folder whose names a reader of it looks for."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    for name in names:
        if any(fnmatch.fnmatch(name, pattern) for pattern in _OF_A_FOLDER):
            yield os.path.join(folder, name)


def _words(value: Any) -> Iterator[str]:
    """Yield the text in an option's value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for one in value:
            yield from _words(one)
