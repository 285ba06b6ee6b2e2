"""The lines of a subject in a snippet, whatever it is: a recipe, own code, third-party code."""

from __future__ import annotations

from ropeaudit.reports.tickets import of_code, of_environment, of_recipe
from ropeaudit.reports.tickets.inputs import Setup
from ropeaudit.reports.tickets.reproduction import NoSnippet
from ropeaudit.subjects import Subject
from ropeaudit.subjects.calling.environments import CLEAN
from ropeaudit.subjects.calling.implementation import device_of
from ropeaudit.subjects.calling.own_code import Own


def called(setup: Setup, subject: Subject | None) -> tuple[list[str], list[str], str, str]:
    """Return the imports and the lines of a subject, its scores as an expression, and the folder of own code.

    Raises: NoSnippet.
    """
    recipe, code = getattr(subject, "recipe", None), getattr(subject, "implementation", None)
    if recipe is not None:
        own, scores = [of_recipe.TO, *of_recipe.lines(setup, recipe)], of_recipe.scores(setup, recipe)
        return [of_recipe.imported([*own, scores])], own, scores, ""
    if isinstance(code, Own):
        lines, both, path = of_code.own_lines(setup, code)
        first = [line for line in lines if line.startswith(("from ", "import "))]
        rest = [line for line in lines if line not in first] + of_environment.lines(
            code.environment, code.device.name
        )
        return first, rest, of_code.scores(setup, both), path
    if code is None:
        raise NoSnippet("it has several position axes")
    if not device_of(code).is_cpu:
        raise NoSnippet(f"{code.name} was called on {device_of(code).name}, where a snippet does not call it")
    lines = of_code.third_party_lines(setup, code.name)
    lines += of_environment.lines(getattr(code, "environment", CLEAN))
    imports = [line for line in lines if line.startswith("from ")]
    return imports, lines[len(imports) :], of_code.scores(setup), ""
