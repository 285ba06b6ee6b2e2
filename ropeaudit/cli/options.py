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


def rope_options(function: F) -> F:
    """The options that choose a RoPE setting; `cli.settings` reads them."""
    for option in reversed(
        (
            axis("--model", "Named models (`ropeaudit list models`), or all."),
            axis("--config", "Hugging Face config.json files, or their folders.", metavar="PATH"),
            axis("--layer", "Layer types of a model that has several, or all.", "full_attention"),
            axis("--head-dim", "Dims of a head, even.", "128"),
            axis("--rotary-dim", "Dims that are rotated, the first ones.", "--head-dim"),
            axis("--base", "Base of the frequencies (rope theta).", "10000"),
            click.option(
                "--scaling",
                multiple=True,
                metavar="SPEC",
                help="yarn:factor=4,original=32768; default, linear, dynamic, proportional, yarn, longrope, "
                "llama3 or explicit. Repeatable.",
            ),
            axis("--clip", "Cap of the angles in radians, an experiment.", "inf"),
            axis(
                "--layout",
                "Pairs of dims: half (GPT-NeoX, Llama in HF) or interleaved (GPT-J, Meta).",
                "half",
            ),
            click.option("--scale", metavar="X", help="Softmax scale.  [default: 1/sqrt(head_dim)]"),
        )
    ):
        function = option(function)
    return function


def axis(flag: str, help_: str, default: str | None = None, metavar: str = "LIST") -> Callable[[F], F]:
    """An option that takes lists, may be repeated, and has a default shown in --help."""
    shown = f"{help_}  [default: {default}]" if default else help_
    return click.option(flag, multiple=True, metavar=metavar, help=shown)
