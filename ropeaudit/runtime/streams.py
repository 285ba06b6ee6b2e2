"""Stdout and stderr: text that cannot be encoded, closed pipes, messages of libraries."""

from __future__ import annotations

import codecs
import contextlib
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any

PLAIN = "ropeaudit-plain"  # the error handler of text that an encoding cannot hold
_ASCII = str.maketrans(
    {"–": "-", "—": "-", "−": "-", "─": "-", "≤": "<", "←": "<", "≥": ">", "→": ">", "↗": ">", "≈": "~"}
    | {"·": "*", "×": "*", "●": "*", "÷": "/", "✗": "x", "✓": "ok", "‘": "'", "’": "'", "“": '"', "”": '"'}
    | {"²": "^2", "³": "^3", "…": "...", "±": "+-", "Σ": "sum", "√": "sqrt", "∞": "inf", "Δ": "D", "µ": "u"}
    | {"δ": "d", "θ": "theta", "π": "pi"}
)


def discard_stdout() -> None:
    """Redirect stdout to the null device; else Python complains of a closed pipe."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _plain_text(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that an encoding lacks by similar ASCII, or by escapes."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    piece = error.object[error.start : error.end].translate(_ASCII)
    return piece.encode("ascii", "backslashreplace").decode(), error.end


codecs.register_error(PLAIN, _plain_text)


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep transformers offline, and its progress bars and advice off the terminal."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers.utils import logging as library

        logging: Any = library

        level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
        logging.set_verbosity(50)  # critical
        logging.disable_progress_bar()
        try:
            yield
        finally:
            logging.set_verbosity(level)
            if bars:
                logging.enable_progress_bar()
