"""--baseline: what is measured now is compared with an earlier report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ropeaudit.console import gates, output
from ropeaudit.console.gates import Gate
from ropeaudit.console.options import ReportOptions
from ropeaudit.errors import BadInput

if TYPE_CHECKING:
    from ropeaudit.audits.comparison import Pair
    from ropeaudit.reports import Report, Row


@dataclass(slots=True)
class Baseline:
    """The rows of an earlier report; `pairs` holds the comparison once there is something to compare.

    processor: what measured it, empty where nothing says. announced: whether the finding goes to stderr, for
    forms without sentences.
    """

    path: str
    rows: Sequence[Row]
    processor: str
    announced: bool
    pairs: Sequence[Pair] = field(default_factory=list)
    nothing: BadInput | None = None

    def beside(self, report: Report) -> Report:
        """Return a report with what changed behind it; forms without sentences get it on stderr.

        Where no case is in both, `broken` raises what is wrong: the rows must be written first.
        """
        from ropeaudit.audits import comparison
        from ropeaudit.reports.comparison import report as changes_of
        from ropeaudit.runtime import run_metadata

        try:
            here = run_metadata.processor(run_metadata.kernels())
            result = comparison.compare(self.rows, report.rows, processors=(self.processor, here))
        except BadInput as error:
            self.nothing = error
            return report
        changes = changes_of([result], None, {})
        [answer] = changes.answers
        answer = replace(answer, target=f"{answer.target} since {self.path}")
        changes = replace(changes, metadata={}, answers=[answer], headline=answer.headline)
        self.pairs = result.pairs
        if self.announced:
            output.say(changes.headline)
        return replace(report, further={**report.further, "changes": changes})

    def broken(self, conditions: Sequence[Gate]) -> list[str]:
        """Return a line for every gate that is broken. Raises: UsageError, BadInput."""
        if self.nothing:
            raise self.nothing
        relative = [gate for gate in conditions if gate.relative]
        gates.check_columns(relative, [pair.before for pair in self.pairs])
        return gates.broken_since(conditions, self.pairs)


def opened(path: str | None, options: ReportOptions) -> Baseline | None:
    """Read the file of --baseline, before anything is measured; None without one. Raises: BadInput."""
    if path is None:
        return None
    from ropeaudit.reports import form_named
    from ropeaudit.reports.reading import processor, read

    announced = not form_named(options.form).finding and not options.quiet
    return Baseline(path, read(path), processor(path), announced)
