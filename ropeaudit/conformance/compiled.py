"""Whether torch.compile leaves what code computes as it is, to within what roundings explain.

A compiler may fuse and reorder: a right compiled kernel differed from eager in the bits of 36 % of elements.
It may drop a rounding too, so that compiled code is right where the plain call is not: that passes, and is
said.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ropeaudit.conformance.agreement import Agreement
from ropeaudit.conformance.code_under_test import CodeUnderTest
from ropeaudit.conformance.finding import Finding, left_out, not_applicable
from ropeaudit.conformance.whole_calls import some_offsets, whole_call
from ropeaudit.errors import UsageError
from ropeaudit.subjects.calling import arrays, environments
from ropeaudit.subjects.calling.detection import silent, without_logs
from ropeaudit.subjects.calling.own_code import OwnCode
from ropeaudit.subjects.calling.own_rotator import OwnRotator

_LENGTH = 64
_CORRECTS = "it is right at pairs where the plain call is not"
# backend -> options; inductor compiles in this process: a pool of others would outlive the check
_BACKENDS: dict[str, dict[str, Any] | None] = {
    "inductor": {"compile_threads": 1},
    "aot_eager": None,
    "eager": None,
}


def unfit(code: CodeUnderTest) -> str:
    """Return why code is not compiled, nothing where it is."""
    if code.own is None:
        return "an adapter calls it, with arrays of its own"
    engine = code.own.fit(code.setting).convention.engine
    return "" if engine == "torch" else f"it takes {'jax' if engine == 'jax' else 'NumPy'} arrays"


def compiled(code: CodeUnderTest) -> Iterator[Finding]:
    """Yield whether compiled code gives what eager code gives: with inductor, or what else works here."""
    own, reason = code.own, unfit(code)
    if own is None or reason:
        yield not_applicable("compiled", reason)
        return
    if not code.thorough:
        yield left_out("compiled", "a compiler takes longer than all other checks together")
        return
    length, failures = min(_LENGTH, code.up_to), list[str]()
    offsets = some_offsets(code, length, 5)
    wholes = [whole_call(code, offset, length) for offset in offsets]
    for backend in backends():
        words, form = f"compiled with {backend}", _compiled(own, code, backend)
        seen = Agreement(code, words, form, right_passes=True)
        try:
            with without_logs():
                seen.take_all(wholes)
        except UsageError as late:  # it was waited for long enough
            yield not_applicable("compiled", f"torch.compile with {backend}: {late}")
            return
        if not seen.raised:
            detail = f"torch.compile with {backend}, at {len(offsets)} offsets up to {offsets[-1]}"
            corrects = [_CORRECTS] if seen.corrects and not seen.failed else []
            yield seen.finding("compiled", "; ".join([detail, *corrects, *failures]))
            return
        failures.append(f"with {backend} it raises {seen.raised}")
    yield not_applicable("compiled", f"torch.compile does not work: {failures[0]}")


def backends() -> Iterator[str]:
    """Yield the backends that may work here, the usual one first; inductor wants a C++ compiler."""
    has_compiler = environments.has_compiler()
    yield from (name for name in _BACKENDS if has_compiler or name != "inductor")


def _compiled(own: OwnCode, code: CodeUnderTest, backend: str) -> OwnRotator:
    """Return what calls a new instance through torch.compile."""
    rotator = own.rotator(code.setting, code.dtype)
    function = arrays.torch().compile(rotator.instance, backend=backend, options=_BACKENDS[backend])
    return replace(rotator, instance=silent(function))
