"""ropeaudit survey: every implementation in one table."""

from __future__ import annotations

import click

from ropeaudit.console import options, values
from ropeaudit.console.help import command
from ropeaudit.console.parameters import INTEGERS, NAMES, Parsed


@command(
    epilog="Names: `list implementations`, all, FILE.py:NAME or mypkg.rope:NAME. Exit code: 0 done, whatever "
    "was seen, 1 if nothing could be called, 2 bad usage."
)
@click.argument("implementations", metavar="[NAMES]", type=NAMES, default="all")
@options.axis("--dtype", NAMES, "Number formats of q and k.", "fp32,fp16,bf16")
@options.axis("--offset", INTEGERS, "Integers added to every position.", "0,1000,131072")
@options.axis(
    "--under",
    NAMES,
    "Environments beside the clean one; none leaves them out.",
    "autocast:bf16,tf32,default-dtype:bf16",
)
@options.axis("--cast", NAMES, "Number formats that classes are cast to; none leaves that out.", "bf16")
@click.option(
    "--jobs",
    type=Parsed("jobs", values.jobs),
    default=1,
    metavar="N",
    help="Processes side by side.  [default: 1]",
)
@options.report_options
def survey(
    implementations: list[str],
    dtype: tuple[str, ...],
    offset: tuple[int, ...],
    under: tuple[str, ...],
    cast: tuple[str, ...],
    jobs: int,
    output: options.ReportOptions,
) -> int:
    """Survey implementations: which drift more than others, and why.

    Each is called with the same q and k in a process of its package, in each dtype and environment, and its
    class is cast. Outliers come first, with the stage that explains them.
    """
    from ropeaudit.console import delivery
    from ropeaudit.features.survey import analysis
    from ropeaudit.features.survey.columns import COLUMNS
    from ropeaudit.features.survey.report import survey_report

    columns = output.chosen_columns(COLUMNS)
    return delivery.delivered(
        lambda on_progress: analysis.survey(
            implementations,
            dtype,
            offset,
            under=[name for name in under if name != "none"],
            casts=[name for name in cast if name != "none"],
            jobs=jobs,
            on_progress=on_progress,
        ),
        lambda results, metadata: survey_report(results, columns, metadata),
        output,
        noun="implementations",
        broken=lambda results: ["nothing could be called"] * all(one.refused for one in results),
    )
