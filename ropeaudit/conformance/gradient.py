"""Whether autograd's gradient is the inverse rotation of the upstream gradient, for q and k.

Rotating by a position is linear, and its transpose rotates back; an attention factor multiplies both. So a
gradient is off by no more than a rotated vector may be.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from ropeaudit.arithmetic.formats import FloatArray
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.audits.straddling import straddling
from ropeaudit.conformance.code_under_test import HEADS, Both, CodeUnderTest, runs_at
from ropeaudit.conformance.finding import Finding, not_applicable, of_worst_pair
from ropeaudit.errors import ForeignError, did
from ropeaudit.recognition import allowance, verification
from ropeaudit.recognition.diagnosis import Diagnosis
from ropeaudit.subjects import Positions
from ropeaudit.subjects.calling.backward import NoGradient, SwitchedOff, mirrored
from ropeaudit.subjects.calling.code import CallOf, Rotator
from ropeaudit.subjects.calling.foreign import ForeignCode, ForeignRotator
from ropeaudit.subjects.exact_rotation import half_split

_SHORT = 64  # positions of a call
_FEWEST_BITS = 16  # of a dtype that autograd computes with
_DRAWN, _ROUNDED = 16, 0.01  # random vectors; the error, relative, that roundings to bfloat16 leave
_REMEDY = "compute what is returned from what is given, in torch and with gradients on"


def gradient(code: CodeUnderTest) -> Iterator[Finding]:
    """Yield whether the gradient is rotated back, at offsets that break positions."""
    if code.dtype.storage_bits < _FEWEST_BITS:
        yield not_applicable("gradient", f"autograd does not compute in {code.dtype}")
        return
    if code.composed:
        yield not_applicable("gradient", "it returns cos and sin, through which no gradient has to flow")
        return
    if (rotator := backward(code)) is None:
        yield not_applicable("gradient", "it takes and returns no torch tensors")
        return
    length = min(_SHORT, code.up_to)
    offsets = straddling(code.up_to, length)
    calls = runs_at(code.batch(HEADS, length), offsets)
    # what a vector is used for more than once is summed in its own dtype
    rule = code.rule.recipe.changed({"rotation": "model", "output": "model"}).resolve(code.dtype)

    detail = f"{HEADS} heads, {length} tokens at {len(offsets)} offsets up to {offsets[-1]}, random upstream"

    def afresh() -> Rotator:
        return cast(Rotator, backward(code))

    try:
        worst, wrong = code.up_to_a_wrong_one(rotator, calls, afresh=afresh, rule=rule, searches=None)
    except SwitchedOff as error:
        yield not_applicable("gradient", str(error))
    except NoGradient as error:
        yield Finding("gradient", "fail", str(error), remedy=_REMEDY)
    except ForeignError as error:
        if "numpy() on Tensor that requires grad" in str(error):
            yield not_applicable("gradient", "it goes through NumPy, which autograd does not see")
        else:
            yield Finding("gradient", "fail", f"at offset {code.seen.first} autograd {did(error)}")
    else:
        if isinstance(rotator, GradientRotator) and rotator.rotator.in_place:
            detail += "; it changes its input where it lies: it was given copies of the leaves"
        cause = None
        if wrong and worst.diagnosis:
            cause = _cause(code, rotator, worst.diagnosis, calls[wrong[0] :])
        yield of_worst_pair("gradient", detail, worst, diagnosis=cause)


def backward(code: CodeUnderTest) -> Rotator | None:
    """Return a new instance whose backward pass is called as if it rotated; None where it is not of torch."""
    if code.own is None:
        return cast(ForeignCode, code.tested).backward(code.setting, code.dtype)
    rotator = code.own_rotator()
    return GradientRotator(rotator.backward()) if rotator.fit.convention.engine == "torch" else None


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


def _transposed(code: CodeUnderTest, rotator: Rotator, upstream: Both, at: Positions) -> bool:
    """Return whether the gradient fits the wrong result: <A u, g> = <u, Aᵀ g>."""
    forward = code.rotator()
    random = np.random.default_rng([code.seed, 3])
    off = list[float]()
    left, right = (mirrored(g, code.setting) for g in upstream)
    gradients = [mirrored(x, code.setting) for x in rotator.rotate_both(left, right, at)]
    for _ in range(_DRAWN):
        u, v = (
            round_to(random.standard_normal(x.shape), code.dtype).astype(code.dtype.carrier) for x in upstream
        )
        results = forward.rotate_both(u, v, at)
        off.append(_dot(results, upstream) - _dot((u, v), gradients))
    return bool(np.sqrt(np.mean(np.square(off))) <= _ROUNDED * np.sqrt(_dot(upstream, upstream)))


def _dot(left: Sequence[FloatArray], right: Sequence[FloatArray]) -> float:
    """Return the sum of the products of all numbers, in float64."""
    sides = zip(left, right, strict=True)
    return sum(float(np.vdot(x.astype(np.float64), y.astype(np.float64))) for x, y in sides)


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

    def rotate_both(self, q: FloatArray, k: FloatArray, at: Positions) -> Both:
        """Return the gradients for upstream ones. Shapes: as `Rotator` says."""
        setting, called = self.rotator.setting, self.rotator
        left, right = mirrored(q, setting), mirrored(k, setting)
        if called.fit.permuted:  # it returns half-split pairs for interleaved ones: so come the upstream ones
            order = half_split(setting.rotary_dim, setting.head_dim)
            left, right = left[..., order], right[..., order]
        first, second = called.rotate_whole(left, right, at)
        return mirrored(first, setting), mirrored(second, setting)
