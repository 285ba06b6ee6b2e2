"""Code that is checked: what is called, on which setting, in which dtype, up to which position.

Letters: h heads, s positions, d head_dim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Unpack, cast

import numpy as np

from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.recipes import Resolved
from ropeaudit.recognition import allowance, verification
from ropeaudit.recognition.known_recipes import CalledBlock
from ropeaudit.recognition.rotation import Searches
from ropeaudit.recognition.verification import Held, Places
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions
from ropeaudit.subjects.calling.called import Called
from ropeaudit.subjects.calling.code import Code, Rotator

if TYPE_CHECKING:
    from ropeaudit.conformance.agreement import WholeCall
    from ropeaudit.subjects.calling.conventions import Answer
    from ropeaudit.subjects.calling.foreign import ForeignOwn
    from ropeaudit.subjects.calling.own_code import OwnCode

HEADS = 4
_KEPT = 2**18  # numbers of q that are kept for other checks


@dataclass(slots=True)
class Seen:
    """What checks of one code share.

    wrong_rotation: whether one saw a pair out of place in plain calls. right_before: the first position that
    is out of place, where those before are right. calls: offset and length -> what a plain call came to.
    rotators: by the length of whole calls, the instance that has seen them. answers: what one call
    did beside rotating, None where an adapter makes it; none yet. cost: seconds of a token. vectors: q and k
    by heads, length and head_dim.
    searches: for what explains its calls. line: file and line of the first narrow operation; None until it is
    looked for.
    """

    wrong_rotation: bool = False
    right_before: int | None = None
    calls: dict[tuple[int, int], WholeCall] = field(default_factory=dict)
    rotators: dict[int, Rotator] = field(default_factory=dict)
    answers: list[Answer | None] = field(default_factory=list)
    cost: float | None = None
    vectors: dict[tuple[int, int, int], tuple[FloatArray, FloatArray]] = field(default_factory=dict)
    searches: Searches = field(default_factory=Searches)
    line: tuple[str, int] | None = None


@dataclass(slots=True)
class CodeUnderTest:
    """Code in a dtype.

    up_to: number of positions, the last checked is up_to - 1. claimed: the recipe that it is held to; None
    for what right code explains (`recognition.allowance.careful`). thorough: whether what takes long is done
    too: compiling it, and any three axes of served calls together. sizes: whether heads of other sizes are
    tried too.
    environments: names of those that it is called in too. each_call: whether its frequencies follow the
    length of each call (`lengths.followed`), which is then held to those for its own.
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

    def setting_at(self, at: Positions) -> RopeSetting:
        """Return the setting that a call at these positions is held to."""
        return self.setting.for_positions(int(at.max()) + 1) if self.each_call else self.setting

    def rotator(self) -> Rotator:
        """Return a new instance, without a past where that can be."""
        return self.called.rotator()

    def vectors(self, heads: int, length: int) -> tuple[FloatArray, FloatArray]:
        """Return random q and k with all the bits of the dtype. Shapes: -> (h, s, d) twice.

        Code that holds them in a narrower format then shows.
        """
        key = heads, length, self.setting.head_dim
        if key not in self.seen.vectors:
            generator = np.random.default_rng([self.seed, heads, length])
            q, k = (round_to(generator.standard_normal(key), self.dtype) for _ in "qk")
            if q.size > _KEPT:
                return q, k
            self.seen.vectors[key] = q, k
        return self.seen.vectors[key]

    @property
    def order(self) -> str:
        """The axes of what it is given in one call."""
        fit = self.tested.fit(self.setting)
        return fit.convention.order.replace("t", "bs").lower() if fit else "hsd"

    @property
    def composed(self) -> bool:
        """Whether it returns cos and sin, which are applied here."""
        fit = self.tested.fit(self.setting)
        return fit is not None and fit.convention.composed

    def takes_keys(self) -> bool:
        """Return whether it is given k with q in one call."""
        fit = self.tested.fit(self.setting)
        return fit is not None and fit.convention.takes_keys

    def why_no_rows(self) -> str:
        """Return why it is given no row of positions for each batch element."""
        fit = self.tested.fit(self.setting)
        if fit is None or fit.sure:
            return "called so, it takes no row of positions for each batch element"
        return (
            "whether it takes a row of positions for each batch element is not known: plain calls are wrong"
        )

    def judged(self, rotator: Rotator, blocks: Iterable[CalledBlock], **other: Unpack[Held]) -> Places:
        """Return where the worst pair of these calls is: see `verification.judged`."""
        held = self.held() | other
        return verification.judged(blocks, rotator, self.setting, self.dtype, **held)

    def held(self, explain: bool = True) -> Held:
        """Return to what all of its calls are held."""
        return {
            "afresh": self.rotator,
            "rule": self.rule,
            "searches": self.seen.searches,
            "each_call": self.each_call,
            "explain": explain,
        }
