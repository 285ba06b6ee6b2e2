"""Other people's implementations, one small file each; nothing of theirs is imported until it is audited."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module, metadata, util

from ropeaudit.errors import MissingPackage, UnknownName
from ropeaudit.subjects.called import Implementation


@dataclass(frozen=True, slots=True)
class Entry:
    """An implementation that can be asked for by name.

    module: the file here that calls it, whose `IMPLEMENTATIONS[name]` makes it. needs: what it imports.
    package: whose version is recorded. extra: what installs it.
    """

    name: str
    module: str
    needs: str
    package: str
    extra: str

    @property
    def installed(self) -> bool:
        """Whether it can be called."""
        return util.find_spec(self.needs) is not None

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


_ENTRIES = (Entry("transformers-llama", "transformers_rope", "transformers", "transformers", "model"),)
ENTRIES = {entry.name: entry for entry in _ENTRIES}


def implementation(name: str) -> Implementation:
    """Return an implementation by its name. Raises: UnknownName, MissingPackage."""
    if name not in ENTRIES:
        raise UnknownName("implementation", name, ENTRIES, "(`ropeaudit list impls` shows them)")
    entry = ENTRIES[name]
    if not entry.installed:
        raise MissingPackage(f"--impl {name} needs {entry.package}; {entry.install}")
    found: Implementation = import_module(f"{__name__}.{entry.module}").IMPLEMENTATIONS[name](entry.version)
    return found
