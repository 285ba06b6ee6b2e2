"""Code that is checked, the calls that checks make of it, and how they are judged by the exact rotation.

Letters: b batch, h heads of q, g of k, s positions, d head_dim, p pairs.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.audits.cases import straddling
from ropeaudit.errors import ForeignError
from ropeaudit.recipes import Resolved
from ropeaudit.recognition import allowance, verification
from ropeaudit.recognition.diagnosis import Diagnosis
from ropeaudit.recognition.known_recipes import CalledBlock
from ropeaudit.recognition.rotation import Searches
from ropeaudit.recognition.verification import NOWHERE, GivenVectors, Places
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime import doing
from ropeaudit.subjects import Positions
from ropeaudit.subjects.calling.code import CallOf, Code, Rotator

if TYPE_CHECKING:
    from ropeaudit.subjects.calling.conventions import Answer, Convention
    from ropeaudit.subjects.calling.foreign import ForeignOwn, ForeignRotator

HEADS = 4
BATCH = 2
DEAR = 8e-3  # seconds of CPU of a call of one token, above which there are fewer calls
Both: TypeAlias = tuple[FloatArray, FloatArray]  # q and k


@dataclass(slots=True)
class Seen:
    """What checks of one code share.

    wrong_rotation: whether one saw a pair out of place in plain calls. right_before: the first position that
    is out of place, where those before are right. cost: seconds of a token.
    searches: for what explains its calls. line: file and line of the first narrow operation; None until it is
    looked for. first: the first position of the last call that was judged.
    cause: what explains errors whose means no rounding leaves. answer: what one call of own code
    came to; None until it is made.
    """

    wrong_rotation: bool = False
    right_before: int | None = None
    cost: float | None = None
    searches: Searches = field(default_factory=Searches)
    line: tuple[str, int] | None = None
    first: int = 0
    cause: Diagnosis | None = None
    answer: Answer | None = None


@dataclass(slots=True)
class CodeUnderTest:
    """Code in a dtype.

    up_to: number of positions. claimed: the recipe that it is held to; None for what right code explains
    (`recognition.allowance.careful`). thorough: whether it is compiled too, and any three axes of calls go
    together. sizes: whether heads of other sizes are tried too. negative: whether it is called at negative
    positions too. environments: those that it is called in too. each_call: whether its frequencies follow
    the length of each call (`every_position.followed`), which is then held to those for its own.
    """

    tested: Code
    setting: RopeSetting
    dtype: Format
    up_to: int
    claimed: Resolved | None = None
    seed: int = 0
    thorough: bool = False
    sizes: bool = False
    negative: bool = False
    environments: Sequence[str] = ()
    each_call: bool = False
    seen: Seen = field(default_factory=Seen, init=False)

    @property
    def own(self) -> ForeignOwn | None:
        """The user's own code; None for what an adapter calls."""
        return cast("ForeignOwn", self.tested) if self.tested.own else None

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
        return self.convention is not None and self.convention.takes("k", "qkv")

    def why_no_rows(self) -> str:
        """Return why batch elements get no positions of their own; empty if they do."""
        fit, rows = self.tested.fit(self.setting), "row of positions for each batch element"
        if fit is not None and not fit.sure and not fit.rows:
            return f"whether it takes a {rows} is not known: plain calls are wrong"
        return "" if fit is not None and fit.rows else "its positions have no batch axis"

    def setting_at(self, at: Positions) -> RopeSetting:
        """Return the setting that a call at these positions is held to."""
        return self.setting.for_positions(int(at.max()) + 1) if self.each_call else self.setting

    def rotator(self) -> Rotator:
        """Return a new instance, without a past where that can be."""
        return self.tested.rotator(self.setting, self.dtype)

    def own_rotator(self) -> ForeignRotator:
        """Return the same of own code."""
        return cast("ForeignRotator", self.rotator())

    def vectors(self, heads: int, length: int) -> Both:
        """Return random q and k with all the bits of the dtype. Shapes: -> (h, s, d) twice.

        Code that holds them in a narrower format then shows.
        """
        return _vectors(self.seed, self.dtype, (heads, length, self.setting.head_dim))

    def batch(
        self,
        heads: int,
        length: int,
        kv_heads: int | None = None,
        rows: int = BATCH,
    ) -> Both:
        """Return random q (b, h, s, d) and k (b, g, s, d); batch elements differ."""
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

    def judged(self, rotator: Rotator, blocks: Iterable[CalledBlock], **other: Any) -> Places:
        """Return where the worst pair of these calls is: see `verification.judged`."""
        held: dict[str, Any] = {"afresh": self.rotator, "rule": self.rule, "searches": self.seen.searches}
        held |= {"each_call": self.each_call} | other
        return verification.judged(blocks, rotator, self.setting, self.dtype, **held)

    def up_to_a_wrong_one(
        self, rotator: Rotator, calls: Sequence[CallOf], most: int | None = None, **other: Any
    ) -> tuple[Places, list[int]]:
        """Make calls up to the first that is wrong; return the worst pair, and the number of that call.

        most: how many are judged; those behind show what is wrong with the other side.
        """

        def judge(number: int, explain: bool) -> Places:
            doing.step(number / len(calls))
            self.seen.first = int(calls[number][2].min())
            block = made(rotator, calls[number])
            return self.judged(rotator, [block], **({"explain": explain} | other))

        worst = NOWHERE
        for number in range(len(calls))[:most]:
            placed = judge(number, True)
            if not placed.excess <= 1:
                others = range(number + 1, len(calls))
                return verification.with_other_side(placed, judge, others), [number]
            worst = max(worst, placed, key=lambda places: places.excess)
        return worst, []


def made(rotator: Rotator, call: CallOf) -> CalledBlock:
    """Make a call of an instance. Raises: what the code raises."""
    q, k, at = call
    return CalledBlock(at, (q, k), rotator.rotate_both(q, k, at))


def runs_at(given: Both, offsets: Sequence[int], step: int = 0) -> list[CallOf]:
    """Return calls of q and k from each offset; step: between batch elements."""
    q, k = given
    run = np.arange(q.shape[2], dtype=np.int64) + (step * np.arange(len(q))[:, None] if step else 0)
    return [(q, k, run + offset) for offset in offsets]


@functools.lru_cache(maxsize=8)
def _vectors(seed: int, dtype: Format, shape: tuple[int, int, int]) -> Both:
    generator = np.random.default_rng([seed, *shape[:2]])
    q, k = (round_to(generator.standard_normal(shape), dtype) for _ in "qk")
    return q, k


def some_offsets(code: CodeUnderTest, length: int, count: int) -> list[int]:
    """Return up to `count` of the offsets that break positions, the first and the last with them.

    Two where a call is dear.
    """
    count = min(count, 2) if cost(code) > DEAR else count
    offsets = straddling(code.up_to, min(length, code.up_to))
    chosen = np.linspace(0, len(offsets) - 1, min(count, len(offsets))).round().astype(int)
    return [offsets[i] for i in dict.fromkeys(chosen.tolist())]


def cost(code: CodeUnderTest) -> float:
    """Return the seconds of CPU that one token takes; 0 where it raises."""
    if code.seen.cost is None:
        code.seen.cost = 0.0
        with contextlib.suppress(ForeignError):
            [(q, k, at)] = runs_at(code.given(1), [code.up_to - 1])
            code.seen.cost = seconds_of_a_call(code.rotator(), (q, k), at)
    return code.seen.cost


def seconds_of_a_call(rotator: Rotator, given: Both, at: np.ndarray) -> float:
    """Return the least seconds of CPU of five calls. Raises: what the code raises."""
    return rotator.seconds(*given, at, 5)
