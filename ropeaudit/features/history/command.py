"""ropeaudit history: state that leaks between the calls of an implementation."""

from __future__ import annotations

from typing import Any

import click

from ropeaudit.console.options import axis, report_options, rope_options


@click.command(
    epilog="Implementations: `ropeaudit list impls`. Exit code: 0 done, whether anything leaks or not, 2 bad "
    "usage or input."
)
@click.argument("implementations", metavar="NAMES")
@axis("--dtype", "Number formats of the calls, and of those before them.", "fp32,fp16,bf16")
@axis("--offset", "First positions of the calls.", "0,1000")
@axis("--seq-len", "Positions of the calls.", "256")
@rope_options
@report_options
def history(**options: Any) -> int:
    """Find state that leaks between the calls of real code.

    The same call is made on a fresh instance and after calls in another dtype, for another length and at
    another offset: what it returns must not differ in a single bit.
    """
    from ropeaudit.arithmetic.formats import parse
    from ropeaudit.console import output, rows, settings, values
    from ropeaudit.features.history import analysis
    from ropeaudit.features.history.report import COLUMNS, history_report
    from ropeaudit.runtime import run_metadata

    columns = rows.chosen_columns(options, COLUMNS)
    names = values.names([options["implementations"]], "NAMES")
    dtypes = [parse(name) for name in values.names(options["dtype"], "--dtype") or ["fp32", "fp16", "bf16"]]
    offsets = values.integers(options["offset"], "--offset") or [0, 1000]
    cases = list(settings.cases(options))
    with output.opened(options["outputs"]) as files:
        results, interrupted = rows.gathered(
            lambda on_progress: analysis.run(cases, names, list(dict.fromkeys(dtypes)), offsets, on_progress),
            options["quiet"],
        )
        if results or not interrupted:
            about = run_metadata.gather()
            output.deliver(history_report(results, columns, about), files, options, interrupted)
    if interrupted:
        output.say_interrupted(f"{len(results)} rows", files)
    return 130 if interrupted else 0
