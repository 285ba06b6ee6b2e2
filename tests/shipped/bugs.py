"""A bug that shipped: what was wrong, the fault in a few lines, what is right, and what names it.

Modules beside this one hold `BUGS`, a list of them, with their code at the top level, so that
`PYTHONPATH=tests ropeaudit check tests/shipped/kernels.py:NAME` judges it too.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ropeaudit
from ropeaudit.recognition.diagnosis import Diagnosis

# class of bugs -> the module that holds them; a class may have several
MODULES = ("kernels", "heads", "tables", "configs", "positions", "loading", "state", "gradients", "further")
# What fast judgements share; a bug's own options come before them.
OPTIONS: Mapping[str, Any] = {"dtypes": "fp32", "up_to": 256, "head_dim": 32}


@dataclass(frozen=True)
class Bug:
    """One bug, re-enacted.

    faulty, right: what is judged; None where it cannot be re-enacted. how: which command judges it, a key of
    `JUDGES`. options: of that command. caught: codes of diagnoses that name it, any of which suffices, or
    "check:NAME" where a check fails and no diagnosis is needed; empty: not caught. why_not: why it cannot be
    re-enacted, or is not caught, or is named by a cause that it has not.
    """

    id: str
    source: str
    what: str
    shows: str
    faulty: Any = None
    right: Any = None
    how: str = "code"
    options: Mapping[str, Any] = field(default_factory=dict)
    caught: tuple[str, ...] = ()
    why_not: str = ""


@dataclass(frozen=True)
class Said:
    """What a command says of one check, table or row: whether it fails, codes that name why, and words."""

    check: str
    failed: bool
    codes: tuple[str, ...]
    words: str

    def names(self, caught: str) -> bool:
        """Return whether it fails, by this code or, of "check:NAME", by this check."""
        return self.failed and (caught in self.codes or caught == f"check:{self.check}")


def spec(thing: Any) -> str:
    """Return how a command line names what stands at the top level of a file; a string is a spec itself."""
    return thing if isinstance(thing, str) else f"{inspect.getfile(thing)}:{thing.__qualname__}"


def _options(bug: Bug, folder: Path) -> dict[str, Any]:
    """Return options with a config that is given as a dict in a file."""
    options = dict(bug.options)
    if isinstance(options.get("config"), Mapping):
        options["config"] = _config(options["config"], folder / "setting")
    return options


def _config(content: Mapping[str, Any], folder: Path) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.json"
    path.write_text(json.dumps(dict(content)), encoding="utf-8")
    return str(path)


def _checked(target: str, options: Mapping[str, Any]) -> Iterator[Said]:
    for one in ropeaudit.check(target, **options):
        found = one.finding
        yield Said(found.check, found.failed, _codes(found.diagnosis), f"{found.detail} {found.resembles}")


def _codes(diagnosis: Diagnosis | None) -> tuple[str, ...]:
    """Return the codes of a diagnosis, of what stands beside it and of what explains as much."""
    equals = () if diagnosis is None else (diagnosis, *diagnosis.alternatives)
    return tuple(part.code for one in equals for part in one.parts())


def _code(thing: Any, bug: Bug, folder: Path) -> Iterator[Said]:
    """Yield what `check` says of code at the top level of a file."""
    options = {"under": "none"} | OPTIONS | _options(bug, folder)
    if "config" in options or "model" in options:
        options = {
            name: value for name, value in options.items() if name != "head_dim" or name in bug.options
        }
    yield from _checked(spec(thing), options)


def _of_config(thing: Any, bug: Bug, folder: Path) -> Iterator[Said]:
    """Yield what `check` says of a config; of code, with the config that its options hold."""
    if isinstance(thing, Mapping):
        yield from _checked(_config(thing, folder / "judged"), _options(bug, folder))
    else:
        yield from _code(thing, bug, folder)


def _module(thing: Any, bug: Bug, folder: Path) -> Iterator[Said]:
    """Yield what `module` says of a class or a function by its name, or of tensors by theirs, in a file."""
    if isinstance(thing, Mapping):
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        save_file({name: value.contiguous() for name, value in thing.items()}, folder / "held.safetensors")
        thing = str(folder / "held.safetensors")
    audit = ropeaudit.module(spec(thing), **_options(bug, folder))
    for buffer in audit.buffers:
        words = f"{buffer.stored}, {buffer.label}"
        yield Said("buffer", buffer.wrong, _codes(buffer.diagnosis), words)
    for run in audit.runs:
        found = None if run.measured is None else run.measured.diagnosis
        yield Said("run", run.wrong, _codes(found), f"{run.module} {run.loaded} {run.dtype}: {run.measured}")


def _model(thing: Any, bug: Bug, folder: Path) -> Iterator[Said]:
    """Yield what `model` says of the checkpoint that a function writes to a folder, offset by offset."""
    place = folder / "checkpoint"
    place.mkdir(parents=True, exist_ok=True)
    thing(place)
    for one in ropeaudit.model(str(place), **_options(bug, folder)):
        words = f"{one.dtype}, offset {one.offset}: {one.word}"
        yield Said(one.word, one.word not in ("none", "precision"), _codes(one.diagnosis), words)


# how -> what is judged, the bug and a folder to write in -> what is said of it
JUDGES: dict[str, Callable[[Any, Bug, Path], Iterator[Said]]] = {
    "code": _code,
    "config": _of_config,
    "module": _module,
    "model": _model,
}


def judged(thing: Any, bug: Bug, folder: Path) -> Iterator[Said]:
    """Yield what the bug's command says of its faulty or its right version, as it comes."""
    yield from JUDGES[bug.how](thing, bug, folder)


def collected() -> list[Bug]:
    """Return every bug of the modules that are here, in the order of their ids' classes."""
    found: list[Bug] = []
    for name in MODULES:
        if importlib.util.find_spec(f"shipped.{name}") is not None:
            found += importlib.import_module(f"shipped.{name}").BUGS
    return found
