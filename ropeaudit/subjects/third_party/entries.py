"""What the files of this folder say of the implementations that they call: entries, and families of them."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import metadata, util
from pathlib import Path
from typing import NotRequired, TypedDict

from ropeaudit.rope.setting import Layout

_DTYPES = ("float64", "float32", "float16", "bfloat16")
LAYOUTS: tuple[Layout, ...] = ("half", "interleaved")


class EntryFields(TypedDict):
    """What a file says of an implementation: the fields of `Entry`, some of which may be left out.

    snippet: lines that define rotate(x, at), of x (h, s, d) and positions (s,), for a ticket; <head_dim>,
    <rotary_dim>, <base>, <dtype> and <end> stand for values. package: `name` unless given.
    needs: the package's name with underscores. extra: the package's name.
    dtypes: float64, float32, float16 and bfloat16.
    """

    name: str
    layouts: tuple[Layout, ...]
    calls: str
    package: NotRequired[str]
    needs: NotRequired[tuple[str, ...]]
    extra: NotRequired[str]
    dtypes: NotRequired[tuple[str, ...]]
    snippet: NotRequired[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Entry:
    """An implementation that can be requested by name.

    module: the file here that calls it, whose `IMPLEMENTATIONS[name]` is constructed with this entry.
    needs: the modules that it imports. package: whose version is recorded. extra: what installs it.
    layouts, dtypes: those that can be requested, the default layout first.
    calls: what is called. snippet: how, in a ticket, see `EntryFields`; empty where it is not said.
    target: of a member of a family, its class as package.module:CLASS. classes: how many it stands for.
    """

    name: str
    module: str
    needs: tuple[str, ...]
    package: str
    extra: str
    layouts: tuple[Layout, ...]
    dtypes: tuple[str, ...]
    calls: str
    snippet: tuple[str, ...] = ()
    target: str = ""
    classes: int = 1

    @classmethod
    def of(cls, module: str, given: EntryFields) -> Entry:
        """Return the entry of what a file says, with what it leaves out."""
        package = given.get("package", given["name"])
        return cls(
            name=given["name"],
            module=module,
            needs=given.get("needs", (package.replace("-", "_"),)),
            package=package,
            extra=given.get("extra", package),
            layouts=given["layouts"],
            dtypes=given.get("dtypes", _DTYPES),
            calls=given["calls"],
            snippet=given.get("snippet", ()),
        )

    @property
    def installed(self) -> bool:
        """Whether it can be called."""
        return all(util.find_spec(name) is not None for name in self.needs)

    @property
    def version(self) -> str:
        """The version that is installed; none where it is not."""
        try:
            return metadata.version(self.package)
        except metadata.PackageNotFoundError:
            return "none"

    @property
    def install(self) -> str:
        """What to type to install it."""
        return f"pip install 'ropeaudit[{self.extra}]'"


class FamilyFields(TypedDict):
    """What a file says of a package's many classes, each of which is an implementation: see `Family`."""

    name: str
    folder: str
    files: str
    named: str
    classes: str
    calls: str
    extra: NotRequired[str]


@dataclass(frozen=True, slots=True)
class Family:
    """Classes of a package, each an implementation: NAME of a file, NAME.CLASS where a file has several.

    module: the file here that calls them. folder: of the package, as a module. files: a pattern of those that
    are searched. named: a pattern of a file's place, whose group is its name. classes: one of class names.
    """

    name: str
    module: str
    folder: str
    files: str
    named: str
    classes: str
    calls: str
    extra: str

    @classmethod
    def of(cls, module: str, given: FamilyFields) -> Family:
        """Return the family of what a file says."""
        extra = given.get("extra", given["name"])
        places = given["folder"], given["files"], given["named"], given["classes"]
        return cls(given["name"], module, *places, given["calls"], extra)

    @property
    def installed(self) -> bool:
        """Whether its classes can be called."""
        return util.find_spec(self.name) is not None

    def members(self) -> Mapping[str, Entry]:
        """Return its implementations by name; the package's files are read and not executed."""
        return _members(self)

    @property
    def summary(self) -> Entry:
        """Return a row for all of them."""
        return replace(self._entry("*"), classes=len(self.members()))

    def member(self, name: str, module: str, cls: str) -> Entry:
        """Return the entry of a class."""
        return replace(self._entry(name), calls=f"{cls}, {self.calls}", target=f"{module}:{cls}")

    def _entry(self, name: str) -> Entry:
        place = f"{self.name}:{name}", self.module, (self.name,), self.name, self.extra
        return Entry(*place, LAYOUTS, _DTYPES, self.calls)


@functools.cache
def _members(family: Family) -> Mapping[str, Entry]:
    if not family.installed:
        return {}
    package, _, rest = family.folder.partition(".")
    spec = util.find_spec(package)  # of the package alone: its parts would be executed
    place = Path((spec.submodule_search_locations or [""])[0] if spec else "", *rest.split("."))
    found = [
        (match[1], name, ".".join((family.folder, *where.parts)))
        for path in sorted(place.rglob(family.files))
        if (
            match := re.fullmatch(family.named, (where := path.relative_to(place).with_suffix("")).as_posix())
        )
        for name in re.findall(r"^class (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
        if re.search(family.classes, name)
    ]
    several = Counter(name for name, _, _ in found)
    return {
        entry.name: entry
        for name, cls, module in found
        for entry in (family.member(name if several[name] == 1 else f"{name}.{cls}", module, cls),)
    }
