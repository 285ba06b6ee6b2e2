"""Tickets (bug reports): finding, expectation, a snippet and a command to reproduce it, facts, versions.

A snippet, `data/templates/snippet.py.j2`, calls code and prints the RMS of scores minus exact ones, without
this package; it is run once here.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ropeaudit.audits.records import Record
from ropeaudit.reference import exact_frequencies
from ropeaudit.reports import Report, Row, drift, templates, verdicts
from ropeaudit.reports.numbers import limit_percent, percent, short
from ropeaudit.rope.scaled import attention_factor
from ropeaudit.runtime.run_metadata import command_line
from ropeaudit.subjects import Subject, third_party
from ropeaudit.subjects.calling.code import Called
from ropeaudit.subjects.factories import SubjectFactory
from ropeaudit.subjects.third_party import adapter

_SECONDS = 300.0  # of a run, the import of torch and of the audited package among them
_AGREES = 0.01  # relative: BLAS sums in another order for another shape, and math libraries differ by an ulp
# masks, axes of x and roles of arguments that the template supports
_MASKS, _ORDERS = ("causal", "full", "window"), ("bhsd", "bshd", "sbhd", "hsd", "shd")
_KNOWN = {"q", "k", "x", "positions", "offset", "cos", "sin", "freqs", "seq_dim", "head_axis", "base", "dim"}


class NoSnippet(Exception):
    """The reason why there is no snippet."""


@dataclass(frozen=True, slots=True)
class Reproduction:
    """A snippet that prints a drift_rms of the report, or why there is none.

    value: the number in the report.
    where: its row, in words.
    file: a file that the code imports and readers lack.
    printed: the last line of its output.
    missing: why there is no code, or its output disagrees.
    """

    code: str = ""
    value: float = math.nan
    where: str = ""
    file: str = ""
    printed: str = ""
    missing: str = ""

    @property
    def agrees(self) -> bool:
        """Whether its output is the number of the report."""
        return bool(self.code) and not self.missing


def reproduced(snippet: Reproduction) -> Reproduction:
    """Run a snippet in a new process and compare its number with the report's."""
    try:
        run = subprocess.run(  # its own interpreter; own code is that of --impl
            [sys.executable, "-P", "-c", snippet.code],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return replace(snippet, missing=f"one took more than {_SECONDS:.0f} s")
    output = run.stderr if run.returncode else run.stdout
    last = (output.strip().splitlines() or [""])[-1]
    if run.returncode:
        return replace(snippet, missing=f"one raised {' '.join(last.split())[:200]}")
    try:
        number = float(last.split()[-1])
    except (IndexError, ValueError):
        return replace(snippet, missing="one printed no number")
    if math.isclose(number, snippet.value, rel_tol=_AGREES):
        return replace(snippet, printed=last)
    missing = f"one printed drift_rms {short(number)}, and the table has {short(snippet.value)}"
    return replace(snippet, missing=missing)


@dataclass(frozen=True, slots=True)
class Ticket:
    """A bug report about one row, or about a target without faults.

    title: without folders; empty for the beginning of the headline.
    report: headline and notes say what was measured.
    facts: columns of the row.
    expected: the right result, and why; empty if nothing is wrong.
    """

    title: str
    report: Report
    facts: Row = field(default_factory=dict)
    expected: str = ""
    reproduction: Reproduction = Reproduction(missing="nothing is wrong")

    def text(self, environment: Mapping[str, object]) -> str:
        """Return the ticket as Markdown."""
        facts = {
            name: value
            for name, value in self.facts.items()
            if name not in ("schema", "case") and value not in (None, "", "none") and value == value  # no nan
        }
        return templates.render(
            "ticket.md.j2",
            title=self.title or self.report.headline.partition("; ")[0],
            report=self.report,
            expected=self.expected,
            reproduction=self.reproduction,
            command=command_line(),
            facts=facts,
            environment=environment,
        )


def file_name(target: str) -> str:
    """Return the name of a target without the folder, which readers of a ticket do not have.

    >>> file_name(__file__ + ":rotate")
    'tickets.py:rotate'
    >>> file_name("package.module:rotate")
    'package.module:rotate'
    """
    place, colon, name = target.partition(":")
    return f"{os.path.basename(os.path.normpath(place)) if os.path.exists(place) else place}{colon}{name}"


def by_code(code: str | None) -> str:
    """Return the end of a title: the code of a diagnosis in brackets, if there is one.

    >>> by_code("wrong-base")
    ' (wrong-base)'
    """
    return f" ({code})" if code else ""


def worst(results: Sequence[Record]) -> Record | None:
    """Return the worst row of code; None without one."""
    measured = [row for row in results if row.environment is not None and row.verdict != "refused"]
    return drift.worst_of(measured) if measured else None


def ticket(record: Record, report: Report, factories: Sequence[SubjectFactory]) -> Ticket:
    """Return the ticket of a row, and run its snippet. factories: those of all rows."""
    single = drift.report([record], (), {})
    where = "" if record.device == "cpu" else f" on {record.device}"
    called = f"The code itself was called{where}; scores were formed from it in float64."
    expected = (
        "RoPE makes a score depend on q, k and their distance alone, so that adding an integer to every "
        "position changes nothing. The exact scores are computed from q, k and the distance; their own error "
        f"is at most {short(record.reference_error)}. Tolerated is a drift of "
        f"{limit_percent(record.tolerance)} of their RMS."
    )
    name = " ".join([file_name(record.implementation), *verdicts.under(record.environment)])
    off = f"drift {percent(record.drift_relative)} of the scores' RMS"
    if record.nonfinite:
        off = f"{record.nonfinite} of {record.scores} scores nan or infinite"
    verdict = f"{record.verdict.replace('_', ' ')}, {off}{by_code(record.diagnosis)}"
    title = f"RoPE of {name} in {record.dtype} at offset {record.offset}: {verdict}"
    about = replace(report, headline=single.headline, notes=[*single.notes, called])
    facts = {name: getattr(record, name) for name in single.columns}
    return Ticket(title, about, facts, expected, snippet_of(record, factories))


def snippet_of(record: Record, factories: Sequence[SubjectFactory]) -> Reproduction:
    """Make and run a snippet of a row; return it, or why there is none."""
    if record.within_tolerance is False and record.drift_relative <= record.tolerance:
        missing = (
            "the scores of one sequence do not show it, and a snippet prints nothing else: their drift, "
            f"{percent(record.drift_relative)}, is within {limit_percent(record.tolerance)}"
        )
        return Reproduction(missing=missing)
    factory = verdicts.factory_of(record, factories)
    subject = factory.make(record.setting, None) if record.axes == "none" else None
    try:
        return reproduced(snippet(record, subject))
    except NoSnippet as error:
        return Reproduction(missing=str(error))


def snippet(record: Record, subject: Subject | None) -> Reproduction:
    """Return code that prints the drift_rms of a row. Raises: NoSnippet."""
    if not isinstance(subject, Called) or record.axes != "none":
        raise NoSnippet("it has several position axes")
    code, setting = subject.code, record.setting
    source = f"its q and k are {record.source}, which a few lines do not make; try --qk gaussian"
    plain = code.environment.kind == "none" and code.device.is_cpu
    _raise_first(
        (record.nonfinite, "its scores are nan or infinite"),
        (not plain, f"{verdicts.called(record)} was not called plainly on the CPU"),
        (record.sample, "its scores are a sample; leave out --sample"),
        (record.source != "gaussian", source),
        (record.mask.partition(":")[0] not in _MASKS, f"its mask is {record.mask}"),
    )
    called, name, file = None, "", ""
    if code.own:
        if (fit := code.fit(setting)) is None:
            raise NoSnippet("how it is called was not found out")
        called, order = fit.convention, fit.convention.order
        unknown = called.full_tables or not set(called.roles) <= _KNOWN or order not in _ORDERS
        _raise_first((unknown, f"the code is called as {called.called} with axes {order}"))
        place, _, name = code.name.rpartition(":")
        lines, file = _import_lines(place)
    else:
        entry, kind = third_party.entry_of(subject.name), setting.scaling.kind
        _raise_first(
            (not entry.snippet, f"{entry.name} is called by more than a few lines"),
            (kind != "default", f"{entry.name} with the scaling {kind} takes more than a few lines"),
        )
        end = record.offset + record.seq_len
        lines = adapter.snippet(entry, setting, subject.dtype, end).splitlines()
    scaled, usual = setting.scaling.kind != "default", setting.scale == 1.0 / math.sqrt(setting.head_dim)
    factor = attention_factor(setting.scaling)
    text = templates.render(
        "snippet.py.j2",
        record=record,
        setting=setting,
        scaled=[float(theta) for theta in exact_frequencies.frequencies(setting)] if scaled else None,
        lines=lines,
        called=called,
        name=name,
        factor="" if factor == 1.0 else f"{factor!r} * ",
        scale=f"{setting.head_dim} ** -0.5" if usual else setting.scale,
    )
    where = f"{verdicts.called(record)} in {record.dtype} at offset {record.offset}"
    return Reproduction(text, record.drift_rms, where, file)


def _raise_first(*reasons: tuple[object, str]) -> None:
    for holds, why in reasons:
        if holds:
            raise NoSnippet(why)


def _import_lines(place: str) -> tuple[list[str], str]:
    """Return lines that import code as `own`, and the file that readers lack."""
    path = Path(place)
    if place.endswith(".py"):
        folder = f"sys.path.insert(0, {str(path.parent)!r})  # where {path.name} lies"
        return ["import sys", folder, f"import {path.stem} as own"], path.name
    top = place.partition(".")[0]
    local = next((name for name in (top, f"{top}.py") if Path(name).exists()), "")
    path_lines = ["import sys", 'sys.path.append(".")'] if local else []
    return [*path_lines, f"import {place} as own"], local
