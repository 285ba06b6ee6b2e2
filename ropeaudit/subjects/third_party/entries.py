"""The callable implementations that `data/adapters.toml` lists: entries and families."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import metadata, util
from pathlib import Path
from typing import Any

from ropeaudit.rope.setting import Layout

_DTYPES = ("float64", "float32", "float16", "bfloat16")
LAYOUTS: tuple[Layout, ...] = ("half", "interleaved")


@dataclass(frozen=True, slots=True)
class Entry:
    """An implementation that can be requested by name: a table of `data/adapters.toml`.

    file: the one here that calls it, whose `adapter` is constructed with this entry.
    needs: the modules that it imports. package: whose version is recorded. extra: what installs it.
    layouts, dtypes: those that can be requested, the default layout first. calls: what is called.
    code: lines that call it, empty where its file does. engine: what computes. partial: whether it rotates a
    part of the head. scalings: those that can be requested. movable: whether it can be called elsewhere than
    on the CPU. table: whether it has one from position 0. runs: whether it takes consecutive positions alone.
    int32: whether its positions are. whole_base: whether its base is a whole number.
    target: of a member of a family, its class as package.module:CLASS. classes: how many it stands for.
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

    @classmethod
    def of(cls, name: str, table: Mapping[str, Any]) -> Entry:
        """Return the entry of a table, with what it leaves out."""
        package = table.get("package", name)
        usual = {
            "file": "rows",
            "needs": (package.replace("-", "_"),),
            "package": package,
            "extra": package,
            "dtypes": _DTYPES,
        }
        given = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
        return cls(name, **{**usual, **given})

    @property
    def snippet(self) -> str:
        """Its code, if it needs only tensors and its package; empty elsewhere."""
        return self.code if self.engine == "torch" and "ropeaudit" not in self.code else ""

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


@dataclass(frozen=True, slots=True)
class Family:
    """Classes of a package, each an implementation: NAME of a file, NAME.CLASS where a file has several.

    A table NAME:* of `data/adapters.toml`. folder: of the package, as a module. files: a pattern of those
    that are searched. named: one of a file's place, whose group is its name. classes: one of class names.
    """

    name: str
    folder: str
    files: str
    named: str
    classes: str
    calls: str
    extra: str

    @classmethod
    def of(cls, name: str, table: Mapping[str, str]) -> Family:
        """Return the family of a table."""
        return cls(name, **{"extra": name, **table})

    @property
    def installed(self) -> bool:
        """Whether its classes can be called."""
        return util.find_spec(self.name) is not None

    def members(self) -> Mapping[str, Entry]:
        """Return its implementations by name, without executing the package."""
        return _members(self)

    @property
    def summary(self) -> Entry:
        """Return a row for all of them."""
        return replace(self._entry("*"), classes=len(self.members()))

    def member(self, name: str, module: str, cls: str) -> Entry:
        """Return the entry of a class."""
        return replace(self._entry(name), calls=f"{cls}, {self.calls}", target=f"{module}:{cls}")

    def _entry(self, name: str) -> Entry:
        place = f"{self.name}:{name}", "module_rope", (self.name,), self.name, self.extra
        return Entry(*place, LAYOUTS, _DTYPES, self.calls, partial=True, movable=False)


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
