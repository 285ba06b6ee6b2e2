"""What each type of causal language model does with positions, by its code, and the page about them.

Everything that is not listed in `POSITIONS` rotates q and k.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data" / "architectures.json"
PAGE = Path(__file__).parent.parent / "docs" / "architectures.md"

# kind -> what it is, and the verdict and cause of `ropeaudit model` at offset 1000, or its refusal
KINDS: dict[str, tuple[str, str]] = {
    "rotary": ("rotated q and k (RoPE)", "precision, rounding"),
    "switching": ("RoPE whose frequencies change with the length", "structure, frequencies"),
    "scaled queries": ("RoPE, and queries that grow with their position", "structure, query scale"),
    "reset": ("RoPE, and a state that begins anew at position 0", "structure, other"),
    "windows": ("RoPE, and compressed keys that stay where they are", "structure, other"),
    "learned": ("a learned vector a position", "structure, learned positions"),
    "table": ("a vector a position out of a table", "structure, position table"),
    "none": ("none in its attention", "none, none"),
    "unread": ("order of the tokens, ALiBi or none", "does not read position_ids"),
    "unbuilt": ("not built from a config alone", ""),
}


def _types(words: str) -> list[str]:
    return words.split()


# Read in transformers 5.23.0, models/*/modeling_*.py.
_OTHERS: dict[str, list[str]] = {
    "switching": ["llama, dynamic", "phi3, longrope"],
    "scaled queries": ["beam"],
    "reset": ["recurrent_gemma"],
    "windows": ["deepseek_v4"],
    "learned": _types(
        """bert bert-generation big_bird biogpt camembert data2vec-text electra ernie git gpt-sw3 gpt2
        gpt_bigcode gpt_neo megatron-bert openai-gpt opt rembert roberta roberta-prelayernorm roc_bert whisper
        xlm xlm-roberta xlm-roberta-xl xmod"""
    ),
    "table": ["ctrl", "reformer", "xglm"],
    "none": [
        *_types("inkling2_text inkling_text jamba kimi_linear nemotron_h zamba"),
        *("cohere2, full alone", "falcon, alibi", "zamba2, no rope"),
    ],
    "unread": _types(
        """bart bigbird_pegasus blenderbot blenderbot-small bloom cpmant falcon_mamba granitemoehybrid mamba
        mamba2
        marian mbart mpt mvp pegasus plbart prophetnet roformer rwkv trocr xlnet xlstm"""
    ),
    "unbuilt": _types("gemma3n gemma4_assistant gemma4_unified_assistant musicgen musicgen_melody"),
}
POSITIONS = {name: kind for kind, names in _OTHERS.items() for name in names}
# What --config refuses though the type rotates, with a word of the refusal.
CONFIG_REFUSED = {
    "blt": "several parts",
    "cohere_compass_text": "mrope_section",
    "deepseek_v4": "'compress_rope_theta'",
    "minimax_m3_vl_text": "rotary_dim",
}


def kind_of(name: str) -> str:
    """Return what a type's code does with positions."""
    return POSITIONS.get(name, "rotary")


def wrong(name: str, one: Mapping[str, Any]) -> list[str]:
    """Return what of the audit of a type is not as its code and plain hooks say."""
    kind, results = kind_of(name), []
    if (kind == "unbuilt") != bool(one["built"]):
        return [f"built: {one['built'] or 'yes'}"]
    if kind == "unbuilt":
        return []
    said = f"{one['verdict']}, {one['cause']}" if "verdict" in one else one["refusal"]
    if KINDS[kind][1] not in said:
        results.append(f"{said!r} is not {KINDS[kind][1]!r}")
    plain = one["plain"]
    # float32 angles at position 1000 are off by 6e-5; a table of positions changes logits by 1e-3 and more
    expected = "structure" if plain > 2e-3 else "precision" if plain > 0 else "none"
    if kind == "unread":
        expected = "none" if plain == 0 else "changes"
    if expected != ("none" if kind == "unread" else KINDS[kind][1].split(",")[0]):
        results.append(f"logits of a plain run change by {plain}")
    return (
        results
        + _wrong_config(name, one, rotates=kind in _ROTARY or name == "roformer")
        + _wrong_saved(name, one)
    )


_ROTARY = ("rotary", "switching", "scaled queries", "reset", "windows")


def _wrong_config(name: str, one: Mapping[str, Any], rotates: bool) -> list[str]:
    results, refusal = [], one["config"]
    if name in CONFIG_REFUSED:
        return [] if CONFIG_REFUSED[name] in refusal else [f"--config: {refusal or 'not refused'}"]
    if rotates == bool(refusal):
        results.append(f"--config: {refusal or 'read'}")
    if not rotates and "does not encode positions by rotation" not in refusal:
        results.append(f"--config: {refusal}")
    if (one.get("frequencies") or 0.0) > 3e-7:  # float32 holds a frequency to 6e-8, computed by a power 1e-7
        results.append(f"frequencies differ by {one['frequencies']}")
    listed = {kind for kind, (rotated, _) in one.get("rotating", {}).items() if rotated}
    if len(one["types"]) > 1 and set(one["types"]) != listed:
        results.append(f"--config reads {one['types']}, and {sorted(listed)} rotate")
    if (one["check"][0].split(": ")[2] == "pass") != rotates:
        results.append(f"check: {one['check'][0]}")
    return results


def _wrong_saved(name: str, one: Mapping[str, Any]) -> list[str]:
    results = []
    if "verdict" in one and kind_of(name) in ("rotary", "switching"):
        if one["saved"]:
            results.append(f"--save-qk: {one['saved']}")
        if not one["saved"] and not _small(one.get("save_qk")):
            results.append(
                f"--save-qk: q and k differ from those of hooks: {one.get('save_qk', one.get('hooks'))}"
            )
        if not one["saved"] and not one["config"] and not _small(one.get("scores")):
            results.append(f"scores from saved q and k differ: {one.get('scores')}")
    return results


def _small(value: Any) -> bool:
    return isinstance(value, float) and value <= 1e-6


def page(data: Mapping[str, Mapping[str, Any]], versions: str) -> str:
    """Return docs/architectures.md."""
    rows = [_row(name, one) for name, one in sorted(data.items())]
    kinds = [kind_of(name) for name in data]
    run = [one for one in data.values() if "verdict" in one]
    unread, unbuilt = (kinds.count(kind) for kind in ("unread", "unbuilt"))
    text = f"""# Architectures

Every type that transformers builds as a causal language model ({versions}), and some settings
of a type behind a comma: built small and random, written to disk and audited as a user would, at offset
1000. `tests/architectures.py` writes this page; `tests/architecture_page.py` holds what the code of each
type does, as it was read there, and compares.

{len(data)} models: {len(run)} run in `ropeaudit model`, {unread} are refused because they do not read
position_ids, {unbuilt} cannot be built by transformers from a config alone.

* **positions**: what the code of the type does with them.
* **model**: verdict and cause of `ropeaudit model`, or why it is refused.
* **rotates**: layers that rotate q and k, of those that are seen, by layer type.
* **q, k**: largest difference of what `--save-qk` writes from what goes into the model's own rotation, over
  the largest value. *not seen*: the attention goes neither through transformers' interface nor through a
  product whose multiple goes into a softmax.
* **scores**: the same for scores that follow from saved q and k, rotated as `--config` reads, and the
  model's.
* **config**: layer types that `--config` and `check` read, and how far their frequencies are from those that
  the model holds in float32, relative; or the refusal.

| type | positions | model | rotates | q, k | scores | config |
| --- | --- | --- | --- | --- | --- | --- |
"""
    return text + "\n".join(rows) + "\n"


def _row(name: str, one: Mapping[str, Any]) -> str:
    kind = kind_of(name)
    cells = [f"`{name}`", KINDS[kind][0]]
    if one["built"]:
        return "| " + " | ".join([*cells, f"not built: {_escaped(one['built'])}", "", "", "", ""]) + " |"
    said = f"{one['verdict']}, {one['cause']}" if "verdict" in one else "refused: position_ids not read"
    turned = ", ".join(f"{a} of {b} {k}" for k, (a, b) in sorted(one.get("rotating", {}).items()))
    saved = _number(one.get("save_qk"))
    if "verdict" in one and one["saved"]:
        saved = (
            "not seen"
            if "not seen" in one["saved"]
            else "refused: no layer rotates"
            if "no layer" in one["saved"]
            else "refused"
        )
    read = ", ".join(one["types"])
    if one["config"]:
        read = f"refused: {_escaped(one['config'])}"
    elif one.get("frequencies") is not None:
        read += f", {_number(one['frequencies'])}"
    return "| " + " | ".join([*cells, said, turned, saved, _number(one.get("scores")), read]) + " |"


def _number(value: Any) -> str:
    return f"{value:.0e}" if isinstance(value, float) and math.isfinite(value) else ""


def _escaped(text: str) -> str:
    short = text if len(text) <= 110 else text[:107] + "..."
    return short.replace("|", "\\|")


def load() -> dict[str, Any]:
    """Return the results of the last audit of all types."""
    data: dict[str, Any] = json.loads(DATA.read_text(encoding="utf-8"))
    return data
