"""The one road of the commands: claim files, analyse with progress, deliver the report, say how it ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from ropeaudit.console import output, rows

if TYPE_CHECKING:
    from ropeaudit.console.options import ReportOptions
    from ropeaudit.recipes import Resolved
    from ropeaudit.reports import Report

T = TypeVar("T")
OnProgress: TypeAlias = Callable[[float], None]
Stages: TypeAlias = Mapping[str, Mapping[str, str]]  # "subject dtype" -> stage -> format
Curves: TypeAlias = Callable[[Sequence[T], int, bool], str]
DONE, BROKEN, INTERRUPTED = 0, 1, 130


def delivered(
    analysis: Callable[[OnProgress], Iterable[T]],
    report: Callable[[list[T], Mapping[str, Any]], Report],
    options: ReportOptions,
    *,
    stages: Stages | None = None,
    noun: str = "rows",
    curves: Curves[T] | None = None,
) -> tuple[list[T], int]:
    """Run an analysis and deliver its report; return its results and the exit code.

    analysis: takes a function that gets the share done, from 0 to 1. report: from the results and the
    metadata. noun: what an interruption counts. curves: from results, width and whether ASCII must do.
    """
    with output.opened(options.outputs) as files:
        results, interrupted = rows.gathered(analysis, options.quiet)
        if results or not interrupted:
            metadata = output.metadata(options) | ({"stages": stages} if stages else {})
            built = report(results, metadata)
            if curves is None:
                output.deliver(built, files, options, interrupted)
            else:
                shown = curves
                output.deliver_plotted(
                    built, lambda width, plain: shown(results, width, plain), files, options, interrupted
                )
    if interrupted:
        output.say_interrupted(f"{len(results)} {noun}", files)
    return results, INTERRUPTED if interrupted else DONE


def delivered_at_once(
    report: Callable[[Mapping[str, Any]], Report], options: ReportOptions, code: int = DONE
) -> int:
    """Deliver a report that takes no time worth a progress bar, from the metadata; return `code`."""
    with output.opened(options.outputs) as files:
        output.deliver(report(output.metadata(options)), files, options)
    return code


def judged(broken: Iterable[str], code: int = DONE) -> int:
    """Say which --fail-if were broken; return 1 if some was, otherwise `code`."""
    lines = list(broken)
    for line in lines:
        output.say(line)
    return BROKEN if lines else code


def stages(resolved: Iterable[Resolved]) -> Stages:
    """Return the stages of recipes, for the metadata."""
    return {f"{one.recipe.name} {one.dtype}": one.stages() for one in resolved}
