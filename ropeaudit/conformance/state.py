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

import numpy as np

from ropeaudit.arithmetic.formats import FloatArray, Format, parse
from ropeaudit.arithmetic.rounding import bits_differ, round_to
from ropeaudit.conformance import environments
from ropeaudit.conformance.code_under_test import (
    DEAR,
    Agreement,
    Both,
    CodeUnderTest,
    WholeCall,
    called,
    cost,
    runs_at,
    worst,
)
from ropeaudit.conformance.finding import (
    ADAPTER,
    Finding,
    judged,
    not_applicable,
    of_worst_pair,
)
from ropeaudit.errors import ForeignError, did, one_line
from ropeaudit.recognition.diagnosis import Diagnosis
from ropeaudit.recognition.known_recipes import CalledBlock
from ropeaudit.recognition.verification import Places
from ropeaudit.subjects.calling.code import CallOf, Rotator
from ropeaudit.subjects.calling.environments import Environment, chosen
from ropeaudit.subjects.calling.foreign import ForeignRotator

_FURTHER = 4096  # tokens to the positions of a call at another offset
SAME, OTHER_NUMBERS, REFILLED = "the same call", "other q and k", "other positions in the same tensor"
_ALIKE = SAME, OTHER_NUMBERS
_LONGEST = 2**16  # positions of a call from 0
_LENGTH = 64
_OFFSETS = (1000, 0)
_DTYPES = ("fp32", "fp16", "bf16")
_ONCE = (
    "it is loaded once: each call has all those before it in its past, and state left by the very first call "
    "cannot be detected"
)
_ANY = "compute what is stored anew where dtype, length or positions change"
_BY_DTYPE = "store tables in float32 whatever dtype comes in, or make an instance for each dtype"
# kinds of earlier calls that leak, kinds that explain it better, what to do; the first two say all
_REMEDIES: tuple[tuple[set[str], set[str], str], ...] = (
    (
        {SAME},
        set(),
        "use in each call what the first one stored, unchanged: a repeated call differs, or what computes is "
        "not deterministic",
    ),
    ({OTHER_NUMBERS}, set(), "store nothing that hangs on the numbers of q and k"),
    ({"another dtype"}, set(), _BY_DTYPE),
    ({"another dtype from 0"}, {"another dtype", "from 0"}, _BY_DTYPE),
    (
        {"longer", "shorter"},
        set(),
        "compute what is stored anew where the length changes, or for the longest length at once",
    ),
    ({"another offset"}, set(), "take the positions of each call, not those that an earlier call stored"),
    (
        {"from 0"},
        {"longer", "shorter", "another offset"},
        "compute what is stored anew where length or positions change",
    ),
    (
        {REFILLED},
        {"another offset"},
        "take the numbers of positions in each call: callers keep one tensor and fill it anew",
    ),
    ({"other heads"}, set(), "store nothing that has the shape of the heads"),
    ({"other batch"}, set(), "store nothing that has the shape of the batch"),
    (
        {"another environment"},
        set(),
        "make what is stored with a dtype of its own and autocast off, or make an instance for each "
        "environment",
    ),
)


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

    def before(self, up_to: int, environments: Sequence[Environment], axes: str) -> Iterator[Call]:
        """Yield calls to make before it, below `up_to`. axes: those of the code's q."""
        last = max(0, up_to - self.length)
        further = self.first + _FURTHER
        elsewhere = further if further <= last else 0 if self.first else last
        changed: list[tuple[str, dict[str, object]]] = [(SAME, {}), (OTHER_NUMBERS, {})]
        whole: dict[str, object] = {"first": 0, "length": self.first + self.length}
        from_0 = self.first > 0 and self.first + self.length <= _LONGEST
        for name in _DTYPES:
            if (dtype := parse(name)) is not self.dtype:
                changed.append(("another dtype", {"dtype": dtype}))
                changed += [("another dtype from 0", {"dtype": dtype, **whole})] * from_0
        changed += [
            ("longer", {"length": 2 * self.length}),
            ("shorter", {"length": max(1, self.length // 2)}),
            ("another offset", {"first": elsewhere}),
            (REFILLED, {"first": elsewhere}),
        ]
        changed += [("from 0", whole)] * from_0
        changed += [("other heads", {"heads": 2 * self.heads})] * ("h" in axes)
        changed += [("other batch", {"batch": self.batch + 1})] * ("b" in axes)
        changed += [("another environment", {"environment": one}) for one in environments]
        for kind, fields in changed:
            call = replace(self, kind=kind, **fields)  # type: ignore[arg-type]
            alike = kind not in _ALIKE and replace(call, kind=SAME) == self
            if not alike and call.first + call.length <= up_to:
                yield call


def _called_before(code: CodeUnderTest, call: Call, given: Both, instance: Rotator | None) -> Rotator | str:
    """Return an instance that a call was made of, or why that cannot be made.

    given: q and k of the call that follows, (b, h, s, d). instance: a new one by default. Raises: what the
    code raises.
    """
    q, k = given
    if call.kind != SAME:  # the same random numbers in every dtype, rounded to it
        shape = (call.batch, call.heads, call.length, code.setting.head_dim)
        drawn = (round_to(_drawn(code.seed, side, shape), call.dtype) for side in (1, 2))
        q, k = (x.astype(call.dtype.carrier) for x in drawn)
    placed = code.tested.under(call.environment) if call.environment else code.tested
    if reason := placed.refuses(code.setting, call.dtype):
        return reason
    rotator = instance or code.rotator()
    if call.kind == REFILLED and isinstance(rotator, ForeignRotator):
        rotator = rotator.refilling()
    at = np.arange(call.length, dtype=np.int64) + call.first
    rotator.otherwise(call.dtype, call.environment).rotate_both(q, k, at)
    return rotator


@functools.lru_cache(maxsize=4)
def _drawn(seed: int, side: int, shape: tuple[int, ...]) -> FloatArray:
    """Return random numbers, which calls of the same sizes share."""
    return np.random.default_rng([seed, side]).standard_normal(shape)


@dataclass(frozen=True, slots=True)
class _Compared:
    """A call after an earlier one, beside the same call on a new instance."""

    call: Call
    earlier: Call
    agreement: Agreement

    @property
    def differs(self) -> bool:
        return bool(self.agreement.differing or self.agreement.raised)

    def __str__(self) -> str:
        agreement, size = self.agreement, f"by up to {self.agreement.apart:.3g}"
        what = f"{agreement.differing:,} of {agreement.elements:,} numbers differ {size}"
        came = f"it {agreement.raised}" if agreement.raised else what
        return f"{self.call.positions()} after {self.earlier} ({self.earlier.kind}): {came}"


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
        placed, name = code.tested.under(environment), environments.check_name(environment)
        if reason := placed.refuses(code.setting, code.dtype):
            yield not_applicable(f"state {name}", reason)
        else:
            claimed = environments.rule(code, environment)
            yield _finding(replace(code, tested=placed, claimed=claimed), f"state {name}", ())


def _finding(code: CodeUnderTest, name: str, others: Sequence[Environment]) -> Finding:
    """Return the finding. others: environments in which the call is made before itself."""
    length = min(_LENGTH, code.up_to)
    firsts = dict.fromkeys(min(first, code.up_to - length) for first in _OFFSETS)
    compared, refused = list[_Compared](), list[str]()
    for number, first in enumerate(list(firsts)[:1] if cost(code) > DEAR else firsts):
        at = np.arange(length, dtype=np.int64) + first
        plain = called(code, code.rotator(), code.given(length), at)
        after_all = _after_all(code, plain) if number else []
        compared += after_all or _after_each(code, plain, () if number else others, refused)
    if not compared:
        return not_applicable(name, f"no other call works: {refused[0]}" if refused else "no other call fits")
    detail, differs = _detail(code, compared, refused), any(one.differs for one in compared)
    agreement = worst([one.agreement for one in compared])
    finding = agreement.finding(name, detail)
    if agreement.raised:
        finding = replace(finding, detail=f"{finding.detail}; {detail}")
    if finding.failed:
        failing = {one.earlier.kind for one in compared if one.agreement.failed}
        told = [text for kinds, better, text in _REMEDIES if kinds & failing and not better & failing]
        told = told[:1] if failing & {*_ALIKE} else list(dict.fromkeys(told))
        return replace(finding, remedy="; ".join(told) if code.tested.begins_anew else _ANY)
    if differs:
        within = f"what an earlier call left changes numbers, each within what is allowed; {finding.detail}"
        return replace(finding, status="info", detail=within)
    return finding


def _after_all(code: CodeUnderTest, plain: WholeCall) -> list[_Compared]:
    """Return results where one instance makes all calls from the same position; none if one is wrong."""
    refused = list[str]()
    compared = list(_after_each(code, plain, (), refused, code.rotator()))
    compared.sort(key=lambda one: one.earlier.kind not in _ALIKE)  # as they are told elsewhere
    return [] if refused or any(one.differs for one in compared) else compared


def _after_each(
    code: CodeUnderTest,
    plain: WholeCall,
    others: Sequence[Environment],
    refused: list[str],
    instance: Rotator | None = None,
) -> Iterator[_Compared]:
    """Yield the results after each earlier call; add why one failed to `refused`. instance: new ones else."""
    batch, heads, length, _ = plain.block.given[0].shape
    call = Call(code.dtype, int(plain.block.at[0]), length, batch, heads)
    calls = list(call.before(code.up_to, others, code.order))
    if instance is not None:  # what calls alike leave would hide what other ones do
        calls.sort(key=lambda one: one.kind in _ALIKE)
    for earlier in calls:
        if earlier.kind == REFILLED and code.own is None:
            continue  # an adapter makes arrays of its own
        try:
            shared = instance if earlier.first == call.first else None  # else what is kept hides it
            used = _called_before(code, earlier, plain.block.given, shared)
        except ForeignError as error:
            used = one_line(error)
        if isinstance(used, str):
            refused.append(f"{earlier} ({earlier.kind}): {used}")
        else:
            form = Agreement(code, f"after {earlier}", used, code.rotator)
            yield _Compared(call, earlier, form.take_all([plain]))


def _detail(code: CodeUnderTest, compared: Sequence[_Compared], refused: Sequence[str]) -> str:
    """Return the earlier calls in words; first those that change numbers."""
    new = code.tested.begins_anew  # else it is loaded once
    where = dict.fromkeys(one.call.positions() for one in compared)
    parts = [
        f"{' and '.join(where)} after {len(compared)} earlier calls, beside the same call "
        f"{'on a new instance' if new else 'made before'}"
    ]
    parts += [str(one) for one in compared if one.differs]
    for positions in where:
        same = [one for one in compared if not one.differs and one.call.positions() == positions]
        if same:
            names = ", ".join(one.earlier.short(one.call.dtype) for one in same)
            parts.append(f"{positions}: the same to the last bit after {names}")
    if not new:
        parts.append(_ONCE)
    if refused:
        parts.append(f"refused: {'; '.join(dict.fromkeys(refused))}")
    return "; ".join(parts)


_SHORT = 17
_THREADS, _CALLS = 2, 6


def kept(code: CodeUnderTest) -> Iterator[Finding]:
    """Yield whether what a call returned is the same after other calls, such as q's after k's.

    A call alike follows, for a buffer may be kept for each shape, and one of another length.
    """
    rotator = code.rotator()
    if not isinstance(rotator, ForeignRotator):
        yield not_applicable("results", ADAPTER)
        return
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
    rotator = code.rotator()
    if not isinstance(rotator, ForeignRotator):
        yield not_applicable("threads", ADAPTER)
        return
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
