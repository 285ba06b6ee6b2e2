"""Whether another way to call the same code gives what a plain call gives.

A pair passes within the allowance around the exact rotation. Where the plain call is itself further away, the
two are compared with each other, within twice the allowance: each may be off by it. Bits are counted apart.
Letters: b batch, h heads, s positions, d head_dim, p pairs.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import FloatArray
from ropeaudit.arithmetic.rounding import bits_differ
from ropeaudit.audits.straddling import straddling
from ropeaudit.conformance.code_under_test import Both, CodeUnderTest
from ropeaudit.conformance.finding import PAIR, Finding, judged
from ropeaudit.errors import ForeignError, did
from ropeaudit.recognition import allowance, verification
from ropeaudit.recognition.diagnosis import Diagnosis
from ropeaudit.recognition.known_recipes import CalledBlock
from ropeaudit.subjects import Positions, exact_rotation
from ropeaudit.subjects.calling.arrays import WrongShape
from ropeaudit.subjects.calling.code import Rotator

DEAR = 8e-3  # seconds of CPU of a call of one token, above which there are fewer calls


@dataclass(frozen=True, slots=True)
class WholeCall:
    """A call with all positions at once. over: error over allowance of each, (b, h, s, p)."""

    block: CalledBlock
    over: tuple[Array, Array]


@dataclass(slots=True)
class Agreement:
    """What one way to call came to, over all of its calls so far; `words` says which way.

    form: what is called so. lengths: those of the calls that it makes of one, again from the first where they
    end; none for one. apart: the largest difference from a plain call.
    afresh: makes another, of instances without a past; None where it has no way.
    right_passes: whether a pair that is right passes where the plain call is not. corrects: whether one did.
    """

    code: CodeUnderTest
    words: str
    form: Rotator
    afresh: Callable[[], Rotator] | None = None
    lengths: Sequence[int] = ()
    right_passes: bool = False
    corrects: bool = False
    excess: float = -1.0
    place: str = ""
    allowed: float = np.nan
    diagnosis: Diagnosis | None = None
    raised: str = ""
    raised_at: str = ""
    wrong_alike: int = 0
    differing: int = 0
    elements: int = 0
    apart: float = 0.0
    calls: int = 0

    @property
    def failed(self) -> bool:
        """Whether a pair is out of place, or a call raised."""
        return bool(self.raised) or (self.calls > 0 and not self.excess <= 1)

    def take_all(self, wholes: Iterable[WholeCall]) -> Agreement:
        """Make plain calls again in this form, up to the first that fails. Raises: RopeAuditError."""
        for whole in wholes:
            block = whole.block
            try:
                rotated = self.form.rotate_both(*block.given, block.at)
            except ForeignError as error:
                self.raised = did(error)
                self.raised_at = f"{self.words}, positions {block.at[0]} to {block.at[-1]}"
                break
            self.calls += 1
            self._take(whole, CalledBlock(block.at, block.given, rotated))
            if self.failed:
                break
        return self

    def _take(self, whole: WholeCall, mine: CalledBlock) -> None:
        """Compare a call with the plain one."""
        over = [self._over(whole, mine, side) for side in (0, 1)]
        side = max((0, 1), key=lambda side: float(over[side].max()))
        if (worst := float(over[side].max())) <= self.excess:
            return
        b, h, s, p = (int(i) for i in np.unravel_index(int(over[side].argmax()), over[side].shape))
        self.excess, position = worst, int(mine.at[s])
        self.place = f"{'qk'[side]}, batch element {b}, head {h}, position {position}, pair {p}"
        part = next(part for part in self._parts(mine.length) if s < part.stop)
        setting = self.code.setting_at(mine.at[part])
        self.allowed = allowance.allowed_at(self.code.rule, setting, position, p)
        if worst > 1:
            self.diagnosis = self._named(whole, mine)

    def finding(self, check: str, detail: str) -> Finding:
        """Return the finding; where it fails, the words say by which way to call."""
        differing = self.differing / self.elements if self.elements else np.nan
        if self.raised:
            detail = f"{self.raised_at}: it {self.raised}"
            return Finding(check, "fail", detail, where=self.raised_at, differing=differing)
        if self.wrong_alike and not self.failed:
            detail += f"; {self.wrong_alike} pairs that a plain call has out of place are so here too: see "
            detail += "places; the figure is of pairs that differ from a plain call's"
        where = f"{self.words}: {self.place}" if self.failed else self.place if self.excess else ""
        sizes = {"measured": self.excess * self.allowed, "allowed": self.allowed, "differing": differing}
        found = {"unit": PAIR, "where": where, "diagnosis": self.diagnosis}
        return judged(check, not self.failed, detail, **sizes, **found)

    def _over(self, whole: WholeCall, mine: CalledBlock, side: int) -> Array:
        """Return a side's error over its allowance; count bits. Shapes: -> (b, h, s, p)."""
        x, expected, y = mine.given[side], whole.block.rotated[side], mine.rotated[side]
        if y.shape != expected.shape:
            raise WrongShape(f"{self.words}: the shape {y.shape} comes back for {expected.shape}")
        different = bits_differ(y, expected)
        self.differing += int(different.sum())
        self.elements += different.size
        plain = whole.over[side]
        wrong = ~(plain <= 1)
        self.wrong_alike += int(wrong.sum())
        if not different.any() and not self.code.each_call:
            return np.zeros_like(plain) if wrong.any() else plain  # where it is wrong, it is wrong alike
        with np.errstate(invalid="ignore", over="ignore"):  # nan and inf in both are no difference
            by = np.where(different, y.astype(np.float64) - expected.astype(np.float64), 0.0)
        self.apart = max(self.apart, float(np.where(np.isnan(by), np.inf, np.abs(by)).max(initial=0.0)))
        over = self._excess(x, y, mine)
        if not wrong.any() or len(self._parts(mine.length)) > 1:  # of other lengths, with other frequencies
            return over
        exact = exact_rotation.rotated(x, mine.at, self.code.setting_at(mine.at))
        apart, right = self._excess(x, exact + by / 2, mine), over <= 1  # over twice the allowance
        self.corrects |= bool((wrong & right & ~(apart <= 1)).any())
        # plain call:    right here           wrong here
        #   right        the smaller of both  over
        #   wrong        apart; the smaller where a correction passes
        least = right & (~wrong | self.right_passes)
        return np.where(least, np.minimum(apart, over), np.where(wrong, apart, over))

    def _named(self, whole: WholeCall, mine: CalledBlock) -> Diagnosis | None:
        """Return what explains a wrong form; where it is right, what is wrong with a plain call."""
        code, found = self.code, None
        for rows in cut(self.lengths, mine.length) if self.lengths else ():
            found = _afresh(code, _some(mine, rows))
            if found is None:
                break
        if found:  # each part is right in a call of an instance of its own
            return found
        parts = [_some(mine, rows) for rows in self._parts(mine.length)]
        placed = code.judged(self.form, parts, afresh=self.afresh)
        if not placed.excess <= 1:
            return placed.diagnosis
        return _afresh(code, whole.block) or Diagnosis("right-so")

    def _parts(self, length: int) -> list[slice]:
        """Return the rows that share frequencies: those of a call, or all."""
        return cut(self.lengths if self.code.each_call else (), length)

    def _excess(self, x: FloatArray, y: FloatArray, block: CalledBlock) -> Array:
        """Return each pair's error over what its call allows. Shapes: -> (b, h, s, p)."""
        parts = [
            excess(self.code, x[:, :, rows], y[:, :, rows], block.at[rows])
            for rows in self._parts(block.length)
        ]
        return np.concatenate(parts, axis=2)


def cut(lengths: Sequence[int], length: int) -> list[slice]:
    """Return parts of these lengths, again from the first where they end; one part without any."""
    ends = [0]
    for size in itertools.cycle(lengths or [length]):
        ends.append(min(ends[-1] + size, length))
        if ends[-1] == length:
            break
    return [slice(*pair) for pair in itertools.pairwise(ends)]


def _afresh(code: CodeUnderTest, block: CalledBlock) -> Diagnosis | None:
    """Return that it is state, where a new instance that is called alike is right."""
    return verification.state(code.rotator(), block, lambda x, y: excess(code, x, y, block.at))


def _some(block: CalledBlock, rows: slice) -> CalledBlock:
    """Return some rows of a call. Shapes: (b, h, s, d) -> (b, h, n, d)."""
    given, rotated = (tuple(x[:, :, rows] for x in pair) for pair in (block.given, block.rotated))
    return CalledBlock(block.at[..., rows], (given[0], given[1]), (rotated[0], rotated[1]))


def worst(agreements: Sequence[Agreement]) -> Agreement:
    """Return the first that failed, or the worst, with the bits of all counted."""
    failed = [agreement for agreement in agreements if agreement.failed]
    chosen = failed[0] if failed else max(agreements, key=lambda agreement: agreement.excess)
    differing = sum(agreement.differing for agreement in agreements)
    chosen.differing, chosen.elements = differing, sum(agreement.elements for agreement in agreements)
    return chosen


def whole_call(code: CodeUnderTest, offset: int, length: int) -> WholeCall:
    """Return what one call at `length` positions from an offset came to, with few heads; known ones at once.

    Instances see all whole calls of a length, in the order in which they are needed first.
    Raises: whatever the code raises.
    """
    known, key = code.seen, (offset, length)
    if key not in known.calls:
        if length not in known.rotators:
            known.rotators[length] = code.rotator()
        at = offset + np.arange(length, dtype=np.int64)
        known.calls[key] = called(code, known.rotators[length], code.given(length), at)
    return known.calls[key]


def called(code: CodeUnderTest, rotator: Rotator, given: Both, at: Positions) -> WholeCall:
    """Call, and compare with the exact rotation. Shapes: given (b, h, s, d), at (s,)."""
    rotated = rotator.rotate_both(*given, at)
    first, second = (excess(code, x, y, at) for x, y in zip(given, rotated, strict=True))
    return WholeCall(CalledBlock(at, given, rotated), (first, second))


def beginning(whole: WholeCall, length: int) -> WholeCall:
    """Return the first tokens of a call as if they were a call."""
    first, second = (over[:, :, :length] for over in whole.over)
    return WholeCall(_some(whole.block, slice(0, length)), (first, second))


def excess(code: CodeUnderTest, x: FloatArray, y: FloatArray, at: Positions) -> Array:
    """Return the error over what is allowed. Shapes: (b, h, s, d) twice, (s,) or (b, s) -> (b, h, s, p)."""
    rows = np.broadcast_to(at, (len(x), x.shape[2]))
    return verification.excess(x, y, rows, code.setting_at(at), code.dtype, code.rule)


def some_offsets(code: CodeUnderTest, length: int, count: int) -> list[int]:
    """Return up to `count` of the offsets that break positions, the first and the last with them.

    Two where a call is dear.
    """
    count = min(count, 2) if cost(code) > DEAR else count
    offsets = straddling(code.up_to, min(length, code.up_to))
    chosen = np.unique(np.linspace(0, len(offsets) - 1, min(count, len(offsets))).round().astype(int))
    return [offsets[i] for i in chosen]


def cost(code: CodeUnderTest) -> float:
    """Return the seconds of CPU that one token takes; 0 where it raises."""
    if code.seen.cost is None:
        code.seen.cost, at = 0.0, np.array([code.up_to - 1], dtype=np.int64)
        with contextlib.suppress(ForeignError):  # the checks will see it
            code.seen.cost = seconds_of_a_call(code.rotator(), code.given(1), at)
    return code.seen.cost


def seconds_of_a_call(rotator: Rotator, given: Both, at: np.ndarray) -> float:
    """Return the least seconds of CPU of five calls. Raises: what the code raises."""
    return rotator.seconds(*given, at, 5)
