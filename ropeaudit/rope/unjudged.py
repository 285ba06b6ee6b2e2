"""Keys of a config.json by which code gives tokens other positions than 0, 1, 2, ...: named, not judged."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ropeaudit.rope import hf_json
from ropeaudit.rope.hf_json import Config

# key -> what code does by it. Source: Qwen2.5-1M (arXiv 2501.15383); transformers 5.23.0, models/qwen2_5_vl
# and models/qwen2_5_omni (read)
_MOVES = {
    "dual_chunk_attention_config": "positions are counted within chunks",
    "tokens_per_second": "positions of video follow its seconds",
    "position_id_per_seconds": "positions of sound and video follow their seconds",
}
_NAMED_SO = re.compile("position.*(shift|offset|delta)|(shift|offset|delta).*position")
_DEPTH = 3  # objects within one another that are looked into


def keys(config: Config, part: Config) -> dict[str, str]:
    """Return the keys that are not judged, and why. part: the config's part about text. Raises: BadInput."""
    found: dict[str, str] = {}
    rope = hf_json.rope_dict(part)
    inner = (one for one in rope.values() if isinstance(one, Mapping))
    if any(one.get("mrope_section") is not None for one in (rope, *inner)):
        found["mrope_section"] = "the model's code builds the positions of images and video"
    return found | dict(_found(config, _DEPTH))


def _found(config: Mapping[str, Any], depth: int) -> Iterator[tuple[str, str]]:
    """Yield the keys that hold something, and why."""
    for key, value in config.items():
        if not isinstance(key, str) or not value:
            continue
        if key in _MOVES or (len(key) <= 40 and key.isprintable() and _NAMED_SO.search(key)):
            yield key, _MOVES.get(key, "by its name it moves positions")
        elif isinstance(value, Mapping) and depth:
            yield from _found(value, depth - 1)
