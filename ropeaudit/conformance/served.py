"""Whether code is right in calls as servers and trainers make them: any positions, sizes, groups and strides.

Which calls are made, `served_calls` says. Of a call that is wrong, one value after the other is replaced by a
plain one: what is left is what it takes to fail.
Letters: b batch, h heads, s positions, d head_dim.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ropeaudit.arithmetic.formats import FloatArray
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.conformance import served_calls
from ropeaudit.conformance.code_under_test import CodeUnderTest
from ropeaudit.conformance.finding import Finding, judged, not_applicable, noted, of_worst_pair
from ropeaudit.conformance.served_calls import (
    AXES,
    BY_ROW,
    LONG,
    MOST_ALONE,
    PLAIN,
    RUNS,
    SIZES,
    ServedCall,
)
from ropeaudit.conformance.whole_calls import DEAR, cost
from ropeaudit.errors import RopeAuditError, one_line
from ropeaudit.recognition import rotation, verification
from ropeaudit.recognition.diagnosis import Diagnosis
from ropeaudit.recognition.known_recipes import CalledBlock
from ropeaudit.recognition.verification import Places
from ropeaudit.subjects.calling import shapes
from ropeaudit.subjects.calling.arrays import IN_BUFFER, WrongShape, WroteAround
from ropeaudit.subjects.calling.own_rotator import OwnRotator

CHECKS = ("served calls", "memory")
_POOL = 2**18 + 41  # random numbers: where a call needs more, no two rows are alike all the same
_CAUSES = 3  # ways to fail that are told
_UNEXPLAINED = Diagnosis("unexplained")
_SMALL, _ELSEWHERE = 3, 2  # tokens of a call that is explained at so many other places too
_FEW = 24  # calls of code that is slow


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What a call comes to: right, wrong, around (memory), or raises; what it gave, or does instead.

    What comes back in another shape counts as raised: it may repeat heads of k on purpose.
    """

    kind: str
    block: CalledBlock | None = None
    places: Places | None = None
    raised: str = ""


@dataclass(frozen=True, slots=True)
class _Way:
    """A call that fails, the plainest that was seen to, what it takes in words, and what it came to."""

    call: ServedCall
    takes: str
    came: _Outcome


@dataclass(slots=True)
class _Battery:
    """The calls that one instance is given; q and k are parts of the same random numbers.

    left: axis -> why only a part of it is called.
    """

    code: CodeUnderTest
    rotator: OwnRotator
    left: dict[str, str] = field(default_factory=dict)
    pool: list[FloatArray] = field(default_factory=list)

    def __post_init__(self) -> None:
        code = self.code
        for side in (0, 1):
            drawn = np.random.default_rng([code.seed, 5, side]).standard_normal(_POOL)
            self.pool.append(round_to(drawn, code.dtype).astype(code.dtype.carrier))

    def values(self) -> dict[str, list[Any]]:
        """Return the values of each axis that this code can be called with."""
        convention = self.code.tested.fit(self.code.setting).convention  # type: ignore[union-attr]
        values = {axis: list(some) for axis, some in AXES.items()}
        roles, order = set(convention.signature.roles), convention.order
        if convention.signature.unplaced:  # a token that stands elsewhere is one of a longer call
            values["positions"] = ["run from 0"]
            self.left["positions"] = "it takes no positions: the first token is at 0"
        elif "offset" in roles or convention.padded:
            values["positions"] = [*RUNS, "packed"] if convention.padded else list(RUNS)
            takes = "where sequences begin" if convention.padded else "a first position"
            self.left["positions"] = f"it is told {takes} alone"
        elif not self.code.called.by_batch():
            values["positions"] = [kind for kind in values["positions"] if kind not in BY_ROW]
            self.left["rows"] = self.code.why_no_rows()
        if "positions" not in roles:
            values["index"] = ["int64"]
        if not shapes.has(order, "b"):
            values["batch"] = [1]
        if not shapes.has(order, "h"):
            values["heads"], values["groups"] = [1], [1]
        if not convention.grouped:
            values["groups"] = [1]
        if convention.engine == "jax":
            values["strides"] = ["contiguous"]
        elif "qkv" in roles:
            values["strides"] = ["contiguous", "guarded", "stepped"]
        elif "b" not in order:
            values["strides"].remove("expanded")
        values["tokens"] = [tokens for tokens in values["tokens"] if tokens <= self.code.up_to] or [1]
        return values

    def fits(self, call: ServedCall, most: int) -> bool:
        """Return whether the values of a call go together, and it has so many vectors of q at most."""
        return call.goes and call.size <= most and call.tokens <= self.code.up_to

    def calls(self) -> list[ServedCall]:
        """Return the calls, those that are large by one axis alone last."""
        values = self.values()
        calls = served_calls.calls_of(values, self.fits, 3 if self.code.thorough else 2)
        if cost(self.code) > DEAR:
            kept = np.unique(np.linspace(0, len(calls) - 1, _FEW).astype(int))
            self.left["calls"] = f"a call of one token takes {1e3 * cost(self.code):.0f} ms"
            return [replace(calls[i], place=int(i)) for i in kept]
        calls += served_calls.beside(calls, values, self.fits)
        return [replace(call, place=place) for place, call in enumerate(calls)]

    def made(self, call: ServedCall) -> CalledBlock:
        """Make a call. Raises: whatever the code raises, WroteAround."""
        d, sides = self.code.setting.head_dim, []
        for pool, heads in zip(self.pool, (call.heads, call.kv_heads), strict=True):
            shape = call.batch, heads, call.tokens, d
            x = np.resize(pool[: math.prod(shape)], shape)  # again from the first where it ends
            sides.append(np.repeat(x[:1], len(x), axis=0) if call.strides == "expanded" else x)
        rows = served_calls.at(call, self.code.up_to, self.code.seed)
        rotated = self.lying(call).rotate_both(sides[0], sides[1], rows)
        return CalledBlock(rows, (sides[0], sides[1]), rotated)

    def lying(self, call: ServedCall) -> OwnRotator:
        """Return what gives the instance vectors and positions as a call asks for."""
        return self.rotator.lying(call.strides, call.index)

    def places(self, block: CalledBlock, call: ServedCall, *, explain: bool = False) -> Places:
        """Return the worst rotated pair of a call. explain: look for what explains it."""
        code = self.code
        return verification.judged(
            [block],
            self.lying(call),
            code.setting,
            code.dtype,
            afresh=lambda: code.afresh().lying(call.strides, call.index),  # type: ignore[attr-defined]
            rule=code.rule,
            searches=code.seen.searches,
            explain=explain,
            each_call=code.each_call,
        )

    def judged(self, call: ServedCall, explain: bool) -> Places:
        """Make a call and return its worst rotated pair. Raises: whatever the code raises, WroteAround."""
        return self.places(self.made(call), call, explain=explain)

    def explained(self, way: _Way, block: CalledBlock) -> Places:
        """Return the worst rotated pair of a way to fail, with what explains it at other positions too.

        At one position alone two things may explain it.
        """
        found = self.places(block, way.call, explain=True)
        if found.diagnosis is None or way.call.tokens > _SMALL:
            return found
        for place in range(way.call.place + 1, way.call.place + 1 + _ELSEWHERE):
            call = replace(way.call, place=place)
            came = self.outcome(call)
            if came.kind != "wrong" or came.block is None:
                continue
            here, other = found.diagnosis, self.places(came.block, call, explain=True).diagnosis
            if here is not None and other is not None:
                same = here if here.code == other.code else _UNEXPLAINED  # such as of another position
                found = replace(found, diagnosis=rotation.common(here, other) or same)
        return found

    def outcome(self, call: ServedCall) -> _Outcome:
        """Return what a call comes to."""
        try:
            block = self.made(call)
        except RopeAuditError:
            raise
        except WroteAround:
            return _Outcome("around")
        except WrongShape as error:
            return _Outcome("raises", raised=f"it {error}")
        except Exception as error:  # whatever other people's code raises
            return _Outcome("raises", raised=f"it raises {one_line(error)}")
        places = self.places(block, call)
        return _Outcome("right" if places.excess <= 1 else "wrong", block, places)

    def least(self, call: ServedCall, came: _Outcome, values: Mapping[str, Sequence[Any]]) -> _Way:
        """Return the plainest call that was seen to come to the same."""
        seen: dict[ServedCall, str] = {}

        def same(trial: ServedCall) -> bool:
            nonlocal call, came
            if trial == call or not self.fits(trial, MOST_ALONE):
                return False
            found = self.outcome(trial)
            seen[trial] = found.kind
            if found.kind == came.kind:
                call, came = trial, found
            return found.kind == came.kind

        alone = {axis: some[0] for axis, some in values.items() if len(some) == 1}
        plain = replace(PLAIN, place=call.place, **alone)
        for axis in (*AXES, *AXES):  # a value may need another, such as many heads a large group
            same(replace(call, **{axis: getattr(plain, axis)}))
        told = []
        for axis in AXES:
            value, usual = getattr(call, axis), getattr(plain, axis)
            as_usual = replace(call, **{axis: usual})
            if value == usual or (as_usual.goes and not self.fits(as_usual, MOST_ALONE)):
                continue
            if axis in SIZES:
                scale = sorted({*AXES[axis], *(LONG if axis == "tokens" else ()), usual})
                between = [one for one in scale if min(usual, value) < one < max(usual, value)]
                nearer = between if value > usual else between[::-1]
                next((one for one in nearer if same(replace(call, **{axis: one}))), None)
                tried = {one: seen.get(replace(call, **{axis: one})) for one in (usual, *nearer)}
                right = [f" (right with {one:,})" for one, kind in tried.items() if kind == "right"]
                told.append(served_calls.words(axis, getattr(call, axis)) + (right[-1] if right else ""))
            else:
                told.append(served_calls.words(axis, value))
        return _Way(call, ", ".join(told) or "a plain call", came)


def served(code: CodeUnderTest) -> Iterator[Finding]:
    """Yield whether code is right in calls as servers make them, and leaves the memory around q and k alone.

    What it refuses by raising is noted: it passes no wrong numbers on.
    """
    rotator = code.rotator()
    if code.own is None or not isinstance(rotator, OwnRotator):
        reason = "an adapter calls it, with arrays of its own"
        yield from (not_applicable(name, reason) for name in CHECKS)
        return
    battery = _Battery(code, rotator)
    calls, values = battery.calls(), battery.values()
    ways: dict[str, list[_Way]] = {"wrong": [], "around": [], "raises": []}
    worst: Places | None = None
    wrong = list[ServedCall]()
    for number, call in enumerate(calls):
        code.on_share(number / len(calls))
        came = battery.outcome(call)
        if came.places and (worst is None or came.places.excess > worst.excess):
            worst = came.places
        if came.kind == "wrong":
            wrong.append(call)
        known = ways.get(came.kind, [])
        if came.kind != "right" and len(known) < _CAUSES and not any(call.has(way.call) for way in known):
            known.append(battery.least(call, came, values))
    yield from _findings(battery, calls, ways, wrong, worst)
    for way in ways["raises"]:
        yield noted("served calls", f"with {way.takes} {way.came.raised}: such calls are not judged")


def _findings(
    battery: _Battery,
    calls: Sequence[ServedCall],
    ways: Mapping[str, Sequence[_Way]],
    wrong: Sequence[ServedCall],
    worst: Places | None,
) -> Iterator[Finding]:
    code = battery.code
    crossed = "some" if "calls" in battery.left else "any three" if code.thorough else "any two"
    detail = f"{len(calls)} calls: {crossed} of {_listed(battery, calls)}"
    left = "; ".join(f"not called: {_LEFT[what]}: {why}" for what, why in battery.left.items())
    detail = "; ".join(filter(None, (detail, left)))
    shown: list[tuple[ServedCall, Places, list[str]]] = []  # with all ways in which a diagnosis shows
    for way in ways["wrong"]:
        if way.came.block is None:
            continue
        alike = (call for call in wrong if call.has(way.call))
        places = verification.with_other_side(battery.explained(way, way.came.block), battery.judged, alike)
        known = next((takes for _, one, takes in shown if one.diagnosis == places.diagnosis), None)
        if known is None:
            shown.append((way.call, places, [way.takes]))
        elif way.takes not in known:
            known.append(way.takes)
    for way in ways["around"]:
        told = f"it writes beside q and k, into the buffer that they are views of; it takes {way.takes}"
        yield judged("memory", False, told, where=f"with {way.takes}", remedy=_BESIDE)
    for call, places, takes in shown:
        told, where = f"it takes {', or '.join(takes)}", f"with {takes[0]}: {places.words}"
        unexplained = places.diagnosis is not None and not places.diagnosis.explains
        remedy = _BY_STRIDES if unexplained and call.strides != PLAIN.strides else ""
        yield of_worst_pair("served calls", f"{told}; {detail}", places, where=where, remedy=remedy)
    if not ways["wrong"] and worst is not None:
        yield of_worst_pair("served calls", detail, worst)
    elif not ways["wrong"]:
        yield not_applicable("served calls", "it raises in every call")
    buffered = sum(call.strides in IN_BUFFER for call in calls)
    if not buffered:
        yield not_applicable("memory", "its arrays cannot be given in a buffer")
        return
    if not ways["around"]:
        yield judged(
            "memory", True, f"what lies before, between and after q and k stays, in {buffered} calls"
        )


_BY_STRIDES = "read and write each vector by its own strides"
_BESIDE = "write where the strides of each vector say, and not past its end"
_LEFT = {
    "positions": "other positions than runs",
    "rows": "rows at positions of their own",
    "calls": f"more than {_FEW} of them",
}


def _listed(battery: _Battery, calls: Sequence[ServedCall]) -> str:
    values = battery.values()
    sizes = {axis: values[axis] for axis in SIZES if len(values[axis]) > 1}
    parts = [f"{len(values['positions'])} kinds of positions"]
    parts += [f"{min(some)} to {max(some)} {_PLURAL[axis]}" for axis, some in sizes.items()]
    if len(values["groups"]) > 1:
        parts.append("1 to 16 query heads to a key head, one key head")
    parts += [f"{len(values['strides'])} ways to lie in memory"] if len(values["strides"]) > 1 else []
    parts += ["int32 and int64 positions"] if len(values["index"]) > 1 else []
    long = sorted({call.tokens for call in calls} & set(LONG))
    return ", ".join(parts) + (f"; {', '.join(f'{one:,}' for one in long)} tokens alone" if long else "")


_PLURAL = {"tokens": "tokens", "batch": "rows", "heads": "heads"}
