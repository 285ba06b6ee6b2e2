"""Options that several commands share, as decorators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from ropeaudit.console import overwriting

F = TypeVar("F", bound=Callable[..., Any])

FORMS = (
    "table",
    "csv",
    "json",
    "jsonl",
    "markdown",
    "html",
)  # reports.FORMS, without importing it for --help


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


def report_options(function: F) -> F:
    """-f/--format, --color, -o, --columns and -q; `cli.output` and `cli.rows` read them."""
    function = overwriting.guarded(function)
    for option in (
        click.option("-q", "--quiet", is_flag=True, help="No notes and no progress on stderr."),
        axis("--columns", "Columns to show and write."),
        click.option(
            "-o",
            "--output",
            "outputs",
            multiple=True,
            metavar="FILE",
            help="Write a file too: .csv, .json, .jsonl, .parquet, .md, .html or .txt. Repeatable.",
        ),
    ):
        function = option(function)
    return form(function)


def regression_option(function: F) -> F:
    """--fail-if of a comparison; `cli.gates` reads it."""
    return click.option(
        "--fail-if",
        "gates",
        multiple=True,
        metavar="COND",
        help="Exit with 1 if a case fulfils it: 'drift_rms>1.1x' is 1.1 times what it was, "
        "'drift_rms>1e-3' looks at AFTER alone. Repeatable.",
    )(function)


def vector_options(function: F) -> F:
    """The options that choose q and k, and which of their scores are seen; `cli.settings` reads them."""
    for option in reversed(
        (
            axis("--seq-len", "Positions.", "256"),
            click.option("--heads", metavar="N", help="Query heads.  [default: 8]"),
            click.option(
                "--kv-heads", metavar="N", help="Key-value heads, a divisor of --heads.  [default: --heads]"
            ),
            axis("--mask", "Keys that a query sees: causal, full or window:N, the last N.", "causal"),
            axis(
                "--qk",
                "gaussian, ones, arange, diagonal, previous (heads that look at one token), or a file with "
                "captured q and k: .safetensors, .npz, .pt, q.npy,k.npy.",
                "gaussian",
                metavar="SOURCE",
            ),
            axis("--seed", "Seeds of random q and k.", "0"),
        )
    ):
        function = option(function)
    return function


def changes_option(function: F) -> F:
    """--set; `recipes.parse_changes` reads it."""
    return click.option(
        "--set",
        "changes",
        multiple=True,
        metavar="STAGE=FORMAT",
        help="Change a stage of every recipe, such as angle=fp64 or frequency_form=divide.",
    )(function)


def length_option(function: F) -> F:
    """--length; `cli.settings` reads it."""
    return click.option(
        "--length",
        metavar="WHICH",
        help="Frequencies that depend on the length: unshifted keeps them, shifted lets the offset change "
        "them.  [default: unshifted]",
    )(function)


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
                "half; its own of --impl",
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
