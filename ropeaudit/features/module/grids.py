"""Modules that take an image, a latent or the sizes of a grid: where their tokens stand is not known.

What they return is compared with what they return as built, run in float64, or without that in float32.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropeaudit.features.module import outputs
from ropeaudit.features.module.outputs import Places
from ropeaudit.features.module.running import Errors, Measured, of_angle
from ropeaudit.subjects.calling.call_arguments import LONGEST
from ropeaudit.subjects.calling.forwards import Call

_LARGEST = 2 * math.pi * LONGEST  # radians: positions times frequencies of up to one turn


@dataclass(frozen=True, slots=True)
class Grid:
    """The call that a module takes, where cos and sin stand, what they should be, and what says so."""

    call: Call
    places: Places
    should: NDArray[np.complex128]
    against: str


def grid(module: Any, calls: Sequence[Call], dtype: Any) -> Grid | None:
    """Return how a module is called; None where no call returns cos and sin."""
    import torch

    for call in calls:
        try:
            returned = call.run(module, 0, LONGEST, dtype)
            places = outputs.somewhere(returned)
            if places is None:
                continue
            points, against = places.points(places.planes(returned, 1)), "what it returns as built"
        except Exception:  # noqa: S112  # whatever other people's code raises
            continue
        try:
            wide = call.run(copy.deepcopy(module).double(), 0, LONGEST, torch.float64)
            exact = places.points(places.planes(wide, 1))
            if np.array_equal(exact, points):
                against = "what it returns as built, which is the same where it is run in float64"
            elif exact.shape == points.shape and np.isfinite(exact).all():
                points, against = exact, "the module as built, run in float64"
        except Exception:  # noqa: S110  # whatever other people's code raises
            pass
        return Grid(call, places, points, against)
    return None


def measured(module: Any, one: Grid, dtype: Any, usual: str) -> Measured:
    """Return what a module returns, compared with what it should.

    Raises: whatever the module raises; LookupError or ValueError where it returns another shape.
    """
    returned = one.call.run(module, 0, LONGEST, dtype)
    points = one.places.points(planes := one.places.planes(returned, 1))
    if points.shape != one.should.shape:
        raise ValueError(f"{points.size} values where it returned {one.should.size} as built")
    errors, held = Errors(usual), one.places.dtype(returned)
    factor = np.abs(one.should)
    errors.count(planes)
    errors.add(points, one.should, factor * of_angle(_LARGEST), factor, held, 0)
    return errors.measured(one.places.what, held)
