"""Explanation of wrong rotated pairs: by a known recipe, a fault, or two faults.

A recipe explains if it gives all of q and k; a fault if it predicts every pair of the wrong heads within the
allowed error, in this call and at other positions. Equally good explanations are its alternatives.
Letters: b batch elements, h heads, s positions, d head_dim, p pairs.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.errors import ForeignError, UsageError
from ropeaudit.recognition import allowance, faults, known_recipes, prediction, solving
from ropeaudit.recognition.diagnosis import Diagnosis, Where, codes
from ropeaudit.recognition.faults import NARROW, OPERANDS, POSITIONS, RIGHT, ROUNDINGS, SETTING, Fault
from ropeaudit.recognition.known_recipes import CalledBlock, RecipeGroup
from ropeaudit.recognition.solving import Vectors
from ropeaudit.rope.scaled import attention_factor, effective_base
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions, exact_rotation
from ropeaudit.subjects.calling.code import Rotator

Vector: TypeAlias = tuple[int, int]  # the batch element, the head
Rows: TypeAlias = NDArray[np.int64]  # numbers of tokens in a call

_COMPARED = 128  # positions that are compared, around the worst
_VECTORS = 4  # and vectors
_FEW = 4  # positions of a row that tell it from others
_CLEAR = 0.3  # what a recipe leaves of the error, at most, that there is without it
_MOST = 3  # recipes that are held to a whole call, the nearest
_NEAREST_POSITIONS = 32  # of a call, the last ones, by which recipes are ranked
_TELLING = 4001  # tokens further on: most of those positions have more than 11 bits
_MULTIPLES = ("rotated-twice", "wrong-direction")  # of positions, whichever those are
_NEAR_STARTS = (0, 64)
_FAR = 0.5  # of the size of vectors: an error that is no rounding of any format
_SHOWS = 0.9  # of the error, at most, is left by a fault beside roundings
# Of a length: rotations in bfloat16 change it by 3 % at most, float8_e4m3 by 13 %, and random pairs agree to
# within this in about a sixth of all cases.
_LENGTH = 0.15
_KEPT = 0.5  # share of pairs whose lengths are kept, of a rotation
_LENGTHS = 1e-3  # of a base: about what a token more changes at a length of some thousands
_IN_VAIN = 4  # times that two faults are looked for: q and k at two offsets
_TOGETHER = (  # kinds of faults of which two are looked for
    *((SETTING, POSITIONS), (SETTING, OPERANDS), (POSITIONS, OPERANDS), (SETTING, SETTING)),
    *((SETTING, ROUNDINGS), (POSITIONS, ROUNDINGS), (OPERANDS, ROUNDINGS)),
)


@dataclass(frozen=True, slots=True)
class MisplacedSide:
    """The wrong part of q or k: heads (b, h), pairs (p,), positions. block: the worst call."""

    heads: NDArray[np.bool_]
    pairs: NDArray[np.bool_]
    positions: Positions
    block: CalledBlock

    @classmethod
    def of(cls, off: NDArray[np.bool_], block: CalledBlock) -> MisplacedSide:
        """Return the wrong part of one call. Shapes: off (b, h, s, p)."""
        heads, pairs, rows = (np.asarray(off.any(axis=axes)) for axes in ((2, 3), (0, 1, 2), (1, 3)))
        return cls(heads, pairs, np.unique(block.rows()[rows]), block)

    def beside(self, before: MisplacedSide, worst: CalledBlock) -> MisplacedSide:
        """Return the union with the wrong part of earlier calls. worst: the worst of all calls."""
        positions = np.concatenate([before.positions, self.positions])
        return MisplacedSide(self.heads | before.heads, self.pairs | before.pairs, positions, worst)


@dataclass(slots=True)
class Searches:
    """The searches for the same code so far. in_vain: how often a search for two faults found none.

    Such a search takes seconds, so it is not repeated at all offsets. steady: kinds of calls whose results
    do not depend on random numbers.
    """

    in_vain: int = 0
    steady: set[tuple[str, int]] = field(default_factory=set)


def explained(
    sides: Mapping[str, MisplacedSide],
    setting: RopeSetting,
    dtype: Format,
    rotator: Rotator,
    searches: Searches | None = None,
    *,
    each_call: bool = False,
) -> dict[str, Diagnosis]:
    """Diagnose each wrong side, for `join_sides`; under the name "" a diagnosis of all of them.

    each_call: whether frequencies follow the length of a call.
    """
    if not sides:
        return {"": Diagnosis("unexplained")}  # right when called again
    block = next(iter(sides.values())).block
    if not any(np.isfinite(x).any() for x in block.rotated):
        x, at, dims = block.given[0][0, 0], block.rows()[0], setting.rotary_dim
        possible = known_recipes.groups(dtype, stepped=setting.grid is None)
        came = ((one.names, known_recipes.rotated(one, x, at, setting)[:, :dims]) for one in possible)
        alike = tuple(name for names, y in came if not np.isfinite(y).any() for name in names)
        return {"": Diagnosis("nonfinite", {"recipes": alike} if alike else {})}
    further = None if each_call or setting.grid is not None else rotator
    if group := explaining_recipe(block, setting, dtype, further):
        return {"": group.diagnosis()}
    if setting.grid is not None:
        return {"": Diagnosis("unexplained")}
    found, fitted = dict[str, Diagnosis](), list[Fault]()
    for name, side in sides.items():
        search = _SideSearch(name, side, setting, dtype, rotator, fitted, searches or Searches(), each_call)
        found[name], fitted = search.diagnosis(), search.fitted
    return found


def explaining_recipe(
    block: CalledBlock, setting: RopeSetting, dtype: Format, rotator: Rotator | None = None
) -> RecipeGroup | None:
    """Return the recipe whose rotation is the returned q and k, the nearest of several; else None.

    Of equally near ones it is the one that is nearest in a further call, or has the fewest narrow stages.
    rotator: makes that call.
    """
    last = np.s_[-_NEAREST_POSITIONS:]  # where errors are largest
    at, both = block.rows()[-1][last], zip(block.given, block.rotated, strict=True)
    sides = [(x[-1, 0][last], y[-1, 0][last]) for x, y in both]
    exact = max(rms(_difference(y, exact_rotation.rotated(x, at, setting))) for x, y in sides)
    left = {
        group: max(rms(_difference(y, known_recipes.rotated(group, x, at, setting))) for x, y in sides)
        for group in known_recipes.candidate_groups(dtype, stepped=setting.grid is None)
    }
    ranked = sorted(left, key=lambda group: (left[group], len(group.narrow)))
    near = [group for group in ranked if left[group] <= _CLEAR * exact][:_MOST]
    held = {group: held_to(group, block, setting, dtype) for group in near}
    least = min(held.values(), default=math.inf)
    equal = [group for group in near if held[group] == least < math.inf]
    if len(equal) > 1 and rotator:
        start = max(getattr(rotator, "starts", ()), default=block.first + _TELLING)
        moved = replace(block, at=block.at - block.first + start)
        with contextlib.suppress(ForeignError):
            far = replace(moved, rotated=rotator.rotate_both(*block.given, moved.at))
            equal.sort(key=lambda group: held_to(group, far, setting, dtype))
    return next(iter(equal), None)


def held_to(group: RecipeGroup, block: CalledBlock, setting: RopeSetting, dtype: Format) -> float:
    """Return the distance of a result from a recipe's; inf if a pair is off by more than two roundings."""
    recipe, tiny, left = group.resolved, 4 * dtype.smallest_subnormal, 0.0
    for x, y in zip(block.given, block.rotated, strict=True):
        for given, output, at in zip(x, y, block.rows(), strict=True):
            off = _difference(output, known_recipes.rotated(group, given, at, setting))
            most = np.zeros((at.size, setting.head_dim // 2)) + allowance.rounding_error(recipe, setting)
            most[:, : setting.pairs] += allowance.phase_error(recipe, setting, at)
            errors, sizes = (np.abs(prediction.paired(one, setting)) for one in (off, given))
            if (errors > 2 * most * (sizes + tiny)).any():
                return math.inf
            left += rms(errors)
    return left


def _difference(y: FloatArray, other: FloatArray) -> FloatArray:
    """Return differences in float64: 0 where both numbers are not finite, inf where one is not."""
    finite, both = np.isfinite(y), np.isfinite(y) & np.isfinite(other)
    with np.errstate(invalid="ignore", over="ignore"):
        off = np.where(both, y.astype(np.float64) - other, np.inf)
    return np.where(finite | np.isfinite(other), off, 0.0)


def join_sides(found: Mapping[str, Diagnosis]) -> Diagnosis:
    """Return one diagnosis of both sides, without sides if both have the same."""
    first, *rest = found.values()
    both = first if "" in found else common_diagnosis(first, rest[0]) if rest else None
    if both is not None:
        return both
    placed = [replace(one, where=replace(one.where, sides=(name,))) for name, one in found.items()]
    placed.sort(key=lambda one: not one.explains)
    return placed[0] if len(placed) == 1 else replace(placed[0], also=(*placed[0].also, *placed[1:]))


def common_diagnosis(first: Diagnosis, second: Diagnosis) -> Diagnosis | None:
    """Return the explanation that two sides have in common; None if there is none."""
    if first.where != second.where:
        return None
    equals = [replace(first, alternatives=()), *first.alternatives]
    others = [replace(second, alternatives=()), *second.alternatives]
    placeless = [replace(one, where=Where()) for one in others]
    both = [one for one in equals if replace(one, where=Where()) in placeless]
    return replace(both[0], where=first.where, alternatives=tuple(both[1:])) if both else None


@dataclass
class _SideSearch:
    """The search for a diagnosis of q, or of k."""

    name: str
    side: MisplacedSide
    setting: RopeSetting
    dtype: Format
    rotator: Rotator
    fitted: list[Fault]  # what was solved for of the other side, then of this one
    searches: Searches
    each_call: bool  # as in `explained`
    alone: bool = False  # whether faults are held to the block alone, not to other positions

    def __post_init__(self) -> None:
        self.index, self.block = "qk".index(self.name), self.side.block
        self.given, self.rotated = (x[self.index] for x in (self.block.given, self.block.rotated))
        every = np.argwhere(self.side.heads)
        some = np.unique(np.linspace(0, len(every) - 1, _VECTORS).round().astype(int))
        self.off = [(b, h) for b, h in every[some].tolist()]
        b = self.off[0][0]  # a batch element that is out of place
        self.at = self.block.rows()[b]
        self.vectors = self._vectors(b, [h for element, h in self.off if element == b])
        self.wrong_rows = np.flatnonzero(np.isin(self.at, self.side.positions))[:_COMPARED]
        self.first = int(self.wrong_rows[0]) if self.wrong_rows.size else 0

    def _vectors(self, b: int, heads: Sequence[int]) -> Vectors:
        """Return some heads of a batch element."""
        x, y = self.given[b][heads], self.rotated[b][heads]
        return Vectors(self.block.rows()[b], x, y, self.setting, self.dtype)

    # ------------------------------------------------------------------------ in which order

    def diagnosis(self) -> Diagnosis:
        """Return the least far-fetched fault that explains the side, and its place."""
        where = self._where()
        single = where.position is not None or where.pair is not None or where.unrotated
        if where.heads or where.batch:  # noise may decide which of them are beyond what is allowed
            every = replace(self, side=replace(self.side, heads=np.ones_like(self.side.heads)))
            x, y = (vectors.reshape(-1, *vectors.shape[2:]) for vectors in (self.given, self.rotated))
            if found := every._explaining(replace(self.vectors, x=x, y=y).longer()):
                return found
        usual = self._known_faults(), self._mixed_rows(), faults.of_roundings(self.dtype)
        found = self._first_explaining(
            *usual, *(() if single else self._solved()), self._unrotated_pairs(), self._rules()
        )
        if not (found or single):
            found = (
                self._from_first_wrong() or self._two_faults() or self._explaining(self.vectors.frequencies())
            )
        chance = found and (found.code == "narrow-positions" or found.certainty == "in this call")
        if where.position is not None and chance:
            # narrow formats leave so little of a position that another fits by chance
            alone = self._other_position()
            rounded = {float(round_to(np.array(float(where.position)), fmt)) for fmt in NARROW}
            found = alone if alone and alone.values["seen"] not in rounded else found
        if not (found := found or self._other_position()):
            lost = (
                self.side.heads.all()
                and share_of_right_lengths(self.given, self.rotated, self.setting) < _KEPT
            )
            return Diagnosis("not-a-rotation" if lost else "unexplained", where=where)
        found = self._as_other_length(found)
        return found if found.where.since is not None else replace(found, where=where)

    def _first_explaining(self, *stages: Iterable[Fault]) -> Diagnosis | None:
        """Return the diagnosis by the first list of faults that explains the side."""
        return next(filter(None, map(self._explaining, stages)), None)

    def _explaining(self, tried: Iterable[Fault]) -> Diagnosis | None:
        """Return the first fault that explains this and further calls, with its alternatives."""
        here = [fault for fault in tried if self._explains(fault, self.block)]
        holding = here
        recorded = getattr(self.rotator, "starts", ())  # of calls that were made: right ones show no rounding
        for start in (recorded or _probe_starts(self.block.first)) if here and not self.alone else ():
            if probe := self._probed(start):
                holding = [fault for fault in holding if self._explains(fault, probe, shows=not recorded)]
        holding = self._nearest(holding or (here if recorded else []))
        self.fitted = [fault for fault in holding if fault.fitted][:1] or self.fitted
        usual = [fault for fault in holding if not fault.fitted]  # what is fitted comes near by its making
        told = [fault.diagnosis for fault in usual or holding[:1]]
        if any(one.code == "missing-scaling" for one in told):  # the other changes nothing
            told = [one for one in told if one.code != "other-scaling"]
        if not told:  # but one number that explains all pairs does not come near by its making
            sure = (one for one in here if not one.fitted or one.diagnosis.code == "wrong-base")
            sure = (one for one in sure if one.diagnosis.code != "rounded-pi")  # so little fits by chance
            seldom = [one.diagnosis for one in sure if not one.diagnosis.also]
            told = [replace(one, certainty="in this call") for one in seldom[:1]]
        unique = [one for number, one in enumerate(told) if one not in told[:number]]
        return replace(unique[0], alternatives=tuple(unique[1:])) if unique else None

    def _nearest(self, holding: list[Fault]) -> list[Fault]:
        """Keep of the faults with a recipe only the nearest, one for each code."""
        left = {number: self._residual(one) for number, one in enumerate(holding) if one.recipe}
        least, kept = min(left.values(), default=0.0), dict[int | str, Fault]()
        for number, one in enumerate(holding):
            if left.get(number, 0.0) <= least:
                kept.setdefault(codes(one.diagnosis) if one.recipe else number, one)
        return list(kept.values())

    def _probed(self, start: int, rows: slice = np.s_[:]) -> CalledBlock | None:
        """Repeat the call at positions from `start` on; None where it raises. rows: their order."""
        moved = replace(self.block, at=self.block.at[rows] - self.block.first + start)
        if self.each_call and self.setting.for_positions(int(moved.at.max()) + 1) != self.setting:
            return None
        try:
            return replace(moved, rotated=self.rotator.rotate_both(*self.block.given, moved.at))
        except ForeignError:
            return None

    # ------------------------------------------------------------------------ prediction and score

    def _explains(
        self,
        fault: Fault,
        block: CalledBlock,
        *,
        shows: bool = True,
    ) -> bool:
        """Return whether a fault explains some vectors of a call: at a few positions, then at many."""
        size, off = block.length, self.wrong_rows if block is self.block else np.arange(0)
        few = np.unique(np.r_[: min(2, size), size // 2, max(0, size - 2) : size, off[:1]])
        many = np.unique(np.r_[few, np.linspace(0, size - 1, _COMPARED).astype(int)])
        many = np.unique(np.r_[many, : min(_COMPARED, size), off])
        return all(
            self._fits(fault, block, vector, places, shows=shows)
            for places, count in ((few, 1), (many, _VECTORS))
            for vector in self.off[:count]
        )

    def _fits(
        self,
        fault: Fault,
        block: CalledBlock,
        vector: Vector,
        places: Rows,
        *,
        shows: bool,
    ) -> bool:
        """Return whether a fault explains a vector at some tokens of a call."""
        (b, h), rows = vector, block.rows()
        z, w, expected = self._predicted(fault, block, vector, places)
        left = rms(w - expected)
        if not left <= _FAR * max(rms(z), rms(expected)):
            return False
        at, taken = rows[b][places], fault.positions(rows, h)[b][places]
        most, size = prediction.allowed(fault, self.setting, at, taken, self.dtype), np.abs(z)
        if fault.bends:
            size = np.maximum(size, np.abs(expected))
        with np.errstate(invalid="ignore", over="ignore"):
            off = np.abs(w - expected) - 4 * self.dtype.smallest_subnormal
            if not (off <= most[:, : size.shape[1]] * size).all():
                return False
            if shows and (fault.recipe or fault.rounded):  # else they do not show
                plain = replace(fault, recipe=None, rounded=None)
                _, w, expected = self._predicted(plain, block, vector, places)
                return left <= _CLEAR * rms(w - expected)
        return True

    def _predicted(
        self, fault: Fault, block: CalledBlock, vector: Vector, places: Rows
    ) -> tuple[faults.Complex, faults.Complex, faults.Complex]:
        """Return a vector's pairs as passed, as returned and as predicted by a fault.

        With the dims that are not rotated, where those are wrong or are other dims.
        """
        (b, h), other = vector, fault.setting(self.setting)
        x = block.given[1 - self.index if fault.crossed else self.index][b, h][places]
        y, taken = block.rotated[self.index][b, h][places], fault.positions(block.rows(), h)[b][places]
        rest = other.rotary_dim != self.setting.rotary_dim or self.side.pairs[self.setting.pairs :].any()
        expected = prediction.predicted(fault, self.setting, x, taken, self.dtype)
        some = np.s_[:, : None if rest else other.pairs]
        return prediction.paired(x, other)[some], prediction.paired(y, other)[some], expected[some]

    def _residual(self, fault: Fault, number: int = 0) -> float:
        """Return the RMS distance of a wrong vector from a fault's prediction."""
        every = np.arange(self.block.length)[-_COMPARED:]
        _, w, expected = self._predicted(fault, self.block, self.off[number], every)
        return rms(w - expected)

    def _explains_part(self, fault: Fault) -> bool:
        """Return whether a fault reduces the error of some vector."""
        numbers = range(len(self.off))  # one that is of some heads or rows alone shows in those
        return any(self._residual(fault, n) <= _SHOWS * self._residual(RIGHT, n) for n in numbers)

    def _differ(self, fault: Fault, other: Fault = RIGHT) -> bool:
        """Return whether two faults predict different results for the wrong vectors."""
        (q, k), rows = self.block.given, self.block.rows()
        if fault.crossed != other.crossed:
            return q is not k and q.shape == k.shape
        whats = ((one.turn, one.longer, one.grows, one.recipe, one.rounded) for one in (fault, other))
        if next(whats) != next(whats) or fault.setting(self.setting) != other.setting(self.setting):
            return True
        taken = ((fault.positions(rows, h)[b], other.positions(rows, h)[b]) for b, h in self.off)
        return any(not np.array_equal(*pair) for pair in taken)

    # ------------------------------------------------------------------------ candidates of this side

    def _known_faults(self) -> Iterator[Fault]:
        """Yield the known faults that change this call, and rows chosen by the other side's heads."""
        alone = self.side.heads.shape[1] == 1  # one head does not tell whether each gets its own
        own, other = (self.block.given[index].shape[1] for index in (self.index, 1 - self.index))

        def move(rows: Positions, head: int) -> Positions:
            taken = np.minimum((np.arange(len(rows)) * own + head) // other, len(rows) - 1)
            return np.asarray(rows[taken])

        by_heads = Fault(Diagnosis("rows-by-other-heads", {"seen": other, "asked": own}), move=move)
        settings = (fault for fault in faults.of_settings(self.setting) if not fault.fitted)
        factor, operands = attention_factor(self.setting.scaling), faults.of_operands(self.setting)
        positions = faults.of_positions(self.first, int(self.at[self.first]), factor)
        reduced = faults.of_rounded_pi(self.setting)
        for fault in (*settings, *reduced, *positions, *operands, *([by_heads] if own != other else ())):
            if not (alone and fault.diagnosis.code == "rotated-by-head") and self._differ(fault):
                yield fault

    def _mixed_rows(self) -> Iterator[Fault]:
        """Yield the fault of batch elements that are rotated by the positions of other rows."""
        rows = self.block.rows()
        if self.block.at.ndim == 1:
            return
        taken, few = np.arange(len(rows)), np.arange(min(_FEW, self.block.length))
        others = [faults.position_fault("positions-of-another-row", row) for row in taken.tolist()]
        for b in np.flatnonzero(self.side.heads.any(axis=1)).tolist():
            vector = b, int(np.argmax(self.side.heads[b]))
            came = (self._predicted(other, self.block, vector, few) for other in others)
            taken[b] = np.argmin([rms(w - expected) for _, w, expected in came])
        if (moved := np.flatnonzero(taken != np.arange(len(rows)))).size:
            told = {"row": int(moved[0]), "seen": int(taken[moved[0]])}
            fault = Fault(Diagnosis("rows-mixed-up", told), move=lambda rows, head: rows[taken])
            fit = getattr(self.rotator, "fit", None)
            if fit and fit.convention.takes("mask", "padding"):
                there = self._probed(self.block.first, np.s_[::-1])  # the longest row is another one
                code = Diagnosis("padding-counted")
                padded = Fault(code, move=lambda at, head: at - at[:, :1] + at[:, 0].max())
                fault = padded if there and self._explains(padded, there) else fault
            yield fault

    def _unrotated_pairs(self) -> Iterator[Fault]:
        off = self.side.pairs[: self.setting.pairs]
        if off.any() and not off.all() and not self.side.pairs[self.setting.pairs :].any():
            told = Diagnosis("pairs-left-out", {"pairs": tuple(np.flatnonzero(off).tolist())})
            yield Fault(told, turn=lambda z, turns: np.where(off, z, z * turns))

    def _rules(self, beside: Fault = RIGHT) -> Iterator[Fault]:
        """Yield position maps solved from the wrong vectors, combined with another fault."""
        shown, asked = self.vectors.first, beside.setting(self.setting)
        if beside.rounded:
            shown = replace(shown, x=round_to(shown.x, beside.rounded))
        if beside.recipe:
            theta = round_to(allowance.frequencies(asked), beside.recipe.resolved.frequency[1])
            asked = faults.of_frequencies(asked, theta.astype(np.float64))
        wrong = np.isin(self.at, self.side.positions)
        seen = replace(shown, setting=asked).positions(wrong if wrong.any() else ~wrong)
        mirrored = solving.rules({here: -best for here, best in seen.items()}, int(self.at[0]))
        turned_back = (rule.combined(faults.position_fault("wrong-direction")) for rule in mirrored)
        for rule in itertools.chain(solving.rules(seen, int(self.at[0])), turned_back):
            yield beside.combined(rule) if beside.change else rule.combined(beside)

    def _solved(self) -> tuple[Iterable[Fault], ...]:
        """Return the faults solved from the wrong vectors: factors, settings, base."""
        shown = self.vectors
        first = shown.first.longer(), shown.longer_by_power(self.name), self.fitted
        return (*first, shown.settings(), shown.base())

    def _from_first_wrong(self) -> Diagnosis | None:
        """Diagnose the vectors from the first wrong position on."""
        if not self.first:
            return None
        begin = np.s_[..., self.first :, :]
        given, rotated = ((q[begin], k[begin]) for q, k in (self.block.given, self.block.rotated))
        later = self._in_block(CalledBlock(self.block.at[..., self.first :], given, rotated))
        factor, *_, base = later._solved()
        found = later._first_explaining(factor, base, faults.of_roundings(self.dtype))
        if not found or any(self._explains(fault, self.block) for fault in later.fitted):
            return found
        return replace(found, where=Where(until=int(self.at[0]), since=int(later.at[0])))

    def _in_block(self, block: CalledBlock) -> _SideSearch:
        """Return the search in another block, without tests at further positions."""
        return replace(self, side=replace(self.side, block=block), alone=True)

    def _two_faults(self) -> Diagnosis | None:
        """Return two faults that explain the side only together."""
        if self.searches.in_vain >= _IN_VAIN:
            return self._narrow_output()
        fitted, sized = list(self.vectors.settings()), self.vectors.first.longer(clear=True)
        every = [*self._known_faults(), *fitted, *sized, *faults.of_roundings(self.dtype)]
        groups = (SETTING, POSITIONS, OPERANDS, ROUNDINGS)
        by = {group: [one for one in every if one.group == group] for group in groups}
        beside = {
            group: list(filter(self._explains_part, by[group])) for group in groups[:3]
        }  # beside roundings

        def pairs() -> Iterator[Fault]:
            for first, second in _TOGETHER:
                those = (beside if second == ROUNDINGS else by)[first]
                both: Iterable[tuple[Fault, Fault]] = itertools.product(those, by[second])
                if first == second:
                    both = itertools.combinations(those, 2)
                for one, other in both:
                    if one.diagnosis.code != other.diagnosis.code and self._both_matter(one, other):
                        yield one.combined(other)
            for one, other in itertools.permutations(by[POSITIONS], 2):
                if other.diagnosis.code in _MULTIPLES and one.diagnosis.code != other.diagnosis.code:
                    yield one.combined(other)

        narrow = (one for one in by[ROUNDINGS] if one.rounded or one.diagnosis.code == "narrow-frequencies")
        ruled = itertools.chain.from_iterable(map(self._rules, (*by[SETTING], *narrow)))
        found = self._first_explaining(pairs(), ruled) or self._near_start()
        self.searches.in_vain += found is None
        return found or self._narrow_output() or self._beside_narrow_output((*self._known_faults(), *fitted))

    def _near_start(self) -> Diagnosis | None:
        """Return roundings found near position 0, where float32 angles are exact enough."""
        for start in _NEAR_STARTS:
            if start >= self.block.first or (near := self._probed(start)) is None:
                return None
            there = self._in_block(near)
            if there._explains(RIGHT, near):
                return None
            known = list(filter(self._explains_part, self._known_faults()))
            rounded = list(faults.of_roundings(self.dtype))
            both = (one.combined(other) for one, other in itertools.product(known, rounded))
            for some in (rounded, both):
                if found := there._explaining(
                    one for one in some if self._explains(one, self.block, shows=False)
                ):
                    return found
        return None

    def _beside_narrow_output(self, usual: Sequence[Fault]) -> Diagnosis | None:
        """Return a fault that explains the side together with an output rounded to a narrower format."""
        for fmt in (one for one in NARROW if one.unit_roundoff > self.dtype.unit_roundoff):
            coarser, narrow = replace(self, dtype=fmt), Diagnosis("narrow-output", {"format": str(fmt)})
            sized, usual = coarser.vectors.first.longer(clear=True), list(filter(self._explains_part, usual))
            if found := coarser._explaining(itertools.chain(usual, sized, coarser._rules())):
                first, *equals = (faults.join(one, narrow) for one in (found, *found.alternatives))
                return replace(first, alternatives=tuple(equals))
        return None

    def _narrow_output(self) -> Diagnosis | None:
        """Return the format whose roundings explain the vectors."""
        x, y = self.vectors.x[None], self.vectors.y[None]
        return allowance.narrower_format(self.setting, self.dtype, (x,), (y,), self.at)

    def _both_matter(self, one: Fault, other: Fault) -> bool:
        """Return whether each of two faults changes the result of the other."""
        both, rows = one.combined(other), self.block.rows()
        try:
            differ = self._differ(both, one) and self._differ(both, other)
        except UsageError:  # numbers of one scaling for each pair, and another number of pairs
            return False
        # nothing is told of a setting at position 0
        return differ and any(both.positions(rows, h)[b].any() for b, h in self.off)

    # ------------------------------------------------------------------------ where, and what it is else

    def _where(self) -> Where:
        """Return the wrong batch elements, heads, position or pair."""
        side, where, pairs = self.side, Where(), np.flatnonzero(self.side.pairs)
        batch, heads = (np.flatnonzero(side.heads.any(axis=axis)).tolist() for axis in (1, 0))
        if len(batch) < len(side.heads):
            where = replace(where, batch=tuple(batch))
        if len(heads) < (every := side.heads.shape[1]):
            where = replace(where, heads=tuple(heads), of_heads=every)
        if side.positions.size == 1 and side.block.length > 2:
            return replace(where, position=int(side.positions[0]))
        if (pairs >= self.setting.pairs).all():
            return replace(where, unrotated=True)
        if pairs.size == 1 and side.pairs.size > 2:
            return replace(where, pair=int(pairs[0]))
        return where

    def _as_other_length(self, found: Diagnosis) -> Diagnosis:
        """Replace a wrong base by the length at which dynamic scaling gives it, if one does."""
        asked, scaling = self.setting, self.setting.scaling
        if found.code != "wrong-base" or scaling.kind != "dynamic" or not scaling.maximum:
            return found
        wanted = effective_base(replace(asked, base=float(str(found.values["base"])))) / asked.base
        stretch = wanted ** (1 - 2 / asked.rotary_dim) - 1
        length = max(0, round(scaling.maximum * (1 + stretch / scaling.stretch)))
        near = abs(effective_base(replace(asked, length=length)) / asked.base / wanted - 1) <= _LENGTHS
        if not near or length in (asked.length, int(scaling.maximum)):
            return found
        values = {"seen": f"dynamic(length={length})", "asked": f"dynamic(length={asked.length})"}
        return replace(found, code="other-scaling", values=values, alternatives=(found, *found.alternatives))

    def _other_position(self) -> Diagnosis | None:
        """Diagnose rotation by another position, if the first and last wrong head agree on it."""
        if self.side.pairs[self.setting.pairs :].any():
            return None
        heads, found = np.argwhere(self.side.heads).tolist(), list[tuple[int, int]]()
        for b, h in (heads[0], heads[-1]):
            shown = self._vectors(b, [h])
            seen = shown.positions(np.isin(shown.at, self.side.positions))
            found += [(one, best) for one, best in seen.items() if one != best][:1] or [(0, 0)]
        if found[0] != found[1] or found[0] == (0, 0):
            return None
        return Diagnosis("another-position", {"position": found[0][0], "seen": found[0][1]})


def share_of_right_lengths(x: FloatArray, y: FloatArray, setting: RopeSetting) -> float:
    """Return the share of pairs whose length is that of a rotation, but for roundings."""
    before, after = (np.abs(exact_rotation.complex_pairs(vectors, setting)) for vectors in (x, y))
    expected = before * attention_factor(setting.scaling)
    with np.errstate(invalid="ignore", over="ignore"):
        return float(np.mean(~(np.abs(after - expected) > _LENGTH * expected)))


def rms(x: NDArray[Any]) -> float:
    """Return the root of the mean square of numbers."""
    return float(np.sqrt(np.mean(np.abs(x) ** 2)))


def _probe_starts(first: int) -> Iterator[int]:
    """Yield first positions at which faults differ, the farther ones last."""
    for part in (1, 2, 3, 4, 6, 7):
        start = first * part // 8 + 111 * part
        if 0 < start < first:
            yield start
    for share in (37, 45, 79):  # not a power of two
        yield first * share // 100
    yield first + 333
