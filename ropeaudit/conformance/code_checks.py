"""The table of all checks of code, in the order of the report, and the loop that runs them."""

from __future__ import annotations

import contextlib
import functools
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from ropeaudit.conformance import (
    environments,
    every_position,
    other_ways,
    score_drift,
    served,
)
from ropeaudit.conformance.code_under_test import CodeUnderTest
from ropeaudit.conformance.finding import ADAPTER, INTERRUPTED, Finding, faulty, not_applicable
from ropeaudit.errors import ForeignError, RopeAuditError, did
from ropeaudit.recognition.diagnosis import Where
from ropeaudit.runtime import doing


@dataclass(frozen=True, slots=True)
class Check:
    """A check of code, and its conditions.

    run: makes its calls and judges them. names: of its findings, by default the check's name. own: whether
    it is only for the user's own code, not for adapters. one_axis: whether it needs positions of a sequence.
    """

    run: Callable[[CodeUnderTest], Iterable[Finding]]
    names: Callable[[CodeUnderTest], Iterable[str]] | None = None
    own: bool = False
    one_axis: bool = False


# name of the first finding -> the check
CHECKS = {
    "max-position": Check(every_position.max_position, one_axis=True),
    "rotation": Check(every_position.all_positions),
    "short-sequences": Check(every_position.short_sequences),
    "negative-positions": Check(
        every_position.negative_positions, lambda code: ["negative-positions"] * code.negative
    ),
    "positions-per-row": Check(every_position.positions_per_row),
    "decode": Check(other_ways.decode),
    "chunked-prefill": Check(other_ways.chunked_prefill),
    "frequency-switch": Check(every_position.frequency_switch, one_axis=True),
    "batch-of-one": Check(other_ways.batch_of_one),
    "memory-layout": Check(other_ways.memory_layout, own=True),
    "serving-shapes": Check(served.serving_shapes, lambda code: served.CHECKS, own=True),
    "head-dims": Check(every_position.head_dims, one_axis=True),
    "torch.compile": Check(environments.torch_compile, own=True),
    "stateless": Check(environments.stateless),
    "outputs-kept": Check(environments.outputs_kept, own=True),
    "inputs-unmodified": Check(environments.inputs_unmodified, own=True),
    "dtype": Check(environments.output_dtype),
    "keys": Check(environments.keys),
    "gradient": Check(every_position.gradient),
    "score-error": Check(score_drift.scores, lambda code: score_drift.CHECKS, one_axis=True),
    "under": Check(environments.under, environments.check_names),
    "threads": Check(environments.threads, own=True),
}

_NARROW = {"narrow-positions", "narrow-frequencies", "narrow-angles"}
_COUNTING = ("position", "frequency", "angle")  # stages whose numbers should be wide
_LOGGED = (3, 37)  # heads and tokens of the call whose operations are looked at: sizes that nothing else has


def run_check(name: str, code: CodeUnderTest) -> Iterable[Finding]:
    """Run a check by its name, and yield its findings."""
    check = CHECKS[name]
    if check.one_axis and code.setting.grid is not None:
        return [not_applicable(name, "positions have several axes")]
    if check.own and code.own is None:
        return [not_applicable(one, ADAPTER) for one in names_of(name, code)]
    return check.run(code)


def names_of(name: str, code: CodeUnderTest) -> list[str]:
    """Return the names of the findings of a check."""
    names = CHECKS[name].names
    return [name] if names is None else list(names(code))


def findings(code: CodeUnderTest) -> Iterator[Finding]:
    """Run every check and yield its findings; an exception of the code or of a check is a finding too.

    Raises: UsageError and other errors of the request.
    """
    left = {name: names_of(name, code) for name in CHECKS}
    for number, name in enumerate(CHECKS):
        doing.begin(f"check {number + 1} of {len(CHECKS)}: {name}")
        try:
            told = (_with_line(_with_remedy(one, code), code) for one in run_check(name, code))
            for finding in doing.each(told, functools.partial(_one_check, number / len(CHECKS))):
                left[name] = [one for one in left[name] if one != finding.check]
                yield finding
                if name == "max-position" and finding.failed:  # the others see what it takes
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


@contextlib.contextmanager
def _one_check(share: float) -> Iterator[None]:
    """Count progress in the block from a share on, and silence warnings."""
    with doing.within(share, share + 1 / len(CHECKS)), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        doing.step(0.0)
        yield


def _with_line(finding: Finding, code: CodeUnderTest) -> Finding:
    """Add the file and line of the first narrow operation to a finding about narrow numbers."""
    parts = finding.diagnosis.parts() if finding.failed and finding.diagnosis else ()
    if finding.check.startswith("under ") or not _NARROW & {part.code for part in parts}:
        return finding
    if code.tested.engine != "torch":
        return finding
    if code.shared.line is None:
        code.shared.line = "", 0
        x = code.vectors(*_LOGGED)[0].astype(code.dtype.carrier)
        with contextlib.suppress(ForeignError):  # of code that takes no call of these sizes
            stages = code.tested.logged(code.setting, code.dtype, x, _LOGGED[1])
            narrow = [one.narrow for name, one in stages.items() if name in _COUNTING and one.narrow]
            code.shared.line = min(narrow, default=(0, "", 0))[1:]
    return replace(finding, file=code.shared.line[0], line=code.shared.line[1])


def _with_remedy(finding: Finding, code: CodeUnderTest) -> Finding:
    if not finding.failed or finding.remedy:
        return finding
    first, found = code.shared.first_wrong, finding.diagnosis
    if first and found and found.code == "wrong-base" and not found.also:
        where = Where(until=0, since=first)
        if found.where in (Where(), replace(where, until=found.where.until, since=found.where.since)):
            found = replace(found, where=where, certainty="within rounding")
            finding = replace(finding, diagnosis=found)
    return finding.advised(code.dtype, code.up_to)
