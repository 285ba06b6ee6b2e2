"""config.json of public models: fragments of the real files, what is about heads and positions.

They stand in net/configs.jsonl, where what is read of each is held.
"""

import json
from pathlib import Path
from typing import Any

from net.settings import text_of

# what `ropeaudit list models` names too, and what is spelled in other ways
TEXTS = [
    "llama-3.1-8b",
    "qwen2.5-7b",
    "gemma-2-27b",
    "gemma-3-27b",
    "deepseek-v3",
    "deepseek-v2-lite",
    "kimi-k2",
    "gpt-neox-20b",
    "gpt-j-6b",
    "gpt-oss-20b",
    "olmo-3-7b",
    "command-r-v01",
    "falcon-7b",
    "stablelm-3b-4e1t",
    "minimax-text-01",
]
OTHERS = (
    "phi-3.5",
    "qwen2-vl",
    "qwen3-vl",
    "new-gemma-3",
    "gemma-3-4b",
    "gemma-4",
    "granite",
)

_TABLES = json.loads(Path(__file__).with_suffix(".json").read_text())
# name of a fragment: model type, beginning of the names of its classes in transformers
CLASSES: dict[str, tuple[str, str]] = {name: tuple(both) for name, both in _TABLES["classes"].items()}
# the same of configs of other families; chatglm has no class there, and internlm3 rotates by Llama's
MORE_CLASSES: dict[str, tuple[str, str]] = {name: tuple(both) for name, both in _TABLES["more"].items()}
WITHOUT_CLASS = {"glm-4-9b-chat", "chatglm3-6b"}
MORE = [*MORE_CLASSES, *sorted(WITHOUT_CLASS)]


def config(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text_of(f"real/{name}"))
    return found


def said_of(what: str) -> list[Any]:
    """Return the rows of net/said_of_configs.json on something: a config, a change of it, what is said."""
    path = Path(__file__).parent / "net" / "said_of_configs.json"
    rows: list[Any] = json.loads(path.read_text(encoding="utf-8"))[what]
    return rows
