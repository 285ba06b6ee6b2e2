"""Whether code reads its input where the strides say, and not as if it lay in one piece."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ropeaudit.conformance.agreement import Agreement, worst
from ropeaudit.conformance.code_under_test import CodeUnderTest
from ropeaudit.conformance.finding import Finding, not_applicable
from ropeaudit.conformance.whole_calls import WholeCall, called, some_offsets, whole_call
from ropeaudit.subjects.calling import shapes
from ropeaudit.subjects.calling.arrays import Strides
from ropeaudit.subjects.calling.code import Rotator
from ropeaudit.subjects.calling.own_rotator import OwnRotator

_LENGTH = 64
# how vectors lie -> the axes that code must have for it, and words
_WAYS: dict[Strides, tuple[str, str]] = {
    "transposed": ("hs", "transposed input"),
    "sliced": ("s", "input sliced out of a wider array"),
    "expanded": ("b", "an expanded batch (stride 0)"),
}


def strided(code: CodeUnderTest) -> Iterator[Finding]:
    """Yield whether views are rotated as what lies in one piece: transposed, sliced, expanded."""
    own = code.own
    if own is None:
        yield not_applicable("strides", "an adapter calls it, with arrays of its own")
        return
    length = min(_LENGTH, code.up_to)
    offsets = some_offsets(code, length, 3)
    order = shapes.plain(own.fit(code.setting).convention.order)
    instance = code.rotator()
    done, refused = list[Agreement](), dict[str, list[str]]()
    for strides, (axes, words) in _WAYS.items():
        if not set(axes) <= set(order):
            continue

        def of_views(strides: Strides = strides, rotator: Rotator | None = None) -> Rotator:
            used = rotator or code.afresh()
            return used.lying(strides) if isinstance(used, OwnRotator) else used

        seen = Agreement(code, words, of_views(strides, instance), of_views)
        wholes = [whole_call(code, offset, length) for offset in offsets]
        if strides == "expanded":
            wholes = [_first_row(code, instance, whole) for whole in wholes]
        seen.take_all(wholes)
        if seen.raised:
            refused.setdefault(seen.raised, []).append(words)
        else:
            done.append(seen)
    raising = [f"it raises {reason} for {', '.join(ways)}" for reason, ways in refused.items()]
    if not done:
        yield not_applicable("strides", "; ".join(raising))
        return
    detail = f"{', '.join(one.words for one in done)}, at {len(offsets)} offsets"
    yield worst(done).finding("strides", "; ".join([detail, *raising]))


def _first_row(code: CodeUnderTest, rotator: Rotator, whole: WholeCall) -> WholeCall:
    """Return a plain call in which all batch elements are the first."""
    q, k = (np.repeat(x[:1], len(x), axis=0) for x in whole.block.given)
    return called(code, rotator, (q, k), whole.block.at)
