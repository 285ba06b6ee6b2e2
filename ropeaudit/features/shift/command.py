"""ropeaudit shift: the audit."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import click

from ropeaudit.console.options import axis, changes_option, report_options, rope_options, vector_options
from ropeaudit.features.shift.sweeping import sweep_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ropeaudit.audits.audit import Audit
    from ropeaudit.audits.cases import Case


@click.command(
    epilog="Lists are separated by commas and flags may be repeated; ranges: 1k-1m*2, 0-4096+256; "
    "k = 1024, m = 1024². Rows are the cross product. Exit code: 0 done, 1 a --fail-if was "
    "broken, 2 bad usage or input."
)
@axis(
    "--offset",
    "Integers added to every position.",
    "0,1000; for --impl those that positions break at, up to the model's maximum or 128k",
)
@axis("--dtype", "Number formats of the model.", "fp64,fp32,fp16,bf16")
@axis("--recipe", "Number format per stage: a name (`ropeaudit list recipes`) or a .toml file.", "hf,uniform")
@axis(
    "--impl",
    "Real code, called as it is, instead of recipes or beside them: a name (`ropeaudit list impls`), "
    "mypkg.rope:apply_rope or path/to/file.py:apply_rope.",
)
@click.option("--order", metavar="AXES", help="Axes of your own --impl, such as bhsd.  [default: found out]")
@click.option(
    "--backend",
    metavar="NAME",
    default="numpy",
    help="What executes recipes: numpy, each operation rounded once, or torch, with its own kernels.  "
    "[default: numpy]",
)
@click.option(
    "--device", metavar="NAME", help="Where torch executes: cpu, cuda, cuda:N or mps.  [default: cpu]"
)
@changes_option
@click.option("--accumulate", metavar="FORMAT", help="Accumulator of q·k; short for --set accumulate=FORMAT.")
@vector_options
@click.option(
    "--sample",
    metavar="N",
    help="Form only N scores, drawn at random by --seed: for sequences up to millions of tokens.",
)
@rope_options
@click.option(
    "--mrope",
    multiple=True,
    metavar="T,H,W",
    help="Pairs per position axis; T,H,W:interleaved as in Qwen3-VL.",
)
@axis("--axis", "Position axes that are shifted: all, t, h, w, or some, such as hw.", "all")
@click.option(
    "--length",
    metavar="WHICH",
    help="Frequencies that depend on the length: unshifted keeps them, shifted lets the offset change them.  "
    "[default: unshifted]",
)
@click.option("--attention", is_flag=True, help="Measure the rows after softmax too: what drift moves there.")
@click.option(
    "--softmax",
    metavar="HOW",
    help="Arithmetic of --attention's softmax: fp64, or recipe for that of the recipe.  [default: fp64]",
)
@click.option(
    "--anchor", metavar="N", help="Offset that attention_d compares with (AnchorAttention).  [default: 16]"
)
@report_options
@click.option("--curve", is_flag=True, help="Draw drift over the offset beneath the table.")
@sweep_options
@click.option("--no-header", is_flag=True, help="Rows alone, for csv and table.")
@click.option(
    "--fail-if",
    "gates",
    multiple=True,
    metavar="COND",
    help="Exit with 1 if a row fulfils it: 'drift_rms>0.01'. nan does. With --baseline also "
    "'drift_rms>1.1x', 1.1 times what it was. Repeatable.",
)
@click.option(
    "--tolerance",
    metavar="X",
    help="Largest drift_relative that is good enough, such as 0.01 or 1%.  [default: 1%]",
)
@click.option("--baseline", metavar="FILE", help="Compare with an earlier report, as `ropeaudit diff` does.")
def shift(**options: Any) -> int:
    """Shift all positions and report how far the attention scores drift.

    Scores are computed with every dtype and recipe and compared with exact ones, which depend on
    distances alone.
    """
    from ropeaudit.audits import records
    from ropeaudit.console import gates, output, rows, work
    from ropeaudit.errors import UsageError
    from ropeaudit.features.shift import baselines, sweeping
    from ropeaudit.reports.drift import drift_report, plotted

    columns = rows.chosen_columns(options, records.COLUMNS, "(`ropeaudit list columns` explains them)")
    if options["no_header"] and options["form"] not in ("csv", "table"):
        raise UsageError(f"--no-header goes with csv and table; {options['form']} has no header")
    if options["curve"] and options["form"] != "table":
        raise UsageError(f"--curve goes with the table; leave it out or leave out -f {options['form']}")
    baseline = baselines.opened(options)
    conditions = [gates.parse(text, relative=baseline is not None) for text in options["gates"]]
    audit = _audit(options)
    sweep, jobs = sweeping.planned(audit, options)
    if options["dry_run"]:
        return sweeping.show_plan(sweep, options)
    with output.opened(options["outputs"]) as files, sweeping.stored(sweep, options) as stored:
        run = sweeping.Run(sweep, jobs, options, stored)
        _, interrupted = rows.gathered(run.rows, options["quiet"], len(sweep.cells) - run.before)
        results = run.results()
        about = output.metadata(options) | {"stages": audit.stages()}
        if results or not interrupted:
            frozen = options["length"] != "shifted"
            message = run.findings()
            about |= {"findings": message} if message else {}
            report = drift_report(results, columns, about, not options["no_header"], frozen, message)
            report = baseline.beside(report) if baseline else report
            draw = functools.partial(plotted, results if options["curve"] else ())
            with sweeping.stored_rows_named(stored):
                output.write_plotted(report, draw, output.replaceable(files, interrupted))
            if stored and (not interrupted or sweeping.stand_in_report(stored, files, columns, results)):
                stored.remove()
            output.deliver_plotted(report, draw, (), options)
        more = sweeping.how_to_go_on(stored)
    if interrupted:
        output.say_interrupted(f"{len(results)} rows", files, more)
        return 130
    broken = baseline.broken(conditions) if baseline else gates.broken(conditions, results)
    return work.judged(broken)


def _audit(options: dict[str, Any]) -> Audit:
    """Turn options into a checked audit."""
    from ropeaudit import recipes
    from ropeaudit.audits.audit import DTYPES, Audit
    from ropeaudit.console import settings, values
    from ropeaudit.engine.plan import AttentionOptions
    from ropeaudit.errors import UsageError

    changes = recipes.parse_changes(options["changes"])
    if options["accumulate"] is not None:
        if not options["accumulate"].strip():
            raise UsageError("--accumulate '' is no number format; try --accumulate fp32")
        changes["accumulate"] = options["accumulate"]
    anchor = None if options["anchor"] is None else values.integer(options["anchor"], "--anchor")
    called = values.names(options["impl"], "--impl")
    cases = list(settings.cases(options))
    return Audit(
        cases=cases,
        recipes=values.names(options["recipe"], "--recipe") or ([] if called else recipes.DEFAULT),
        implementations=called,
        backend=options["backend"],
        device=options["device"],
        order=options["order"],
        dtypes=values.names(options["dtype"], "--dtype") or DTYPES,
        offsets=values.integers(options["offset"], "--offset") or _offsets(cases, bool(called)),
        changes=changes,
        attention=AttentionOptions.requested(options["attention"], options["softmax"], anchor),
        **_tolerance(options["tolerance"]),
    )


def _offsets(cases: Sequence[Case], called: bool) -> Sequence[int]:
    """Return the offsets where none is given: for code those that positions break at, up to the maximum."""
    from ropeaudit.audits.straddling import straddling

    if not called:
        return [0, 1000]
    return straddling(
        min(case.maximum or 2**17 for case in cases), max(case.seq_len or 256 for case in cases)
    )


def _tolerance(typed: str | None) -> dict[str, float]:
    """Read a share: 0.01 or 1%. Raises: UsageError."""
    from ropeaudit.console import values
    from ropeaudit.errors import UsageError

    if typed is None:
        return {}
    number = typed.strip().removesuffix("%")
    share = values.number(number or typed, "--tolerance", "1%")
    if share < 0:
        raise UsageError(f"--tolerance {typed!r} is not a share from 0 up; try --tolerance 1%")
    return {"tolerance": share / 100 if number != typed.strip() else share}
