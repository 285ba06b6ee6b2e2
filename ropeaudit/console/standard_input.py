"""`-` in the place of a report to read: what comes through a pipe, in a file while the run lasts."""

from __future__ import annotations

import atexit
import shutil
import sys
import tempfile
from pathlib import Path

from ropeaudit.errors import BadInput


def file(path: str) -> str:
    """Return a path that can be read; of `-` that of a file with all that stdin holds. Raises: BadInput."""
    if path != "-":
        return path
    content = sys.stdin.buffer.read() if sys.stdin is not None else b""
    if not content.strip():
        raise BadInput(
            "- is stdin, and nothing came through it; give a report, as `ropeaudit shift -f csv |`"
        )
    folder = tempfile.mkdtemp(prefix="ropeaudit-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    place = Path(folder) / f"stdin{_suffix(content)}"
    place.write_bytes(content)
    return str(place)


def _suffix(content: bytes) -> str:
    """Return the suffix of the form that a report has."""
    first, _, rest = content.lstrip().partition(b"\n")
    if content.startswith(b"PAR1"):
        return ".parquet"
    if not first.startswith(b"{"):
        return ".csv"
    return (
        ".jsonl"
        if first.rstrip().endswith(b"}") and (not rest.strip() or rest.lstrip()[:1] == b"{")
        else ".json"
    )
