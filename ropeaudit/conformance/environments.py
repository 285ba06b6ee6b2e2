"""Checks of side effects: environments, state between calls, changed inputs, dtypes, threads.

An environment may narrow a rotation: then the allowed error is that of correct code in its dtype, whose
positions, frequencies and angles stay float32. State leaks where the same call differs on a new instance and
on one that was called before: in another dtype, length, offset, environment, or with other heads or rows.
Letters: b batch, h heads, s positions, d head_dim.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ropeaudit import data
from ropeaudit.arithmetic.formats import FloatArray, Format, parse
from ropeaudit.arithmetic.rounding import bits_differ, round_to
from ropeaudit.conformance.code_under_test import DEAR, CodeUnderTest, calls_from, cost, make_call
from ropeaudit.conformance.finding import Finding, judged, not_applicable, noted, of_worst_pair
from ropeaudit.conformance.other_ways import Way, plain_calls, worst
from ropeaudit.errors import ForeignError, RopeAuditError, did, one_line
from ropeaudit.recognition import allowance
from ropeaudit.recognition.diagnosis import Diagnosis
from ropeaudit.recognition.known_recipes import CalledBlock
from ropeaudit.recognition.verification import Places
from ropeaudit.runtime import chance
from ropeaudit.subjects import torch_arrays
from ropeaudit.subjects.calling import environments, exposure
from ropeaudit.subjects.calling.code import Both, CallOf, Rotator
from ropeaudit.subjects.calling.conventions import Answer
from ropeaudit.subjects.calling.environments import Environment
from ropeaudit.subjects.calling.foreign import ForeignRotator

# compile is a check of its own, and only a module can be moved
DEFAULT = tuple(one.name for one in environments.chosen(["all"]) if one.kind not in ("none", "compile"))
COMPILED = "torch.compile"
_LENGTH, _SHORT = 64, 17  # positions of a call
_UNDER = 256  # of one in an environment
_AT = (0, 1000, 40503)  # its offsets, and the last positions
_KEEP = "return x's dtype: .to(x.dtype) behind the rotation"
_FURTHER = 4096  # tokens to the positions of a call at another offset
SAME = "the same call"
OTHER_NUMBERS = "other q and k"
REFILLED = "other positions in the same tensor"
_ALIKE = SAME, OTHER_NUMBERS
_LONGEST = 2**16  # positions of a call from 0
_OFFSETS = (1000, 0)
_DTYPES = ("fp32", "fp16", "bf16")


def check_name(environment: Environment) -> str:
    """Return the name of an environment's check."""
    return f"under {environment.label()}"


def check_names(code: CodeUnderTest) -> list[str]:
    """Return the names of the checks of the environments that code is called in."""
    return [check_name(one) for one in environments.chosen(code.environments)[1:]]


def of_check(name: str) -> list[str]:
    """Return the environment of a check, by the check's name; empty for other checks."""
    known = environments.ENVIRONMENTS.values()
    return [environment.name for environment in known if name == check_name(environment)]


def in_environment(code: CodeUnderTest, environment: Environment) -> CodeUnderTest:
    """Return the code in an environment, with the allowed error of its dtype."""
    dtype = environment.narrowed(code.dtype)
    rule = code.claimed.recipe.resolve(dtype) if code.claimed else allowance.careful(dtype)
    placed = replace(code, tested=code.tested.under(environment), claimed=rule)
    placed.shared = code.shared
    return placed


def under(code: CodeUnderTest) -> Iterator[Finding]:
    """Check the rotation in each environment, compared with plain calls.

    In environments that nobody requested a failure is only noted: correct code need not support them.
    """
    requested = tuple(code.environments) != DEFAULT
    for finding in _under(code, {check_name(one): one for one in environments.chosen(code.environments)[1:]}):
        yield finding if requested or not finding.failed else replace(finding, status="info")


def _under(code: CodeUnderTest, some: Mapping[str, Environment]) -> Iterator[Finding]:
    """Repeat plain calls in environments, and judge them. some: by names of checks."""
    length = min(_UNDER, code.up_to)
    last = code.up_to - length
    offsets = [0, last] if cost(code) > DEAR else [offset for offset in _AT if offset < last] + [last]
    plain: list[CalledBlock] = []
    for name, environment in some.items():
        placed = in_environment(code, environment)
        if reason := placed.tested.refuses(code.setting, code.dtype):
            yield not_applicable(name, reason.removeprefix(f"{environment.name} "))
            continue
        plain = plain or list(plain_calls(code.rotator(), code.batched_vectors(length), offsets))
        way = Way(placed, name, placed.rotator(), right_passes=True).repeat_calls(plain)
        if way.raised and name == COMPILED:
            yield not_applicable(name, f"torch.compile does not work: it {way.raised}")
            continue
        firsts = ", ".join(str(one.first) for one in plain)
        finding = way.finding(name, f"{environment.does}; {length} positions from {firsts} on")
        finding = replace(finding, where=finding.where.removeprefix(f"{name}: "))
        yield finding if way.raised else _with_cause(code, placed, way, finding)


def _with_cause(code: CodeUnderTest, placed: CodeUnderTest, way: Way, finding: Finding) -> Finding:
    """Add to a finding what an environment narrows. placed: the code in it."""
    environment, differs = placed.tested.environment, finding.failed or way.differing
    # else nothing is narrower that shows
    cause = exposure.cause(placed.tested, code.setting, code.dtype) if differs else ""
    returned, by_right = _dtype_clause(code, environment, way.instance)
    within = f"{cause}, within what is allowed here" if cause else ""
    if finding.failed:
        said = [cause or finding.detail, returned]
        remedy = data.table("checks.toml")["under"].get(environment.kind, "") if cause else ""
        finding = replace(finding, remedy=remedy)
    elif by_right:
        said = [finding.detail, within, returned]
    else:
        values = f"its values are within what is allowed ({finding.measured:.3g} of {finding.allowed:.3g})"
        said = [returned, values, within, finding.detail]
        finding = Finding(finding.check, "fail", "", differing=finding.differing, remedy=_KEEP)
    return replace(finding, detail="; ".join(filter(None, said)))


def torch_compile(code: CodeUnderTest) -> Iterator[Finding]:
    """Check that compiled code gives the results of eager code."""
    compiler = environments.ENVIRONMENTS["compile"]
    refused = in_environment(code, compiler).tested.refuses(code.setting, code.dtype)
    if refused or code.thorough:
        yield from _under(code, {COMPILED: compiler})
    else:
        reason = "a compiler takes longer than all other checks together; --thorough makes it"
        yield Finding(COMPILED, "not checked", reason)


def _dtype_clause(
    code: CodeUnderTest,
    environment: Environment,
    rotator: Rotator,
) -> tuple[str, bool]:
    """Describe unusual returned dtypes, and return whether the environment explains them."""
    clean = answer_of(code)
    if clean is None or not isinstance(rotator, ForeignRotator):
        return "", True
    q, k = code.batched_vectors(min(_SHORT, code.up_to))
    answer = rotator.answer(q, k, np.arange(q.shape[2], dtype=np.int64))
    dtypes = {answer.dtype, answer.keys_dtype} - {clean.dtype, clean.keys_dtype}
    if not dtypes:
        return "", True
    casts = environment.dtype if environment.kind == "autocast" else None
    given = torch_arrays.torch_name(code.dtype)
    text = f"{' and '.join(sorted(dtypes))} comes back for {given} (clean: {clean.dtype})"
    return text, casts is not None and dtypes <= {torch_arrays.torch_name(casts)}


_ONE_CALL, _FIRST = 64, 1  # tokens of a call, its first position: position 0 shows nothing: it is not rotated


def answer_of(code: CodeUnderTest) -> Answer | None:
    """Return the result of one call of own code, cached; None for an adapter."""
    if code.own is not None and code.shared.answer is None:
        length = min(_ONE_CALL, code.up_to)
        [call] = calls_from(code.batched_vectors(length), [min(_FIRST, code.up_to - length)])
        code.shared.answer = code.own_rotator().answer(*call)
    return code.shared.answer


def inputs_unmodified(code: CodeUnderTest) -> Iterator[Finding]:
    """Check that inputs are unmodified, but for q and k that are rotated in place."""
    answer = answer_of(code)
    if answer is None:
        return
    some = code.own.overwritten if code.own and not answer.changed else []
    told = ""
    if answer.changed_beside:
        told = f"it changes the {' and '.join(answer.changed_beside)} that it is given"
    elif some:
        told = f"it changes its input in some calls, and returns another array: such as {some[0]}"
    elif answer.changed and not answer.in_place:
        told = "it changes its input, and returns another array"
    kept = "what it is given is afterwards as before"
    right = "it rotates its input where it lies, and returns that or nothing" if answer.changed else kept
    yield judged("inputs-unmodified", not told, told or right)


def keys(code: CodeUnderTest) -> Iterator[Finding]:
    """Note that k is not checked, if code takes k but returns only q."""
    answer = answer_of(code)
    if answer is not None and answer.keys is None and code.takes_keys:
        yield noted("keys", "it takes k and returns q alone: what it does to k was not seen")


def output_dtype(code: CodeUnderTest) -> Iterator[Finding]:
    """Check that results have the dtype of the inputs.

    A narrower dtype fails, as it loses digits or range. A wider one is noted: it loses nothing, but widens
    all that follows, and attention needs q, k and v in one dtype.
    """
    answer, given = answer_of(code), torch_arrays.torch_name(code.dtype)
    if answer is None:
        yield not_applicable("dtype", "an adapter calls it, and hands on numbers alone")
        return
    came = f"{given} comes back in {answer.dtype}"
    if code.composed:
        yield not_applicable("dtype", "it returns cos and sin, which are applied here")
    elif answer.dtype != answer.keys_dtype:
        came = f"q comes back in {answer.dtype} and k in {answer.keys_dtype}, for {given}"
        yield judged("dtype", False, came)
    elif answer.dtype == given:
        narrow = code.own is not None and code.own.narrow_tables(code.setting, code.dtype)
        tables = f" where tables are given in {given}; with float32 ones float32 comes back" * narrow
        yield judged("dtype", True, came + tables)
    elif _holds(answer.dtype, code.dtype):
        yield noted("dtype", f"{came}, which loses nothing, but v is not in it")
    else:
        yield judged("dtype", False, f"{came}, which does not hold every number of it")


def _holds(returned: str, dtype: Format) -> bool:
    """Return whether the format of a name holds every number of a dtype."""
    try:
        wide = parse(returned.removesuffix("fn"))
    except RopeAuditError:
        return False
    range_holds = wide.largest >= dtype.largest and wide.smallest_subnormal <= dtype.smallest_subnormal
    return wide.precision >= dtype.precision and range_holds


@dataclass(frozen=True, slots=True)
class Call:
    """A call of `batch` rows at positions first ... first + length - 1.

    kind: how it differs from the later call. environment: that of this call.
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

    def before(self, code: CodeUnderTest, others: Sequence[Environment]) -> Iterator[Call]:
        """Yield earlier calls that may leave state. others: environments for an earlier call."""
        last = max(0, code.up_to - self.length)
        further = self.first + _FURTHER
        elsewhere = {"first": further if further <= last else 0 if self.first else last}
        whole = {"first": 0, "length": self.first + self.length}
        changed: list[tuple[str, dict[str, Any]]] = [(SAME, {}), (OTHER_NUMBERS, {})]
        for dtype in (one for one in map(parse, _DTYPES) if one is not self.dtype):
            changed.append(("another dtype", {"dtype": dtype}))
            changed.append(("another dtype from 0", {"dtype": dtype, **whole}))
        changed += [
            ("longer", {"length": 2 * self.length}),
            ("shorter", {"length": max(1, self.length // 2)}),
            ("another offset", elsewhere),
            (REFILLED, elsewhere),
            ("from 0", whole),
            ("other heads", {"heads": 2 * self.heads}),
            ("other batch", {"batch": self.batch + 1}),
            *(("another environment", {"environment": one}) for one in others),
        ]
        lacks = {"other heads": "h" not in code.order, "other batch": "b" not in code.order}
        lacks[REFILLED] = not code.own  # an adapter makes arrays of its own
        lacks["another dtype from 0"] = not 0 < self.first <= _LONGEST - self.length
        lacks["from 0"] = lacks["another dtype from 0"]
        for kind, fields in changed:
            call = replace(self, kind=kind, **fields)
            alike = kind not in _ALIKE and replace(call, kind=SAME) == self
            if not lacks.get(kind) and not alike and call.first + call.length <= code.up_to:
                yield call

    def refused(self, code: CodeUnderTest, given: Both, rotator: Rotator) -> str:
        """Make the call; return why it cannot be made, or nothing.

        given: q and k of the later call, (b, h, s, d).
        """
        q, k = given
        if self.kind != SAME:  # the same random numbers in every dtype, rounded to it
            shape = (self.batch, self.heads, self.length, code.setting.head_dim)
            drawn = (round_to(_random_numbers(code.seed, side, shape), self.dtype) for side in (1, 2))
            q, k = (x.astype(self.dtype.carrier) for x in drawn)
        placed = code.tested.under(self.environment) if self.environment else code.tested
        if reason := placed.refuses(code.setting, self.dtype):
            return reason
        try:
            make_call(rotator.in_dtype(self.dtype, self.environment), calls_from((q, k), [self.first])[0])
        except ForeignError as error:
            return one_line(error)
        return ""


@functools.lru_cache(maxsize=16)
def _random_numbers(seed: int, side: int, shape: tuple[int, ...]) -> FloatArray:
    return np.random.default_rng([seed, side]).standard_normal(shape)


def stateless(code: CodeUnderTest) -> Iterator[Finding]:
    """Check that a call gives the same after other calls of the instance, also in environments.

    Differences within the allowed error are noted. Earlier calls that the code refuses are left out.
    """
    others = environments.chosen(code.environments)[1:]
    same = [one for one in others if one.kind != "to"]  # in which the same instance can be called
    yield _state_finding(code, "stateless", same if code.own else ())
    if tuple(code.environments) == DEFAULT:
        return
    for environment in others:
        placed, name = in_environment(code, environment), f"stateless {check_name(environment)}"
        reason = placed.tested.refuses(code.setting, code.dtype)
        yield not_applicable(name, reason) if reason else _state_finding(placed, name, ())


def _calls_after(
    code: CodeUnderTest,
    before: Sequence[Call],
    plain: Sequence[CalledBlock],
    instance: Rotator | None,
) -> tuple[dict[Call, Way], list[str]]:
    """Repeat plain calls after each earlier call; return them, and the refused earlier calls.

    instance: the one that makes all of them; None for a new one each.
    """
    after, refused = dict[Call, Way](), list[str]()
    for number, earlier in enumerate(before, 1):
        used = instance or code.rotator()
        if earlier.kind == REFILLED and isinstance(used, ForeignRotator):
            used = used.reusing_buffers()
        if reason := earlier.refused(code, plain[0].given, used):
            refused.append(f"{earlier} ({earlier.kind}): {reason}")
            continue
        with chance.other(number):  # so that code that draws random numbers differs
            after[earlier] = Way(code, f"after {earlier}", used).repeat_calls(plain)
    return after, refused


def _state_finding(code: CodeUnderTest, name: str, others: Sequence[Environment]) -> Finding:
    """Return the finding of state. others: environments for an earlier call."""
    length = min(_LENGTH, code.up_to)
    given, ways, refused = code.batched_vectors(length), dict[tuple[Call, Call], Way](), list[str]()
    firsts = list(dict.fromkeys(min(first, code.up_to - length) for first in _OFFSETS))
    for first in firsts[:1] if cost(code) > DEAR else firsts:
        call = Call(code.dtype, first, length, *given[0].shape[:2])
        plain = list(plain_calls(code.rotator(), given, [first]))
        before = list(call.before(code, () if ways else others))
        # at the second position one instance makes all of them, and where it leaks nothing, none does
        after, left_out = _calls_after(code, before, plain, code.rotator() if ways else None)
        if ways and (left_out or any(way.differing or way.raised for way in after.values())):
            after, left_out = _calls_after(code, before, plain, None)
        refused += left_out
        ways |= {(call, earlier): way for earlier, way in after.items()}
    if not ways:
        return not_applicable(name, f"no other call works: {refused[0]}" if refused else "no other call fits")
    changes = list[str]()
    for (call, earlier), way in ways.items():
        if way.differing or way.raised:
            size = f"{way.differing:,} of {way.elements:,} numbers differ by up to {way.apart:.3g}"
            came = f"it {way.raised}" if way.raised else size
            changes.append(f"{call.positions()} after {earlier} ({earlier.kind}): {came}")
    new = code.tested.has_fresh_instances  # else it is loaded once
    where = " and ".join(dict.fromkeys(call.positions() for call, _ in ways))
    beside = f"the same call {'on a new instance' if new else 'made before'}"
    parts = [f"{where} after {len(ways)} earlier calls, beside {beside}", *changes]
    parts += [] if new else [data.table("checks.toml")["loaded once"]["detail"]]
    parts += [f"refused: {'; '.join(dict.fromkeys(refused))}"] if refused else []
    named = worst(list(ways.values()))
    finding = named.finding(name, detail := "; ".join(parts))
    if named.raised:
        finding = replace(finding, detail=f"{finding.detail}; {detail}")
    if finding.failed and (finding.diagnosis is None or finding.diagnosis.code != "random"):
        failing = {earlier.kind for (_, earlier), way in ways.items() if way.failed}
        known = [told for kind, told in data.table("checks.toml")["state"].items() if kind in failing]
        fixes = [one["remedy"] for one in known if not failing & set(one.get("unless", ()))]
        fixes = fixes[:1] if failing & {*_ALIKE} else list(dict.fromkeys(fixes))
        fixes = fixes if new else [data.table("checks.toml")["loaded once"]["remedy"]]
        return replace(finding, remedy="; ".join(fixes))
    if changes and not finding.failed:
        within = f"what an earlier call left changes numbers, each within what is allowed; {finding.detail}"
        return replace(finding, status="info", detail=within)
    return finding


_THREADS, _CALLS = 2, 6


def outputs_kept(code: CodeUnderTest) -> Iterator[Finding]:
    """Check that returned arrays are unchanged by later calls, such as q's by k's.

    A call of the same shape follows, as code may reuse a buffer for each shape, and one of another length.
    """
    rotator, both = code.own_rotator(), code.takes_keys
    for length in {min(_LENGTH, code.up_to), 1}:
        q, k = code.batched_vectors(length)
        at = np.arange(length, dtype=np.int64) + min(1, code.up_to - length)
        before = rotator.hold_output(q, k if both else None, at)
        for x, other, some in ((k, q, length), (q, k, min(length, _SHORT))):
            rotator.answer(x[:, :, :some], other[:, :, :some] if both else None, at[:some])
            now = rotator.held_output()
            if differ := sum(int(bits_differ(a, b).sum()) for a, b in zip(before, now, strict=True)):
                share = f"{differ:,} of {sum(x.size for x in before):,} numbers"
                told = (
                    f"{share} that a call of {length} token{'s' * (length > 1)} returned change with the next"
                )
                yield judged("outputs-kept", False, told, diagnosis=Diagnosis("output-shared"))
                return
    yield judged("outputs-kept", True, "what calls of 1 and of many tokens returned is the same after others")


def threads(code: CodeUnderTest) -> Iterator[Finding]:
    """Check that two threads that share an instance both get right results."""
    rotator = code.own_rotator()
    asked = [_calls_of_thread(code, number) for number in range(_THREADS)]
    told = f"{_THREADS} threads, {_THREADS * _CALLS} calls of one instance"

    def placed(results: Iterable[Iterable[Both]]) -> Places:
        both = zip(itertools.chain(*asked), itertools.chain(*results), strict=True)
        blocks = [CalledBlock(at, (q, k), rotated) for (q, k, at), rotated in both]
        return code.judge(rotator, blocks, explain=False)

    try:
        alone = placed([rotator.rotate_both(*call) for call in own] for own in asked)
    except ForeignError as error:
        yield not_applicable("threads", f"it {did(error)} from one thread too")
        return
    if not alone.excess <= 1:
        yield not_applicable("threads", "already wrong in one thread")
        return
    with contextlib.suppress(ForeignError):
        meeting = placed(rotator.at_once(asked))
        if meeting.excess <= 1:
            yield of_worst_pair("threads", told, meeting)
            return
    text = f"{told}: one is wrong or raises; one after the other they are right"
    yield judged("threads", False, text, diagnosis=Diagnosis("threads-meet"))


def _calls_of_thread(code: CodeUnderTest, number: int) -> list[CallOf]:
    """Return calls at different positions and in three lengths."""
    calls = list[CallOf]()
    for turn in range(_CALLS):
        length = min((_LENGTH, _SHORT, 1)[turn % 3], code.up_to)
        q, k = (x[:, :1] for x in code.batched_vectors(length))
        calls += calls_from((q, k), [min(code.up_to - length, 1000 * (_THREADS * turn + number))])
    return calls
