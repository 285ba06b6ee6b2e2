"""Code that is explained by way of the recipe that its numbers resemble."""

from __future__ import annotations

import numpy as np

from ropeaudit.arithmetic.formats import FloatArray
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.audits.cases import Case
from ropeaudit.errors import RopeAuditError, UsageError, one_line
from ropeaudit.inputs.qk import Inputs
from ropeaudit.recognition.known_recipes import CalledBlock, RecipeGroup, explaining_recipe
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects.calling.called import Called
from ropeaudit.subjects.factories import SubjectFactory

_HEADS, _POSITIONS = 64, 256  # of q and k that are called with at most


def recipe_of(
    code: SubjectFactory, case: Case, inputs: Inputs, setting: RopeSetting, offset: int
) -> RecipeGroup:
    """Return the recipes that code resembles at an offset, by which it is explained.

    Raises: UsageError where code cannot be called, or does what no known recipe does.
    """
    subject, where = code.make(setting, case.position_axes(setting)), f"in {code.dtype} at offset {offset}"
    if reason := subject.refusal(inputs.seq_len, offset):
        raise UsageError(f"{code.name} cannot be called {where}: {reason}")
    if not isinstance(subject, Called):
        raise TypeError(f"{code.name} is not called")
    try:
        group = _resembling(subject, inputs.q, inputs.k, offset)
    except RopeAuditError:
        raise
    except Exception as error:  # whatever other people's code raises is a finding
        raise UsageError(f"{code.name} cannot be called {where}: {one_line(error)}") from None
    if group is None:
        raise UsageError(f"{code.name} {where} does what no known recipe does")
    return group


def _resembling(subject: Called, q: FloatArray, k: FloatArray, offset: int) -> RecipeGroup | None:
    """Return the recipe that gives what code returns to within its own roundings; None where none does.

    It is called at the last positions of q and k, shifted by the offset.
    Shapes: q (h, s, d), k (g, s, d).
    Raises: whatever the code raises.
    """
    length = min(q.shape[1], _POSITIONS)
    at = np.arange(q.shape[1] - length, q.shape[1], dtype=np.int64)
    sides = [
        round_to(x[None, :_HEADS, at], subject.dtype).astype(subject.dtype.carrier, copy=False)
        for x in (q, k)
    ]
    first, second = subject.rotator().rotate_both(sides[0], sides[1], at + offset)
    block = CalledBlock(at + offset, (sides[0], sides[1]), (first, second))
    return explaining_recipe(block, subject.setting, subject.dtype)
