"""Tables of cases beside the tests, and marks of parameters by how long all of them take."""

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest


def table(test: str, name: str) -> dict[str, Any]:
    """Return the table in a TOML file beside the file of a test."""
    return tomllib.loads((Path(test).parent / name).read_text(encoding="utf-8"))


def thinned(values: Iterable[object], every: int) -> list[object]:
    """Return parameters of which every so many, the first among them, are slow and the others exhaustive."""
    marks = pytest.mark.slow, pytest.mark.exhaustive
    return [pytest.param(value, marks=marks[index % every > 0]) for index, value in enumerate(values)]


def first_fast(values: Iterable[object], count: int = 1) -> list[object]:
    """Return parameters of which so many are fast; the others, which take as long each, are slow."""
    return [
        value if index < count else pytest.param(*_parts(value), marks=pytest.mark.slow)
        for index, value in enumerate(values)
    ]


def _parts(value: object) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else (value,)
