"""Code that is explained by way of the recipe that its numbers resemble."""

from __future__ import annotations

from ropeaudit.audits.cases import Case
from ropeaudit.errors import RopeAuditError, UsageError
from ropeaudit.inputs.qk import Inputs
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects.calling.implementation import Called, one_line
from ropeaudit.subjects.factories import SubjectFactory
from ropeaudit.subjects.placement import resembling
from ropeaudit.subjects.placement.likeness import RecipeGroup


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
        group = resembling.resembling(subject, inputs.q, inputs.k, offset)
    except RopeAuditError:
        raise
    except Exception as error:  # whatever other people's code raises is a finding
        raise UsageError(f"{code.name} cannot be called {where}: {one_line(error)}") from None
    if group is None:
        raise UsageError(f"{code.name} {where} does what no known recipe does")
    return group
