"""What most commands do: claim the files, gather rows with progress, deliver the report, say how it ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ropeaudit.console import output, rows, values

if TYPE_CHECKING:
    from ropeaudit.arithmetic.formats import Format
    from ropeaudit.recipes import Resolved
    from ropeaudit.reports import Report

T = TypeVar("T")
INTERRUPTED = 130


def done(
    options: dict[str, Any],
    run: Callable[[Callable[[float], None]], Iterable[T]],
    report: Callable[[list[T], Mapping[str, Any]], Report],
    stages: Mapping[str, Any],
    noun: str = "rows",
) -> tuple[list[T], int]:
    """Run an analysis and deliver its report; return what was found and the exit code.

    run: takes a function that gets the share done, from 0 to 1. report: from what was found and the
    metadata. stages: "subject dtype" -> stage -> format, for the metadata.
    """
    with output.opened(options["outputs"]) as files:
        results, interrupted = rows.gathered(run, options["quiet"])
        if results or not interrupted:
            about = output.metadata(options) | ({"stages": stages} if stages else {})
            output.deliver(report(results, about), files, options, interrupted)
    if interrupted:
        output.say_interrupted(f"{len(results)} {noun}", files)
    return results, INTERRUPTED if interrupted else 0


def judged(broken: Iterable[str], code: int = 0) -> int:
    """Say which --fail-if were broken; return 1 if some was, otherwise `code`."""
    lines = list(broken)
    for line in lines:
        output.say(line)
    return 1 if lines else code


def formats(options: dict[str, Any], usual: str) -> list[Format]:
    """Return the formats of --dtype, each once. Raises: UsageError, UnknownName."""
    from ropeaudit.arithmetic.formats import parse

    return list(dict.fromkeys(parse(name) for name in values.names(options["dtype"], "--dtype") or [usual]))


def resolved(options: dict[str, Any], dtype: str, usual: Sequence[str] | None = None) -> list[Resolved]:
    """Return every recipe, changed by --set, in every dtype; `usual`, `recipes.DEFAULT`, where none is named.

    dtype: the usual one.

    Raises: UsageError, UnknownName, BadInput, NotEmulated.
    """
    from ropeaudit import recipes

    changes = recipes.parse_changes(options["changes"])
    named = values.names(options["recipe"], "--recipe") or usual or recipes.DEFAULT
    chosen = [recipes.load(name).changed(changes) for name in named]
    kinds = formats(options, dtype)
    return [one.resolve(fmt) for one in chosen for fmt in kinds]


def stages(results: Iterable[Resolved]) -> dict[str, dict[str, str]]:
    """Return "recipe dtype" -> stage -> format."""
    return {f"{one.recipe.name} {one.dtype}": one.stages() for one in results}
