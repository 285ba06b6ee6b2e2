"""ropeaudit frequencies: every pair's frequency, and what is wrong with a dumped table of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ropeaudit.console.options import axis, report_options, rope_options

if TYPE_CHECKING:
    from ropeaudit.console.settings import Chosen
    from ropeaudit.reports import Report

_MAXIMUM = 131072  # positions, where no model says how many
_LARGEST = 2**53  # positions are exact in float64 up to here
_LEGEND = (
    "shared FORMAT: first position whose exact angle, rounded to FORMAT, is the next position's too."
    "\nwavelength in tokens, angle at the maximum position in radians."
)
_CHECK_LEGEND = "Errors in {}; off: beyond what float32 arithmetic accounts for."


@click.command(
    epilog="Exit code: 0 done, or the dump agrees within float32 rounding, 1 the dump does not, 2 bad usage "
    "or input."
)
@rope_options
@axis("--recipe", "Show what these recipes store, and its relative error: names or .toml files.", "none")
@axis("--dtype", "Number formats: of angles, and of the model for --recipe.", "fp32,fp16,bf16")
@click.option(
    "--max-position", metavar="N", help="Where angles are shown.  [default: the model's maximum, or 131072]"
)
@click.option(
    "--against",
    metavar="FILE",
    help="Check a dumped inv_freq, cos and sin, or freqs_cis: .npz, .npy, c.npy,s.npy, .safetensors, .pt.",
)
@report_options
def frequencies(**options: Any) -> int:
    """Show every pair's frequency, wavelength and the positions that number formats merge.

    With --against, compare a dumped table with the exact one and say what explains the difference: a cast,
    another base, another scaling.
    """
    from ropeaudit import reports
    from ropeaudit.console import output
    from ropeaudit.console.settings import chosen
    from ropeaudit.errors import UnknownName

    if options["form"] not in reports.FORMS:
        raise UnknownName("report format", options["form"], reports.FORMS)
    settings = chosen(options)
    make = _shown if options["against"] is None else _checked
    with output.opened(options["outputs"]) as files:
        report, code = make(settings, options)
        output.deliver(report, files, options)
    return code


def _shown(settings: Sequence[Chosen], options: dict[str, Any]) -> tuple[Report, int]:
    """The rows of all settings."""
    from ropeaudit import recipes
    from ropeaudit.arithmetic.formats import parse
    from ropeaudit.console import values
    from ropeaudit.errors import UsageError
    from ropeaudit.features.frequencies import analysis

    formats = [parse(name) for name in values.names(options["dtype"], "--dtype") or ("fp32", "fp16", "bf16")]
    formats = list(dict.fromkeys(formats))
    loaded = [recipes.load(name) for name in values.names(options["recipe"], "--recipe")]
    given = options["max_position"]
    most = None if given is None else values.integer(given, "--max-position")
    if most is not None and not 1 <= most <= _LARGEST:
        raise UsageError(f"--max-position {most} is not a position from 1 to 2^53; try 131072")
    rows = []
    for one in settings:
        maximum = most or one.maximum or _MAXIMUM
        rows += analysis.rows(one.label, one.setting, maximum, formats, loaded)
    notes = [f"{one.label}: no pair is rotated" for one in settings if not one.setting.pairs]
    columns = list(rows[0]) if rows else list(analysis.COLUMNS)
    hidden = {"maximum", *(name for name in columns if name.startswith("shared_position_"))}
    dispensable = [f"shared_{fmt.short}" for fmt in formats] + ["angle_at_maximum"]
    return _report(
        rows,
        columns,
        hidden,
        options,
        headline=analysis.headline(rows, formats),
        notes=notes,
        legend=_legend(formats),
        dispensable=dispensable,
    ), 0


def _legend(formats: Sequence[Any]) -> str:
    from ropeaudit.features.frequencies.analysis import first_shared_position

    merged = ", ".join(f"{first_shared_position(fmt)} in {fmt.short}" for fmt in formats)
    return f"{_LEGEND}\nPositions themselves are first merged with the next one at {merged}."


def _checked(settings: Sequence[Chosen], options: dict[str, Any]) -> tuple[Report, int]:
    """The diagnosis of a dump against the setting that it fits best."""
    from dataclasses import asdict

    from ropeaudit.errors import UsageError
    from ropeaudit.tensor_files import tables

    for name in ("recipe", "dtype", "max_position"):
        if options[name]:
            raise UsageError(f"--{name.replace('_', '-')} does not go with --against; leave one of them out")
    dump = tables.read(options["against"])
    best, label = _best(dump, settings)
    columns = list(best.rows[0])
    notes = [f"hypothesis {n}: {_line(one)}" for n, one in enumerate(best.hypotheses, 1)]
    if len(settings) > 1:
        notes.insert(0, f"compared with {label}, which fits best of {len(settings)} settings")
    units = "radians" if "largest_error" in columns else "relative terms"
    hidden = {"setting", "tolerance"}
    report = _report(
        best.rows,
        columns,
        hidden,
        options,
        headline=best.headline,
        notes=notes,
        legend=_CHECK_LEGEND.format(units),
        about={"agrees": best.agrees, "hypotheses": [asdict(one) for one in best.hypotheses]},
    )
    return report, 0 if best.agrees else 1


def _best(dump: Any, settings: Sequence[Chosen]) -> tuple[Any, str]:
    """Return the diagnosis that agrees, else the one explained most simply, and its setting's name."""
    from ropeaudit.errors import BadInput
    from ropeaudit.recognition.check import check

    results, refused = [], BadInput("--against: no setting rotates any pair; choose one that does")
    for one in settings:
        try:
            if one.setting.pairs:
                results.append((check(dump, one.setting, one.label), one.label))
        except BadInput as error:
            refused = error
    if not results:
        raise refused
    return min(results, key=lambda pair: (not pair[0].agrees, [one.rank for one in pair[0].hypotheses[:1]]))


def _line(one: Any) -> str:
    from ropeaudit.reports.numbers import short

    left = f"leaves {short(one.residual)} RMS, {short(one.residual_max)} at most"
    count = len(one.strays)
    few = f"explains all but {count} pair{'s' if count > 1 else ''}" if one.few else "does not explain it"
    return f"{one.text} ({'explains every pair' if one.explains else few}; {left})"


def _report(
    rows: list[dict[str, Any]],
    columns: list[str],
    hidden: set[str],
    options: dict[str, Any],
    about: dict[str, Any] | None = None,
    **texts: Any,
) -> Report:
    """Join rows and words; --columns chooses among the columns that there are. Raises: UnknownName."""
    from ropeaudit.audits import records
    from ropeaudit.console import values
    from ropeaudit.errors import UnknownName
    from ropeaudit.reports import Report
    from ropeaudit.runtime import run_metadata

    requested = values.names(options["columns"], "--columns")
    for name in requested:
        if name not in columns:
            raise UnknownName("column", name, columns)
    if len({row["setting"] for row in rows}) <= 1:
        hidden = hidden | {"setting"}
    screen = requested or [name for name in columns if name not in hidden]
    texts["dispensable"] = () if requested else texts.get("dispensable", ())
    gathered = run_metadata.gather() | (about or {})
    declared = {"tolerance": records.COLUMNS["tolerance"]}  # shown as it was given
    return Report(rows, requested or columns, screen, metadata=gathered, declared=declared, **texts)
