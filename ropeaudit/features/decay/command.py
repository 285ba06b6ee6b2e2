"""The command `ropeaudit decay`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import click

from ropeaudit.console import options, values
from ropeaudit.console.help import command
from ropeaudit.console.parameters import NAMES, TARGETS, Parsed, within
from ropeaudit.errors import UsageError

_PLAIN_RANGE = re.compile(r"([^-+*]+)-([^-+*]+)")


def _distances(text: str, flag: str) -> list[int]:
    """Read distances; a range without a step becomes a few round ones. Raises: UsageError."""
    results: list[int] = []
    for word in text.split(","):
        if not (ends := _PLAIN_RANGE.fullmatch(word.strip())):
            results += values.integers(word, flag)
            continue
        from ropeaudit.features.decay.analysis import round_values  # in-function: --help loads no NumPy

        first, last = (values.integer(end, flag) for end in ends.groups())
        if first > last:
            raise UsageError(f"{flag} {word.strip()!r} does not count upwards; try 0-50000")
        results += round_values(first, last)
    return results


@command(
    epilog="Distances: 0-50000 picks a few round ones, 0-4096+64 and 1-64k*2 count. What the finding says is "
    "of every distance up to the largest. k = 1024, m = 1024²."
)
@options.axis(
    "--distance",
    Parsed("distances", _distances),
    "Positions of the query; the key is at 0.",
    shown="up to the model's; or to 64k",
)
@options.rope_options
@options.axis(
    "--qk",
    TARGETS,
    f"Kind of q and k, or a file with captured ones. {options.QK_KINDS}",
    "ones,gaussian",
    metavar="SOURCE",
)
@click.option(
    "--vectors",
    type=within(1, 1024, 64),
    default=64,
    metavar="N",
    help="Queries and keys of a head, at most.  [default: 64]",
)
@click.option(
    "--seed",
    type=within(0, 2**64 - 1, 0),
    default=0,
    metavar="N",
    help="Seed of gaussian q and k.  [default: 0]",
)
@options.axis("--dtype", NAMES, "Formats of a recipe's scores.", shown="none; all with --recipe")
@options.recipe_option
@options.changes_option
@options.report_options
@options.no_header_option
def decay(
    distance: tuple[int, ...],
    rope: options.RopeOptions,
    dtype: tuple[str, ...],
    recipe: tuple[str, ...],
    changes: Mapping[str, str],
    output: options.ReportOptions,
    no_header: bool,
    **vectors: Any,
) -> int:
    """Show how scores change with the distance between query and key.

    Constant q and k decay, Gaussian ones do not, and neither curve is monotone. Beside them stand RoFormer's
    bound and the sum of Men et al., with the first distance at which it is negative.
    """
    from ropeaudit.audits.arguments import stage_formats
    from ropeaudit.console import delivery
    from ropeaudit.features.decay import analysis
    from ropeaudit.features.decay.analysis import COLUMNS, report
    from ropeaudit.reports.numbers import counted
    from ropeaudit.subjects.factories import of_recipe

    columns = output.chosen_columns(COLUMNS)
    output.check_header(no_header)
    compared = analysis.requested(recipe, dtype, changes)
    asked = {"dtypes": dtype, "recipes": recipe, "changes": changes, "cases": options.cases(rope), **vectors}
    return delivery.run_and_deliver(
        lambda on_progress: analysis.decay(distance or None, on_progress=on_progress, **asked),
        lambda results, metadata: replace(report(results, columns, metadata), header=not no_header),
        output,
        stages=stage_formats(of_recipe(each) for each in compared if each is not None),
        done=lambda results: counted(len(results), "case"),
    )
