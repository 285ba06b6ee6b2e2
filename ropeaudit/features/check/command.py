"""ropeaudit check: one question, one answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from ropeaudit.console import options
from ropeaudit.console.parameters import INTEGER, NAMES, NATURAL
from ropeaudit.errors import UsageError

if TYPE_CHECKING:
    from ropeaudit.features.check.analysis import Checked
    from ropeaudit.reports import Report


@click.command(
    epilog="Targets: FILE.py:NAME, mypkg.rope:NAME or a name of `ropeaudit list impls`. Exit code: 0 all "
    "checks passed, 1 one failed, 2 bad usage or input."
)
@options.words("TARGETS", "targets")
@click.option(
    "--up-to",
    type=INTEGER,
    metavar="N",
    help="Positions that are checked, every one.  [default: the model's maximum, else 128k]",
)
@options.axis("--dtype", NAMES, "Number formats of q and k.", "bf16")
@click.option(
    "--recipe",
    metavar="NAME",
    help="What the code claims to do: its roundings are allowed.  [default: those of right code]",
)
@click.option("--order", metavar="AXES", help="Axes of own code, such as bhsd.  [default: found out]")
@click.option("--seed", type=NATURAL, metavar="N", default=0, help="Seed of q and k.  [default: 0]")
@options.rope_options
@options.report_options
def check(
    targets: tuple[str, ...],
    up_to: int | None,
    dtype: tuple[str, ...],
    recipe: str | None,
    order: str | None,
    seed: int,
    rope: options.RopeOptions,
    output: options.ReportOptions,
) -> int:
    """Check whether code rotates as RoPE asks, at every position.

    Each check passes, fails or does not apply; the exit code is 1 if one fails.
    """
    from ropeaudit.arithmetic.formats import parse
    from ropeaudit.console import delivery, settings
    from ropeaudit.features.check import analysis
    from ropeaudit.features.check.report import COLUMNS, check_report

    columns = output.chosen_columns(COLUMNS)
    cases = settings.cases(rope)
    if len(cases) != 1:
        raise UsageError("check takes one RoPE setting at a time; give a single value of each option")
    requested = analysis.CheckOptions(tuple(parse(name) for name in dtype), up_to, recipe, order, seed)
    findings: list[str] = []
    checked: list[Checked] = []

    def report(results: list[Checked], metadata: Mapping[str, Any]) -> Report:
        checked.extend(results)
        return check_report(results, columns, metadata, findings)

    code = delivery.delivered(
        lambda on_progress: analysis.run(targets, cases[0], requested, on_progress, findings.extend),
        report,
        output,
        noun="checks",
    )
    return code or int(any(one.finding.failed for one in checked))
