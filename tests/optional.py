"""Skip tests for packages that they need and that are not installed; pytest's summary names them."""

from importlib.util import find_spec

import pytest


def needs(*packages: str) -> pytest.MarkDecorator:
    """Return the mark that skips a test unless all of some packages are installed."""
    missing = [name for name in packages if find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{' and '.join(missing)} not installed")
