"""Options that several commands share, as decorators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

FORMS = ("table", "csv", "json", "jsonl", "markdown")  # reports.FORMS, without importing it for --help


def form(function: F) -> F:
    """-f/--format and --color."""
    for option in (
        click.option(
            "--color/--no-color",
            default=None,
            help="Colour the table or do not; by default on a terminal. NO_COLOR, FORCE_COLOR work.",
        ),
        click.option(
            "-f",
            "--format",
            "form",
            default="table",
            metavar="FORM",
            help=f"Form of the report on stdout: {', '.join(FORMS)}.  [default: table]",
        ),
    ):
        function = option(function)
    return function


def axis(flag: str, help_: str, default: str | None = None, metavar: str = "LIST") -> Callable[[F], F]:
    """An option that takes lists, may be repeated, and has a default shown in --help."""
    shown = f"{help_}  [default: {default}]" if default else help_
    return click.option(flag, multiple=True, metavar=metavar, help=shown)
