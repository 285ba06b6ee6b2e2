"""The command `ropeaudit parity`."""

from __future__ import annotations

from collections.abc import Mapping

import click

from ropeaudit.console import options
from ropeaudit.console.help import command
from ropeaudit.console.parameters import INTEGERS, WORD


@command(
    epilog="Subjects: a recipe (`ropeaudit list recipes`) or a .toml file, changed in brackets as in "
    "'hf[angle=fp64]'; or real code, called as it is: a name (`ropeaudit list implementations`), "
    "PACKAGE.MODULE:NAME or FILE.py:NAME, which is executed with your rights. Exit code: 0 done, 2 bad usage "
    "or input.\n\nCode gets q and k in the layout that it has, unless --layout is given."
)
@click.argument("a", metavar="A", type=WORD)
@click.argument("b", metavar="B", type=WORD)
@options.axis(
    "--offset",
    INTEGERS,
    "Integers added to every position.",
    shown="0 and the last that the model serves, or 128k",
)
@options.dtype_option
@options.device_option
@options.calling_options
@options.changes_option
@options.qk_options
@options.rope_options
@options.report_options
def parity(
    a: str,
    b: str,
    offset: tuple[int, ...],
    dtype: tuple[str, ...],
    device: str | None,
    changes: Mapping[str, str],
    vectors: options.QKOptions,
    rope: options.RopeOptions,
    output: options.ReportOptions,
) -> int:
    """Compare two implementations, such as a trainer A and a server B.

    Both see the same q and k. Reported is how far their scores are apart, how far each is from the exact
    scores, which is closer to the exact result, and how many elements of q and k differ in their bits.
    """
    from itertools import chain

    from ropeaudit.audits import arguments
    from ropeaudit.console import delivery
    from ropeaudit.features.parity import analysis
    from ropeaudit.features.parity.analysis import COLUMNS, report

    columns = output.chosen_columns(COLUMNS)
    pairs = analysis.make_pairs(a, b, arguments.formats(dtype), changes, device)
    cases = options.cases(rope, vectors)
    return delivery.run_and_deliver(
        lambda on_progress: analysis.run(cases, pairs, offset or None, on_progress),
        lambda measured, metadata: report(measured, columns, metadata),
        output,
        stages=arguments.stage_formats(chain(*pairs)),
    )
