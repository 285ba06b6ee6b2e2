"""ropeaudit trace: which number formats an implementation uses, and which recipe it behaves like."""

from __future__ import annotations

from typing import Any

import click

from ropeaudit.console.options import axis, report_options, rope_options


@click.command(
    epilog="Implementations: a name (`ropeaudit list impls`), mypkg.rope:apply_rope or "
    "path/to/file.py:apply_rope, several separated by commas. Exit code: 0 done, 2 bad usage or input."
)
@click.argument("implementations", metavar="IMPL", nargs=-1, required=True)
@axis("--dtype", "Number formats of q and k.", "bf16")
@axis("--offset", "Offsets of the error profile.", "0,1k,32k,128k")
@click.option("--order", metavar="AXES", help="Axes of your own code, such as bhsd.  [default: found out]")
@rope_options
@report_options
def trace(**options: Any) -> int:
    """Trace an implementation: dtypes by stage, and the recipe that it behaves like.

    Torch operations are logged while it rotates; whatever its engine, its rotated vectors and its drift are
    compared with those of every named recipe.
    """
    from ropeaudit.arithmetic.formats import parse
    from ropeaudit.console import output, rows, settings, values
    from ropeaudit.features.trace import analysis
    from ropeaudit.features.trace.columns import COLUMNS
    from ropeaudit.features.trace.report import trace_report
    from ropeaudit.runtime import run_metadata
    from ropeaudit.subjects import factories

    columns = rows.chosen_columns(options, COLUMNS)
    called = values.names(options["implementations"], "IMPL")
    some = [factories.implementation(name, options["order"]) for name in called]
    arguments: dict[str, Any] = {
        "cases": list(settings.cases(options)),
        "implementations": some,
        "dtypes": list(dict.fromkeys(map(parse, values.names(options["dtype"], "--dtype") or ["bf16"]))),
        "offsets": values.integers(options["offset"], "--offset") or analysis.OFFSETS,
    }
    with output.opened(options["outputs"]) as files:
        results, interrupted = rows.gathered(
            lambda on_progress: analysis.run(**arguments, progress=on_progress), options["quiet"]
        )
        if results or not interrupted:
            message = [text for one in some for text in getattr(one, "findings", ())]
            about = run_metadata.gather() | ({"findings": message} if message else {})
            output.deliver(trace_report(results, columns, about, message), files, options, interrupted)
    if interrupted:
        output.say_interrupted(f"{len(results)} implementations", files)
    return 130 if interrupted else 0
