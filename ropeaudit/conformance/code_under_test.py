"""Code under check, the calls that checks make, and their comparison with the exact rotation.

Letters: b batch, h heads of q, g of k, s positions, d head_dim, p pairs.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ropeaudit.arithmetic.formats import Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.audits.cases import straddling
from ropeaudit.conformance.finding import FROM_0
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
from ropeaudit.subjects.calling.code import Both, CallOf, Code, Rotator

if TYPE_CHECKING:
    from ropeaudit.subjects.calling.conventions import Answer, Convention
    from ropeaudit.subjects.calling.foreign import ForeignOwn, ForeignRotator

HEADS = 4
BATCH = 2
DEAR = 8e-3  # seconds of CPU of a call of one token, above which there are fewer calls


@dataclass(slots=True)
class SharedResults:
    """Intermediate results that the checks of one code share.

    wrong_rotation: whether plain calls have a wrong pair. first_wrong: the first wrong position, if those
    before are right. cost: seconds of a token. searches: for diagnoses of its calls. line: file and line of
    the first narrow operation; None until it is looked for. first: the first position of the last judged
    call. cause: the diagnosis of mean errors that are not from rounding. answer: the result of one call of
    own code; None until it is made.
    """

    wrong_rotation: bool = False
    first_wrong: int | None = None
    cost: float | None = None
    searches: Searches = field(default_factory=Searches)
    line: tuple[str, int] | None = None
    first: int = 0
    cause: Diagnosis | None = None
    answer: Answer | None = None


@dataclass(slots=True)
class CodeUnderTest:
    """Code in a dtype, and the options of its checks.

    up_to: number of positions. claimed: the recipe whose errors are allowed; None for those of correct code
    (`recognition.allowance.careful`). thorough: whether it is compiled too, and any three axes of calls are
    combined. sizes: whether to try other head sizes. negative: whether to try negative positions.
    environments: further ones to call it in. each_call: whether its frequencies follow the length of each
    call (`every_position.follows_length`), which is then compared with those for its own length.
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
    shared: SharedResults = field(default_factory=SharedResults, init=False)

    @property
    def own(self) -> ForeignOwn | None:
        """The user's own code; None for an adapter."""
        return cast("ForeignOwn", self.tested) if self.tested.own else None

    @property
    def rule(self) -> Resolved:
        """The recipe whose roundings are allowed."""
        return self.claimed or allowance.careful(self.dtype)

    @property
    def convention(self) -> Convention | None:
        """How it is called; None for an adapter."""
        fit = self.tested.fit(self.setting)
        return fit.convention if fit else None

    @property
    def order(self) -> str:
        """The axes of q in one call."""
        called = self.convention
        return called.order.replace("t", "bs").lower() if called else "hsd"

    @property
    def composed(self) -> bool:
        """Whether it returns cos and sin, which ropeaudit applies."""
        return self.convention is not None and self.convention.composed

    @property
    def takes_keys(self) -> bool:
        """Whether it takes q and k in one call."""
        return self.convention is not None and self.convention.takes("k", "qkv")

    def why_from_0(self) -> str:
        """Return why each call starts at 0; empty where an argument or a table's row places tokens."""
        called = self.convention
        if called is None or not called.unplaced or called.takes("lengths"):
            return ""
        return "" if called.composed and called.takes("until") else FROM_0

    def why_no_rows(self) -> str:
        """Return why batch elements have no positions of their own; empty if they do."""
        fit, rows = self.tested.fit(self.setting), "row of positions for each batch element"
        if fit is not None and not fit.sure and not fit.rows:
            return f"whether it takes a {rows} is not known: plain calls are wrong"
        return "" if fit is not None and fit.rows else "its positions have no batch axis"

    def setting_at(self, at: Positions) -> RopeSetting:
        """Return the setting with which a call at these positions is compared."""
        return self.setting.for_positions(int(at.max()) + 1) if self.each_call else self.setting

    def rotator(self) -> Rotator:
        """Return a rotator of a new instance, without state where possible."""
        return self.tested.rotator(self.setting, self.dtype)

    def own_rotator(self) -> ForeignRotator:
        """Return a rotator of a new instance of own code."""
        return cast("ForeignRotator", self.rotator())

    def vectors(self, heads: int, length: int) -> Both:
        """Return random q and k that use all bits of the dtype. Shapes: -> (h, s, d) twice.

        So code that converts them to a narrower format is noticed.
        """
        return _vectors(self.seed, self.dtype, (heads, length, self.setting.head_dim))

    def random_batch(
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

    def batched_vectors(self, length: int) -> Both:
        """Return random q and k with the batch and heads that a call takes. Shapes: -> (b, h, s, d)."""
        batch, heads = self.batch_and_heads(length)
        shape = (batch, heads, length, self.setting.head_dim)
        q, k = (x.astype(self.dtype.carrier).reshape(shape) for x in self.vectors(batch * heads, length))
        return q, k

    def batch_and_heads(self, length: int) -> tuple[int, int]:
        """Return the batch size and number of heads; one for an axis the code lacks."""
        return BATCH if "b" in self.order else 1, HEADS if "h" in self.order and length <= 64 else 1

    def judge(self, rotator: Rotator, blocks: Iterable[CalledBlock], **other: Any) -> Places:
        """Return the worst rotated pair of some calls: see `verification.judge_calls`."""
        held: dict[str, Any] = {
            "new_rotator": self.rotator,
            "rule": self.rule,
            "searches": self.shared.searches,
        }
        held |= {"each_call": self.each_call} | other
        return verification.judge_calls(blocks, rotator, self.setting, self.dtype, **held)

    def judge_until_wrong(
        self, rotator: Rotator, calls: Sequence[CallOf], most: int | None = None, **other: Any
    ) -> tuple[Places, list[int]]:
        """Make calls up to the first wrong one; return the worst pair, and the number of that call.

        most: how many are judged; later ones only help to diagnose the other side.
        """

        def judge(number: int, explain: bool) -> Places:
            doing.step(number / len(calls))
            self.shared.first = int(calls[number][2].min())
            block = make_call(rotator, calls[number])
            return self.judge(rotator, [block], **({"explain": explain} | other))

        worst = NOWHERE
        for number in range(len(calls))[:most]:
            placed = judge(number, True)
            if not placed.excess <= 1:
                others = range(number + 1, len(calls))
                return verification.with_other_side(placed, judge, others), [number]
            worst = max(worst, placed, key=lambda places: places.excess)
        return worst, []


def make_call(rotator: Rotator, call: CallOf) -> CalledBlock:
    """Make a call; return it with its result. Raises: what the code raises."""
    q, k, at = call
    return CalledBlock(at, (q, k), rotator.rotate_both(q, k, at))


def calls_from(given: Both, offsets: Sequence[int], step: int = 0) -> list[CallOf]:
    """Return a call of q and k from each offset. step: tokens between batch elements."""
    q, k = given
    run = np.arange(q.shape[2], dtype=np.int64) + (step * np.arange(len(q))[:, None] if step else 0)
    return [(q, k, run + offset) for offset in offsets]


@functools.lru_cache(maxsize=8)
def _vectors(seed: int, dtype: Format, shape: tuple[int, int, int]) -> Both:
    generator = np.random.default_rng([seed, *shape[:2]])
    q, k = (round_to(generator.standard_normal(shape), dtype) for _ in "qk")
    return q, k


def some_offsets(code: CodeUnderTest, length: int, count: int) -> list[int]:
    """Return up to `count` offsets at which positions often break, the first and last included.

    Two where a call is slow.
    """
    count = min(count, 2) if cost(code) > DEAR else count
    offsets = straddling(code.up_to, min(length, code.up_to))
    chosen = np.linspace(0, len(offsets) - 1, min(count, len(offsets))).round().astype(int)
    return [offsets[i] for i in dict.fromkeys(chosen.tolist())]


def cost(code: CodeUnderTest) -> float:
    """Return the seconds of CPU that one token takes; 0 where it raises."""
    if code.shared.cost is None:
        code.shared.cost = 0.0
        with contextlib.suppress(ForeignError):
            [(q, k, at)] = calls_from(code.batched_vectors(1), [code.up_to - 1])
            code.shared.cost = seconds_of_a_call(code.rotator(), (q, k), at)
    return code.shared.cost


def seconds_of_a_call(rotator: Rotator, given: Both, at: np.ndarray) -> float:
    """Return the least seconds of CPU of five calls. Raises: what the code raises."""
    return rotator.seconds(*given, at, 5)
