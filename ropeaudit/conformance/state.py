"""State that leaks: whether a call gives the same after other calls on the same instance.

The same call is made on a new instance and on one that was called before: in another dtype, for another
length, at another offset, with other heads or rows, in another environment.
Letters: b batch, h heads, s positions, d head_dim.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ropeaudit.arithmetic.formats import FloatArray, Format, parse
from ropeaudit.arithmetic.rounding import bits_differ, round_to
from ropeaudit.conformance import environments
from ropeaudit.conformance.code_under_test import DEAR, Both, CodeUnderTest, cost, runs_at
from ropeaudit.conformance.finding import Finding, judged, not_applicable, of_worst_pair
from ropeaudit.conformance.other_ways import Way, plain_calls, worst
from ropeaudit.errors import ForeignError, did, one_line
from ropeaudit.recognition.diagnosis import Diagnosis
from ropeaudit.recognition.known_recipes import CalledBlock
from ropeaudit.recognition.verification import Places
from ropeaudit.subjects.calling.code import CallOf, Rotator
from ropeaudit.subjects.calling.environments import Environment, chosen
from ropeaudit.subjects.calling.foreign import ForeignRotator

_FURTHER = 4096  # tokens to the positions of a call at another offset
SAME = "the same call"
OTHER_NUMBERS = "other q and k"
REFILLED = "other positions in the same tensor"
_ALIKE = SAME, OTHER_NUMBERS
_LONGEST = 2**16  # positions of a call from 0
_LENGTH, _SHORT = 64, 17
_OFFSETS = (1000, 0)
_DTYPES = ("fp32", "fp16", "bf16")
_ONCE = (
    "it is loaded once: each call has all those before it in its past, and state left by the very first call "
    "cannot be detected"
)
_ANY = "compute what is stored anew where dtype, length or positions change"
_BY_DTYPE = "store tables in float32 whatever dtype comes in, or make an instance for each dtype"
_BY_LENGTH = "compute what is stored anew where the length changes, or for the longest length at once"
# kind of an earlier call that leaks -> what to do, and kinds that explain it better; the first two say all
_REMEDIES: dict[str, tuple[str, set[str]]] = {
    SAME: (
        "use in each call what the first one stored, unchanged: a repeated call differs, or what computes is "
        "not deterministic",
        set(),
    ),
    OTHER_NUMBERS: ("store nothing that hangs on the numbers of q and k", set()),
    "another dtype": (_BY_DTYPE, set()),
    "another dtype from 0": (_BY_DTYPE, {"another dtype", "from 0"}),
    "longer": (_BY_LENGTH, set()),
    "shorter": (_BY_LENGTH, set()),
    "another offset": ("take the positions of each call, not those that an earlier call stored", set()),
    "from 0": (
        "compute what is stored anew where length or positions change",
        {"longer", "shorter", "another offset"},
    ),
    REFILLED: (
        "take the numbers of positions in each call: callers keep one tensor and fill it anew",
        {"another offset"},
    ),
    "other heads": ("store nothing that has the shape of the heads", set()),
    "other batch": ("store nothing that has the shape of the batch", set()),
    "another environment": (
        "make what is stored with a dtype of its own and autocast off, or make an instance for each "
        "environment",
        set(),
    ),
}


@dataclass(frozen=True, slots=True)
class Call:
    """A call of `batch` rows at positions first ... first + length - 1.

    kind: how it differs from the one that it is made before. environment: its own alone.
    """

    dtype: Format
    first: int
    length: int
    batch: int = 1
    heads: int = 1
    kind: str = SAME
    environment: Environment | None = None

    def positions(self) -> str:
        """Return its positions in words."""
        return f"positions {self.first} to {self.first + self.length - 1}"

    def __str__(self) -> str:
        """Return it in words."""
        words = f"a call in {self.dtype.name} at {self.positions()}"
        if self.kind in ("other heads", "other batch"):
            words += f" of {self.batch} x {self.heads} heads"
        words += ", in the same tensor" if self.kind == REFILLED else ""
        return f"{words} under {self.environment.label()}" if self.environment else words

    def short(self, dtype: Format) -> str:
        """Return how it differs from a call in a dtype, in a few words."""
        other = self.environment.label() if self.environment else self.dtype.name
        return f"{self.kind} ({other})" if self.environment or self.dtype is not dtype else self.kind

    def before(self, code: CodeUnderTest, others: Sequence[Environment]) -> Iterator[Call]:
        """Yield calls to make before it. others: environments in which it is made before itself."""
        last = max(0, code.up_to - self.length)
        further = self.first + _FURTHER
        elsewhere = further if further <= last else 0 if self.first else last
        whole = {"first": 0, "length": self.first + self.length}
        from_0 = self.first > 0 and self.first + self.length <= _LONGEST
        changed: list[tuple[str, dict[str, Any]]] = [(SAME, {}), (OTHER_NUMBERS, {})]
        for dtype in map(parse, _DTYPES):
            if dtype is not self.dtype:
                changed.append(("another dtype", {"dtype": dtype}))
                changed += [("another dtype from 0", {"dtype": dtype, **whole})] * from_0
        changed += [
            ("longer", {"length": 2 * self.length}),
            ("shorter", {"length": max(1, self.length // 2)}),
        ]
        changed.append(("another offset", {"first": elsewhere}))
        if code.own:  # an adapter makes arrays of its own
            changed.append((REFILLED, {"first": elsewhere}))
        changed += [("from 0", whole)] * from_0
        changed += [("other heads", {"heads": 2 * self.heads})] * ("h" in code.order)
        changed += [("other batch", {"batch": self.batch + 1})] * ("b" in code.order)
        changed += [("another environment", {"environment": one}) for one in others]
        for kind, fields in changed:
            call = replace(self, kind=kind, **fields)
            alike = kind not in _ALIKE and replace(call, kind=SAME) == self
            if not alike and call.first + call.length <= code.up_to:
                yield call

    def made(self, code: CodeUnderTest, given: Both, instance: Rotator | None) -> Rotator | str:
        """Return an instance that it was made of, or why it cannot be made.

        given: q and k of the call that follows, (b, h, s, d). instance: a new one by default.
        """
        q, k = given
        if self.kind != SAME:  # the same random numbers in every dtype, rounded to it
            shape = (self.batch, self.heads, self.length, code.setting.head_dim)
            drawn = (round_to(_drawn(code.seed, side, shape), self.dtype) for side in (1, 2))
            q, k = (x.astype(self.dtype.carrier) for x in drawn)
        placed = code.tested.under(self.environment) if self.environment else code.tested
        if reason := placed.refuses(code.setting, self.dtype):
            return reason
        rotator = instance or code.rotator()
        if self.kind == REFILLED and isinstance(rotator, ForeignRotator):
            rotator = rotator.refilling()
        at = np.arange(self.length, dtype=np.int64) + self.first
        try:
            rotator.otherwise(self.dtype, self.environment).rotate_both(q, k, at)
        except ForeignError as error:
            return one_line(error)
        return rotator


@functools.lru_cache(maxsize=4)
def _drawn(seed: int, side: int, shape: tuple[int, ...]) -> FloatArray:
    """Return random numbers, which calls of the same sizes share."""
    return np.random.default_rng([seed, side]).standard_normal(shape)


def state(code: CodeUnderTest) -> Iterator[Finding]:
    """Yield whether a call gives the same after others on the same instance, in requested environments too.

    Other bits within what is allowed are noted. What the code refuses before is left out, and said.
    """
    others = chosen(code.environments)[1:]
    same = [one for one in others if one.kind != "to"]  # in which the same instance can be called
    yield _finding(code, "state", same if code.own else ())
    if tuple(code.environments) == environments.DEFAULT:
        return
    for environment in others:
        inside = environments.inside(code, environment)
        name = environments.check_name(environment)
        if reason := inside.tested.refuses(code.setting, code.dtype):
            yield not_applicable(f"state {name}", reason)
        else:
            yield _finding(inside, f"state {name}", ())


def _after(
    code: CodeUnderTest,
    before: Sequence[Call],
    plain: Sequence[CalledBlock],
    instance: Rotator | None,
) -> tuple[dict[Call, Way], list[str]]:
    """Return what calls after earlier ones come to, and those that were refused.

    instance: the one that makes all of them; None for a new one each.
    """
    after, refused = dict[Call, Way](), list[str]()
    for earlier in before:
        if isinstance(used := earlier.made(code, plain[0].given, instance), str):
            refused.append(f"{earlier} ({earlier.kind}): {used}")
        else:
            after[earlier] = Way(code, f"after {earlier}", used).take(plain)
    return after, refused


def _finding(code: CodeUnderTest, name: str, others: Sequence[Environment]) -> Finding:
    """Return the finding. others: environments in which the call is made before itself."""
    length = min(_LENGTH, code.up_to)
    given = code.given(min(_LENGTH, code.up_to))
    firsts = list(dict.fromkeys(min(first, code.up_to - length) for first in _OFFSETS))
    ways = dict[tuple[Call, Call], Way]()
    same = dict[str, list[str]]()
    refused = list[str]()
    changes = list[str]()
    for first in firsts[:1] if cost(code) > DEAR else firsts:
        call = Call(code.dtype, first, length, *given[0].shape[:2])
        plain = list(plain_calls(code.rotator(), given, [first]))
        before = list(call.before(code, () if ways else others))
        # at the second position one instance makes all of them, and where it leaks nothing, none does
        after, left_out = _after(code, before, plain, code.rotator() if ways else None)
        if ways and (left_out or any(way.differing or way.raised for way in after.values())):
            after, left_out = _after(code, before, plain, None)
        refused += left_out
        for earlier, way in after.items():
            ways[call, earlier] = way
            if way.differing or way.raised:
                size = f"{way.differing:,} of {way.elements:,} numbers differ by up to {way.apart:.3g}"
                came = f"it {way.raised}" if way.raised else size
                changes.append(f"{call.positions()} after {earlier} ({earlier.kind}): {came}")
            else:
                same.setdefault(call.positions(), []).append(earlier.short(call.dtype))
    if not ways:
        return not_applicable(name, f"no other call works: {refused[0]}" if refused else "no other call fits")
    new = code.tested.begins_anew  # else it is loaded once
    where = " and ".join(dict.fromkeys(call.positions() for call, _ in ways))
    beside = f"the same call {'on a new instance' if new else 'made before'}"
    parts = [f"{where} after {len(ways)} earlier calls, beside {beside}", *changes]
    parts += [f"{at}: the same to the last bit after {', '.join(kinds)}" for at, kinds in same.items()]
    parts += [] if new else [_ONCE]
    parts += [f"refused: {'; '.join(dict.fromkeys(refused))}"] if refused else []
    named = worst(list(ways.values()))
    finding = named.finding(name, detail := "; ".join(parts))
    if named.raised:
        finding = replace(finding, detail=f"{finding.detail}; {detail}")
    if finding.failed:
        failing = {earlier.kind for (_, earlier), way in ways.items() if way.failed}
        known = [told for kind, told in _REMEDIES.items() if kind in failing]
        told = [text for text, better in known if not better & failing]
        told = told[:1] if failing & {*_ALIKE} else list(dict.fromkeys(told))
        return replace(finding, remedy="; ".join(told) if new else _ANY)
    if changes:
        within = f"what an earlier call left changes numbers, each within what is allowed; {finding.detail}"
        return replace(finding, status="info", detail=within)
    return finding


_THREADS, _CALLS = 2, 6


def kept(code: CodeUnderTest) -> Iterator[Finding]:
    """Yield whether what a call returned is the same after other calls, such as q's after k's.

    A call alike follows, for a buffer may be kept for each shape, and one of another length.
    """
    rotator = code.own_rotator()
    both = rotator.fit.convention.takes_keys
    for length in {min(_LENGTH, code.up_to), 1}:
        q, k = code.given(length)
        at = np.arange(length, dtype=np.int64) + min(1, code.up_to - length)
        before = rotator.kept(q, k if both else None, at)
        for x, other, some in ((k, q, length), (q, k, min(length, _SHORT))):
            rotator.answer(x[:, :, :some], other[:, :, :some] if both else None, at[:some])
            now = rotator.kept_now()
            if differ := sum(int(bits_differ(a, b).sum()) for a, b in zip(before, now, strict=True)):
                tokens = "1 token" if length == 1 else f"{length} tokens"
                share = f"{differ:,} of {sum(x.size for x in before):,} numbers"
                told = f"{share} that a call of {tokens} returned change with the next"
                yield judged("results", False, told, diagnosis=Diagnosis("output-shared"))
                return
    yield judged("results", True, "what calls of 1 and of many tokens returned is the same after others")


def threads(code: CodeUnderTest) -> Iterator[Finding]:
    """Yield whether two threads that share an instance both get their results."""
    rotator = code.own_rotator()
    asked = [_calls(code, number) for number in range(_THREADS)]
    told = f"{_THREADS} threads, {_THREADS * _CALLS} calls of one instance"

    def placed(results: Iterable[Iterable[Both]]) -> Places:
        both = zip(itertools.chain(*asked), itertools.chain(*results), strict=True)
        blocks = [CalledBlock(at, (q, k), rotated) for (q, k, at), rotated in both]
        return code.judged(rotator, blocks, explain=False)

    try:
        alone = placed([rotator.rotate_both(*call) for call in own] for own in asked)
    except ForeignError as error:
        yield not_applicable("threads", f"it {did(error)} from one thread too")
        return
    if not alone.excess <= 1:
        yield not_applicable("threads", "calls from one thread are wrong too")
        return
    with contextlib.suppress(ForeignError):
        meeting = placed(rotator.at_once(asked))
        if meeting.excess <= 1:
            yield of_worst_pair("threads", told, meeting)
            return
    text = f"{told}: one is wrong or raises; one after the other they are right"
    yield judged("threads", False, text, diagnosis=Diagnosis("threads-meet"))


def _calls(code: CodeUnderTest, number: int) -> list[CallOf]:
    """Return the calls of a thread, each with its own positions, in three lengths."""
    calls = list[CallOf]()
    for turn in range(_CALLS):
        length = min((_LENGTH, _SHORT, 1)[turn % 3], code.up_to)
        q, k = (x[:, :1] for x in code.given(length))
        offset = min(max(0, code.up_to - length), 1000 * (_THREADS * turn + number))
        calls += runs_at((q, k), [offset])
    return calls
