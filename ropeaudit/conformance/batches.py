"""Whether a row is rotated alike alone, in a batch, and at another place of it."""

from __future__ import annotations

from collections.abc import Iterator

from ropeaudit.conformance.agreement import Agreement
from ropeaudit.conformance.call_forms import Alone, CallForm, Reversed
from ropeaudit.conformance.code_under_test import CodeUnderTest
from ropeaudit.conformance.finding import Finding, not_applicable
from ropeaudit.conformance.whole_calls import sizes, some_offsets, whole_call

_LENGTH = 64
_FORMS: dict[str, type[CallForm]] = {"each row alone": Alone, "rows and heads in reverse order": Reversed}


def alone(code: CodeUnderTest) -> Iterator[Finding]:
    """Yield whether a batch element is rotated alike alone and in a batch, whatever its place is."""
    length = min(_LENGTH, code.up_to)
    if max(sizes(code, length)) == 1:
        yield not_applicable("alone", "it takes one row at a time, without heads")
        return
    offsets = some_offsets(code, length, 5)
    done, instance = [], code.rotator()
    for words, form in _FORMS.items():

        def called(form: type[CallForm] = form) -> CallForm:
            return form(code.afresh())

        seen = Agreement(code, words, form(instance), called)
        done.append(seen.take_all(whole_call(code, offset, length) for offset in offsets))
    batch, heads = sizes(code, length)
    detail = f"{', '.join(_FORMS)}, of {batch} rows with {heads} heads at {len(offsets)} offsets"
    yield worst(done).finding("alone", detail)


def worst(seen: list[Agreement]) -> Agreement:
    """Return the first that failed, or the one with the largest error, with the bits of all counted."""
    chosen = next((one for one in seen if one.failed), None) or max(seen, key=lambda one: one.excess)
    differing, elements = sum(one.differing for one in seen), sum(one.elements for one in seen)
    chosen.differing, chosen.elements = differing, elements
    return chosen
