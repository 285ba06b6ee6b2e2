"""The command `ropeaudit list`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias, cast

import click

from ropeaudit.console.help import NamedCommands, command
from ropeaudit.console.options import (
    ReportOptions,
    RopeOptions,
    ScreenOptions,
    axis,
    cases,
    report_options,
    rope_options,
    screen_options,
)
from ropeaudit.console.parameters import INTEGER, NAMES, WORD

Row: TypeAlias = Mapping[str, Any]
# kinds of columns.py that have no options of their own; no NumPy here
_PLAIN = {
    "recipes": "List emulated implementations, stage by stage.",
    "formats": "List number formats and their range.",
    "models": "List named models, layer type by layer type.",
    "axes": "List position axes of grids.",
    "columns": "List the columns of a report of `shift`.",
    "verdicts": "List verdicts and when each holds.",
}


@click.group(name="list", cls=NamedCommands, noun="kind of list", subcommand_metavar="KIND [OPTIONS]...")
def list_() -> None:
    """List recipes, implementations, formats, models, frequencies and what else there is."""


def _print(
    kind: str,
    screen: ScreenOptions,
    rows: Iterable[Row] | None = None,
    /,
    **shown: Any,
) -> int:
    """Print a list of `columns.LISTS`, or some rows of it. shown: fields of the report."""
    from ropeaudit.console import delivery
    from ropeaudit.features.list.columns import LISTS
    from ropeaudit.reports import Report
    from ropeaudit.runtime.columns import table

    columns = table(f"list-{kind}")
    listed = list(LISTS[kind]() if rows is None else rows)
    fields = shown or {"screen": columns.screen(listed), "dispensable": columns.dispensable}
    return delivery.print_report(Report(listed, list(columns), declared=columns, **fields), screen)


def _plain(kind: str) -> click.Command:

    @command(name=kind, help=_PLAIN[kind])
    @screen_options
    def print_kind(screen: ScreenOptions) -> int:
        return _print(kind, screen)

    return cast(click.Command, print_kind)


@command()
@click.option(
    "--match",
    type=WORD,
    metavar="PATTERN",
    help="Those whose names fit, a family's classes one by one, such as 'transformers:*'.",
)
@screen_options
def implementations(match: str | None, screen: ScreenOptions) -> int:
    """List libraries' code that can be called.

    Of what is not installed it says what to type.
    """
    from ropeaudit.errors import UsageError
    from ropeaudit.features.list.columns import entry_row
    from ropeaudit.subjects import third_party

    rows = [entry_row(entry) for entry in third_party.listed(match)] if match is not None else None
    if rows == []:
        raise UsageError(f"--match {match!r} fits no implementation; try --match 'transformers:*'")
    return _print("implementations", screen, rows)


@command(epilog="CODE: one of the list, such as narrow-positions.")
@click.argument("code", metavar="[CODE]", required=False, type=WORD)
@screen_options
def diagnoses(code: str | None, screen: ScreenOptions) -> int:
    """List what explains wrong numbers, and what to change.

    With CODE all that is known of one, with lines of code that are wrong and right.
    """
    if code is None:
        return _print("diagnoses", screen)
    from ropeaudit.errors import UnknownName
    from ropeaudit.features.list.columns import diagnosis_row, explained_rows
    from ropeaudit.recognition.diagnosis import kinds
    from ropeaudit.reports import REGISTRY

    if code not in kinds():
        raise UnknownName("diagnosis", code, kinds())
    kind = kinds()[code]
    if REGISTRY[screen.form].reads:
        return _print("diagnoses", screen, [diagnosis_row(kind)])
    return _print("diagnoses", screen, explained_rows(kind), screen=[code, kind.title], dispensable=())


@command()
@rope_options
@axis(
    "--recipe",
    NAMES,
    "What these recipes (or .toml files) store. Its relative error is shown too.",
    shown="none",
)
@axis(
    "--dtype",
    NAMES,
    "Number formats of angles. Of --recipe it is that of the model.",
    shown="fp32,fp16,bf16",
)
@click.option(
    "--max-position",
    type=INTEGER,
    metavar="N",
    help="Where angles are shown.  [default: the model's maximum, or 131072]",
)
@report_options
def frequencies(
    recipe: tuple[str, ...],
    dtype: tuple[str, ...],
    max_position: int | None,
    rope: RopeOptions,
    output: ReportOptions,
) -> int:
    """List each pair's frequency and wavelength.

    Beside them stand the positions that number formats merge, and what recipes store.
    """
    from ropeaudit.console import delivery
    from ropeaudit.features.list import frequencies as analysis

    tables = list(analysis.frequencies(dtype or analysis.DTYPES, recipe, max_position, cases=cases(rope)))
    return delivery.run_and_deliver(
        lambda _: tables,
        lambda tables, metadata: analysis.report(tables, output.columns, metadata),
        output,
    )


@command()
@screen_options
def environment(screen: ScreenOptions) -> int:
    """List versions, hardware and torch's switches.

    Attach it to a bug ticket.
    """
    from ropeaudit.console import delivery
    from ropeaudit.reports import Report
    from ropeaudit.runtime import run_metadata
    from ropeaudit.subjects import third_party

    audited = tuple(entry.package for entry in third_party.ENTRIES.values())
    known = run_metadata.environment()
    known |= {name: value for name, value in run_metadata.hardware(audited).items() if name not in known}
    rows = [{"what": name, "value": str(text)} for name, text in known.items()]
    return delivery.print_report(Report(rows, ["what", "value"], ["what", "value"]), screen)


for _command in (implementations, *map(_plain, _PLAIN), diagnoses, frequencies, environment):
    list_.add_command(_command)
