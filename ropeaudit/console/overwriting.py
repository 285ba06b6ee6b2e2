"""No command writes over what it reads: looked at before any work, for every option at once."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import Any, TypeVar, cast

import click

from ropeaudit.errors import UsageError
from ropeaudit.runtime import paths

F = TypeVar("F", bound=Callable[..., Any])
_WRITTEN = {"outputs": "-o", "save_qk": "--save-qk", "junit": "--junit", "ticket_file": "--ticket-file"}
_READ, _METADATA = ("", ".meta.json"), ("", ".meta.json", ".part")  # behind the name of a file
_TENSORS = (".safetensors", ".pt", ".pth", ".bin")  # beside them a config.json is read
_OF_A_FOLDER = (  # what is read of a checkpoint's or a config's folder
    *("config.json", "*_config.json", "*.index.json", "tokenizer*", "special_tokens_map.json"),
    *("added_tokens.json", "vocab.*", "merges.txt", "chat_template*", "*.safetensors", "*.bin", "*.pt"),
    *("*.pth", "*.py", "*.model"),
    *("manifest.json", "manifest.txt", "case.txt"),  # of a case of vectors, and of what came back for it
)


def guarded(command: F) -> F:
    """Let a command refuse an output that is one of its inputs, whichever option names them."""

    @wraps(command)
    def checked(**options: Any) -> Any:
        refuse_inputs(click.get_current_context().params)
        return command(**options)

    return cast(F, checked)


def refuse_inputs(options: Mapping[str, Any]) -> None:
    """Raise UsageError if an output, or what is written beside it, is a file that the options name."""
    came_back = [path for path in _words(options.get("outputs")) if _came_back(path)]
    named = [(flag, path) for name, flag in _WRITTEN.items() for path in _words(options.get(name))]
    outputs = [(flag, path) for flag, path in named if flag != "-o" or path not in came_back]
    if not outputs:
        return
    read = [path for name, value in options.items() if name not in _WRITTEN for path in _files(value)]
    read += _files(came_back)
    for flag, path in outputs:
        for written in (path + end for end in _METADATA):
            hit = next((one for one in read if paths.same(written, one)), None)
            if hit is not None and not paths.is_stream(written):
                beside = "" if written == path else f" writes {written!r} too, which"
                raise UsageError(
                    f"{flag} {path!r}{beside} is one of the files to read ({hit!r}); give another name"
                )
        if (code := next((one for one in read if _may_import(one, path)), None)) is not None:
            raise UsageError(
                f"{flag} {path!r} is a Python file beside {code!r}, which may import it; give another name"
            )


def _may_import(code: str, path: str) -> bool:
    """Return whether a path is a Python file in the folder of a file of code, or below."""
    written, folder = os.path.realpath(path), os.path.dirname(os.path.realpath(code))
    both = code.endswith(".py") and written.endswith(".py") and os.path.isfile(written)
    return both and written.startswith(os.path.join(folder, ""))


def _came_back(path: str) -> bool:
    """Return whether --output names what a kernel wrote, which is read: a folder, or tensors."""
    return os.path.isdir(path) or path.lower().endswith(".safetensors")


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
