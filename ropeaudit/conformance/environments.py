"""What a call does beside rotating, and whether code is right where it runs: autocast, TF32, a default dtype.

What an environment does by right is allowed: where it narrows a rotation, the allowance is that of right code
in that dtype, whose positions, frequencies and angles are float32 all the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ropeaudit.arithmetic.formats import Format, parse
from ropeaudit.conformance.code_under_test import DEAR, CodeUnderTest, cost
from ropeaudit.conformance.finding import Finding, judged, not_applicable, noted
from ropeaudit.conformance.other_ways import Way, plain_calls
from ropeaudit.errors import RopeAuditError
from ropeaudit.recognition import allowance
from ropeaudit.subjects import torch_arrays
from ropeaudit.subjects.calling import environments, exposure
from ropeaudit.subjects.calling.code import Rotator
from ropeaudit.subjects.calling.conventions import Answer
from ropeaudit.subjects.calling.environments import Environment
from ropeaudit.subjects.calling.foreign import ForeignRotator

# compile is a check of its own, and only a module can be moved
DEFAULT = tuple(one.name for one in environments.chosen(["all"]) if one.kind not in ("none", "compile"))
_LENGTH, _SHORT = 256, 8
_OFFSETS = (0, 1000, 40503)  # and the last positions
_REMEDIES = {
    "autocast": "form angles in float32 with autocast off: torch.autocast(x.device.type, enabled=False)",
    "tf32": "multiply element by element: positions[:, None] * inv_freq",
    "to": "keep inv_freq out of casts, or compute it anew in forward, in float32",
    "default-dtype": "give each tensor its dtype where it is made: torch.arange(..., dtype=torch.float32)",
}
_KEEP = "return x's dtype: .to(x.dtype) behind the rotation"


def check_name(environment: Environment) -> str:
    """Return what the check of an environment is called."""
    return f"under {environment.label()}"


def check_names(code: CodeUnderTest) -> list[str]:
    """Return the names of the checks of the environments that code is called in."""
    return [check_name(one) for one in environments.chosen(code.environments)[1:]]


def of_check(name: str) -> list[str]:
    """Return the environment of a check, by its name; none for other checks."""
    known = environments.ENVIRONMENTS.values()
    return [environment.name for environment in known if name == check_name(environment)]


def inside(code: CodeUnderTest, environment: Environment) -> CodeUnderTest:
    """Return code as called in an environment, held to a narrower dtype where that is natural there."""
    dtype = environment.narrowed(code.dtype)
    rule = code.claimed.recipe.resolve(dtype) if code.claimed else allowance.careful(dtype)
    placed = replace(code, tested=code.tested.under(environment), claimed=rule)
    placed.seen = code.seen
    return placed


def under(code: CodeUnderTest) -> Iterator[Finding]:
    """Yield whether code rotates right in each environment, where the plain call does.

    Those that nobody requested are noted where it does not: code that is right is not wrong for them.
    """
    requested = tuple(code.environments) != DEFAULT
    for environment in environments.chosen(code.environments)[1:]:
        placed = inside(code, environment)
        if reason := placed.tested.refuses(code.setting, code.dtype):
            yield not_applicable(check_name(environment), reason)
        else:
            finding = _finding(code, placed, environment)
            yield finding if requested or not finding.failed else replace(finding, status="info")


def _finding(code: CodeUnderTest, placed: CodeUnderTest, environment: Environment) -> Finding:
    """Return whether a call in an environment is right, or what narrows it. placed: the code in it."""
    name = check_name(environment)
    length = min(_LENGTH, code.up_to)
    last = max(0, code.up_to - _LENGTH)
    offsets = sorted({0, last, *(offset for offset in _OFFSETS if offset < last)})
    offsets = [0, last] if cost(code) > DEAR else offsets
    way = Way(placed, name, placed.rotator(), right_passes=True)
    way.take(plain_calls(code.rotator(), code.given(length), offsets))
    finding = way.finding(
        name, f"{environment.does}; {length} positions from {', '.join(map(str, offsets))} on"
    )
    finding = replace(finding, where=finding.where.removeprefix(f"{name}: "))
    if way.raised:
        return finding
    of_code = placed.tested, code.setting, code.dtype
    cause, (returned, by_right) = exposure.cause(*of_code), _other_dtype(code, environment, way.instance)
    within = f"{cause}, within what is allowed here" if cause else ""
    if finding.failed:
        shown = {offsets[way.calls - 1], *({1000} & {*offsets})}
        left = [exposure.consequence(*of_code, offset, length) for offset in sorted(shown)]
        told = "; ".join(str(one) for one in left if one is not None and one.shows)
        said = [": ".join(filter(None, (cause, told))) or finding.detail, returned]
        finding = replace(finding, remedy=_REMEDIES.get(environment.kind, "") if cause else "")
    elif by_right:
        said = [finding.detail, within, returned]
    else:
        values = f"its values are within what is allowed ({finding.measured:.3g} of {finding.allowed:.3g})"
        said = [returned, values, within, finding.detail]
        finding = Finding(name, "fail", "", differing=finding.differing, remedy=_KEEP)
    return replace(finding, detail="; ".join(filter(None, said)))


def _other_dtype(code: CodeUnderTest, environment: Environment, rotator: Rotator) -> tuple[str, bool]:
    """Return a clause on unusual dtypes, and whether the environment makes them."""
    clean = answer_of(code)
    if clean is None or not isinstance(rotator, ForeignRotator):
        return "", True
    q, k = code.given(min(_SHORT, code.up_to))
    answer = rotator.answer(q, k, np.arange(q.shape[2], dtype=np.int64))
    dtypes = {answer.dtype, answer.keys_dtype} - {clean.dtype, clean.keys_dtype}
    if not dtypes:
        return "", True
    casts = environment.dtype if environment.kind == "autocast" else None
    given = torch_arrays.spelled(code.dtype)
    text = f"{' and '.join(sorted(dtypes))} comes back for {given} (clean: {clean.dtype})"
    return text, casts is not None and dtypes <= {torch_arrays.spelled(casts)}


_ONE_CALL, _FIRST = 64, 1  # tokens of a call, its first position: position 0 shows nothing: it is not rotated


def answer_of(code: CodeUnderTest) -> Answer | None:
    """Return what one call came to; None where an adapter makes it."""
    if code.own is not None and code.seen.answer is None:
        length = min(_ONE_CALL, code.up_to)
        q, k = code.given(length)
        at = np.arange(length, dtype=np.int64) + min(_FIRST, code.up_to - length)
        code.seen.answer = code.own_rotator().answer(q, k, at)
    return code.seen.answer


def inputs_unchanged(code: CodeUnderTest) -> Iterator[Finding]:
    """Yield whether inputs stay the same; q and k may be the result."""
    answer = answer_of(code)
    if answer is None:
        return
    some = code.own.overwritten if code.own and not answer.changed else []
    wrong = [
        (answer.changed_beside, f"it changes the {' and '.join(answer.changed_beside)} that it is given"),
        (some, f"it changes its input in some calls, and returns another array: such as {''.join(some[:1])}"),
        (answer.changed and not answer.in_place, "it changes its input, and returns another array"),
    ]
    kept = "what it is given is afterwards as before"
    right = "it rotates its input where it lies, and returns that or nothing" if answer.changed else kept
    told = next((text for fails, text in wrong if fails), "")
    yield judged("inputs", not told, told or right)


def keys(code: CodeUnderTest) -> Iterator[Finding]:
    """Yield that k is not seen, if code takes it but returns q alone."""
    answer = answer_of(code)
    if answer is not None and answer.keys is None and code.takes_keys:
        yield noted("keys", "it takes k and returns q alone: what it does to k was not seen")


def output_dtype(code: CodeUnderTest) -> Iterator[Finding]:
    """Yield whether what is returned has the dtype of what is given.

    A narrower one fails, as it loses digits or range; a wider one is a warning: it loses nothing, but makes
    all that follows wider, and attention wants q, k and v in one dtype.
    """
    answer, given = answer_of(code), torch_arrays.spelled(code.dtype)
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
    """Return whether a format, by its name, holds every number of a dtype."""
    try:
        wide = parse(returned.removesuffix("fn"))
    except RopeAuditError:
        return False
    range_holds = wide.largest >= dtype.largest and wide.smallest_subnormal <= dtype.smallest_subnormal
    return wide.precision >= dtype.precision and range_holds
