"""Whether another way to call the same code gives what a plain call gives.

A pair passes within the allowance around the exact rotation. Where the plain call is itself further away, the
two are compared with each other, within twice the allowance: each may be off by it. Bits are counted apart.
Letters: b batch, h heads, s positions, d head_dim, p pairs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import FloatArray
from ropeaudit.arithmetic.rounding import bits_differ, round_to
from ropeaudit.audits.straddling import straddling
from ropeaudit.conformance.code_under_test import HEADS, CodeUnderTest
from ropeaudit.conformance.finding import PAIR, Finding, judged
from ropeaudit.errors import ForeignError, did
from ropeaudit.recognition import allowance, rotation, verification
from ropeaudit.recognition.diagnosis import Diagnosis
from ropeaudit.recognition.known_recipes import CalledBlock
from ropeaudit.recognition.rotation import MisplacedSide
from ropeaudit.subjects import exact_rotation
from ropeaudit.subjects.calling.arrays import WrongShape
from ropeaudit.subjects.calling.code import Rotator


@dataclass(slots=True)
class CallForm(Rotator):
    """One instance that is called in a way of its own."""

    rotator: Rotator

    def over(self, rotator: Rotator) -> Rotator:
        """Return the same way to call, of another instance."""
        return replace(self, rotator=rotator)

    @property
    def has_past(self) -> bool:
        """Whether it may have been called before; see `ForeignRotator`."""
        return self.rotator.has_past

    def calls(self, length: int) -> Iterator[slice]:
        """Yield the rows of each of its calls, of so many."""
        yield slice(0, length)


@dataclass(slots=True)
class Agreement:
    """What one way to call came to, over all of its calls so far; `words` says which way.

    form: what is called so. apart: the largest difference from a plain call.
    afresh: makes another, of instances without a past; None where it has no way.
    right_passes: whether a pair that is right passes where the plain call is not. corrects: whether one did.
    """

    code: CodeUnderTest
    words: str
    form: Rotator
    afresh: Callable[[], Rotator] | None = None
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

    def take(self, whole: WholeCall) -> None:
        """Make a plain call again in this form and compare. Raises: RopeAuditError."""
        block = whole.block
        try:
            rotated = self.form.rotate_both(*block.given, block.at)
        except ForeignError as error:
            self.raised = did(error)
            self.raised_at = f"{self.words}, positions {block.at[0]} to {block.at[-1]}"
            return
        self.calls += 1
        mine = CalledBlock(block.at, block.given, rotated)
        over = {name: self._over(whole, mine, side) for side, name in enumerate("qk")}
        side = max(over, key=lambda name: float(over[name].max()))
        if (worst := float(over[side].max())) > self.excess:
            b, h, s, p = (int(i) for i in np.unravel_index(int(over[side].argmax()), over[side].shape))
            self.excess, position = worst, int(block.at[s])
            self.place = f"{side}, batch element {b}, head {h}, position {position}, pair {p}"
            calls = _calls(self.code, self.form, block.length)
            rows = next(part for part in calls if s < part.stop)
            setting = self.code.setting_at(block.at[rows])
            self.allowed = allowance.allowed_at(self.code.rule, setting, position, p)
            if worst > 1:
                self.diagnosis = self._named(over, mine, whole, s)

    def take_all(self, wholes: Iterable[WholeCall]) -> Agreement:
        """Compare with one plain call after the other, up to the first that fails."""
        for whole in wholes:
            self.take(whole)
            if self.failed:
                break
        return self

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
        with np.errstate(invalid="ignore", over="ignore"):
            apart = np.abs(y[different].astype(np.float64) - expected[different].astype(np.float64))
        self.apart = max(self.apart, float(np.where(np.isnan(apart), np.inf, apart).max(initial=0.0)))
        over = _excess(self.code, self.form, x, y, mine)
        calls = _calls(self.code, self.form, mine.length)
        if len(calls) > 1 or not wrong.any():  # of other lengths, with other frequencies than the plain one
            return over
        apart, right = self._apart(x, expected, y, mine), over <= 1
        corrected = wrong & right & ~(apart <= 1) & self.right_passes
        self.corrects |= bool(corrected.any())
        # plain call:    right here           wrong here
        #   right        the smaller of both  over
        #   wrong        apart; over where a correction passes
        cases = [right & ~wrong, corrected | ~(wrong | right)]
        return np.select(cases, [np.minimum(apart, over), over], apart)

    def _apart(self, x: FloatArray, expected: FloatArray, y: FloatArray, mine: CalledBlock) -> Array:
        """Return the distance over twice the allowance. Shapes: -> (b, h, s, p)."""
        parts = [
            exact_rotation.rotated(x[:, :, part], mine.at[part], self.code.setting_at(mine.at[part]))
            for part in _calls(self.code, self.form, mine.length)
        ]
        exact = np.concatenate(parts, axis=2)
        with np.errstate(invalid="ignore", over="ignore"):
            same = ~bits_differ(y, expected)  # nan and inf in both are no difference
            half = np.where(same, 0.0, (y.astype(np.float64) - expected.astype(np.float64)) / 2)
        return _excess(self.code, self.form, x, exact + half, mine)

    def _named(
        self, over: dict[str, Array], mine: CalledBlock, whole: WholeCall, worst: int
    ) -> Diagnosis | None:
        """Return what explains a wrong form. worst: the row furthest off."""
        code = self.code
        exact = zip(mine.given, mine.rotated, strict=True)
        if all((_excess(code, self.form, x, y, mine) <= 1).all() for x, y in exact):
            return self._state(code.rotator, whole.block) or Diagnosis("right-so")
        form, once = self.form, self.afresh
        if isinstance(form, CallForm) and once is not None:  # of one instance, where each part has one
            once = partial(_over, form, code)
        if found := verification.unstable(form, mine, once, code.seen.searches):
            return found
        if self.afresh and (found := self._state(self.afresh, mine)):
            return found
        if isinstance(form, CallForm) and (code.seen.wrong_rotation or code.each_call):
            # a plain call is wrong too: the call that is wrong here shows whether it is so in the same way;
            # or each call is held to frequencies of its own
            rows = next(part for part in form.calls(mine.length) if worst < part.stop)
            if rows != slice(0, mine.length):
                mine, form = _some(mine, rows), form.rotator
                over = {name: part[:, :, rows] for name, part in over.items()}
        sides = {}
        for side, (name, part) in enumerate(over.items()):
            alone = ~(excess(code, mine.given[side], mine.rotated[side], mine) <= 1)
            off = ~(part <= 1) & alone  # a pair that only the plain call has out of place is right here
            off = off if off.any() else alone  # as wrong as a plain call: else the other were alone
            if off.any():
                heads, pairs, at = (np.asarray(off.any(axis=axes)) for axes in ((2, 3), (0, 1, 2), (0, 1, 3)))
                sides[name] = MisplacedSide(heads, pairs, mine.at[at], mine)
        setting = code.setting_at(mine.at)
        probed = verification.SameFrequencies(form, setting) if code.each_call else form
        return rotation.explained(sides, setting, code.dtype, probed, code.seen.searches)

    def _state(self, afresh: Callable[[], Rotator], block: CalledBlock) -> Diagnosis | None:
        """Return a diagnosis of state, where a fresh instance is right."""
        rotator = afresh()
        return verification.state(rotator, block, lambda x, y: _excess(self.code, rotator, x, y, block))


def _over(form: CallForm, code: CodeUnderTest) -> Rotator:
    return form.over(code.rotator())


def _calls(code: CodeUnderTest, form: Rotator, length: int) -> list[slice]:
    """Return the rows that share frequencies: those of a call, or all."""
    if code.each_call and isinstance(form, CallForm):
        return list(form.calls(length))
    return [slice(0, length)]


def _excess(code: CodeUnderTest, form: Rotator, x: FloatArray, y: FloatArray, block: CalledBlock) -> Array:
    """Return each pair's error over what its call allows. Shapes: -> (b, h, s, p)."""
    parts = [
        excess(code, x[:, :, part], y[:, :, part], _some(block, part))
        for part in _calls(code, form, block.length)
    ]
    return np.concatenate(parts, axis=2)


def _some(block: CalledBlock, rows: slice) -> CalledBlock:
    """Return some rows of a call. Shapes: (b, h, s, d) -> (b, h, n, d)."""
    given, rotated = (tuple(x[:, :, rows] for x in pair) for pair in (block.given, block.rotated))
    return CalledBlock(block.at[..., rows], (given[0], given[1]), (rotated[0], rotated[1]))


def worst(agreements: list[Agreement]) -> Agreement:
    """Return the first that failed, or the worst, with the bits of all counted."""
    failed = [agreement for agreement in agreements if agreement.failed]
    chosen = failed[0] if failed else max(agreements, key=lambda agreement: agreement.excess)
    differing = sum(agreement.differing for agreement in agreements)
    chosen.differing, chosen.elements = differing, sum(agreement.elements for agreement in agreements)
    return chosen


BATCH = 2
Both = tuple[FloatArray, FloatArray]  # q and k
DEAR = 8e-3  # seconds of CPU of a call of one token, above which there are fewer calls


@dataclass(frozen=True, slots=True)
class WholeCall:
    """A call with all positions at once. over: error over allowance of each, (b, h, s, p)."""

    block: CalledBlock
    over: tuple[Array, Array]


def whole_call(code: CodeUnderTest, offset: int, length: int) -> WholeCall:
    """Return what one call at `length` positions from an offset came to, with few heads; known ones at once.

    Instances see all whole calls of a length, in the order in which they are needed first.
    Raises: whatever the code raises.
    """
    known, key = code.seen, (offset, length)
    if key not in known.calls:
        if length not in known.rotators:
            known.rotators[length] = code.rotator()
        given, at = given_vectors(code, length), offset + np.arange(length, dtype=np.int64)
        known.calls[key] = called(code, known.rotators[length], given, at)
    return known.calls[key]


def called(
    code: CodeUnderTest, rotator: Rotator, given: tuple[FloatArray, FloatArray], at: np.ndarray
) -> WholeCall:
    """Call, and compare with the exact rotation. Shapes: given (b, h, s, d), at (s,)."""
    block = CalledBlock(at, given, rotator.rotate_both(*given, at))
    first, second = (excess(code, x, y, block) for x, y in zip(given, block.rotated, strict=True))
    return WholeCall(block, (first, second))


def beginning(whole: WholeCall, length: int) -> WholeCall:
    """Return the first tokens of a call as if they were a call."""
    rows = slice(0, length)
    first, second = (over[:, :, rows] for over in whole.over)
    return WholeCall(_some(whole.block, rows), (first, second))


def excess(code: CodeUnderTest, x: FloatArray, y: FloatArray, block: CalledBlock) -> Array:
    """Return the error over what is allowed. Shapes: (b, h, s, d) twice -> (b, h, s, p)."""
    setting = code.setting_at(block.at)
    return verification.excess(x, y, block.rows(), setting, code.dtype, code.rule)


def given_vectors(code: CodeUnderTest, length: int) -> tuple[FloatArray, FloatArray]:
    """Return q and k, of the sizes that one call takes. Shapes: -> (b, h, s, d)."""
    batch, heads = sizes(code, length)
    shape = (batch, heads, length, code.setting.head_dim)
    q, k = (
        round_to(x, code.dtype).astype(code.dtype.carrier).reshape(shape)
        for x in code.vectors(batch * heads, length)
    )
    return q, k


def sizes(code: CodeUnderTest, length: int) -> tuple[int, int]:
    """Return the batch size and number of heads; one for an axis the code lacks."""
    order = code.order
    return BATCH if "b" in order else 1, HEADS if "h" in order and length <= 64 else 1


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
            code.seen.cost = seconds_of_a_call(code.rotator(), given_vectors(code, 1), at)
    return code.seen.cost


def seconds_of_a_call(rotator: Rotator, given: Both, at: np.ndarray) -> float:
    """Return the least seconds of CPU of five calls. Raises: what the code raises."""
    return rotator.seconds(*given, at, 5)
