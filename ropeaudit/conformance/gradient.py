"""Whether autograd's gradient is the inverse rotation of the upstream gradient, for q and k.

Rotating by a position is linear, and its transpose rotates back; an attention factor multiplies both. So a
gradient is off by no more than a rotated vector may be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np

from ropeaudit.arithmetic.formats import FloatArray
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.audits.straddling import straddling
from ropeaudit.conformance.code_under_test import HEADS, CodeUnderTest, runs_at
from ropeaudit.conformance.finding import Finding, not_applicable, of_worst_pair
from ropeaudit.errors import ForeignError, did
from ropeaudit.recognition import allowance, verification
from ropeaudit.recognition.diagnosis import Diagnosis
from ropeaudit.subjects import Positions
from ropeaudit.subjects.calling.backward import NoGradient, SwitchedOff, mirrored
from ropeaudit.subjects.calling.code import CallOf, Rotator
from ropeaudit.subjects.calling.foreign import ForeignRotator
from ropeaudit.subjects.exact_rotation import half_split

if TYPE_CHECKING:
    from ropeaudit.subjects.calling.foreign import ForeignCode

_SHORT = 64  # positions of a call
_FEWEST_BITS = 16  # of a dtype that autograd computes with
_DRAWN, _ROUNDED = 16, 0.01  # random vectors; the error, relative, that roundings to bfloat16 leave
_REMEDY = "compute what is returned from what is given, in torch and with gradients on"


def gradient(code: CodeUnderTest) -> Iterator[Finding]:
    """Yield whether the gradient is rotated back, at offsets that break positions."""
    own = code.own
    no_tensors = not_applicable("gradient", "it takes and returns no torch tensors")
    if code.dtype.storage_bits < _FEWEST_BITS:
        yield not_applicable("gradient", f"autograd does not compute in {code.dtype}")
    elif own is None:
        make = partial(cast("ForeignCode", code.tested).backward, code.setting, code.dtype)
        yield no_tensors if make() is None else _gradient(code, cast("Callable[[], Rotator]", make))
    elif code.composed:
        yield not_applicable("gradient", "it returns cos and sin, through which no gradient has to flow")
    elif own.fit(code.setting).convention.engine != "torch":
        yield no_tensors
    else:
        yield _gradient(code, lambda: GradientRotator(cast(ForeignRotator, code.rotator()).backward()))


def _gradient(code: CodeUnderTest, make: Callable[[], Rotator]) -> Finding:
    """Return whether gradients are rotated back, up to the first wrong offset."""
    length = min(_SHORT, code.up_to)
    offsets = straddling(code.up_to, length)
    calls = runs_at(code.batch(HEADS, length), offsets)
    # what a vector is used for more than once is summed in its own dtype
    rule = code.rule.recipe.changed({"rotation": "model", "output": "model"}).resolve(code.dtype)
    rotator = make()
    try:
        worst, wrong = code.up_to_a_wrong_one(rotator, calls, afresh=make, rule=rule, searches=None)
    except SwitchedOff as error:
        return not_applicable("gradient", str(error))
    except NoGradient as error:
        return Finding("gradient", "fail", str(error), remedy=_REMEDY)
    except ForeignError as error:
        if "numpy() on Tensor that requires grad" in str(error):
            return not_applicable("gradient", "it goes through NumPy, which autograd does not see")
        return Finding("gradient", "fail", f"at offset {code.seen.first} autograd {did(error)}")
    detail = f"{HEADS} heads, {length} tokens at {len(offsets)} offsets up to {offsets[-1]}, random upstream"
    if isinstance(rotator, GradientRotator) and rotator.rotator.in_place:
        detail += "; it changes its input where it lies: it was given copies of the leaves"
    cause = _cause(code, rotator, worst.diagnosis, calls[wrong[0] :]) if wrong and worst.diagnosis else None
    return of_worst_pair("gradient", detail, worst, diagnosis=cause)


def _cause(
    code: CodeUnderTest, rotator: Rotator, behaves: Diagnosis, calls: Sequence[CallOf]
) -> Diagnosis | None:
    """Return what explains a gradient that is wrong; calls: the first that is, and those after it."""
    found, (q, k, at) = of_gradient(behaves), calls[0]
    judge = code.judge(code.rotator(), calls)
    try:
        results = rotator.rotate_both(q, k, at)
        forward = verification.with_other_side(judge(0, True), judge, range(1, len(calls)))
    except ForeignError:  # it then explains nothing
        return found
    if zero := [name for name, x in zip("qk", results, strict=True) if not np.any(x)]:
        return of_gradient(Diagnosis("gradient-zero", {"vectors": tuple(zero)}))
    if forward.excess > 1:  # then no rounding of the backward pass is the reason
        also = forward.diagnosis == behaves or _transposed(code, rotator, (q, k), at)
        return forward.diagnosis if also else found
    if found.explains:
        return found
    narrow = allowance.narrower_format(code.setting_at(at), code.dtype, (q, k), results, at)
    return of_gradient(narrow) if narrow else found


def _transposed(
    code: CodeUnderTest,
    backward: Rotator,
    upstream: tuple[FloatArray, FloatArray],
    at: Positions,
) -> bool:
    """Return whether the gradient fits the wrong result: <A u, g> = <u, Aᵀ g>."""
    forward, random = code.rotator(), np.random.default_rng([code.seed, 3])
    first, second = (mirrored(g, code.setting) for g in upstream)
    given_back = backward.rotate_both(first, second, at)
    results, off = [mirrored(x, code.setting).astype(np.float64) for x in given_back], []
    for _ in range(_DRAWN):
        drawn = [round_to(random.standard_normal(x.shape), code.dtype) for x in upstream]
        given = [x.astype(code.dtype.carrier) for x in drawn]
        returned = forward.rotate_both(given[0], given[1], at)
        sums = (
            np.vdot(y.astype(np.float64), g.astype(np.float64)) - np.vdot(u.astype(np.float64), z)
            for y, g, u, z in zip(returned, upstream, given, results, strict=True)
        )
        off.append(float(sum(sums)))
    size = float(np.sqrt(sum(np.sum(g.astype(np.float64) ** 2) for g in upstream)))
    return bool(np.sqrt(np.mean(np.square(off))) <= _ROUNDED * size)


def of_gradient(found: Diagnosis) -> Diagnosis:
    """Return a diagnosis of the inverse rotation as that of a gradient."""
    return replace(
        found,
        where=replace(found.where, gradient=True),
        also=tuple(map(of_gradient, found.also)),
        alternatives=tuple(map(of_gradient, found.alternatives)),
    )


@dataclass(slots=True)
class GradientRotator(Rotator):
    """Own code whose backward pass is called as if it rotated.

    It takes upstream gradients of q and k and returns gradients, the second member of each pair negated in
    both: a gradient that is rotated back by its position then reads as a vector that is rotated by it.
    rotator: calls the backward pass.
    """

    rotator: ForeignRotator

    def rotate_both(self, q: FloatArray, k: FloatArray, at: Positions) -> tuple[FloatArray, FloatArray]:
        """Return the gradients for upstream ones. Shapes: as `Rotator` says."""
        setting, called = self.rotator.setting, self.rotator
        left, right = mirrored(q, setting), mirrored(k, setting)
        if called.fit.permuted:  # it returns half-split pairs for interleaved ones: so come the upstream ones
            order = half_split(setting.rotary_dim, setting.head_dim)
            left, right = left[..., order], right[..., order]
        first, second = called.rotate_whole(left, right, at)
        return mirrored(first, setting), mirrored(second, setting)
