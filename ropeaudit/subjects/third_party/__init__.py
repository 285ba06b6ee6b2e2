"""Third-party implementations, the tables of `data/adapters.toml`, imported only when audited.

Most are called by the code in their table, see `adapter.py`; others by a file of this folder that it names.
"""

from __future__ import annotations

import functools
import re
import tomllib
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from importlib import import_module, util
from pathlib import Path
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
from ropeaudit.rope.axes import Layout
from ropeaudit.subjects.calling.code import Code

if TYPE_CHECKING:
    from ropeaudit.subjects.calling.foreign import Opened

_DTYPES = ("float64", "float32", "float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class Entry:
    """An implementation that can be requested by name: a table of `data/adapters.toml`.

    A table PACKAGE:* is a family, classes of a package: PACKAGE:NAME, with .CLASS where a file has several.
    file: the one here that calls it, whose `adapter` is constructed with this entry. needs: modules.
    package: whose version is recorded. extra: what installs it. calls: what is called. code: lines that do.
    layouts, dtypes, scalings: those that can be requested, the default first. engine: what computes.
    partial: whether it rotates a part of the head. movable: whether it can be called elsewhere than on the
    CPU. table: whether it has one from position 0. runs: whether it takes consecutive positions alone.
    int32: whether its positions are. whole_base: whether its base is a whole number.
    target: a family's class, package.module:CLASS. classes: how many. folder: a family's, as a module.
    files, found: patterns of files there, and of class names. named: of places, whose group is the name.
    """

    name: str
    file: str
    needs: tuple[str, ...]
    package: str
    extra: str
    layouts: tuple[Layout, ...]
    dtypes: tuple[str, ...]
    calls: str
    code: str = ""
    engine: str = "torch"
    partial: bool = False
    scalings: tuple[str, ...] = ("default",)
    movable: bool = True
    table: bool = False
    runs: bool = False
    int32: bool = False
    whole_base: bool = False
    target: str = ""
    classes: int = 1
    folder: str = ""
    files: str = ""
    named: str = ""
    found: str = ""

    @classmethod
    def of(cls, name: str, table: Mapping[str, Any]) -> Entry:
        """Return the entry of a table, missing keys filled with defaults."""
        package = table.get("package", name.removesuffix(":*"))
        usual = {
            "file": "adapter",
            "needs": (package.replace("-", "_"),),
            "package": package,
            "extra": package,
            "dtypes": _DTYPES,
        }
        given = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
        return cls(name, **{**usual, **given})

    @property
    def snippet(self) -> str:
        """Its code, if that needs only tensors and its package; else empty."""
        return self.code if self.engine == "torch" and "ropeaudit" not in self.code else ""

    @property
    def installed(self) -> bool:
        """Whether it can be called."""
        return all(util.find_spec(name) is not None for name in self.needs)

    @property
    def version(self) -> str:
        """The installed version, or "none"."""
        from importlib import metadata  # in-function: most audits do without

        try:
            return metadata.version(self.package)
        except metadata.PackageNotFoundError:
            return "none"

    @property
    def install(self) -> str:
        """The command that installs it."""
        return f"pip install 'ropeaudit[{self.extra}]'"

    @functools.cache  # noqa: B019  of constants
    def members(self) -> Mapping[str, Entry]:
        """Return a family's implementations by name, without executing the package."""
        if not self.installed:
            return {}
        package, _, rest = self.folder.partition(".")
        spec = util.find_spec(package)  # of the package alone
        place = Path((spec.submodule_search_locations or [""])[0] if spec else "", *rest.split("."))
        found = list[tuple[str, str, str]]()
        for path in sorted(place.rglob(self.files)):
            where = path.relative_to(place).with_suffix("")
            if match := re.fullmatch(self.named, where.as_posix()):
                classes = re.findall(r"^class (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
                module = ".".join((self.folder, *where.parts))
                found += [(match[1], name, module) for name in classes if re.search(self.found, name)]
        several, members = Counter(name for name, _, _ in found), dict[str, Entry]()
        for name, cls, module in found:
            called = f"{self.package}:{name}" if several[name] == 1 else f"{self.package}:{name}.{cls}"
            calls, target = f"{cls}, {self.calls}", f"{module}:{cls}"
            members[called] = replace(self, name=called, calls=calls, target=target)
        return members


_SHARED = ("torch", "transformers")  # imported once for all
ALL = "all"  # that is installed
_TABLES = {name: Entry.of(name, table) for name, table in tomllib.loads(data.text("adapters.toml")).items()}
ENTRIES = {name: entry for name, entry in _TABLES.items() if ":" not in name}
FAMILIES = {entry.package: entry for name, entry in _TABLES.items() if name not in ENTRIES}


def listed(pattern: str | None = None) -> list[Entry]:
    """Return all entries with one row per family, or the entries and members that match."""
    if pattern is None:
        families = (replace(one, classes=len(one.members())) for one in FAMILIES.values())
        return [*ENTRIES.values(), *families]
    members = [entry for family in FAMILIES.values() for entry in family.members().values()]
    return [entry for entry in (*ENTRIES.values(), *members) if fnmatchcase(entry.name, pattern)]


def is_known(name: str) -> bool:
    """Return whether a name is an entry, or has the prefix of a family."""
    return name in ENTRIES or (":" in name and name.partition(":")[0] in FAMILIES)


def entry_of(name: str) -> Entry:
    """Return the entry of a name. Raises: UnknownName; MissingPackage for its family."""
    if name in ENTRIES:
        return ENTRIES[name]
    family = FAMILIES.get(name.partition(":")[0]) if ":" in name else None
    if family is None:
        raise UnknownName("implementation", name, ENTRIES, "(`ropeaudit list implementations` shows them)")
    if not family.installed:
        raise MissingPackage(f"{name} needs {family.package}; {family.install}")
    members = family.members()
    if name not in members:
        several = [one for one in members if one.startswith(f"{name}.")]
        hint = f"(`ropeaudit list implementations --match '{family.name}'` shows them)"
        raise UnknownName("implementation", name, several or members, hint)
    return members[name]


def expanded(names: Iterable[str]) -> list[tuple[str, bool]]:
    """Expand patterns into names; return each name once, and whether it was requested by itself.

    "all" means all installed implementations, transformers:* the members of a family.
    Raises: UnknownName for a pattern that matches nothing.
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

    Raises: UnknownName; MissingPackage, also where it cannot be imported; see `adapter.Adapter.on`.
    """
    from ropeaudit.subjects.calling import foreign  # in-function: lists need no process

    entry = entry_of(name)
    if not entry.installed:
        raise MissingPackage(f"{name} needs {' and '.join(entry.needs)}; {entry.install}")
    needed = [package for package in _SHARED if package in (*entry.needs, entry.engine, entry.package)]
    given = {"name": name, "device": device}
    try:
        return foreign.ForeignCode(process.door(f"{__name__}:opened", given, [foreign.__name__, *needed]))
    except ForeignError as error:
        raise MissingPackage(f"{name} cannot be imported: it {did(error)}; {entry.install}") from None


def opened(arguments: Mapping[str, Any]) -> tuple[Opened, Mapping[str, Any]]:
    """Import an entry's code, as a door's opener. Raises: MissingPackage, UsageError."""
    from ropeaudit.subjects.calling.foreign import Opened, facts  # in-function: lists open nothing

    entry = entry_of(arguments["name"])
    try:
        with warnings.catch_warnings(), required_packages(entry.name):
            warnings.simplefilter("ignore")  # of theirs: about CUDA
            adapter: Any = import_module(f"{__name__}.{entry.file}").adapter(entry)
    except RopeAuditError:
        raise
    except Exception as error:  # whatever a half-installed package raises
        reason = " ".join(str(error).split())[:200]
        raise MissingPackage(f"{entry.name} cannot be imported: {reason}; {entry.install}") from error
    if adapter.engine == "torch":
        check_usable("torch", entry.name)
    one = Opened(adapter.on(arguments["device"]))
    return one, facts(one)
