"""Data files: named recipes, models, presets of position axes, and what a page is made of."""

import pkgutil


def text(name: str) -> str:
    """Return a file of this folder, from wherever the package lies. Raises: FileNotFoundError."""
    content = pkgutil.get_data(__name__, name)  # importlib.resources would load zipfile
    if content is None:
        raise FileNotFoundError(name)
    return content.decode()
