"""Data files: named recipes, models, presets of position axes, and what a page is made of."""

import functools
import pkgutil
import tomllib
from typing import Any


def text(name: str) -> str:
    """Return a file of this folder, from wherever the package lies. Raises: FileNotFoundError."""
    content = pkgutil.get_data(__name__, name)  # importlib.resources would load zipfile
    if content is None:
        raise FileNotFoundError(name)
    return content.decode()


@functools.cache
def table(name: str) -> dict[str, Any]:
    """Return the content of a small TOML file of this folder, cached."""
    return tomllib.loads(text(name))
