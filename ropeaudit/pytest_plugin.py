"""The plugin for pytest: the fixture `rope_check` and the marker `rope`.

Neither NumPy nor torch is imported before a test asks for a check.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ropeaudit.features.check.checked import Checked

__tracebackhide__ = True  # pytest shows a failure at the line of the test
_MARKER = "rope(**options): what `rope_check` takes by default, such as dtypes='fp16', model='llama-3.1-8b'"


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line("markers", _MARKER)


@pytest.fixture
def rope_check(request: pytest.FixtureRequest) -> Callable[..., list[Checked]]:
    """Check code as `ropeaudit.testing.assert_rope` does, and record the results as properties.

    Options are those of `assert_rope`; a marker `rope` gives them for a test, a class or a module. Properties
    of the test in JUnit XML: ropeaudit.diagnosis (codes, where it fails) and ropeaudit.worst (the largest
    error ÷ what is allowed, of all checks). Raises: WrongRope, an AssertionError; RopeAuditError.
    """
    properties: list[tuple[str, object]] = request.node.user_properties  # record_property warns of xunit2
    options: dict[str, Any] = {}
    for marker in reversed(list(request.node.iter_markers("rope"))):  # the closest comes last, and wins
        options |= marker.kwargs

    def check(function: Any, *dtypes: Any, **given: Any) -> list[Checked]:
        from ropeaudit.testing import WrongRope, assert_rope, worst  # in-function: it loads NumPy

        named = {name: value for name, value in options.items() if not (dtypes and name == "dtypes")}
        try:
            results = assert_rope(function, *dtypes, **{**named, **given})
        except WrongRope as error:
            properties.append(("ropeaudit.diagnosis", error.diagnosis))
            properties.append(("ropeaudit.worst", f"{error.worst:.3g}"))
            raise
        properties.append(("ropeaudit.worst", f"{worst(results):.3g}"))
        return results

    return check
