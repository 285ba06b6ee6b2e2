"""The one road of the commands: claim files, analyse with progress, deliver the report, say how it ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from ropeaudit.console import output, rows

if TYPE_CHECKING:
    from ropeaudit.console.options import ReportOptions
    from ropeaudit.recipes import Resolved
    from ropeaudit.reports import Report

T = TypeVar("T")
OnProgress: TypeAlias = Callable[[float], None]
Metadata: TypeAlias = Mapping[str, Any]
Stages: TypeAlias = Mapping[str, Mapping[str, str]]  # "subject dtype" -> stage -> format
DONE, BROKEN, INTERRUPTED = 0, 1, 130


def delivered(
    analysis: Callable[[OnProgress], Iterable[T]],
    report: Callable[[list[T], Metadata], Report],
    options: ReportOptions,
    *,
    stages: Stages | None = None,
    noun: str = "rows",
    broken: Callable[[list[T]], Iterable[str]] = lambda results: (),
    proportional: bool = True,
) -> int:
    """Run an analysis and deliver its report; return the exit code.

    analysis: takes a function that gets the share done, from 0 to 1. report: from the results and the
    metadata. noun: what an interruption counts.
    broken: from the results, a line for each --fail-if that was broken. proportional: whether the share done
    is proportional to work, so that what is left can be guessed.
    """
    with output.opened(options.outputs) as files:
        results, interrupted = rows.gathered(analysis, options.quiet, proportional=proportional)
        if results or not interrupted:
            metadata = output.metadata(options) | ({} if stages is None else {"stages": stages})
            output.deliver(report(results, metadata), files, options, interrupted)
    if interrupted:
        output.say_interrupted(f"{len(results)} {noun}", files)
    return INTERRUPTED if interrupted else judged(broken(results))


def delivered_at_once(report: Callable[[Metadata], Report], options: ReportOptions, code: int = DONE) -> int:
    """Deliver a report that takes no time worth a progress bar, from the metadata; return `code`."""
    with output.opened(options.outputs) as files:
        output.deliver(report(output.metadata(options)), files, options)
    return code


def judged(broken: Iterable[str]) -> int:
    """Say which --fail-if were broken; return the exit code."""
    lines = list(broken)
    for line in lines:
        output.say(line)
    return BROKEN if lines else DONE


def stages(resolved: Iterable[Resolved]) -> Stages:
    """Return the stages of recipes, for the metadata."""
    return {f"{recipe.recipe.name} {recipe.dtype}": recipe.stages() for recipe in resolved}
