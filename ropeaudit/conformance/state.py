"""State that leaks: whether a call gives the same after other calls on the same instance.

The same call is made on a new instance and on one that was called before: in another dtype, for another
length, at another offset, with other heads or rows, in another environment.
Letters: b batch, h heads, s positions, d head_dim.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ropeaudit.arithmetic.formats import FloatArray, Format, parse
from ropeaudit.arithmetic.rounding import bits_differ, round_to
from ropeaudit.conformance import environments
from ropeaudit.conformance.agreement import (
    DEAR,
    Agreement,
    WholeCall,
    called,
    cost,
    worst,
)
from ropeaudit.conformance.code_under_test import Both, CodeUnderTest
from ropeaudit.conformance.finding import ADAPTER, Finding, judged, not_applicable, of_worst_pair
from ropeaudit.errors import ForeignError, did, one_line
from ropeaudit.recognition.diagnosis import Diagnosis
from ropeaudit.recognition.known_recipes import CalledBlock
from ropeaudit.recognition.verification import Places
from ropeaudit.subjects import Positions
from ropeaudit.subjects.calling.code import Rotator
from ropeaudit.subjects.calling.environments import Environment, chosen
from ropeaudit.subjects.calling.foreign import ForeignRotator

FURTHER = 4096  # tokens to the positions of a call at another offset
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
_REMEDIES = {  # what leaks -> what to do about it
    SAME: "use in each call what the first one stored, unchanged: a repeated call differs, or what computes "
    "is not deterministic",
    OTHER_NUMBERS: "store nothing that hangs on the numbers of q and k",
    "dtype": "store tables in float32 whatever dtype comes in, or make an instance for each dtype",
    "length": "compute what is stored anew where the length changes, or for the longest length at once",
    "offset": "take the positions of each call, not those that an earlier call stored",
    REFILLED: "take the numbers of positions in each call: callers keep one tensor and fill it anew",
    "length or offset": "compute what is stored anew where length or positions change",
    "heads": "store nothing that has the shape of the heads",
    "batch": "store nothing that has the shape of the batch",
    "environment": "make what is stored with a dtype of its own and autocast off, or make an instance for "
    "each environment",
}


@dataclass(frozen=True, slots=True)
class AuditCall:
    """A call of `batch` rows at positions first ... first + length - 1."""

    dtype: Format
    first: int
    length: int
    batch: int = 1
    heads: int = 1

    def positions(self) -> str:
        """Return its positions in words."""
        return f"positions {self.first} to {self.first + self.length - 1}"


@dataclass(frozen=True, slots=True)
class EarlierCall:
    """A call made before another. kind: how it differs. environment: its own alone."""

    kind: str
    call: AuditCall
    environment: Environment | None = None

    def __str__(self) -> str:
        """Return it in words."""
        words = f"a call in {self.call.dtype.name} at {self.call.positions()}"
        if self.kind in ("other heads", "other batch"):
            words += f" of {self.call.batch} x {self.call.heads} heads"
        words += ", in the same tensor" if self.kind == REFILLED else ""
        return f"{words} under {self.environment.label()}" if self.environment else words

    def short(self, dtype: Format) -> str:
        """Return how it differs from a call in a dtype, in a few words."""
        other = self.environment.label() if self.environment else self.call.dtype.name
        return f"{self.kind} ({other})" if self.environment or self.call.dtype is not dtype else self.kind


def earlier_calls(
    call: AuditCall,
    dtypes: Sequence[Format],
    up_to: int,
    environments: Sequence[Environment] = (),
    axes: str = "bh",
) -> list[EarlierCall]:
    """Return calls to make first, below `up_to`. axes: those of the code's q."""
    dtype, first, length = call.dtype, call.first, call.length
    last = max(0, up_to - length)
    elsewhere = first + FURTHER if first + FURTHER <= last else 0 if first else last
    from_0 = replace(call, first=0, length=first + length)
    has_0 = first > 0 and from_0.length <= _LONGEST
    changed: list[tuple[str, AuditCall]] = []
    for other in dtypes:
        if other is not dtype:
            changed.append(("another dtype", replace(call, dtype=other)))
            changed += [("another dtype from 0", replace(from_0, dtype=other))] * has_0
    changed += [
        ("longer", replace(call, length=2 * length)),
        ("shorter", replace(call, length=max(1, length // 2))),
        ("another offset", replace(call, first=elsewhere)),
        (REFILLED, replace(call, first=elsewhere)),
    ]
    changed += [("from 0", from_0)] * has_0
    changed += [("other heads", replace(call, heads=2 * call.heads))] * ("h" in axes)
    changed += [("other batch", replace(call, batch=call.batch + 1))] * ("b" in axes)
    alike = [EarlierCall(SAME, call), EarlierCall(OTHER_NUMBERS, call)]
    alike += [EarlierCall(kind, other) for kind, other in changed if other != call]
    alike += [EarlierCall("another environment", call, environment) for environment in environments]
    return [one for one in alike if one.call.first + one.call.length <= up_to]


def called_before(
    code: CodeUnderTest,
    earlier: EarlierCall,
    given: tuple[FloatArray, FloatArray],
    instance: Rotator | None = None,
) -> Rotator | str:
    """Return an instance that an earlier call was made of, or why that cannot be made.

    given: q and k of the call itself, (b, h, s, d). instance: a new one by default. Raises: what the code
    raises.
    """
    before = earlier.call
    if earlier.kind == SAME:
        q, k = given
    else:  # the same random numbers in every dtype, rounded to it
        shape = (before.batch, before.heads, before.length, code.setting.head_dim)
        drawn = (round_to(_drawn(code.seed, side, shape), before.dtype) for side in (1, 2))
        q, k = (x.astype(before.dtype.carrier) for x in drawn)
    at = np.arange(before.length, dtype=np.int64) + before.first
    placed = code.tested.under(earlier.environment) if earlier.environment else code.tested
    if reason := placed.refuses(code.setting, before.dtype):
        return reason
    rotator = instance or code.rotator()
    if earlier.kind == REFILLED and isinstance(rotator, ForeignRotator):
        rotator = rotator.refilling()
    rotator.otherwise(before.dtype, earlier.environment).rotate_both(q, k, at)
    return rotator


@functools.lru_cache(maxsize=4)
def _drawn(seed: int, side: int, shape: tuple[int, ...]) -> FloatArray:
    """Return random numbers, which calls of the same sizes share."""
    return np.random.default_rng([seed, side]).standard_normal(shape)


@dataclass(frozen=True, slots=True)
class _Compared:
    """A call after an earlier one, beside the same call on a new instance."""

    call: AuditCall
    earlier: EarlierCall
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
        return replace(finding, remedy=_remedy(failing) if code.tested.begins_anew else _ANY)
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
    call = AuditCall(code.dtype, int(plain.block.at[0]), length, batch, heads)
    dtypes = [parse(name) for name in _DTYPES]
    calls = earlier_calls(call, dtypes, code.up_to, others, code.order)
    if instance is not None:  # what calls alike leave would hide what other ones do
        calls.sort(key=lambda one: one.kind in _ALIKE)
    for earlier in calls:
        if earlier.kind == REFILLED and code.own is None:
            continue  # an adapter makes arrays of its own
        try:
            shared = instance if earlier.call.first == call.first else None  # else what is kept hides it
            used = called_before(code, earlier, plain.block.given, shared)
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


def _remedy(kinds: Collection[str]) -> str:
    """Return what to do about state that leaks after earlier calls of these kinds."""
    for kind in _ALIKE:  # in which all others have their share
        if kind in kinds:
            return _REMEDIES[kind]
    leaking = []
    if "another dtype" in kinds or ("another dtype from 0" in kinds and "from 0" not in kinds):
        leaking.append("dtype")
    if "longer" in kinds or "shorter" in kinds:
        leaking.append("length")
    if "another offset" in kinds:
        leaking.append("offset")
    if "from 0" in kinds and not {"length", "offset"} & {*leaking}:
        leaking.append("length or offset")
    leaking += [REFILLED] if REFILLED in kinds and "another offset" not in kinds else []
    leaking += [name for name in ("heads", "batch") if f"other {name}" in kinds]
    leaking += ["environment"] if "another environment" in kinds else []
    return "; ".join(_REMEDIES[one] for one in leaking)


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
            differ = sum(int(bits_differ(a, b).sum()) for a, b in zip(before, now, strict=True))
            if differ:
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
    calls = [list(_calls(code, number)) for number in range(_THREADS)]
    asked = [[(*block.given, block.at) for block in own] for own in calls]
    told = f"{_THREADS} threads, {_THREADS * _CALLS} calls of one instance"

    def placed(results: list[list[Both]]) -> Places:
        both = zip(itertools.chain(*calls), itertools.chain(*results), strict=True)
        blocks = [CalledBlock(block.at, block.given, rotated) for block, rotated in both]
        return code.judged(rotator, blocks, explain=False)

    try:
        alone = placed([[rotator.rotate_both(*call) for call in own] for own in asked])
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


def _calls(code: CodeUnderTest, number: int) -> Iterator[CalledBlock]:
    """Yield the calls of a thread, each with its own positions, in three lengths."""
    for turn in range(_CALLS):
        length = min((_LENGTH, _SHORT, 1)[turn % 3], code.up_to)
        q, k = code.given(length)
        last = max(0, code.up_to - length)
        at: Positions = np.arange(length, dtype=np.int64) + min(last, 1000 * (_THREADS * turn + number))
        given: tuple[FloatArray, FloatArray] = q[:, :1], k[:, :1]
        yield CalledBlock(at, given, given)
