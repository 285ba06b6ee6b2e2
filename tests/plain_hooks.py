"""What plain hooks see of a model: q and k that its own code rotates, its scores, its frequencies, its logits.

It shares nothing with `ropeaudit model`: no capture, no float64 mode, no reading of layouts.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

NAME = "plain_hooks"
_ROTATES = ("apply_rotary", "apply_rotary_pos_emb", "rotate_queries", "apply_multimodal_rotary")


def load(folder: Path, dtype: Any = torch.float32, attention: str | None = None) -> Any:
    from transformers import AutoModelForCausalLM

    given = {"dtype": dtype, "local_files_only": True, "attn_implementation": attention or "eager"}
    for more in ({"experts_implementation": "eager"}, {}):
        try:
            return AutoModelForCausalLM.from_pretrained(str(folder), **given, **more).eval()
        except (ValueError, TypeError):
            continue
    return AutoModelForCausalLM.from_pretrained(str(folder), dtype=dtype, local_files_only=True).eval()


def tokens(count: int) -> Any:
    return torch.tensor([np.random.default_rng(0).integers(0, 64, count).tolist()])


def plain_change(folder: Path, count: int, offset: int) -> float | str:
    """Return the largest change of float32 logits at an offset, relative; or why there is none."""
    try:
        model = load(folder)
        ids, positions = tokens(count), torch.arange(count)[None]
        with torch.no_grad():
            base, other = (
                model(ids, position_ids=positions + n, use_cache=False).logits for n in (0, offset)
            )
        return float((other - base).abs().max() / base.abs().max())
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"


class Hooks:
    """Listens to the functions of a model's file that rotate, and to its attention."""

    def __init__(self) -> None:
        self.before: list[tuple[Any, Any]] = []
        self.scores: dict[int, Any] = {}

    def attention(self, module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: Any = None, **rest: Any) -> Any:
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        groups = query.shape[1] // key.shape[1]
        scores = (query @ key.repeat_interleave(groups, 1).transpose(2, 3))[0] * scale
        self.scores[int(module.layer_idx)] = scores.double().numpy()
        eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward")
        return eager(module, query, key, value, mask, scaling=scale, **rest)

    def rotation(self, function: Any) -> Any:
        def listening(q: Any, k: Any, *arguments: Any, **named: Any) -> Any:
            self.before.append((q, k))
            return function(q, k, *arguments, **named)

        return listening


def saved(folder: Path) -> dict[str, dict[str, Any]]:
    """Return layer type -> its saved q and k, and which layers they are of."""
    from safetensors import safe_open

    results = {}
    for path in sorted(folder.glob("qk*.safetensors")):
        with safe_open(path, "np") as file:
            meta = file.metadata() or {}
            results[path.stem.partition("-")[2]] = {
                "q": file.get_tensor("q"),
                "k": file.get_tensor("k"),
                "layers": [int(n) for n in meta.get("layers", "").split(",") if n],
            }
    return results


def compare(folder: Path, count: int) -> dict[str, Any]:
    """Return how far saved q and k, and scores that follow from them and the config, are from the model's."""
    files = saved(folder)
    if not files:
        return {}
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    hooks = Hooks()
    AttentionInterface.register(NAME, hooks.attention)
    AttentionMaskInterface.register(NAME, eager_mask)
    model = load(folder, torch.float64, NAME)
    patched = []
    for module in {type(m).__module__ for m in model.modules() if "transformers.models" in type(m).__module__}:
        for name, function in vars(sys.modules[module]).copy().items():
            if name.startswith(_ROTATES) and callable(function) and "vision" not in name:
                setattr(sys.modules[module], name, hooks.rotation(function))
                patched.append((sys.modules[module], name, function))
    try:
        with torch.no_grad():
            model(tokens(count), position_ids=torch.arange(count)[None], use_cache=False)
    finally:
        for where, name, function in patched:
            setattr(where, name, function)
    return {"save_qk": before_rope(hooks, files), "scores": after_rope(folder, hooks, files, count)}


def before_rope(hooks: Hooks, files: dict[str, dict[str, Any]]) -> float | str:
    """Return the largest difference of saved q and k from those that go into the rotation, relative."""
    order = [layer for one in files.values() for layer in one["layers"]]
    if len(order) != len(hooks.before):
        return f"{len(order)} layers saved, {len(hooks.before)} rotations seen"
    worst = 0.0
    for one in files.values():
        for index, layer in enumerate(one["layers"]):
            pair = hooks.before[sorted(order).index(layer)]
            for name, seen in zip("qk", pair, strict=True):
                worst = max(worst, distance(one[name][index], seen.double().numpy()))
    return worst


def distance(own: Any, seen: Any) -> float:
    """Return the largest difference over the largest value. own (h, s, d); seen (1, h, s, r) or (1, s, h, r)."""
    seen = seen[0]
    if seen.shape[1] != own.shape[1]:
        seen = seen.swapaxes(0, 1)
    own = own[..., : seen.shape[-1]]
    if own.shape[0] > seen.shape[0]:  # one rotated key that all heads share
        seen = np.broadcast_to(seen, own.shape)
    return float(np.abs(own - seen).max() / np.abs(seen).max())


def after_rope(folder: Path, hooks: Hooks, files: dict[str, dict[str, Any]], count: int) -> float | str:
    """Return the largest difference of scores from the model's: saved q and k, rotated as the config says."""
    from ropeaudit.errors import RopeAuditError
    from ropeaudit.rope import hf_config

    try:
        layers = hf_config.read(str(folder / "config.json")).layers
    except RopeAuditError as error:
        return error.typed.partition(": ")[2]
    worst = 0.0
    for kind, one in files.items():
        setting = layers[kind] if kind else next(iter(layers.values()))
        for index, layer in enumerate(one["layers"]):
            q, k = (exactly_rotated(one[name][index], setting, count) for name in "qk")
            scores = q @ k.repeat(q.shape[0] // k.shape[0], 0).swapaxes(1, 2) * setting.scale
            worst = max(worst, float(np.abs(scores - hooks.scores[layer]).max() / np.abs(scores).max()))
    return worst


def exactly_rotated(x: Any, setting: Any, count: int) -> Any:
    """Rotate x (h, s, d) at positions 0 ... s-1, written down anew from the setting."""
    from dataclasses import replace

    from ropeaudit.arithmetic.formats import FP64
    from ropeaudit.rope import scaled
    from ropeaudit.rope.frequencies import frequencies

    at = replace(setting, length=setting.scaling.length_for(count))
    rates = np.asarray(frequencies(at, "inverse_power", FP64), np.float64)
    angles, r = np.arange(count)[:, None] * rates, setting.rotary_dim
    factor = scaled.attention_factor(setting.scaling)
    cos, sin = np.cos(angles) * factor, np.sin(angles) * factor
    one, two = (slice(0, r, 2), slice(1, r, 2)) if setting.layout == "interleaved" else (slice(0, r // 2), slice(r // 2, r))
    result = x.copy()
    result[..., one] = x[..., one] * cos - x[..., two] * sin
    result[..., two] = x[..., two] * cos + x[..., one] * sin
    return result
