"""docs/architectures.md lists the types of data/model_types.toml by what their code does with positions.

`python tests/documentation/test_model_types_page.py` writes it, below the text of architectures.md here.
"""

from pathlib import Path
from typing import Any

from ropeaudit import data
from ropeaudit.rope.hf_json import VERSION

PAGE = Path(__file__).parents[2] / "docs" / "architectures.md"
INTRODUCTION = f"""\
{Path(__file__).with_name("architectures.md").read_text(encoding="utf-8")}
## Every model type

Generated from `ropeaudit/data/model_types.toml`, which a script writes from transformers {VERSION}; a test
compares it. The table has each type that a `config.json` may name, and each class of parts without a type.
They are sorted by what their code does with positions. That was read from the source, and seen in the model
where it can be built from its defaults.
"""
ROTATES, AXIAL, PARTS = "RoPE by the index of a token", "RoPE by several axes", "what their parts have"


def group(row: dict[str, Any]) -> str:
    """Return what the code of a type has."""
    if "positions" in row:
        return str(row["positions"])
    if row.get("axial"):
        return AXIAL
    return PARTS if "parts" in row and not {"rope_theta", "scaled"} & row.keys() else ROTATES


def page() -> str:
    """Return the page as it should be."""
    groups: dict[str, list[str]] = {}
    for name, row in data.table("model_types.toml").items():
        groups.setdefault(group(row), []).append(name)
    first = [ROTATES, AXIAL, PARTS]
    lines = [INTRODUCTION, "| code has | types | which |", "| --- | --- | --- |"]
    for words in [*first, *sorted(groups.keys() - {*first})]:
        named = ", ".join(f"`{name}`" for name in groups[words])
        lines.append(f"| {words} | {len(groups[words])} | {named} |")
    return "\n".join(lines) + "\n"


def test_the_page_is_what_the_table_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
