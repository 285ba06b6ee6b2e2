"""The functions by which a library's models rotate q and k, heard while a model runs.

Letters: h heads, g key-value heads, s positions, d head_dim, r rotated dims.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator
from typing import Any

import torch

from ropeaudit.features.model.layers import Called, as_array


class Calls:
    """Listens to the functions by which a library's models rotate q and k, "apply_rotary…" by name.

    heard: what they were given and returned since attention was last asked about.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self.heard: list[tuple[list[Any], list[Any]]] = []

    def take(self, q: Any, k: Any) -> Called | None:
        """Return the call whose results attention gets, within its first or its last dims; None without any.

        Shapes: (..., h, s, d), (..., g, s, d) of a batch of one.
        """
        heard, self.heard = self.heard, []
        for given, rotated in reversed(heard):
            sides = []
            for whole, x, y in zip((q, k), given, rotated, strict=True):
                own = whole.reshape(-1, *whole.shape[-2:])
                for before_it, after in ((x[0], y[0]), (x[0].transpose(0, 1), y[0].transpose(0, 1))):
                    if _holds(own, after) and before_it.shape == after.shape:
                        sides.append((as_array(before_it), as_array(after)))
                        break
            if len(sides) == 2:
                return (sides[0][0], sides[1][0]), (sides[0][1], sides[1][1])
        return None

    @contextlib.contextmanager
    def listening(self, model: Any) -> Iterator[None]:
        """Listen to the functions in the files of a model's modules, within the block."""
        files = {type(module).__module__ for module in model.modules()}
        found = [
            (file, name, function)
            for file in sorted(files)
            for name, function in list(vars(sys.modules.get(file, torch)).items())
            if name.startswith("apply_rotary") and callable(function) and file != "torch"
        ]
        for file, name, function in found:
            setattr(sys.modules[file], name, functools.wraps(function)(self._heard(function)))
        try:
            yield
        finally:
            for file, name, function in found:
                setattr(sys.modules[file], name, function)

    def _heard(self, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
            given = [x.detach().clone() for x in tensors[:2]]  # it may rotate in place
            result = function(*args, **kwargs)
            self._keep(given, result)
            return result

        return call

    def _keep(self, given: list[Any], result: Any) -> None:
        """Keep a call with q and k of one sequence, (1, h, s, d) and (1, g, s, d)."""
        both = isinstance(result, tuple) and len(result) == len(given) == 2
        if not both or not all(isinstance(x, torch.Tensor) and x.ndim == 4 and len(x) == 1 for x in result):
            return
        if all(x.shape == y.shape for x, y in zip(given, result, strict=True)):
            self.heard.append((given, [y.detach().clone() for y in result]))


def _holds(whole: Any, part: Any) -> bool:
    """Return whether the first or the last dims of each head are those of a part, or of its only head.

    Shapes: (h, s, d), (h or 1, s, r).
    """
    r = part.shape[-1]
    if part.shape[-2] != whole.shape[-2] or part.shape[0] not in (1, whole.shape[0]) or r > whole.shape[-1]:
        return False
    return any(bool((x == part.to(x.dtype)).all()) for x in (whole[..., :r], whole[..., -r:]))
