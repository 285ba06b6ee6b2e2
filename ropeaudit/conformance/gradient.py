"""Whether autograd's gradient is the inverse rotation of the upstream gradient, for q and k.

Rotating by a position is linear, and its transpose rotates back; an attention factor multiplies both. So a
gradient is off by no more than a rotated vector may be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.audits.straddling import straddling
from ropeaudit.conformance.code_under_test import HEADS, CodeUnderTest
from ropeaudit.conformance.finding import Finding, not_applicable, of_worst_pair
from ropeaudit.errors import RopeAuditError, one_line
from ropeaudit.recognition import allowance, verification
from ropeaudit.recognition.diagnosis import Diagnosis
from ropeaudit.recognition.verification import GivenVectors, Places
from ropeaudit.rope.rotation import split_pairs
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions, torch_arrays
from ropeaudit.subjects.calling import arrays
from ropeaudit.subjects.calling.code import Alike, Rotator
from ropeaudit.subjects.calling.devices import Device
from ropeaudit.subjects.calling.own_code import OwnRotator
from ropeaudit.subjects.calling.signatures import Signature
from ropeaudit.subjects.exact_rotation import half_split

_SHORT = 64  # positions of a call
_FEWEST_BITS = 16  # of a dtype that autograd computes with
_DRAWN, _ROUNDED = 16, 0.01  # random vectors; the error, relative, that roundings to bfloat16 leave
_REMEDY = "compute what is returned from what is given, in torch and with gradients on"


def gradient(code: CodeUnderTest) -> Iterator[Finding]:
    """Yield whether the gradient is rotated back by the position, at offsets that break positions."""
    if code.dtype.storage_bits < _FEWEST_BITS:
        yield not_applicable("gradient", f"autograd does not compute in {code.dtype}")
    elif make := _maker(code):
        yield _gradient(code, make)
    else:
        tables = code.composed and "it returns cos and sin, through which no gradient has to flow"
        yield not_applicable("gradient", tables or "it takes and returns no torch tensors")


def _maker(code: CodeUnderTest) -> Callable[[], Rotator] | None:
    """Return what makes rotators of gradients, of new instances; None where autograd does not run."""
    own, called = code.own, code.tested
    if own is not None:
        if code.composed or own.fit(code.setting).convention.engine != "torch":
            return None
        given = code.setting, code.dtype
        return lambda: GradientRotator.of(own.uncalled(*given).rotator(*given))
    from ropeaudit.subjects.third_party.adapter import TorchAdapter  # in-function: it reads many files

    if not isinstance(called, TorchAdapter):
        return None
    asked = code.setting, code.dtype
    return lambda: of_tensors(called.module(*asked), *asked, called.device)


def _gradient(code: CodeUnderTest, make: Callable[[], Rotator]) -> Finding:
    """Return whether gradients of q and k are rotated back, at each offset up to the first that is wrong."""
    length = min(_SHORT, code.up_to)
    offsets = straddling(code.up_to, length)
    q, k = code.vectors(HEADS, length)
    vectors = GivenVectors(q, k, np.arange(length, dtype=np.int64), code.seed)
    # what a vector is used for more than once is summed in its own dtype
    rule = code.rule.recipe.changed({"rotation": "model", "output": "model"}).resolve(code.dtype)
    worst, later, rotator = Places(-1.0, "q", 0, 0, 0, 0), offsets, make()

    def judge(offset: int, explain: bool) -> Places:
        call = rotator, code.setting, code.dtype, vectors, offset
        return verification.check(*call, afresh=make, rule=rule, each_call=code.each_call, explain=explain)

    for number, offset in enumerate(offsets):
        try:
            places = judge(offset, True)
        except RopeAuditError:
            raise
        except SwitchedOff as error:
            return not_applicable("gradient", str(error))
        except NoGradient as error:
            return Finding("gradient", "fail", str(error), remedy=_REMEDY)
        except Exception as error:  # whatever other people's code raises
            return Finding("gradient", "fail", f"at offset {offset} autograd raises {one_line(error)}")
        if not places.excess <= worst.excess:
            worst, later = places, offsets[number:]
        if not places.excess <= 1:
            worst = verification.with_other_side(worst, judge, later[1:])
            break
    detail = f"{HEADS} heads, {length} tokens at {len(offsets)} offsets up to {offsets[-1]}, random upstream"
    if isinstance(rotator, GradientRotator) and rotator.backward.in_place:
        detail += "; it changes its input where it lies: it was given copies of the leaves"
    cause = _cause(code, rotator, worst, vectors, later)
    return of_worst_pair("gradient", detail, worst, diagnosis=cause)


def _cause(
    code: CodeUnderTest, rotator: Rotator, worst: Places, vectors: GivenVectors, offsets: Sequence[int]
) -> Diagnosis | None:
    """Return what explains a gradient that is wrong; None where it is right."""
    if worst.excess <= 1 or worst.diagnosis is None:
        return None
    found = of_gradient(worst.diagnosis)
    q, k, before = next(vectors.blocks(code.dtype))
    forwards = code.rotator()

    def judge(offset: int, explain: bool) -> Places:
        return code.check(forwards, vectors, offset, explain=explain)

    offset, *later = offsets
    at = before + offset
    try:
        results = rotator.rotate_both(q, k, at)
        forward = verification.with_other_side(judge(offset, True), judge, later)
    except Exception:  # whatever other people's code raises: it then explains nothing
        return found
    if zero := [name for name, x in zip("qk", results, strict=True) if not np.any(x)]:
        return of_gradient(Diagnosis("gradient-zero", {"vectors": tuple(zero)}))
    if forward.excess > 1:  # then no rounding of the backward pass is the reason
        also = forward.diagnosis == worst.diagnosis or _transposed(code, rotator, (q, k), at)
        return forward.diagnosis if also else found
    if found.explains:
        return found
    narrow = allowance.narrower_format(code.setting_at(at), code.dtype, (q, k), results, at)
    return of_gradient(narrow) if narrow else found


def _transposed(
    code: CodeUnderTest, backward: Rotator, upstream: tuple[FloatArray, FloatArray], at: Positions
) -> bool:
    """Return whether a gradient is that of what is wrongly returned: whether <A u, g> is <u, Aᵀ g>."""
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


_INFERENCE = "the code switches autograd off: it is for inference alone"
_VECTORS = {"q": "q", "k": "k", "x": "its input", "qkv": "its input"}  # role -> how it is called in a message


class NoGradient(ValueError):
    """Autograd has no gradient of what was returned."""


class SwitchedOff(NoGradient):
    """The code switches autograd off before it uses what it is given, as torch.no_grad() does."""


def switched_off(call: Callable[[], object]) -> bool:
    """Return whether a call does all that it does with tensors that require grad with autograd off.

    Code that cuts a tensor off, by detach() or .data, does so with autograd on.
    """
    torch = arrays.torch()
    modes: set[bool] = set()

    class Watch(torch.overrides.TorchFunctionMode):  # type: ignore[misc, name-defined]
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            given = [*args, *(kwargs or {}).values()]
            given += [x for each in given if isinstance(each, (list, tuple)) for x in each]
            if any(isinstance(x, torch.Tensor) and x.requires_grad for x in given):
                modes.add(torch.is_grad_enabled())
            return func(*args, **(kwargs or {}))

    with Watch():
        call()
    return modes == {False}


def gradients(
    returned: tuple[Any, ...], leaves: tuple[Any, ...], upstream: tuple[Any, ...], names: tuple[str, ...]
) -> tuple[Any, ...]:
    """Return the gradients of vectors, given those of what was returned for them. Raises: NoGradient."""
    for name, result in zip(names, returned, strict=True):
        if not getattr(result, "requires_grad", False):
            raise NoGradient(
                f"no gradient reaches {name}: what it returns does not require grad, as behind detach(), "
                ".data, no_grad() or NumPy"
            )
    # of a sum of products the gradient of each factor is the other, to the last bit; given as gradients to
    # autograd they would make torch load its symbolic shapes, which takes longer than the check
    total = sum((y * x.to(y.dtype)).sum() for x, y in zip(upstream, returned, strict=True))
    results: tuple[Any, ...] = arrays.torch().autograd.grad(total, leaves, allow_unused=True)
    for name, result in zip(names, results, strict=True):
        if result is None:
            raise NoGradient(f"no gradient reaches {name}: what it returns does not depend on it")
    return results


@dataclass(slots=True)
class Backward:
    """A function that takes upstream gradients where another takes vectors, and returns gradients.

    As rotating is linear, they do not depend on the vectors; these are the upstream gradients with their dims
    in reverse order. The function gets copies, for it may rotate its input where it lies: in_place says
    whether it did. dtypes: of what it returned.
    """

    function: Any
    signature: Signature
    in_place: bool = False
    dtypes: set[str] = field(default_factory=set)

    def __call__(self, *positional: Any, **named: Any) -> Any:
        """Return the gradient of each vector. Raises: NoGradient, WrongShape."""
        values: list[Any] = [*positional, *named.values()]
        by_place = sorted(self.signature.arguments, key=lambda argument: argument[0] is not None)
        roles = [role for _, role in by_place]
        at = [number for number, role in enumerate(roles) if role in _VECTORS]

        def called(vectors: list[Any]) -> Any:
            """Return what the function returns for these in the place of the vectors."""
            given = list(values)
            for number, x in zip(at, vectors, strict=True):
                given[number] = x
            count = len(positional)
            return self.function(*given[:count], **dict(zip(named, given[count:], strict=True)))

        upstream = [values[number] for number in at]
        with arrays.torch().enable_grad():
            leaves = [x.flip(-1).requires_grad_() for x in upstream]
            copies, others = ([x.clone() for x in leaves] for _ in "ab")
            returned = called(copies)
            in_place = any(copy._version for copy in copies)
            self.in_place |= in_place
            if in_place and switched_off(lambda: called(others)):
                raise SwitchedOff(_INFERENCE)  # what changes where it lies looks as if it were passed on
            outputs = self._outputs(tuple(copies) if returned is None else returned, upstream)
            count = len(outputs)
            names = tuple(_VECTORS[roles[number]] for number in at[:count])
            try:
                results = gradients(outputs, tuple(leaves[:count]), tuple(upstream[:count]), names)
            except NoGradient as error:
                if switched_off(lambda: called(others)):
                    raise SwitchedOff(_INFERENCE) from error
                raise
        return results if count == 2 else results[0]

    def _outputs(self, returned: Any, upstream: list[Any]) -> tuple[Any, ...]:
        """Return the rotated vectors among what came back, and note their dtypes. Raises: WrongShape."""
        if isinstance(arrays.listed(returned), (tuple, list)) and "qkv" in self.signature.roles:
            raise SwitchedOff("it takes q, k and v in one array and returns them apart")
        both = arrays.parts(returned, len(upstream) == 2)
        outputs = tuple(part for part in both[: len(upstream)] if part is not None)
        for output, x in zip(outputs, upstream, strict=False):
            self.dtypes.add(arrays.values(output)[1])
            if output.shape != x.shape:
                raise arrays.WrongShape(f"returns the shape {tuple(output.shape)} for {tuple(x.shape)}")
        return outputs


@dataclass(slots=True)
class GradientRotator(Rotator):
    """Own code whose backward pass is called as if it rotated.

    It takes upstream gradients of q and k and returns gradients, the second member of each pair negated in
    both: a gradient that is rotated back by its position then reads as a vector that is rotated by it.
    """

    rotator: OwnRotator
    backward: Backward

    @classmethod
    def of(cls, rotator: OwnRotator) -> GradientRotator:
        """Return the one of code that is called."""
        backward = Backward(rotator.instance, rotator.fit.convention.signature)
        return cls(replace(rotator, instance=backward), backward)

    @property
    def has_past(self) -> bool:
        """Whether it is a function that may have been called before; see `OwnRotator`."""
        return replace(self.rotator, instance=self.backward.function).has_past

    def afresh(self) -> GradientRotator:
        """Return one of an instance that has not been called yet."""
        return GradientRotator.of(replace(self.rotator, instance=self.backward.function).afresh())

    def rotate_both(self, q: FloatArray, k: FloatArray, at: Positions) -> tuple[FloatArray, FloatArray]:
        """Return the gradients of q and k, with respect to upstream ones. Shapes: as `Rotator` says."""
        setting, fit = self.rotator.setting, self.rotator.fit
        left, right = mirrored(q, setting), mirrored(k, setting)
        if not fit.permuted:
            first, second = self.rotator.rotate_both(left, right, at)
        else:  # it returns half-split pairs for interleaved ones: so come the upstream gradients
            order = half_split(setting.rotary_dim, setting.head_dim)
            called = replace(self.rotator, fit=replace(fit, permuted=False))
            first, second = called.rotate_both(left[..., order], right[..., order], at)
        return mirrored(first, setting), mirrored(second, setting)


def of_tensors(
    rotation: Callable[[Any, Any], Any], setting: RopeSetting, dtype: Format, device: Device
) -> Alike:
    """Return the gradients of a function of tensors: of x (1, h, s, d) and positions (s,), int64."""

    def rotate(x: FloatArray, at: Positions, fmt: Format) -> FloatArray:
        upstream = arrays.new_array(mirrored(x, setting), fmt, "torch", device)[None]
        with arrays.torch().enable_grad(), device.current():
            leaf = upstream.flip(-1).requires_grad_()
            returned = rotation(leaf.clone(), arrays.tensor(at, device))
            (result,) = gradients((returned,), (leaf,), (upstream,), (_VECTORS["x"],))
        return mirrored(torch_arrays.to_numpy(result[0]), setting)

    return Alike(rotate, dtype)


def mirrored(x: FloatArray, setting: RopeSetting) -> FloatArray:
    """Return x with the second member of each pair negated; a rotation between two of them is its inverse."""
    result = np.array(x)
    second = split_pairs(result, setting)[1]
    np.negative(second, out=second)
    return result
