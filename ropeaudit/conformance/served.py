"""Checks of calls as servers and trainers make them: many positions, sizes, groups and strides.

Calls cover every two values of the axes together; values that make a call large are tried alone. A failed
call is simplified: one value after the other is replaced by a plain one, as long as it still fails.
Letters: b batch, h heads, s positions, d head_dim.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ropeaudit import data
from ropeaudit.arithmetic.formats import FloatArray
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.conformance.code_under_test import DEAR, CodeUnderTest, cost, make_call
from ropeaudit.conformance.finding import Finding, judged, not_applicable, noted, of_worst_pair
from ropeaudit.errors import ForeignError, did
from ropeaudit.recognition import rotation, verification
from ropeaudit.recognition.diagnosis import Diagnosis
from ropeaudit.recognition.known_recipes import CalledBlock
from ropeaudit.recognition.verification import NOWHERE, Places
from ropeaudit.runtime import doing
from ropeaudit.subjects import Positions
from ropeaudit.subjects.calling import shapes
from ropeaudit.subjects.calling.arrays import WroteAround
from ropeaudit.subjects.calling.environments import INFERENCE
from ropeaudit.subjects.calling.foreign import ForeignRotator

if TYPE_CHECKING:
    from ropeaudit.subjects.calling.conventions import Convention

CHECKS = ("serving-shapes", "guard-regions")
_TABLE = data.table("served_calls.toml")
AXES: Mapping[str, Sequence[Any]] = _TABLE["axes"]
LONG: Sequence[int] = _TABLE["long"]
_BESIDE: Sequence[Mapping[str, Any]] = _TABLE["beside"]
SIZES = {"tokens": "tokens", "batch": "rows", "heads": "heads"}  # axes whose values have an order, in words
BY_ROW = ("rows", "padded")  # kinds of positions that differ between rows
# vectors of q in a call: usually, where two sizes make it larger, and where one alone does
_USUAL, _MOST, MOST_SINGLE = 2**11, 2**13, 2**16
_POOL = 2**18 + 41  # random numbers: where a call needs more, no two rows are alike all the same
_CAUSES = 3  # ways to fail that are told
_FEW = 24  # calls of code that is slow
_UNEXPLAINED = Diagnosis("unexplained")
_SMALL, _ELSEWHERE = 3, 2  # tokens of a call that is explained at so many other places too
_BY_STRIDES = "read and write each vector by its own strides"
_BESIDE_IT = "write where the strides of each vector say, and not past its end"


@dataclass(frozen=True, slots=True)
class ServedCall:
    """One call: the kind of its positions, its sizes, strides, and the dtype of positions.

    groups: query heads per key head; 0 for a single key head. times: the factor on q and k. place: the seed
    of the positions, so that calls which differ only in sizes share them.
    """

    positions: str = "run"
    tokens: int = 16
    batch: int = 2
    heads: int = 4
    groups: int = 1
    strides: Any = "contiguous"
    index: Any = "int64"
    times: int = 1
    place: int = 0

    @property
    def kv_heads(self) -> int:
        """The number of key heads."""
        return self.heads // self.groups if self.groups else 1

    @property
    def size(self) -> int:
        """The number of vectors of q."""
        return self.tokens * self.batch * self.heads

    @property
    def is_consistent(self) -> bool:
        """Whether groups divide the heads, and rows of positions have several rows."""
        groups = self.groups == 0 or self.heads % self.groups == 0
        return groups and (self.batch > 1 or self.positions not in BY_ROW)

    def includes(self, other: ServedCall) -> bool:
        """Return whether it has all values that differ from a plain call in another, or stronger ones."""
        for axis in AXES:
            value, needed, usual = (getattr(one, axis) for one in (self, other, PLAIN))
            if needed == usual or value == needed:
                continue
            if axis not in SIZES or not (value > needed > usual or value < needed < usual):
                return False
        return True

    def at(self, up_to: int, seed: int) -> Positions:
        """Return its positions, below `up_to`. Shapes: -> (s,) or (b, s)."""
        random = np.random.default_rng([seed, self.place])
        s, b = self.tokens, self.batch
        run, last = np.arange(s, dtype=np.int64), up_to - s
        first = min(int(random.integers(0, up_to)), last)
        firsts = np.r_[last, np.minimum(random.integers(0, up_to, b), last)][:b, None]
        steps = random.integers(1, max(2, min(50, up_to // s)), s)
        starts = random.random(s) < 4 / max(4, s)  # of the sequences of a packed row
        starts[[0, s // 2]] = True
        kinds: dict[str, Callable[[], Positions]] = {
            "run": lambda: first + run,
            "run from 0": lambda: run,
            "rows": lambda: firsts + run,
            "padded": lambda: np.maximum(0, run - np.arange(b)[:, None] * s // (2 * b)),
            "packed": lambda: run - np.maximum.accumulate(np.where(starts, run, 0)),
            "repeated": lambda: first + run // 2,
            "gaps": lambda: np.minimum(np.cumsum(steps), up_to - 1),
            "descending": lambda: first + run[::-1],
            "shuffled": lambda: first + random.permutation(s),
            "far apart": lambda: np.where(run % 2 == 0, run, up_to - 1 - run),
        }
        return np.ascontiguousarray(kinds[self.positions]())


PLAIN = ServedCall()
_Values: TypeAlias = Mapping[str, Sequence[Any]]  # axis -> those that code can be called with
Fits: TypeAlias = Callable[[ServedCall, int], bool]  # whether it may be made, of so many vectors at most


def value_words(axis: str, value: Any) -> str:
    """Return a value of an axis in words.

    >>> value_words("tokens", 1), value_words("groups", 0), value_words("heads", 40)
    ('1 token', 'one key head', '40 heads')
    """
    named = data.table("checks.toml")["served"]
    if axis in ("tokens", "heads"):
        return f"{value:,} {axis if value > 1 else axis[:-1]}"
    kind = {("groups", 0): "one key head", ("strides", "packed"): "packed qkv"}.get((axis, value), value)
    return str(named.get(kind) or named[axis].format(value))


def calls_of(values: _Values, fits: Fits, together: int = 2) -> list[ServedCall]:
    """Return calls that cover all combinations of `together` values of different axes.

    fits: whether a call may be made, with a largest number of vectors. Large calls have the smallest values
    of all other axes.
    """
    covered = set[tuple[tuple[str, Any], ...]]()
    calls: list[ServedCall] = []

    def covered_parts(call: ServedCall) -> int:
        return len(covered.intersection(parts(call)))

    def parts(call: ServedCall) -> Iterable[tuple[tuple[str, Any], ...]]:
        return itertools.combinations([(axis, getattr(call, axis)) for axis in values], together)

    for axes in itertools.combinations(values, together):
        for some in itertools.product(*(values[axis] for axis in axes)):
            chosen = tuple(zip(axes, some, strict=True))
            bases = _bases(values, dict(chosen)) if chosen not in covered else ()
            base = next((one for one in bases if fits(one, _MOST)), None)
            if base is None:
                continue
            for axis in (axis for axis in values if axis not in axes):
                trials = [replace(base, **{axis: value}) for value in values[axis]]
                most = max(_USUAL, base.size)
                base = min((trial for trial in trials if fits(trial, most)), key=covered_parts, default=base)
            calls.append(base)
            covered.update(parts(base))
    return calls


def _bases(values: _Values, chosen: Mapping[str, Any]) -> Iterator[ServedCall]:
    """Yield the smallest calls with some values, then with two rows or more heads."""
    least = _smallest_call(values)
    yield replace(least, **chosen)
    rows: dict[str, Any] = {"batch": 2} if 2 in values.get("batch", ()) else {}
    for heads in values.get("heads", (1,)):
        yield replace(least, **(rows | {"heads": heads, **chosen}))


def _smallest_call(values: _Values) -> ServedCall:
    least: dict[str, Any] = {axis: 1 if 1 in some else some[0] for axis, some in values.items()}
    return replace(PLAIN, **least)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The outcome of a call: right, wrong, around (it wrote beside q and k) or raises.

    takes: in words, the values of the simplest call with this outcome.
    """

    call: ServedCall
    kind: str
    block: CalledBlock | None = None
    places: Places = NOWHERE
    raised: str = ""
    takes: str = ""


def _possible_values(code: CodeUnderTest, convention: Convention) -> tuple[dict[str, list[Any]], str]:
    """Return the values of each axis that code can take, and why some positions are missing."""
    values = {axis: list(some) for axis, some in AXES.items()}
    values |= _TABLE["jax"] if convention.engine == "jax" else {}
    roles, order, left = set(convention.roles), convention.order, ""
    if convention.unplaced:  # a token that stands elsewhere is one of a longer call
        values["positions"], left = ["run from 0"], "it takes no positions: the first token is at 0"
    elif "offset" in roles or convention.padded:
        values["positions"] = ["run", "run from 0"] + ["packed"] * convention.padded
        left = f"it is told {'where sequences begin' if convention.padded else 'a first position'} alone"
    elif left := code.why_no_rows():
        values["positions"] = [kind for kind in values["positions"] if kind not in BY_ROW]
    lacks = {
        "index": "positions" not in roles,
        "batch": not shapes.has(order, "b"),
        "heads": not shapes.has(order, "h"),
        "groups": not convention.grouped or not shapes.has(order, "h"),
        "strides": convention.engine == "jax",
    }
    values |= {axis: values[axis][:1] for axis, alone in lacks.items() if alone}
    if "qkv" in roles and not lacks["strides"]:
        values["strides"] = ["contiguous", "guarded", "stepped"]
    elif "b" not in order and not lacks["strides"]:
        values["strides"].remove("expanded")
    values["tokens"] = [tokens for tokens in values["tokens"] if tokens <= code.up_to] or [1]
    return values, left


@dataclass(slots=True)
class _CallSeries:
    """The calls of one instance; q and k are parts of the same random numbers.

    values: the possible values of each axis.
    """

    code: CodeUnderTest
    values: dict[str, list[Any]]
    pool: list[FloatArray] = field(default_factory=list)
    instance: ForeignRotator = field(init=False)

    def __post_init__(self) -> None:
        self.instance = self.rotator()
        for side in (0, 1):
            drawn = np.random.default_rng([self.code.seed, 5, side]).standard_normal(_POOL)
            self.pool.append(round_to(drawn, self.code.dtype).astype(self.code.dtype.carrier))

    def rotator(self) -> ForeignRotator:
        """Return a new instance, called as servers do: torch in inference mode."""
        rotator = self.code.own_rotator()
        torch = rotator.fit.convention.engine == "torch"
        return rotator.in_dtype(self.code.dtype, INFERENCE) if torch else rotator

    def fits(self, call: ServedCall, most: int) -> bool:
        """Return whether a call's values go together and are small enough."""
        return call.is_consistent and call.size <= most and call.tokens <= self.code.up_to

    def calls(self) -> list[ServedCall]:
        """Return the calls, those with one large axis last; few where calls are slow."""
        every = calls_of(self.values, self.fits, 3 if self.code.thorough else 2)
        calls, beside = [replace(call, place=place) for place, call in enumerate(every)], _BESIDE
        if cost(self.code) > DEAR:
            kept, beside = np.unique(np.linspace(0, len(calls) - 1, _FEW).astype(int)), _BESIDE[-1:]
            calls = [calls[i] for i in kept]
        small = replace(_smallest_call(self.values), positions="run")
        long = _TABLE["long_of_jax"] if self.code.tested.engine == "jax" else LONG
        for chosen in beside:
            known = {axis: (*some, *long) for axis, some in self.values.items()} | {"times": _TABLE["large"]}
            taken = {axis: one for axis, one in chosen.items() if one in known[axis]}
            call = replace(small, **taken, place=len(calls))
            alike = any(replace(one, place=call.place) == call for one in calls)
            calls += [call] if not alike and self.fits(call, MOST_SINGLE) else []
        return calls

    def make_call(self, call: ServedCall) -> CalledBlock:
        """Make a call. Raises: whatever the code raises, WroteAround."""
        d, sides = self.code.setting.head_dim, []
        for pool, heads in zip(self.pool, (call.heads, call.kv_heads), strict=True):
            shape = call.batch, heads, call.tokens, d
            x = np.resize(pool[: math.prod(shape)], shape)  # again from the first where it ends
            sides.append(np.repeat(x[:1], len(x), axis=0) if call.strides == "expanded" else x)
        (q, k), at = (x * x.dtype.type(call.times) for x in sides), call.at(self.code.up_to, self.code.seed)
        return make_call(self.instance.with_layout(call.strides, call.index), (q, k, at))

    def places(self, call: ServedCall, explain: bool, block: CalledBlock | None = None) -> Places:
        """Return the worst rotated pair of a call. explain: whether to diagnose it. block: the made call.

        Raises: as `make_call`.
        """
        how = call.strides, call.index
        held: dict[str, Any] = {"explain": explain, "new_rotator": lambda: self.rotator().with_layout(*how)}
        return self.code.judge(self.instance.with_layout(*how), [block or self.make_call(call)], **held)

    def outcome(self, call: ServedCall) -> _Outcome:
        """Make a call and classify it: right, wrong, raises or writes around its outputs."""
        try:
            block = self.make_call(call)
        except WroteAround:
            return _Outcome(call, "around")
        except ForeignError as error:
            return _Outcome(call, "raises", raised=f"it {did(error)}")
        places = self.places(call, False, block)
        return _Outcome(call, "right" if places.excess <= 1 else "wrong", block, places)

    def explained(self, outcome: _Outcome, alike: Iterable[ServedCall]) -> Places:
        """Return the worst rotated pair of a wrong call, with a diagnosis that also fits other positions.

        A single position may fit two faults. alike: other calls that fail in the same way.
        """
        call, found = outcome.call, self.places(outcome.call, True, outcome.block)
        for place in range(call.place + 1, call.place + 1 + _ELSEWHERE) if call.tokens <= _SMALL else ():
            there = self.outcome(replace(call, place=place))
            if there.kind != "wrong":
                continue
            here, other = found.diagnosis, self.places(there.call, True, there.block).diagnosis
            if here is not None and other is not None:
                same = here if here.code == other.code else _UNEXPLAINED  # such as of another position
                found = replace(found, diagnosis=rotation.common_diagnosis(here, other) or same)
        return verification.with_other_side(found, self.places, alike)

    def simplest(self, outcome: _Outcome) -> _Outcome:
        """Return the simplest call with the same outcome, and its values in words."""
        kinds: dict[ServedCall, str] = {}

        def same(**changed: Any) -> bool:
            """Make a changed call; return whether it has the same outcome, and keep it then."""
            nonlocal outcome
            trial = replace(outcome.call, **changed)
            if trial == outcome.call or not self.fits(trial, MOST_SINGLE):
                return False
            found = self.outcome(trial)
            kinds[trial] = found.kind
            outcome = found if found.kind == outcome.kind else outcome
            return outcome is found

        alone = {axis: some[0] for axis, some in self.values.items() if len(some) == 1}
        plain = replace(PLAIN, place=outcome.call.place, **alone)
        for axis in (*AXES, *AXES):  # a value may need another, such as many heads a large group
            same(**{axis: getattr(plain, axis)})
        takes = []
        for axis in AXES:
            value, usual = getattr(outcome.call, axis), getattr(plain, axis)
            as_usual = replace(outcome.call, **{axis: usual})
            if value == usual or (as_usual.is_consistent and not self.fits(as_usual, MOST_SINGLE)):
                continue
            right = ""
            if axis in SIZES:
                scale = sorted({*AXES[axis], *(LONG if axis == "tokens" else ()), usual})
                between = [one for one in scale if min(usual, value) < one < max(usual, value)]
                nearer = between if value > usual else between[::-1]
                next((one for one in nearer if same(**{axis: one})), None)
                tried = [replace(outcome.call, **{axis: one}) for one in (usual, *nearer)]
                sizes = [getattr(call, axis) for call in tried if kinds.get(call) == "right"]
                right = f" (right with {sizes[-1]:,})" if sizes else ""
            takes.append(value_words(axis, getattr(outcome.call, axis)) + right)
        in_mode = " in torch.inference_mode" * (self.instance.fit.convention.engine == "torch")
        return replace(outcome, takes=", ".join(takes) or f"a plain call{in_mode}")


def serving_shapes(code: CodeUnderTest) -> Iterator[Finding]:
    """Check calls as servers make them, and that memory around q and k is unchanged.

    Calls that raise are noted: an exception passes no wrong numbers on.
    """
    convention = code.own_rotator().fit.convention
    values, left = _possible_values(code, convention)
    battery = _CallSeries(code, values)
    calls, wrong, worst = battery.calls(), list[ServedCall](), NOWHERE
    ways: dict[str, list[_Outcome]] = {"wrong": [], "around": [], "raises": [], "right": []}
    for number, call in enumerate(calls):
        doing.step(number / len(calls))
        outcome = battery.outcome(call)
        worst = max(worst, outcome.places, key=lambda places: places.excess)
        wrong += [call] * (outcome.kind == "wrong")
        known = ways[outcome.kind]
        if (
            outcome.kind != "right"
            and len(known) < _CAUSES
            and not any(call.includes(way.call) for way in known)
        ):
            known.append(battery.simplest(outcome))
    axes = [axis for axis, some in values.items() if len(some) > 1]
    detail = f"{len(calls)} calls of {'three' if code.thorough else 'two'} of {', '.join(axes)} together"
    detail += ", under torch.inference_mode" * (convention.engine == "torch")
    detail += f"; not called with other positions: {left}" if left else ""
    shown: list[tuple[_Outcome, Places, dict[str, None]]] = []  # with all that a diagnosis takes to show
    for way in ways["wrong"]:
        places = battery.explained(way, (call for call in wrong if call.includes(way.call)))
        alike = [takes for _, other, takes in shown if other.diagnosis == places.diagnosis]
        for takes in alike[:1]:
            takes[way.takes] = None
        shown += [] if alike else [(way, places, {way.takes: None})]
    for way, places, takes in shown:
        told, where = f"it takes {', or '.join(takes)}", f"with {way.takes}: {places.words}"
        unexplained = places.diagnosis is not None and not places.diagnosis.explains
        remedy = _BY_STRIDES if unexplained and way.call.strides != PLAIN.strides else ""
        yield of_worst_pair("serving-shapes", f"{told}; {detail}", places, where=where, remedy=remedy)
    if not shown and worst is not NOWHERE:
        yield of_worst_pair("serving-shapes", detail, worst)
    elif not shown:
        yield not_applicable("serving-shapes", "it raises, or writes beside q and k, in every call")
    for way in ways["around"]:
        told = f"it writes beside q and k, into the buffer that they are views of; it takes {way.takes}"
        yield judged("guard-regions", False, told, where=f"with {way.takes}", remedy=_BESIDE_IT)
    buffered = sum(call.strides != "contiguous" for call in calls)
    if not buffered:
        yield not_applicable("guard-regions", "its arrays cannot be given in a buffer")
    elif not ways["around"]:
        stays = f"what lies before, between and after q and k stays, in {buffered} calls"
        yield judged("guard-regions", True, stays)
    for way in ways["raises"]:
        yield noted("serving-shapes", f"with {way.takes} {way.raised}: such calls are not judged")
