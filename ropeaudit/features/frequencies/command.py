"""ropeaudit frequencies: every pair's frequency, and what is wrong with a dumped table of them."""

from __future__ import annotations

import click

from ropeaudit.console.help import command
from ropeaudit.console.options import ReportOptions, RopeOptions, axis, report_options, rope_options
from ropeaudit.console.parameters import INTEGER, NAMES


@command(
    epilog="Exit code: 0 done, or the dump agrees within float32 rounding, 1 the dump does not, 2 bad usage "
    "or input."
)
@rope_options
@axis(
    "--recipe",
    NAMES,
    "Show what these recipes store, and its relative error: names or .toml files.",
    shown="none",
)
@axis(
    "--dtype",
    NAMES,
    "Number formats: of angles, and of the model for --recipe.",
    shown="fp32,fp16,bf16",
)
@click.option(
    "--max-position",
    type=INTEGER,
    metavar="N",
    help="Where angles are shown.  [default: the model's maximum, or 131072]",
)
@click.option(
    "--against",
    metavar="FILE",
    help="Check a dumped inv_freq, cos and sin, or freqs_cis: .npz, .npy, c.npy,s.npy, .safetensors, .pt.",
)
@report_options
def frequencies(
    recipe: tuple[str, ...],
    dtype: tuple[str, ...],
    max_position: int | None,
    against: str | None,
    rope: RopeOptions,
    output: ReportOptions,
) -> int:
    """Show every pair's frequency, wavelength and the positions that number formats merge.

    With --against, compare a dumped table with the exact one and say what explains the difference: a cast,
    another base, another scaling.
    """
    from ropeaudit.console import delivery, settings
    from ropeaudit.errors import UsageError
    from ropeaudit.features.frequencies import analysis
    from ropeaudit.features.frequencies.comparison import check_table
    from ropeaudit.features.frequencies.report import check_report, frequencies_report

    cases = settings.cases(rope)
    labels = settings.labels(rope, cases)
    if against is None:
        formats = dtype or analysis.DTYPES
        tables = list(analysis.frequencies(formats, recipe, max_position, cases=cases, labels=labels))
        return delivery.delivered_at_once(
            lambda metadata: frequencies_report(tables, output.columns, metadata), output
        )
    for name, given in (("recipe", recipe), ("dtype", dtype), ("max-position", max_position)):
        if given:
            raise UsageError(f"--{name} does not go with --against; leave one of them out")
    check = check_table(against, cases=cases, labels=labels)
    return delivery.delivered_at_once(
        lambda metadata: check_report(check, output.columns, metadata),
        output,
        delivery.DONE if check.diagnosis.agrees else delivery.BROKEN,
    )
