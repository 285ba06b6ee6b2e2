"""What a shell offers for the value of an option: names of what there is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

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


def recipes() -> list[str]:
    """Return the recipes that can be emulated."""
    from ropeaudit.recipes import all_recipes

    return [one.name for one in all_recipes() if not one.refused]


def models() -> list[str]:
    """Return the named models."""
    from ropeaudit.rope.presets import all_presets

    return [one.name for one in all_presets()]


def implementations() -> list[str]:
    """Return the third-party implementations that are installed."""
    from ropeaudit.subjects.third_party import ENTRIES

    return [name for name, entry in ENTRIES.items() if entry.installed]


def formats() -> list[str]:
    """Return the number formats, by their first names."""
    from ropeaudit.arithmetic.formats import FORMATS

    return [one.name for one in FORMATS]


def _formats() -> list[str]:
    from ropeaudit.arithmetic.formats import FORMATS

    return [name for one in FORMATS for name in (one.name, *one.aliases)]


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


def _scalings() -> Iterable[str]:
    from ropeaudit.rope.scaling import KINDS

    return KINDS


def _environments() -> list[str]:
    from ropeaudit.subjects.calling import environments

    return [*environments.NAMES, environments.ALL]


def _axes() -> list[str]:
    from ropeaudit.rope import axial_presets

    return ["all", *(rope.name for rope in axial_presets.all_presets())]


def _targets() -> list[str]:
    return [*implementations(), *models()]


ALL: Mapping[str, Names] = {"--recipe": recipes, "--impl": implementations, "--dtype": formats}
NAMES: Mapping[str, Names] = {
    "--recipe": lambda: ["all", *recipes()],
    "--impl": lambda: ["all", *implementations()],
    "--dtype": lambda: ["all", *_formats()],
    "--model": lambda: ["all", "usual", *models()],
    "--axes": _axes,
    "--scaling": _scalings,
    "--layout": lambda: ["half", "interleaved"],
    "--mask": lambda: ["causal", "full", "window:"],
    "--qk": lambda: ["gaussian", "randn", "ones", "arange", "diagonal", "previous"],
    "--backend": lambda: ["numpy", "torch"],
    "--device": lambda: ["cpu", "cuda", "mps"],
    "--under": _environments,
    "--length": lambda: ["unshifted", "shifted"],
    "--softmax": lambda: ["fp64", "recipe"],
    "--layer": lambda: ["all", "full_attention", "sliding_attention"],
    "TARGETS": _targets,
    "A": lambda: [*recipes(), *implementations()],
    "B": lambda: [*recipes(), *implementations()],
}
_FILES = ("--config", "--qk", "--recipe", "--impl", "TARGETS", "A", "B")
