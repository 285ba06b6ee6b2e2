"""The command `ropeaudit limit`."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from ropeaudit.console import options
from ropeaudit.console.help import command
from ropeaudit.console.parameters import INTEGER, NAMES
from ropeaudit.errors import UsageError

if TYPE_CHECKING:
    from ropeaudit.console.gates import Gate, Row
    from ropeaudit.features.limit.analysis import Limit
    from ropeaudit.reports import Report

# undefined without a failure: then conditions on them do not hold
OF_FAILURE = ("first_failure_seen", "first_failure", "failure_position", "value_at_failure")
_OF_DISTANCE = ("failing_distance", "value_at_distance")
_OFFSETS = ("first_failure_seen", "first_failure")
_EXAMPLE = "first_failure_seen<100000"


@command(
    epilog="Exit code: 0 done, 1 a --fail-if was broken, 2 bad usage or input.\n\n"
    "What is claimed: first_failure_seen was measured to fail. No offset up to proved_up_to fails: "
    "the a-priori bound proves it (bound_up_to), or each was measured. Where there are too many for that, "
    "powers of two, ends of formats, the end of the model's positions, neighbours of the boundary, "
    "and spread offsets are measured: no failure was seen in "
    "`measured_offsets` of them up to measured_up_to, and one that was not measured may fail. Of code "
    "nothing is proved unless every offset was measured; offsets that break positions are measured first. "
    "Pairs of a query and a key are measured at distances too, to the model's last position or 128k, and "
    "behind an offset where offsets hold as far: failing_distance was measured to fail, and none of "
    "`measured_distances` of them to measured_distance."
)
@options.axis(
    "--tolerance",
    NAMES,
    "Worst accepted drift_relative, or COLUMN=X of others. They are those of `shift`, such as "
    "drift_rms=1e-3: at most it, of distinct_positions at least it.",
    "1%",
    metavar="X",
)
@click.option(
    "--up-to",
    type=INTEGER,
    metavar="N",
    help="Largest offset that is looked at.  [default: 16m; of --impl the last one within the model's "
    "maximum, or within 128k positions]",
)
@click.option(
    "--budget",
    type=INTEGER,
    metavar="N",
    help="Offsets that may be measured per row.  [default: 128; 80 of --impl]",
)
@options.dtype_option
@options.recipe_option
@options.impl_option
@options.device_option
@options.calling_options
@options.length_option
@options.changes_option
@options.qk_options
@options.rope_options
@options.report_options
@click.option(
    "--fail-if",
    "gates",
    multiple=True,
    metavar="COND",
    help="Exit with 1 if a row fulfils it: 'first_failure_seen<100000', 'margin<1'. NaN fails, but where no "
    "failure was seen, no condition on first_failure_seen, first_failure, failure_position or "
    "value_at_failure is fulfilled, nor on failing_distance or value_at_distance. Repeatable.",
)
def limit(
    tolerance: tuple[str, ...],
    up_to: int | None,
    budget: int | None,
    dtype: tuple[str, ...],
    recipe: tuple[str, ...],
    impl: tuple[str, ...],
    device: str | None,
    length: str | None,
    changes: Mapping[str, str],
    vectors: options.QKOptions,
    rope: options.RopeOptions,
    output: options.ReportOptions,
    gates: tuple[str, ...],
) -> int:
    """Find how far positions may be shifted within a tolerance.

    Reported are the offset up to which it is proved that none fails, the one up to which no failure was seen,
    and the smallest that was seen to fail. Models are judged by the positions that they are made for.
    """
    from ropeaudit.audits import arguments
    from ropeaudit.console import delivery
    from ropeaudit.features.limit import analysis
    from ropeaudit.features.limit.report import COLUMNS, report
    from ropeaudit.recipes import DEFAULT

    columns = output.chosen_columns(COLUMNS)
    cases = options.cases(rope, vectors, length=length)
    chosen = arguments.subjects(recipe, impl, dtype, changes, DEFAULT, device)
    largest = [analysis.usual_up_to(case, one) for case in cases for one in chosen]
    conditions = parse(gates, min(largest) if up_to is None else up_to)
    accepted = [analysis.tolerance(text) for text in tolerance]

    uncalled = list[str]()

    def made(results: Sequence[Limit], metadata: Mapping[str, Any]) -> Report:
        records = [one.at_zero for one in results]
        uncalled.extend(one.why for one in records if one.refused == "uncalled")
        return report(results, columns, metadata)

    code = delivery.run_and_deliver(
        functools.partial(analysis.run, cases, chosen, accepted, up_to, budget),
        made,
        output,
        stages=arguments.stage_formats(chosen),
        broken=lambda results: broken(conditions, results),
    )
    if uncalled:
        delivery.say_error(UsageError(uncalled[0]))
        code = delivery.worst(code, delivery.BAD_USE)
    return code


def parse(texts: Iterable[str], up_to: int | None) -> list[Gate]:
    """Parse --fail-if on columns of limits. up_to: the largest offset of the search, if known.

    Raises: UsageError, also if the search does not reach the offset of a condition; UnknownName.
    """
    from ropeaudit.console import gates
    from ropeaudit.features.limit.report import COLUMNS

    conditions = [gates.parse(text, columns=COLUMNS, example=_EXAMPLE) for text in texts]
    for gate in conditions:
        last = gate.bound if gate.sign == "<=" else gate.bound - 1
        if up_to is not None and gate.sign in ("<", "<=") and gate.column in _OFFSETS and last > up_to:
            enough = math.ceil(last) if math.isfinite(last) else "an offset and a condition below it"
            raise UsageError(
                f"--fail-if '{gate.typed}': offsets are looked at up to {up_to} alone; try --up-to {enough}"
            )
    return conditions


def broken(conditions: Sequence[Gate], limits: Iterable[Limit]) -> list[str]:
    """Return a line for each condition that some limit fulfils."""
    from ropeaudit.audits.comparison import Pair
    from ropeaudit.console import gates
    from ropeaudit.features.limit.report import row

    def nothing_failed(gate: Gate, values: Row) -> bool:
        if gate.column in _OF_DISTANCE:  # on axes none is measured, which is no pass
            return values["measured_distances"] is not None and values["failing_distance"] is None
        return gate.column in OF_FAILURE and values["first_failure_seen"] is None

    return gates.broken_since(conditions, [Pair(None, row(one)) for one in limits], nothing_failed)
