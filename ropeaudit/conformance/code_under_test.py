"""Code that is checked, its plain calls, and whether another way to call it gives what they give.

A pair passes within the allowance around the exact rotation. Where the plain call is itself further away, the
two are compared with each other, within twice the allowance: each may be off by it. Bits are counted apart.
Letters: b batch, h heads of q, g of k, s positions, d head_dim, p pairs.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias, Unpack, cast

import numpy as np

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.arithmetic.rounding import bits_differ, round_to
from ropeaudit.audits.straddling import straddling
from ropeaudit.conformance.finding import PAIR, Finding, judged
from ropeaudit.errors import ForeignError, did
from ropeaudit.recipes import Resolved
from ropeaudit.recognition import allowance, rotation, verification
from ropeaudit.recognition.diagnosis import Diagnosis
from ropeaudit.recognition.known_recipes import CalledBlock
from ropeaudit.recognition.rotation import MisplacedSide, Searches
from ropeaudit.recognition.verification import NOWHERE, GivenVectors, Held, Places
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions, exact_rotation
from ropeaudit.subjects.calling.arrays import WrongShape
from ropeaudit.subjects.calling.called import Called
from ropeaudit.subjects.calling.code import CallOf, Code, Rotator

if TYPE_CHECKING:
    from ropeaudit.subjects.calling.conventions import Answer, Convention
    from ropeaudit.subjects.calling.foreign import ForeignOwn
    from ropeaudit.subjects.calling.own_code import OwnCode

HEADS = 4
BATCH = 2
DEAR = 8e-3  # seconds of CPU of a call of one token, above which there are fewer calls
Both: TypeAlias = tuple[FloatArray, FloatArray]  # q and k


@dataclass(slots=True)
class Seen:
    """What checks of one code share.

    wrong_rotation: whether one saw a pair out of place in plain calls. right_before: the first position that
    is out of place, where those before are right. calls: offset and length -> what a plain call came to.
    rotators: by the length of whole calls, the instance that has seen them. answers: what one call
    did beside rotating, None where an adapter makes it; none yet. cost: seconds of a token.
    searches: for what explains its calls. line: file and line of the first narrow operation; None until it is
    looked for. first: the first position of the last call that was judged.
    """

    wrong_rotation: bool = False
    right_before: int | None = None
    calls: dict[tuple[int, int], WholeCall] = field(default_factory=dict)
    rotators: dict[int, Rotator] = field(default_factory=dict)
    answers: list[Answer | None] = field(default_factory=list)
    cost: float | None = None
    searches: Searches = field(default_factory=Searches)
    line: tuple[str, int] | None = None
    first: int = 0


@dataclass(slots=True)
class CodeUnderTest:
    """Code in a dtype.

    up_to: number of positions, the last checked is up_to - 1. claimed: the recipe that it is held to; None
    for what right code explains (`recognition.allowance.careful`). thorough: whether what takes long is done
    too: compiling it, and any three axes of served calls together. sizes: whether heads of other sizes are
    tried too.
    environments: names of those that it is called in too. each_call: whether its frequencies follow the
    length of each call (`every_position.followed`), which is then held to those for its own.
    on_share: gets the share of the running check that is done. seen: what checks share.
    """

    tested: Code
    setting: RopeSetting
    dtype: Format
    up_to: int
    claimed: Resolved | None = None
    seed: int = 0
    thorough: bool = False
    sizes: bool = False
    environments: Sequence[str] = ()
    each_call: bool = False
    on_share: Callable[[float], None] = lambda share: None
    called: Called = field(init=False)
    seen: Seen = field(default_factory=Seen, init=False)

    def __post_init__(self) -> None:
        self.called = Called(self.tested, self.setting, self.dtype)

    @property
    def own(self) -> OwnCode | ForeignOwn | None:
        """The user's own code; None for what an adapter calls."""
        return cast("OwnCode | ForeignOwn", self.tested) if self.tested.own else None

    @property
    def rule(self) -> Resolved:
        """The recipe whose roundings are allowed."""
        return self.claimed or allowance.careful(self.dtype)

    @property
    def convention(self) -> Convention | None:
        """How it is called; None for what an adapter calls."""
        fit = self.tested.fit(self.setting)
        return fit.convention if fit else None

    @property
    def order(self) -> str:
        """The axes of what it is given in one call."""
        called = self.convention
        return called.order.replace("t", "bs").lower() if called else "hsd"

    @property
    def composed(self) -> bool:
        """Whether it returns cos and sin, which are applied here."""
        return self.convention is not None and self.convention.composed

    @property
    def takes_keys(self) -> bool:
        """Whether it is given k with q in one call."""
        return self.convention is not None and self.convention.takes_keys

    def why_no_rows(self) -> str:
        """Return why it is given no row of positions for each batch element."""
        fit = self.tested.fit(self.setting)
        if fit is None or fit.sure:
            return "called so, it takes no row of positions for each batch element"
        return (
            "whether it takes a row of positions for each batch element is not known: plain calls are wrong"
        )

    def setting_at(self, at: Positions) -> RopeSetting:
        """Return the setting that a call at these positions is held to."""
        return self.setting.for_positions(int(at.max()) + 1) if self.each_call else self.setting

    def rotator(self) -> Rotator:
        """Return a new instance, without a past where that can be."""
        return self.called.rotator()

    def vectors(self, heads: int, length: int) -> Both:
        """Return random q and k with all the bits of the dtype. Shapes: -> (h, s, d) twice.

        Code that holds them in a narrower format then shows.
        """
        return _vectors(self.seed, self.dtype, (heads, length, self.setting.head_dim))

    def batch(self, heads: int, length: int, kv_heads: int | None = None, rows: int = BATCH) -> Both:
        """Return random q (b, h, s, d) and k (b, g, s, d), each batch element with its own numbers."""
        q, k = self.vectors(heads, length)
        given = GivenVectors(q, k[:kv_heads], np.arange(length, dtype=np.int64), self.seed, rows)
        first, second, _ = next(given.blocks(self.dtype))
        return first, second

    def given(self, length: int) -> Both:
        """Return q and k, of the sizes that one call takes. Shapes: -> (b, h, s, d)."""
        batch, heads = self.batch_and_heads(length)
        shape = (batch, heads, length, self.setting.head_dim)
        q, k = (x.astype(self.dtype.carrier).reshape(shape) for x in self.vectors(batch * heads, length))
        return q, k

    def batch_and_heads(self, length: int) -> tuple[int, int]:
        """Return the batch size and number of heads; one for an axis the code lacks."""
        return BATCH if "b" in self.order else 1, HEADS if "h" in self.order and length <= 64 else 1

    def judged(self, rotator: Rotator, blocks: Iterable[CalledBlock], **other: Unpack[Held]) -> Places:
        """Return where the worst pair of these calls is: see `verification.judged`."""
        held: Held = {"afresh": self.rotator, "rule": self.rule, "searches": self.seen.searches}
        held |= {"each_call": self.each_call} | other
        return verification.judged(blocks, rotator, self.setting, self.dtype, **held)

    def up_to_a_wrong_one(
        self, rotator: Rotator, calls: Sequence[CallOf], **other: Unpack[Held]
    ) -> tuple[Places, list[int]]:
        """Make calls, q, k and positions each, up to the first that is wrong: the worst pair, and its number.

        Raises: what the code raises.
        """
        judge, worst = self.judge(rotator, calls, **other), NOWHERE
        for number in range(len(calls)):
            placed = judge(number, True)
            if not placed.excess <= 1:
                others = range(number + 1, len(calls))
                return verification.with_other_side(placed, judge, others), [number]
            worst = max(worst, placed, key=lambda places: places.excess)
        return worst, []

    def judge(
        self, rotator: Rotator, calls: Sequence[CallOf], **other: Unpack[Held]
    ) -> Callable[[int, bool], Places]:
        """Return what makes a call by its number and judges it; explained where that is asked for."""

        def judge(number: int, explain: bool) -> Places:
            self.on_share(number / len(calls))
            q, k, at = calls[number]
            self.seen.first = int(at.min())
            block = CalledBlock(at, (q, k), rotator.rotate_both(q, k, at))
            held: Held = {"explain": explain}
            return self.judged(rotator, [block], **(held | other))

        return judge


def runs_at(given: Both, offsets: Sequence[int], step: int = 0) -> list[CallOf]:
    """Return calls of the same q and k from each offset on; step: from one batch element to the next."""
    q, k = given
    run = np.arange(q.shape[2], dtype=np.int64) + (step * np.arange(len(q))[:, None] if step else 0)
    return [(q, k, run + offset) for offset in offsets]


@functools.lru_cache(maxsize=8)
def _vectors(seed: int, dtype: Format, shape: tuple[int, int, int]) -> Both:
    generator = np.random.default_rng([seed, *shape[:2]])
    q, k = (round_to(generator.standard_normal(shape), dtype) for _ in "qk")
    return q, k


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
            self.diagnosis = self._named(whole, mine, over, s)

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

    def _named(self, whole: WholeCall, mine: CalledBlock, over: list[Array], row: int) -> Diagnosis | None:
        """Return what explains a wrong form; where it is right, what is wrong with a plain call.

        row: the one furthest off.
        """
        code, form = self.code, self.form
        both = zip(mine.given, mine.rotated, strict=True)
        if all((self._excess(x, y, mine) <= 1).all() for x, y in both):
            return _afresh(code, code.rotator(), whole.block) or Diagnosis("right-so")
        if found := verification.unstable(form, mine, self.afresh, code.seen.searches):
            return found
        parts = cut(self.lengths, mine.length)  # each a call of an instance of its own
        for rows in parts if self.afresh else ():
            rotator = self.afresh() if self.afresh and len(parts) == 1 else code.rotator()
            if (found := _afresh(code, rotator, _some(mine, rows))) is None:
                break
        if found:
            return found
        if len(parts) > 1 and (code.seen.wrong_rotation or code.each_call):
            # a plain call is wrong too: the call that is wrong here shows whether it is so in the same way;
            # or each call is held to frequencies of its own
            rows = next(part for part in parts if row < part.stop)
            mine, over = _some(mine, rows), [part[:, :, rows] for part in over]
            form = form.rotator  # type: ignore[attr-defined]
        sides = {}
        for name, x, y, part in zip("qk", mine.given, mine.rotated, over, strict=True):
            alone = ~(excess(code, x, y, mine.at) <= 1)
            off = ~(part <= 1) & alone  # a pair that only the plain call has out of place is right here
            off = off if off.any() else alone  # as wrong as a plain call: else the other were alone
            if off.any():
                sides[name] = MisplacedSide.of(off, mine)
        asked = code.setting_at(mine.at), code.dtype, form, code.seen.searches
        return rotation.joined(rotation.explained(sides, *asked, each_call=code.each_call))

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


def _afresh(code: CodeUnderTest, rotator: Rotator, block: CalledBlock) -> Diagnosis | None:
    """Return that it is state, where an instance without a past that is called alike is right."""
    return verification.state(rotator, block, lambda x, y: excess(code, x, y, block.at))


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
    return allowance.excess(x, y, rows, code.setting_at(at), code.rule)


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
