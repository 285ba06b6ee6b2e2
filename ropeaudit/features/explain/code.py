"""Code that is explained by way of the recipe that its numbers resemble."""

from __future__ import annotations

from ropeaudit.audits.cases import Case
from ropeaudit.audits.chosen import Chosen
from ropeaudit.errors import RopeAuditError, UsageError
from ropeaudit.inputs.qk import Inputs
from ropeaudit.recipes import Resolved
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects.calling.implementation import Called, one_line
from ropeaudit.subjects.placement import resembling


def recipe_of(
    one: Chosen, case: Case, inputs: Inputs, setting: RopeSetting, offset: int
) -> tuple[Resolved, str, str]:
    """Return the recipe by which a subject is explained, its words, and the code's name; of a recipe itself.

    Raises: UsageError where code cannot be called, or does what no known recipe does.
    """
    if isinstance(one, Resolved):
        return one, "", ""
    subject, where = one.make(setting, case.position_axes(setting)), f"in {one.dtype} at offset {offset}"
    if reason := subject.refusal(inputs.seq_len, offset):
        raise UsageError(f"{one.name} cannot be called {where}: {reason}")
    if not isinstance(subject, Called):
        raise TypeError(f"{one.name} is not called")
    try:
        group = resembling.resembling(subject, inputs.q, inputs.k, offset)
    except RopeAuditError:
        raise
    except Exception as error:  # whatever other people's code raises is a finding
        raise UsageError(f"{one.name} cannot be called {where}: {one_line(error)}") from None
    if group is None:
        raise UsageError(
            f"{one.name} {where} does what no known recipe does, so it has no stages to explain; "
            f"`ropeaudit trace {one.name}` shows what is known of it; or explain a recipe, with --recipe"
        )
    return group.resolved, str(group), one.name
