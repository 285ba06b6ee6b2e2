"""Skip tests for packages that they need and that are not installed; pytest's summary names them."""

import contextlib
import re
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from unittest import mock

import pytest

from ropeaudit.errors import MissingPackage


def needs(*packages: str) -> pytest.MarkDecorator:
    """Return the mark that skips a test unless all of some packages are installed."""
    names = missing(packages)
    return pytest.mark.skipif(bool(names), reason=f"{' and '.join(names)} not installed")


def missing(names: Iterable[str]) -> list[str]:
    """Return the packages that are not installed."""
    return [name for name in names if find_spec(name) is None]


# what tests reach through the package's own commands, which say what they need; the modules' names
REACHED = (
    *(
        "diffusers",
        "gguf",
        "matplotlib",
        "mlx",
        "onnx",
        "onnxruntime",
        "pyarrow",
        "pywhispercpp",
        "transformers",
    ),
    *("curated_transformers", "mistral_inference", "rotary_embedding_torch", "x_transformers", "distributed"),
)
MISSING = missing(REACHED)


@contextlib.contextmanager
def skipping() -> Iterator[None]:
    """Skip a test that fails because a command or an import needs a package that is not installed.

    Where all of them are, as in CI, this does nothing: no failure can be mistaken for a missing package.
    """
    if not MISSING:
        yield
        return
    messages: list[str] = []

    def recorded(self: MissingPackage, *arguments: object) -> None:
        messages.extend(map(str, arguments))
        Exception.__init__(self, *arguments)

    try:
        with mock.patch.object(MissingPackage, "__init__", recorded):
            yield
    except Exception as error:
        error.add_note("\n".join(messages))  # pytest raises the error of a shared fixture again
        text = "\n".join([*error.__notes__, str(error)])
        for name in MISSING:
            if re.search(rf"needs [\w ]*\b{name}\b|No module named '{name}\b", text):
                pytest.skip(f"{name} is not installed")
        raise
