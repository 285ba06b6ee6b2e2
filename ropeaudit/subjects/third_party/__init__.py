"""Other people's implementations, one small file each; nothing of theirs is imported until it is audited.

Each file describes what it calls in a literal, `ENTRIES`, which is read without running the file, and holds
the classes that call it in `IMPLEMENTATIONS`, by name.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module, metadata, resources, util
from typing import Any, NotRequired, TypedDict

from ropeaudit.errors import MissingPackage, UnknownName
from ropeaudit.rope.setting import Layout
from ropeaudit.subjects.calling.implementation import Implementation

_DTYPES = ("float64", "float32", "float16", "bfloat16")
# the first files that are listed; others follow by name
_FIRST = (
    *("transformers_rope", "rotary_torch", "xtransformers_rope", "curated_rope", "diffusers_rope"),
    *("freqs_cis", "litgpt_rope", "megatron_rope", "onnxruntime_rope", "mlx_rope", "ggml_rope"),
)


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

    @classmethod
    def of(cls, module: str, given: EntryFields) -> Entry:
        """Return the entry of what a file says, with what it leaves out."""
        package = given.get("package", given["name"])
        return cls(
            given["name"],
            module,
            given.get("needs", (package.replace("-", "_"),)),
            package,
            given.get("extra", package),
            given["layouts"],
            given.get("dtypes", _DTYPES),
            given["calls"],
            given.get("snippet", ()),
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


def _declared(source: str) -> tuple[EntryFields, ...]:
    """Return the value of ENTRIES in the text of a file, a literal; nothing where there is none."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.AnnAssign) and node.value and ast.unparse(node.target) == "ENTRIES":
            entries: tuple[EntryFields, ...] = ast.literal_eval(node.value)
            return entries
    return ()


def _entries() -> Iterator[Entry]:
    """Yield what the files of this folder describe, those of `_FIRST` before the others."""
    folder = resources.files(__name__)
    files = {file.name.removesuffix(".py"): file for file in folder.iterdir() if file.name.endswith(".py")}
    for name in [*_FIRST, *sorted(files.keys() - {*_FIRST})]:
        for given in _declared(files[name].read_text(encoding="utf-8")):
            yield Entry.of(name, given)


ENTRIES = {entry.name: entry for entry in _entries()}


def implementation(name: str, device: str | None = None) -> Implementation:
    """Return an implementation by its name, to be called on a device. Raises: see `adapter.Adapter.on`."""
    if name not in ENTRIES:
        raise UnknownName("implementation", name, ENTRIES, "(`ropeaudit list impls` shows them)")
    entry = ENTRIES[name]
    if not entry.installed:
        raise MissingPackage(f"--impl {name} needs {' and '.join(entry.needs)}; {entry.install}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of theirs: about CUDA, about what else might be installed
            adapter: type[Any] = import_module(f"{__name__}.{entry.module}").IMPLEMENTATIONS[name]
    except Exception as error:  # whatever a half-installed package raises
        reason = " ".join(str(error).split())[:200]
        raise MissingPackage(f"--impl {name} cannot be imported: {reason}; {entry.install}") from error
    loaded: Implementation = adapter(entry).on(device)
    return loaded
