"""Marks of parameters by how long all of them take."""

from collections.abc import Iterable

import pytest


def thinned(values: Iterable[object], every: int) -> list[object]:
    """Return parameters of which every so many, the first among them, are slow and the others exhaustive."""
    marks = pytest.mark.slow, pytest.mark.exhaustive
    return [pytest.param(value, marks=marks[index % every > 0]) for index, value in enumerate(values)]
