"""A bug that shipped: what was wrong, the fault in a few lines, what is right, and what names it.

Modules beside this one hold `BUGS`, a list of them, with their code at the top level, so that it can be named:
`ropeaudit check tests/shipped/kernels.py:NAME`.
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

# class of bugs -> the module that holds them; a class may have several
MODULES = ("kernels", "tables", "configs", "positions", "loading", "state", "gradients")
# What fast judgements share; a bug's own options come before them.
OPTIONS: Mapping[str, Any] = {"dtypes": "fp32", "up_to": 256, "head_dim": 32}


@dataclass(frozen=True)
class Bug:
    """One bug, re-enacted.

    faulty, right: what is judged; None where it cannot be re-enacted. how: which command judges it, a key of
    `JUDGES`. options: of that command. caught: codes of diagnoses that name it, any of which suffices, or
    "check:NAME" where a check fails and no diagnosis is needed; empty: not caught. why_not: why it cannot be
    re-enacted, or is not caught.
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
    """What a command says of one check, table or row: whether it fails, the codes that name why, and words."""

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
        codes = tuple(part.code for part in _all(found.diagnosis))
        yield Said(found.check, found.failed, codes, f"{found.detail} {found.resembles}")


def _all(diagnosis: Any) -> Iterator[Any]:
    """Yield a diagnosis, what stands beside it and what explains as much."""
    if diagnosis is not None:
        yield from diagnosis.parts()
        for one in diagnosis.alternatives:
            yield from one.parts()


def _code(thing: Any, bug: Bug, folder: Path) -> Iterator[Said]:
    """Yield what `check` says of code at the top level of a file."""
    options = {"compiled": False, "under": "none"} | OPTIONS | _options(bug, folder)
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
    """Yield what `module` says of what it can be given by name."""
    audit = ropeaudit.module(spec(thing), **_options(bug, folder))
    for number, one in enumerate([*audit.buffers, *audit.runs]):
        codes = tuple(part.code for found in _diagnoses(one) for part in _all(found))
        yield Said(type(one).__name__.lower(), one.wrong, codes, f"{number}: {one}")


def _diagnoses(one: Any) -> Iterator[Any]:
    """Yield the diagnoses that a buffer or a run has."""
    for name in ("diagnosis", "hypotheses"):
        found = getattr(one, name, None)
        yield from found if isinstance(found, list | tuple) else [found]


# how -> what is judged, the bug and a folder to write in -> what is said of it
JUDGES: dict[str, Callable[[Any, Bug, Path], Iterator[Said]]] = {
    "code": _code,
    "config": _of_config,
    "module": _module,
}


def judged(thing: Any, bug: Bug, folder: Path) -> Iterator[Said]:
    """Yield what the bug's command says of its faulty or its right version, as it comes."""
    yield from JUDGES[bug.how](thing, bug, folder)


def catches(bug: Bug, folder: Path) -> Said | None:
    """Return what names the faulty version, by one of the codes that it is caught by; None if nothing does."""
    return next(
        (said for said in judged(bug.faulty, bug, folder) if any(map(said.names, bug.caught))),
        None,
    )


def collected() -> list[Bug]:
    """Return every bug of the modules that are here, in the order of their ids' classes."""
    found: list[Bug] = []
    for name in MODULES:
        if importlib.util.find_spec(f"shipped.{name}") is not None:
            found += importlib.import_module(f"shipped.{name}").BUGS
    return found
