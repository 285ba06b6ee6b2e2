"""The first picture, light and dark: `python tests/documentation/first_picture.py` draws both anew."""

import re
import shlex
import tempfile
from pathlib import Path

from documented import ROOT, blocks

from ropeaudit.main import main

IMAGES = ROOT / "docs" / "images"
_DARK = {  # of the light picture -> on a dark page; what has no colour of its own is black
    "#ffffff": "none",
    "#000000": "#e2e4e9",
    "#dddddd": "#40444f",
    "#666666": "#a5a9b5",
    "#0072b2": "#56b4e9",
    "#d55e00": "#f2863b",
}


def commands() -> list[list[str]]:
    """Return the arguments of the commands with which docs/README.md measures and draws it."""
    first = (block.text for block in blocks() if block.page == "docs/README.md")
    (text,) = (text for text in first if "ropeaudit plot " in text)
    return [shlex.split(line)[1:] for line in text.splitlines() if line.startswith("ropeaudit ")]


def drawn(folder: Path) -> str:
    """Return the light picture, measured and drawn as the page says. Raises: RuntimeError."""
    for arguments in commands():
        paths = [str(folder / word) if word.endswith((".jsonl", ".svg")) else word for word in arguments]
        if main([*paths, "-q"]):
            raise RuntimeError(shlex.join(arguments))
    return (folder / "drift.svg").read_text(encoding="utf-8")


def dark(svg: str) -> str:
    """Return a picture in the colours of a dark page."""
    recoloured = re.sub(r"#[0-9a-f]{6}(?=[;\"])", lambda match: _DARK[match[0]], svg)
    return recoloured.replace("<svg ", f'<svg fill="{_DARK["#000000"]}" ', 1)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        light = drawn(Path(scratch))
    IMAGES.mkdir(exist_ok=True)
    (IMAGES / "drift.svg").write_text(light, encoding="utf-8")
    (IMAGES / "drift-dark.svg").write_text(dark(light), encoding="utf-8")
