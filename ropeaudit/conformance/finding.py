"""The result of a check: passed, failed, or only noted."""

from __future__ import annotations

import math
import traceback
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from ropeaudit.arithmetic.formats import Format
from ropeaudit.errors import one_line
from ropeaudit.recognition import wording
from ropeaudit.recognition.diagnosis import Diagnosis

if TYPE_CHECKING:
    from ropeaudit.recognition.verification import Places

# info: what was measured or read, and nothing judges it. waived: it failed, and the user accepts that.
# nothing to check: it is known that the target has no RoPE. not applicable: a check could not be made.
# not checked: --thorough makes it.
Status = Literal["pass", "fail", "waived", "info", "nothing to check", "not checked", "not applicable"]
PAIR = "relative error of a rotated pair"
MARGIN = "times its maximum"  # what is measured is at least what is allowed
JUDGED = ("pass", "fail", "waived")
ADAPTER = "an adapter calls it, with arrays of its own"  # why some checks do not apply
FROM_0 = "it takes no positions: each call starts at 0"
INTERRUPTED = "interrupted"  # stands for a check in the finding that says what a Ctrl-C or an error left


@dataclass(frozen=True, slots=True)
class Finding:
    """One check of one target.

    check: its name. detail: what was done and measured, a sentence. measured, allowed: in `unit`, nan where
    there is no number. where: the place of `measured`. diagnosis: None where nothing is wrong, or nothing was
    diagnosed. differing: share of elements whose bits differ, nan where bits were not compared. remedy: what
    to change, empty where that is not known. option: the option with which the target is right. fault: the
    traceback, if the check itself failed. file, line: of the operation to change, if known.
    """

    check: str
    status: Status
    detail: str
    measured: float = math.nan
    allowed: float = math.nan
    unit: str = ""
    where: str = ""
    diagnosis: Diagnosis | None = None
    differing: float = math.nan
    remedy: str = ""
    option: str = ""
    fault: str = ""
    file: str = ""
    line: int = 0

    @property
    def resembles(self) -> str:
        """The diagnosis as a sentence; empty where there is none."""
        return wording.sentence(self.diagnosis)

    @property
    def advice(self) -> str:
        """The remedy, and the option with which the target is right; empty if neither is known."""
        return f"{self.remedy}, or check it with {self.option}" if self.option else self.remedy

    def advised(self, dtype: Format, up_to: int) -> Finding:
        """Return the finding with the remedy and the option of its diagnosis."""
        found = self.diagnosis
        return replace(self, remedy=wording.remedy(found, dtype, up_to), option=wording.option(found))

    @property
    def failed(self) -> bool:
        """Whether it failed."""
        return self.status == "fail"


def judged(check: str, passed: bool, detail: str, **rest: Any) -> Finding:
    """Return a finding that passed or failed. rest: the other fields of `Finding`."""
    return Finding(check, "pass" if passed else "fail", detail, **rest)


def of_worst_pair(check: str, detail: str, worst: Places, **rest: Any) -> Finding:
    """Judge the worst rotated pair by its allowance, relative to its length."""
    found = {"where": worst.words, "diagnosis": worst.diagnosis} | rest
    sizes = {"measured": worst.excess * worst.allowed, "allowed": worst.allowed, "unit": PAIR}
    return judged(check, worst.excess <= 1, detail, **sizes, **found)


def faulty(check: str, error: Exception) -> Finding:
    """Return the finding of a check that itself failed, so that its result is unknown."""
    text = f"a fault of ropeaudit, not of what is checked: {one_line(error)}"
    return Finding(check, "fail", text, fault="".join(traceback.format_exception(error)))


def not_applicable(check: str, reason: str) -> Finding:
    """Return the finding of a check that cannot be made, with the reason."""
    return Finding(check, "not applicable", reason)


def noted(check: str, detail: str, **rest: Any) -> Finding:
    """Return a finding that is not judged. rest: the other fields of `Finding`."""
    return Finding(check, "info", detail, **rest)
