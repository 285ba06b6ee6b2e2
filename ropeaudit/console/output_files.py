"""Files of reports: claimed before the work, replaced whole or streamed."""

from __future__ import annotations

import contextlib
import glob
import itertools
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import click

from ropeaudit import reports
from ropeaudit.errors import BadOutput, UnknownName, UsageError
from ropeaudit.reports import Report
from ropeaudit.runtime import atomic_files, paths

_BESIDE = {name: form for name, form in reports.REGISTRY.items() if form.metadata == "beside"}


class OutputFile:
    """A file to be: claimed now, and written whole in one step once its bytes are there.

    What is no file but a stream (a pipe, /dev/stdout) is opened here and written into. written: whether it
    was. was_there: whether a report would be replaced.
    """

    def __init__(self, path: str, form: str, flag: str = "-o") -> None:
        """Claim the path for a form. Raises: BadOutput if it cannot be written, MissingPackage.

        flag: the option that names it.
        """
        self.path, self.form, self.flag, self.written = path, form, flag, False
        reports.check_installed(form)
        self.stream = _stream(path, flag) if paths.is_stream(path) else None
        self.targets: list[Path] = []
        if self.stream is None:  # the file that the path leads to, and the metadata beside it, if any
            beside = [reports.beside(path)] if form in _BESIDE else []
            self.targets = [Path(paths.behind(one)) for one in (path, *beside)]
        for number, target in enumerate(self.targets):
            _check_place(target, form.upper() if number else "", flag)

    def was_there(self) -> bool:
        """Return whether there is a report that this one would take the place of."""
        return bool(self.targets) and self.targets[0].exists()

    def contents(self, report: Report) -> list[bytes]:
        """Return the bytes of a report, and of metadata that stand beside it."""
        contents = [reports.encoded(self.form, report)]
        if len(self.targets) > 1:
            import json  # in-function, as digests, which load NumPy: most runs write no metadata

            from ropeaudit.runtime import digests

            whole = {**report.metadata, self.form: digests.of_bytes(contents[0])}
            about = json.dumps(whole, indent=2, ensure_ascii=False) + "\n"
            contents.append(about.encode("utf-8", "backslashreplace"))
        return contents

    def fill(self, contents: Sequence[bytes]) -> None:
        """Write the bytes of each target. Raises: BadOutput."""
        try:
            if self.stream is not None:
                with self.stream:
                    self.stream.write(contents[0])
            else:
                atomic_files.write(dict(zip(self.targets, contents, strict=True)))
        except OSError as error:
            if isinstance(error, BrokenPipeError) and paths.descriptor(self.path) == 1:
                return  # nobody reads on, as where a report is printed
            kept = isinstance(error, atomic_files.Kept)
            remedy = f"all of it is in {error.filename!r}" if kept else "give another place"
            seen = f"{self.flag} {self.path!r} cannot be written: {error.strerror}"
            raise BadOutput(f"{seen}; {remedy}") from None
        self.written = True


def part_of(path: str) -> str:
    """Return the file that holds the rows of a report while a sweep lasts."""
    return f"{paths.behind(path)}.part"


def first_file(outputs: Sequence[str]) -> str | None:
    """Return the first path that is no stream: beside it rows are stored as they finish."""
    return next((path for path in outputs if not paths.is_stream(path)), None)


@contextlib.contextmanager
def opened(
    outputs: Sequence[str],
    form_of: Callable[[str], str] = reports.form_of,
    flag: str = "-o",
) -> Iterator[list[OutputFile]]:
    """Claim all output files; their streams are closed at the end.

    form_of: from a path to its form. A stream whose name does not say it takes that of stdout.
    flag: the option that names them.
    """
    forms = [_form(path, form_of) for path in outputs]
    with contextlib.ExitStack() as stack:
        files = []
        for path, form in zip(outputs, forms, strict=True):
            files.append(OutputFile(path, form, flag))
            stack.enter_context(files[-1].stream or contextlib.nullcontext())
        yield files


@contextlib.contextmanager
def opened_for(flag: str, path: str | None, form: str) -> Iterator[OutputFile | None]:
    """Claim the file of another option than -o. Raises: BadOutput, UsageError."""
    if path == "-":
        raise UsageError(f"{flag} - names no file, and stdout holds the report; give a file's name")
    with opened([] if path is None else [path], lambda _: form, flag) as files:
        yield files[0] if files else None


def _form(path: str, form_of: Callable[[str], str]) -> str:
    """Return what a file is to hold.

    Raises: UsageError if a form holds the reports of another command alone, UnknownName.
    """
    context = click.get_current_context(silent=True)
    try:
        form = form_of(path)
    except UnknownName:
        if form_of is not reports.form_of or not paths.is_stream(path):
            raise
        return str(context.params.get("form", reports.FORMS[0])) if context else reports.FORMS[0]
    command = reports.REGISTRY[form].command if form in reports.REGISTRY else ""
    if command and context is not None and context.info_name != command:
        raise UsageError(f"-o {path!r}: {form} holds the report of `ropeaudit {command}` alone; try .json")
    return form


def _check_place(target: Path, about: str, flag: str) -> None:
    """Raise BadOutput unless a report or its metadata (`about`) can replace `target`."""
    named = f"{flag} {str(target)!r}"
    try:
        if atomic_files.LEFT.fullmatch(target.name):
            raise BadOutput(f"{named} has a name of ropeaudit's own, which runs remove; give another")
        if target.is_dir():
            raise BadOutput(f"{named} is a folder; give a file's name")
        with contextlib.suppress(FileNotFoundError):
            there = os.stat(target)
            if not stat.S_ISREG(there.st_mode):
                raise BadOutput(f"{named} is no file that can be replaced; give another place")
            if not os.access(target, os.W_OK):
                raise BadOutput(f"{named} is write-protected; give another place")
            if about and there.st_size and not _ours(target, about):
                raise BadOutput(
                    f"{str(target)!r} is there and not from ropeaudit as the metadata of a {about}, which go "
                    "there; move it, or give another -o"
                )
        with atomic_files.opened(target):  # its folder can be written into
            pass
    except BadOutput:
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadOutput(f"{named} cannot be written: {reason}; give another place") from None


def _ours(path: Path, form: str) -> bool:
    """Return whether a file holds metadata of ropeaudit: they have a digest."""
    import json

    try:
        result = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(result, dict) and str(result.get(form.lower())).startswith("sha256:")


def _stream(path: str, flag: str) -> IO[bytes]:
    """Open a pipe, which waits for a reader, or a device. Raises: BadOutput."""
    try:
        open_already = paths.descriptor(path)
        if open_already is None:
            return os.fdopen(os.open(path, os.O_WRONLY | getattr(os, "O_NOCTTY", 0)), "wb")
        os.write(open_already, b"")  # says so if it is for reading alone
        return os.fdopen(os.dup(open_already), "wb")
    except OSError as error:
        raise BadOutput(f"{flag} {path!r} cannot be written: {error.strerror}; give a file") from None


_WRITTEN = {
    "outputs": "-o",
    "save_qk": "--save-qk",
    "junit": "--junit",
    "ticket": "--ticket",
    "write_wrapper": "--write-wrapper",
}
_OF_A_FOLDER = (  # what is read of a checkpoint's or a config's folder, and beside a file of tensors
    *("config.json", "*_config.json", "*.index.json", "tokenizer*", "special_tokens_map.json"),
    *("added_tokens.json", "vocab.*", "merges.txt", "chat_template*", "*.safetensors", "*.bin", "*.pt"),
    *("*.pth", "*.py", "*.model"),
    *("manifest.json", "manifest.txt", "case.txt"),  # of a case of vectors, and of what came back for it
)
_NOT_ALONE = (".safetensors", ".pt", ".pth", ".bin", ".npz", ".npy", "manifest.json")


class _Written(NamedTuple):
    """A file that an option writes, or its companion."""

    named: str
    path: str
    file: str

    def __str__(self) -> str:
        return self.named if self.file == self.path else f"{self.named} writes {self.file!r} too, which"


def refuse_clashes(options: Mapping[str, Any]) -> None:
    """Raise UsageError if an output, or what is written beside it, is a file that the options name.

    So are two files that they write, stdout and stderr among them, if they are one.
    """
    outputs = list(_written(options))
    if not outputs:
        return
    asked = [value for name, value in options.items() if name not in _WRITTEN]
    read = [path for word in _words(asked) for path in _read(word)]
    for one in outputs:
        if (hit := next((path for path in read if paths.same(one.file, path)), None)) is not None:
            raise UsageError(f"{one} is one of the files to read ({hit!r}); give another name")
        if (code := next((path for path in read if _may_import(path, one.path)), None)) is not None:
            may = f"is a Python file beside {code!r}, which may import it"
            raise UsageError(f"{one.named} {may}; give another name")
        for stream in ("stdout", "stderr"):
            if paths.same(one.file, f"/dev/{stream}"):
                raise UsageError(f"{one} is the file that {stream} goes to; give another name, or no `>`")
    for one, other in itertools.combinations(outputs, 2):
        if paths.same(one.file, other.file):
            both = f"{one.named} and {other.named} both write {other.file!r}"
            raise UsageError(f"{both}; give one of them another name")


def _written(options: Mapping[str, Any]) -> Iterator[_Written]:
    """Yield files that options write, also those named after them: no streams."""
    first = first_file([*_words(options.get("outputs"))])
    for name, flag in _WRITTEN.items():
        for path in itertools.filterfalse(paths.is_stream, _words(options.get(name))):
            files = [path]
            if name == "outputs" and any(path.lower().endswith(form.suffixes) for form in _BESIDE.values()):
                files.append(reports.beside(path))
            if name == "outputs" and path == first and "resume" in options:  # rows of a sweep that lasts
                files.append(part_of(path))
            if name == "save_qk":  # a file a layer type, where a model has several
                from ropeaudit.rope.hf_json import LAYER_TYPES  # in-function: most commands need none of it

                stem, suffix = os.path.splitext(path)
                files += [f"{stem}-{kind}{suffix}" for kind in (*LAYER_TYPES, "other")]
            yield from (_Written(f"{flag} {path!r}", path, file) for file in files)


def _may_import(code: str, path: str) -> bool:
    """Return whether a path is a Python file in the folder of a file of code, or below."""
    written, folder = os.path.realpath(path), os.path.dirname(os.path.realpath(code))
    both = code.endswith(".py") and written.endswith(".py") and os.path.isfile(written)
    return both and written.startswith(os.path.join(folder, ""))


def _read(word: str) -> Iterator[str]:
    """Yield the files that a word of an option may stand for, as far as they are there."""
    named = list[str]()
    for part in (word, *word.split(",")):
        place, colon, _ = part.strip().rpartition(":")
        named += [part, part.strip(), part.strip().partition("[")[0]]
        named += [place, place.replace(".", os.sep) + ".py"] if colon else []
    for path in dict.fromkeys(named):
        yield from filter(os.path.isfile, (path, reports.beside(path)))
        folder = path if os.path.isdir(path) else os.path.dirname(path)
        if folder == path or path.lower().endswith(_NOT_ALONE):
            for pattern in _OF_A_FOLDER:
                yield from glob.iglob(os.path.join(glob.escape(folder), pattern), include_hidden=True)


def _words(value: Any) -> Iterator[str]:
    """Yield the text in an option's value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for one in value:
            yield from _words(one)
