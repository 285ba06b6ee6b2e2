"""The backward pass of own code, called where its forward pass is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ropeaudit.arithmetic.formats import FloatArray
from ropeaudit.errors import ForeignError
from ropeaudit.rope.rotation import split_pairs
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects.calling import arrays, shapes
from ropeaudit.subjects.calling.conventions import Convention

_INFERENCE = "the code switches autograd off: it is for inference alone"
_NUMPY = "it goes through NumPy, which autograd does not see"
_TO_NUMPY = ("numpy", "__array__")  # methods of a tensor
_VECTORS = {"q": "q", "k": "k", "x": "its input", "qkv": "its input"}  # as messages call them


class NoGradient(ForeignError):
    """Autograd has no gradient of what was returned."""


class SwitchedOff(NoGradient):
    """The code uses its inputs with autograd off, as under torch.no_grad(), or in NumPy."""


def switched_off(call: Callable[[], object]) -> str:
    """Return why a call can have no gradient; empty where it could.

    It does all that it does with tensors that require grad with autograd off, or hands vectors to NumPy. Code
    that cuts a tensor off and goes on in torch, by detach() or .data, does so with autograd on.
    """
    torch = arrays.torch()
    modes, in_numpy = set[bool](), list[Any]()

    class Watch(torch.overrides.TorchFunctionMode):  # type: ignore[misc, name-defined]
        def __torch_function__(
            self,
            func: Any,
            types: Any,
            args: Any = (),
            kwargs: Any = None,
        ) -> Any:
            if getattr(func, "__name__", "") in _TO_NUMPY and args[0].is_floating_point():
                in_numpy.append(func)
            given = [*args, *(kwargs or {}).values()]
            given += [x for each in given if isinstance(each, (list, tuple)) for x in each]
            if any(isinstance(x, torch.Tensor) and x.requires_grad for x in given):
                modes.add(torch.is_grad_enabled())
            return func(*args, **(kwargs or {}))

    with Watch():
        call()
    return _NUMPY if in_numpy else _INFERENCE if modes == {False} else ""


def gradients(
    returned: tuple[Any, ...],
    leaves: tuple[Any, ...],
    upstream: tuple[Any, ...],
    names: tuple[str, ...],
) -> tuple[Any, ...]:
    """Return the gradients of the leaves for those of the results. Raises: NoGradient."""
    for name, result in zip(names, returned, strict=True):
        if not getattr(result, "requires_grad", False):
            raise NoGradient(
                f"no gradient reaches {name}: what it returns does not require grad, as behind detach(), "
                ".data, no_grad() or NumPy"
            )
    # given as gradients they would make torch load its symbolic shapes, which takes long
    total = sum((y * x.to(y.dtype)).sum() for x, y in zip(upstream, returned, strict=True))
    results: tuple[Any, ...] = arrays.torch().autograd.grad(total, leaves, allow_unused=True)
    for name, result in zip(names, results, strict=True):
        if result is None:
            raise NoGradient(f"no gradient reaches {name}: what it returns does not depend on it")
    return results


@dataclass(slots=True)
class Backward:
    """A function that takes upstream gradients where another takes vectors, and returns gradients.

    As rotating is linear, they do not depend on the vectors: these are the upstream gradients with their dims
    in reverse order. The function gets copies: in_place says whether it rotates its input where it lies.
    """

    function: Any
    convention: Convention
    in_place: bool = False

    def __call__(self, *positional: Any, **named: Any) -> Any:
        """Return the gradient of each vector. Raises: NoGradient, WrongShape."""
        values: list[Any] = [*positional, *named.values()]
        by_place = sorted(self.convention.arguments, key=lambda argument: argument[0] is not None)
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
            if in_place and (why := switched_off(lambda: called(others))):
                raise SwitchedOff(why)  # it looks as if it were passed on
            returned = tuple(copies) if returned is None else returned
            if isinstance(arrays.listed(returned), (tuple, list)) and self.convention.takes("qkv"):
                raise SwitchedOff("it takes q, k and v in one array and returns them apart")
            both = arrays.parts(returned, len(upstream) == 2)[: len(upstream)]
            outputs = tuple(part for part in both if part is not None)
            for output, x in zip(outputs, upstream, strict=False):
                if output.shape != x.shape:
                    raise shapes.WrongShape(f"returns the shape {tuple(output.shape)} for {tuple(x.shape)}")
            count = len(outputs)
            names = tuple(_VECTORS[roles[number]] for number in at[:count])
            try:
                results = gradients(outputs, tuple(leaves[:count]), tuple(upstream[:count]), names)
            except NoGradient as error:
                if why := switched_off(lambda: called(others)):
                    raise SwitchedOff(why) from error
                raise
        return results if count == 2 else results[0]


def mirrored(x: FloatArray, setting: RopeSetting) -> FloatArray:
    """Return x with the second of each pair negated; around a rotation this inverts it."""
    result = np.array(x)
    second = split_pairs(result, setting)[1]
    np.negative(second, out=second)
    return result
