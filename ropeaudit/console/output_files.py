"""Output files of commands: checked before the work, then replaced in one step, or streamed."""

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

_WITH_METADATA_FILE = {name: form for name, form in reports.REGISTRY.items() if form.metadata == "beside"}


class OutputFile:
    """An output file: checked now, and replaced in one step once its content is known.

    A stream (a pipe, /dev/stdout) is opened now and written to then. written: whether that was done.
    """

    def __init__(self, path: str, form: str, flag: str = "-o") -> None:
        """Check that a path can be written. Raises: BadOutput, MissingPackage.

        form: that of its content. flag: the option that names it.
        """
        self.path, self.form, self.flag, self.written = path, form, flag, False
        reports.check_installed(form)
        self.stream = _open_stream(path, flag) if paths.is_stream(path) else None
        self.targets: list[Path] = []
        if self.stream is None:  # the target of a link, and the metadata file of CSV
            beside = [reports.beside(path)] if form in _WITH_METADATA_FILE else []
            self.targets = [Path(paths.link_target(each)) for each in (path, *beside)]
        for number, target in enumerate(self.targets):
            _check_replaceable(target, form.upper() if number else "", flag)

    def was_there(self) -> bool:
        """Return whether it would replace a file."""
        return bool(self.targets) and self.targets[0].exists()

    def contents(self, report: Report) -> list[bytes]:
        """Return the bytes of each target: the report, and the metadata file of CSV."""
        contents = [reports.encoded(self.form, report)]
        if len(self.targets) > 1:
            import json  # in-function, as digests, which load NumPy: most runs write no metadata

            from ropeaudit.runtime import digests

            metadata = {**report.metadata, self.form: digests.of_bytes(contents[0])}
            text = json.dumps(metadata, indent=2, ensure_ascii=False) + "\n"
            contents.append(text.encode("utf-8", "backslashreplace"))
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
                return  # a closed pipe is no error, as where a report is printed
            rescued = isinstance(error, atomic_files.NotReplaced)
            remedy = f"all of it is in {error.filename!r}" if rescued else "give another place"
            raise BadOutput(
                f"{self.flag} {self.path!r} cannot be written: {error.strerror}; {remedy}"
            ) from None
        self.written = True


def part_of(path: str) -> str:
    """Return the path of the file that stores rows while a sweep runs."""
    return f"{paths.link_target(path)}.part"


def first_file(outputs: Sequence[str]) -> str | None:
    """Return the first path that is no stream: rows are stored beside it as they finish."""
    return next((path for path in outputs if not paths.is_stream(path)), None)


@contextlib.contextmanager
def opened(
    outputs: Sequence[str],
    form_of: Callable[[str], str] = reports.form_of,
    flag: str = "-o",
) -> Iterator[list[OutputFile]]:
    """Check and yield all output files; their streams are closed at the end.

    form_of: path -> form. A stream whose name has no suffix takes the form of stdout.
    flag: the option that names them.
    """
    forms = [_chosen_form(path, form_of) for path in outputs]
    with contextlib.ExitStack() as stack:
        files = []
        for path, form in zip(outputs, forms, strict=True):
            files.append(OutputFile(path, form, flag))
            stack.enter_context(files[-1].stream or contextlib.nullcontext())
        yield files


@contextlib.contextmanager
def opened_for(flag: str, path: str | None, form: str) -> Iterator[OutputFile | None]:
    """Check and yield the file of another option than -o. Raises: BadOutput, UsageError."""
    if path == "-":
        raise UsageError(f"{flag} - names no file, and stdout holds the report; give a file's name")
    with opened([] if path is None else [path], lambda _: form, flag) as files:
        yield files[0] if files else None


def _chosen_form(path: str, form_of: Callable[[str], str]) -> str:
    """Return the form of an output file.

    Raises: UsageError if the form is for another command only, UnknownName.
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


def _check_replaceable(target: Path, about: str, flag: str) -> None:
    """Raise BadOutput unless a file can be replaced.

    about: the form of the report whose metadata it will hold; empty for the report itself.
    """
    named = f"{flag} {str(target)!r}"
    try:
        if atomic_files.TEMPORARY_NAME.fullmatch(target.name):
            raise BadOutput(f"{named} has a name of ropeaudit's own, which runs remove; give another")
        if target.is_dir():
            raise BadOutput(f"{named} is a folder; give a file's name")
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(target)
            if not stat.S_ISREG(status.st_mode):
                raise BadOutput(f"{named} is no file that can be replaced; give another place")
            if not os.access(target, os.W_OK):
                raise BadOutput(f"{named} is write-protected; give another place")
            if about and status.st_size and not _is_our_metadata(target, about):
                raise BadOutput(
                    f"{str(target)!r} is there and not from ropeaudit as the metadata of a {about}, which go "
                    "there; move it, or give another -o"
                )
        with atomic_files.temporary_file(target):  # its folder can be written into
            pass
    except BadOutput:
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadOutput(f"{named} cannot be written: {reason}; give another place") from None


def _is_our_metadata(path: Path, form: str) -> bool:
    """Return whether a file holds metadata of ropeaudit, which have a digest of the report."""
    import json

    try:
        result = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(result, dict) and str(result.get(form.lower())).startswith("sha256:")


def _open_stream(path: str, flag: str) -> IO[bytes]:
    """Open a pipe, which waits for a reader, or a device, to write to. Raises: BadOutput."""
    try:
        open_already = paths.descriptor(path)
        if open_already is None:
            return os.fdopen(os.open(path, os.O_WRONLY | getattr(os, "O_NOCTTY", 0)), "wb")
        os.write(open_already, b"")  # raises if it is read-only
        return os.fdopen(os.dup(open_already), "wb")
    except OSError as error:
        raise BadOutput(f"{flag} {path!r} cannot be written: {error.strerror}; give a file") from None


_OUTPUT_OPTIONS = {
    "outputs": "-o",
    "save_qk": "--save-qk",
    "junit": "--junit",
    "ticket": "--ticket",
    "write_wrapper": "--write-wrapper",
}
_READ_IN_FOLDERS = (  # in the folder of a checkpoint or config, and beside a file of tensors
    *("config.json", "*_config.json", "*.index.json", "tokenizer*", "special_tokens_map.json"),
    *("added_tokens.json", "vocab.*", "merges.txt", "chat_template*", "*.safetensors", "*.bin", "*.pt"),
    *("*.pth", "*.py", "*.model"),
    *("manifest.json", "manifest.txt", "case.txt"),  # of a case of vectors, and of returned vectors
)
_READ_WITH_FOLDER = (".safetensors", ".pt", ".pth", ".bin", ".npz", ".npy", "manifest.json")


class _Output(NamedTuple):
    """A file that an option writes. named: the option with its value; path: its value."""

    named: str
    path: str
    file: str

    def __str__(self) -> str:
        return self.named if self.file == self.path else f"{self.named} writes {self.file!r} too, which"


def refuse_clashes(options: Mapping[str, Any]) -> None:
    """Raise UsageError if a file to write is also read, or written by two options.

    Files that are written beside an output count, and so do stdout and stderr.
    """
    outputs = list(_output_files(options))
    if not outputs:
        return
    others = [value for name, value in options.items() if name not in _OUTPUT_OPTIONS]
    inputs = [path for word in _words(others) for path in _input_files(word)]
    for output in outputs:
        if (same := next((path for path in inputs if paths.same_file(output.file, path)), None)) is not None:
            raise UsageError(f"{output} is one of the files to read ({same!r}); give another name")
        if (code := next((path for path in inputs if _may_import(path, output.path)), None)) is not None:
            may = f"is a Python file beside {code!r}, which may import it"
            raise UsageError(f"{output.named} {may}; give another name")
        for stream in ("stdout", "stderr"):
            if paths.same_file(output.file, f"/dev/{stream}"):
                raise UsageError(f"{output} is the file that {stream} goes to; give another name, or no `>`")
    for first, second in itertools.combinations(outputs, 2):
        if paths.same_file(first.file, second.file):
            both = f"{first.named} and {second.named} both write {second.file!r}"
            raise UsageError(f"{both}; give one of them another name")


def _output_files(options: Mapping[str, Any]) -> Iterator[_Output]:
    first = first_file([*_words(options.get("outputs"))])
    for name, flag in _OUTPUT_OPTIONS.items():
        for path in itertools.filterfalse(paths.is_stream, _words(options.get(name))):
            files = [path]
            if name == "outputs" and any(
                path.lower().endswith(form.suffixes) for form in _WITH_METADATA_FILE.values()
            ):
                files.append(reports.beside(path))
            if name == "outputs" and path == first and "resume" in options:  # rows of a running sweep
                files.append(part_of(path))
            if name == "save_qk":  # a model with several layer types has a file for each
                from ropeaudit.rope.hf_json import LAYER_TYPES  # in-function: most commands need none of it

                stem, suffix = os.path.splitext(path)
                files += [f"{stem}-{kind}{suffix}" for kind in (*LAYER_TYPES, "other")]
            yield from (_Output(f"{flag} {path!r}", path, file) for file in files)


def _may_import(code: str, path: str) -> bool:
    """Return whether a path is a Python file beside a file of code, or in a folder below."""
    written, folder = os.path.realpath(path), os.path.dirname(os.path.realpath(code))
    both = code.endswith(".py") and written.endswith(".py") and os.path.isfile(written)
    return both and written.startswith(os.path.join(folder, ""))


def _input_files(word: str) -> Iterator[str]:
    """Yield the existing files that a word of an option may refer to."""
    named = list[str]()
    for part in (word, *word.split(",")):
        place, colon, _ = part.strip().rpartition(":")
        named += [part, part.strip(), part.strip().partition("[")[0]]
        named += [place, place.replace(".", os.sep) + ".py"] if colon else []
    for path in dict.fromkeys(named):
        yield from filter(os.path.isfile, (path, reports.beside(path)))
        folder = path if os.path.isdir(path) else os.path.dirname(path)
        if folder == path or path.lower().endswith(_READ_WITH_FOLDER):
            for pattern in _READ_IN_FOLDERS:
                yield from glob.iglob(os.path.join(glob.escape(folder), pattern), include_hidden=True)


def _words(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for each in value:
            yield from _words(each)
