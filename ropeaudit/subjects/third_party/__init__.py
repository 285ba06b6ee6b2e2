"""Other people's implementations, each a table of `data/adapters.toml`; none is imported until it is audited.

Most are called by the code of their table, see `rows.py`; others by a file of this folder that the table
names, whose `adapter` is constructed with its entry.
"""

from __future__ import annotations

import tomllib
import warnings
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ropeaudit import data
from ropeaudit.door import process
from ropeaudit.errors import (
    ForeignError,
    MissingPackage,
    RopeAuditError,
    UnknownName,
    check_usable,
    did,
    required_packages,
)
from ropeaudit.subjects.calling.code import Code
from ropeaudit.subjects.third_party.entries import Entry, Family

if TYPE_CHECKING:
    from ropeaudit.subjects.calling.inside import Opened

_INSIDE = "ropeaudit.subjects.calling.inside"
_SHARED = ("torch", "transformers")  # what many entries import, and one process does for all
ALL = "all"  # that is installed
_TABLES = tomllib.loads(data.text("adapters.toml"))
ENTRIES = {name: Entry.of(name, table) for name, table in _TABLES.items() if ":" not in name}
FAMILIES = {
    family: Family.of(family, table)
    for name, table in _TABLES.items()
    for family, colon, _ in (name.partition(":"),)
    if colon
}


def listed(pattern: str | None = None) -> list[Entry]:
    """Return entries and a row a family, or the entries and members that match."""
    if pattern is None:
        return [*ENTRIES.values(), *(family.summary for family in FAMILIES.values())]
    members = [entry for family in FAMILIES.values() for entry in family.members().values()]
    return [entry for entry in (*ENTRIES.values(), *members) if fnmatchcase(entry.name, pattern)]


def is_known(name: str) -> bool:
    """Return whether a name is, or begins as, that of an entry or of a family's member."""
    return name in ENTRIES or (":" in name and name.partition(":")[0] in FAMILIES)


def entry_of(name: str) -> Entry:
    """Return the entry of a name. Raises: UnknownName; MissingPackage for its family."""
    if name in ENTRIES:
        return ENTRIES[name]
    family = FAMILIES.get(name.partition(":")[0]) if ":" in name else None
    if family is None:
        raise UnknownName("implementation", name, ENTRIES, "(`ropeaudit list implementations` shows them)")
    if not family.installed:
        raise MissingPackage(f"--impl {name} needs {family.name}; {family.summary.install}")
    members = family.members()
    if name not in members:
        several = [one for one in members if one.startswith(f"{name}.")]
        hint = f"(`ropeaudit list implementations --match '{family.name}:*'` shows them)"
        raise UnknownName("implementation", name, several or members, hint)
    return members[name]


def expanded(names: Iterable[str]) -> list[tuple[str, bool]]:
    """Return names, each once, and whether each was requested by itself rather than as one of many.

    "all" stands for what is installed, transformers:* for the members of a family, and so do other patterns.
    Raises: UnknownName for a pattern that nothing fits.
    """
    results: dict[str, bool] = {}
    for name in names:
        if name == ALL:
            chosen = [one for one, entry in ENTRIES.items() if entry.installed]
            chosen += [one for family in FAMILIES.values() for one in family.members()]
        elif "*" in name and is_known(name):
            members = FAMILIES[name.partition(":")[0]].members()
            chosen = [one for one in members if fnmatchcase(one, name)]
            if not chosen:
                entry_of(name)
        else:
            results[name] = True
            continue
        for one in chosen:
            results.setdefault(one, False)
    return list(results.items())


def implementation(name: str, device: str | None = None) -> Code:
    """Return an implementation by its name, to be called on a device.

    Raises: UnknownName; MissingPackage, also of what cannot be imported; see `adapter.Adapter.on`.
    """
    from ropeaudit.subjects.calling.foreign import ForeignCode  # in-function: lists need no process

    entry = entry_of(name)
    if not entry.installed:
        raise MissingPackage(f"--impl {name} needs {' and '.join(entry.needs)}; {entry.install}")
    needed = [package for package in _SHARED if package in (*entry.needs, entry.engine, entry.package)]
    given = {"name": name, "device": device}
    try:
        return ForeignCode(process.door(f"{__name__}:opened", given, [_INSIDE, *needed]))
    except ForeignError as error:
        told = f"--impl {name} cannot be imported: it {did(error)}; {entry.install}"
        raise MissingPackage(told) from None


def opened(arguments: Mapping[str, Any]) -> tuple[Opened, Mapping[str, Any]]:
    """Import an entry's code, as a door's opener. Raises: MissingPackage, UsageError."""
    from ropeaudit.subjects.calling.inside import Opened, facts  # in-function: lists open nothing

    one = Opened(_loaded(entry_of(arguments["name"]), arguments["device"]))
    return one, facts(one)


def _loaded(entry: Entry, device: str | None) -> Code:
    try:
        with warnings.catch_warnings(), required_packages(f"--impl {entry.name}"):
            warnings.simplefilter("ignore")  # of theirs: about CUDA, about what else might be installed
            adapter: Any = import_module(f"{__name__}.{entry.file}").adapter(entry)
    except RopeAuditError:
        raise
    except Exception as error:  # whatever a half-installed package raises
        reason = " ".join(str(error).split())[:200]
        raise MissingPackage(f"--impl {entry.name} cannot be imported: {reason}; {entry.install}") from error
    if adapter.engine == "torch":
        check_usable("torch", f"--impl {entry.name}")
    loaded: Code = adapter.on(device)
    return loaded
