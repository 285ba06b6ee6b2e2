"""Other people's implementations, one small file each; nothing of theirs is imported until it is audited.

Each file describes what it calls in a literal, `ENTRIES` or `FAMILY`, which is read without running the file,
and holds the classes that call it in `IMPLEMENTATIONS`, by name.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from importlib import import_module, metadata, resources, util
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from ropeaudit.errors import MissingPackage, RopeAuditError, UnknownName, check_usable, required_packages
from ropeaudit.rope.setting import Layout
from ropeaudit.subjects.calling.code import Code

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


ALL = "all"  # that is installed
# the first files that are listed; others follow by name
_FIRST = (
    *("transformers_rope", "rotary_torch", "xtransformers_rope", "curated_rope", "diffusers_rope"),
    *("freqs_cis", "litgpt_rope", "megatron_rope", "onnxruntime_rope", "mlx_rope", "ggml_rope"),
)


def _declared(source: str, name: str) -> Any:
    """Return the value of a literal in the text of a file; None where there is none."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.AnnAssign) and node.value and ast.unparse(node.target) == name:
            return ast.literal_eval(node.value)
    return None


def _files() -> Iterator[tuple[str, str]]:
    """Yield the names and texts of the files of this folder, those of `_FIRST` before the others."""
    folder = resources.files(__name__)
    files = {file.name.removesuffix(".py"): file for file in folder.iterdir() if file.name.endswith(".py")}
    for name in [*_FIRST, *sorted(files.keys() - {*_FIRST, "__init__"})]:
        yield name, files[name].read_text(encoding="utf-8")


_TEXTS = tuple(_files())
ENTRIES: dict[str, Entry] = {
    entry.name: entry
    for module, text in _TEXTS
    for entry in (Entry.of(module, given) for given in _declared(text, "ENTRIES") or ())
}
FAMILIES: dict[str, Family] = {
    given["name"]: Family.of(module, given) for module, text in _TEXTS if (given := _declared(text, "FAMILY"))
}


def listed(pattern: str | None = None) -> list[Entry]:
    """Return the entries, and a row for each family; those whose names fit a pattern, members one by one."""
    if pattern is None:
        return [*ENTRIES.values(), *(family.summary for family in FAMILIES.values())]
    members = [entry for family in FAMILIES.values() for entry in family.members().values()]
    return [entry for entry in (*ENTRIES.values(), *members) if fnmatchcase(entry.name, pattern)]


def is_known(name: str) -> bool:
    """Return whether a name is, or begins as, that of an entry or of a family's member."""
    return name in ENTRIES or (":" in name and name.partition(":")[0] in FAMILIES)


def known(name: str) -> None:
    """Raise UnknownName for a name that nothing has; a package that is not installed raises nothing."""
    with contextlib.suppress(MissingPackage):
        entry_of(name)


def entry_of(name: str) -> Entry:
    """Return the entry of a name. Raises: UnknownName; MissingPackage where its family is not installed."""
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
        several = several or [one for one, entry in members.items() if _is_class(entry, name)]
        hint = f"(`ropeaudit list implementations --match '{family.name}:*'` shows them)"
        raise UnknownName("implementation", name, several or members, hint)
    return members[name]


def _is_class(entry: Entry, name: str) -> bool:
    """Return whether a name is FAMILY:CLASS, with the class that an entry calls."""
    return entry.target.rpartition(":")[2].lower() == name.partition(":")[2].lower()


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


class Unavailable(Code):
    """Code that cannot be loaded, with the reason, as one of many."""

    engine = "none"

    def __init__(self, entry: Entry, reason: str) -> None:
        self.name, self.layouts, self.entry, self.reason = entry.name, entry.layouts, entry, reason

    @property
    def version(self) -> str:
        """That of its package."""
        return self.entry.version

    def refuses(self, setting: Any, dtype: Any) -> str:
        """Return the reason."""
        return self.reason

    def rotator(self, setting: Any, dtype: Any) -> Any:
        """Raise, as it cannot be called. Raises: MissingPackage."""
        raise MissingPackage(self.reason)


def implementation(name: str, device: str | None = None, alone: bool = True) -> Code:
    """Return an implementation by its name, to be called on a device.

    alone: whether it was requested by itself: as one of many it is refused, with the reason, where it cannot
    be loaded.
    Raises: UnknownName; MissingPackage; see `adapter.Adapter.on`.
    """
    entry = entry_of(name)
    try:
        return _loaded(entry, device)
    except RopeAuditError as error:
        if alone:
            raise
        return Unavailable(entry, error.typed)


def _loaded(entry: Entry, device: str | None) -> Code:
    if not entry.installed:
        raise MissingPackage(f"--impl {entry.name} needs {' and '.join(entry.needs)}; {entry.install}")
    try:
        with warnings.catch_warnings(), required_packages(f"--impl {entry.name}"):
            warnings.simplefilter("ignore")  # of theirs: about CUDA, about what else might be installed
            adapters: Any = import_module(f"{__name__}.{entry.module}").IMPLEMENTATIONS
    except RopeAuditError:
        raise
    except Exception as error:  # whatever a half-installed package raises
        reason = " ".join(str(error).split())[:200]
        raise MissingPackage(f"--impl {entry.name} cannot be imported: {reason}; {entry.install}") from error
    family = entry.name.partition(":")[0] if entry.target else ""
    adapter = adapters[family or entry.name](entry)
    if adapter.engine == "torch":
        check_usable("torch", f"--impl {entry.name}")
    loaded: Code = adapter.on(device)
    return loaded
