"""What a shell offers for the value of an option: names of what there is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem

Names = Callable[[], Iterable[str]]


def complete(context: click.Context, flag: str, incomplete: str) -> list[CompletionItem]:
    """Return what the last element of a list may become; files where an option takes them."""
    done, comma, word = incomplete.rpartition(",")
    if flag in ("--columns", "--fail-if", "--y"):
        names: Iterable[str] = _columns(context)
    else:
        names = NAMES[flag]() if flag in NAMES else ()
    items = [CompletionItem(f"{done}{comma}{name}") for name in names if name.startswith(word)]
    return items + [CompletionItem(incomplete, type="file")] * (flag in _FILES and not (comma or items))


def _columns(context: click.Context) -> list[str]:
    """Return the columns of the command's reports; else those of `shift`."""
    from ropeaudit.runtime.columns import table, tables

    own, name = [], str(context.info_name)
    for known in tables():
        if known in (name, f"list-{name}") or known.startswith(f"{name}-"):
            own += list(table(known))
    if name == "report":  # rows of `shift`, as they were and in comparison
        from ropeaudit.reports.comparison import COLUMNS

        own += [*table("shift"), "file", *COLUMNS]
    return list(dict.fromkeys(own)) or list(table("shift"))


def _module(name: str) -> Any:
    """Return a module of this package, which a shell waits for where its names are asked for alone."""
    return import_module(f"ropeaudit.{name}")


# every name that `all` stands for
ALL: Mapping[str, Names] = {
    "--recipe": lambda: [one.name for one in _module("recipes").all_recipes() if not one.refused],
    "--impl": lambda: [
        name for name, entry in _module("subjects.third_party").ENTRIES.items() if entry.installed
    ],
    "--dtype": lambda: [one.name for one in _module("arithmetic.formats").FORMATS],
    "--model": lambda: [one.name for one in _module("rope.presets").all_presets()],
    "--axes": lambda: [one.name for one in _module("rope.axial_presets").all_presets()],
}


def _aliases() -> list[str]:
    """Return all that a number format may be called besides its first name."""
    return [alias for one in _module("arithmetic.formats").FORMATS for alias in one.aliases]


def _sides() -> list[str]:
    """Return what `parity` compares by name."""
    return [*ALL["--recipe"](), *ALL["--impl"]()]


NAMES: Mapping[str, Names] = {
    "--recipe": lambda: ["all", *ALL["--recipe"]()],
    "--impl": lambda: ["all", *ALL["--impl"]()],
    "--dtype": lambda: ["all", *ALL["--dtype"](), *_aliases()],
    "--model": lambda: ["all", "usual", *ALL["--model"]()],
    "--axes": lambda: ["all", *ALL["--axes"]()],
    "--under": lambda: [*_module("subjects.calling.environments").NAMES, "all"],
    "--scaling": lambda: _module("rope.scaling").KINDS,
    "--layout": lambda: ["half", "interleaved"],
    "--mask": lambda: ["causal", "full", "window:"],
    "--qk": lambda: ["gaussian", "randn", "ones", "arange", "diagonal", "previous"],
    "--backend": lambda: ["numpy", "torch"],
    "--device": lambda: ["cpu", "cuda", "mps"],
    "--length": lambda: ["unshifted", "shifted"],
    "--softmax": lambda: ["fp64", "recipe"],
    "--layer": lambda: ["all", "full_attention", "sliding_attention"],
    "TARGETS": lambda: [*ALL["--impl"](), *ALL["--model"]()],
    "A": _sides,
    "B": _sides,
}
_FILES = ("--config", "--qk", "--recipe", "--impl", "TARGETS", "A", "B")
