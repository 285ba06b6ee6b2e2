"""What is read of a config.json, as it comes out of the door: `ropeaudit.check`.

configs.jsonl holds the configs, one a line: whole (`config`), as text (`text`), or another one (`of`) with
keys changed (`change`; "@absent" leaves a key out). settings.jsonl holds what is read of each (`today`), and,
where that is wrong, what is right of it (`right`, with the words why: `said`).
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ropeaudit

FOLDER = Path(__file__).parent
CONFIGS, SETTINGS = FOLDER / "configs.jsonl", FOLDER / "settings.jsonl"
ABSENT = "@absent"
LAST = "config keys"  # the last check of what a config says; those that measure come after it


def lines(path: Path) -> dict[str, dict[str, Any]]:
    """Return name -> what else its line says."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    named = {row.pop("name"): row for row in rows}
    assert len(named) == len(rows), f"{path.name}: two lines of one name"
    return named


@functools.cache
def _configs() -> Mapping[str, Mapping[str, Any]]:
    return lines(CONFIGS)


def text_of(name: str) -> str:
    """Return a config as it stands in its file."""
    row = _configs()[name]
    if "text" in row:
        return str(row["text"])
    if "config" in row:
        return json.dumps(row["config"])
    whole = json.loads(text_of(row["of"])) | row["change"]
    return json.dumps({key: value for key, value in whole.items() if value != ABSENT})


def names() -> Iterator[str]:
    """Yield the name of every config."""
    yield from _configs()


def read(path: Path) -> dict[str, Any]:
    """Return what is read of a config.json, layer type by layer type, and what `check` would exit with."""
    row: dict[str, Any] = {"exit": 0, "status": "read", "warns": False, "layers": {}}
    try:
        for one in ropeaudit.check(str(path), up_to=256):
            finding, setting = one.finding, one.setting
            row["exit"] = max(row["exit"], int(finding.status == "fail"))
            row["warns"] |= str(finding.status) == "warn"
            if finding.check == LAST:
                row["keys"] = finding.status
                break
            if setting is None:
                row["status"] = "refused" if finding.status == "fail" else finding.status
                break
            parts = ("head_dim", "rotary_dim", "layout", "base", "scaling", "scale")
            layer = {name: getattr(setting, name) for name in parts}
            row["layers"][one.layer] = layer | {"scaling": str(setting.scaling)}
            row["range"] = one.up_to
    except ropeaudit.BadInput:
        row |= {"exit": 2, "status": "refused"}
    if row["layers"]:
        row |= {"heads": _heads(path), "axes": _axes(path)}
    return row


def _heads(path: Path) -> list[int]:
    """Return how many heads of q and of k there are."""
    inputs, _ = ropeaudit.Case(config=str(path), seq_len=1).load()
    return [len(inputs.q), len(inputs.k)]


def _axes(path: Path) -> str:
    """Return which axis turns which pairs."""
    case = ropeaudit.Case(config=str(path))
    return str(case.position_axes(case.setting(1)) or "")


def differs(seen: Any, stored: Any, at: str = "") -> list[str]:
    """Return where what is seen is not what is stored; of a mapping only the keys that are stored count.

    Of layer types all count; "*" stands for each of them.
    """
    if isinstance(stored, dict) and isinstance(seen, dict):
        if "*" in stored:
            stored = dict.fromkeys(seen or ["full_attention"], stored["*"])
        of_layers = at.endswith(".layers")
        result = [f"{at}.{key}: was not there" for key in seen if of_layers and key not in stored]
        for key, value in stored.items():
            result += differs(seen.get(key), value, f"{at}.{key}")
        return result
    if isinstance(stored, float) and isinstance(seen, float) and math.isclose(seen, stored, rel_tol=1e-12):
        return []
    return [] if seen == stored else [f"{at}: {stored!r} is stored, {seen!r} is seen"]
