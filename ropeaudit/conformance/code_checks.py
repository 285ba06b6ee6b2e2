"""All checks of code, in the order in which a reader meets them; a line each."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from ropeaudit.conformance import (
    environments,
    every_position,
    gradient,
    score_drift,
    served,
    split_calls,
    state,
)
from ropeaudit.conformance.code_under_test import CodeUnderTest
from ropeaudit.conformance.finding import INTERRUPTED, Finding, faulty, not_applicable
from ropeaudit.errors import ForeignError, RopeAuditError, did
from ropeaudit.recognition import wording
from ropeaudit.recognition.diagnosis import Where
from ropeaudit.runtime import doing

CodeCheck = Callable[[CodeUnderTest], Iterable[Finding]]

# name of the first finding -> the check
CHECKS: dict[str, CodeCheck] = {
    "table end": every_position.table_end,
    "rotation": every_position.places,
    "short calls": every_position.short_calls,
    "batch rows": every_position.batch_rows,
    "decode": split_calls.decode,
    "pieces": split_calls.pieces,
    "frequency switch": every_position.switch,
    "alone": split_calls.alone,
    "strides": split_calls.strided,
    "served calls": served.served,
    "head dims": every_position.head_dims,
    "compiled": environments.compiled,
    "state": state.state,
    "results": state.kept,
    "inputs": environments.inputs_unchanged,
    "dtype": environments.output_dtype,
    "keys": environments.keys,
    "gradient": gradient.gradient,
    "drift": score_drift.scores,
    "under": environments.under,
    "threads": state.threads,
}

_NARROW = {"narrow-positions", "narrow-frequencies", "narrow-angles"}
_COUNTING = ("position", "frequency", "angle")  # stages whose numbers should be wide
_LOGGED = (3, 37)  # heads and tokens of the call whose operations are looked at: sizes that nothing else has

# checks of positions that have one axis
_OF_A_SEQUENCE = ("table end", "frequency switch", "head dims", "drift")

# name of a check of `CHECKS` -> those of its findings, where they are several or others
_NAMES: dict[str, Callable[[CodeUnderTest], Iterable[str]]] = {
    "served calls": lambda code: served.CHECKS,
    "drift": lambda code: score_drift.CHECKS,
    "under": environments.check_names,
}


def findings(
    code: CodeUnderTest, progress: Callable[[float], None] = lambda share: None
) -> Iterator[Finding]:
    """Run every check and yield its findings; what code raises is one, and so is a fault of a check.

    progress gets the share that is done, from 0 to 1. Raises: UsageError and other errors of the request.
    """
    left = {name: list(_NAMES[name](code)) if name in _NAMES else [name] for name in CHECKS}
    for number, (name, check) in enumerate(CHECKS.items()):
        if code.setting.grid is not None and name in _OF_A_SEQUENCE:
            yield not_applicable(name, "positions have several axes")
            continue
        doing.begin(f"check {number + 1} of {len(CHECKS)}: {name}")
        code.on_share = doing.part(progress, number / len(CHECKS), (number + 1) / len(CHECKS))
        try:
            code.on_share(0.0)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for finding in check(code):
                    told = _with_line(_with_remedy(finding, code), code)
                    left[name] = [one for one in left[name] if one != told.check]
                    yield told
                    if name == "table end" and finding.failed:  # the others see what it takes
                        code = replace(code, up_to=int(finding.measured))
        except KeyboardInterrupt:
            names = ", ".join(itertools.chain(*left.values())) or name
            yield Finding(INTERRUPTED, "fail", f"no pass: not run, or not to its end: {names}")
            raise
        except (ForeignError, MemoryError) as error:
            file, line = getattr(error, "file", ""), getattr(error, "line", 0)
            yield Finding(name, "fail", f"it {did(error)}", file=file, line=line)
        except RopeAuditError:
            raise
        except Exception as error:
            yield faulty(name, error)
        del left[name]


def _with_line(finding: Finding, code: CodeUnderTest) -> Finding:
    """Return a finding of narrow numbers with the operation that gave the first of them in one call."""
    parts = finding.diagnosis.parts() if finding.failed and finding.diagnosis else ()
    if finding.check.startswith("under ") or not _NARROW & {part.code for part in parts}:
        return finding
    if code.tested.engine != "torch":
        return finding
    if code.seen.line is None:
        code.seen.line = "", 0
        x = code.vectors(*_LOGGED)[0].astype(code.dtype.carrier)
        with contextlib.suppress(ForeignError):  # of code that takes no call of these sizes
            stages = code.tested.logged(code.setting, code.dtype, x, _LOGGED[1])
            narrow = [one.narrow for name, one in stages.items() if name in _COUNTING and one.narrow]
            code.seen.line = min(narrow, default=(0, "", 0))[1:]
    return replace(finding, file=code.seen.line[0], line=code.seen.line[1])


def _with_remedy(finding: Finding, code: CodeUnderTest) -> Finding:
    """Return a finding with what to change, where what explains the failure is known."""
    if not finding.failed or finding.remedy:
        return finding
    first, found = code.seen.right_before, finding.diagnosis
    if first and found and found.code == "wrong-base" and not found.also:
        where = Where(until=0, since=first)
        if found.where in (Where(), replace(where, until=found.where.until, since=found.where.since)):
            found = replace(found, where=where, certainty="within rounding")
            finding = replace(finding, diagnosis=found)
    remedy = wording.remedy(finding.diagnosis, code.dtype, code.up_to)
    return replace(finding, remedy=remedy, option=wording.option(finding.diagnosis))
