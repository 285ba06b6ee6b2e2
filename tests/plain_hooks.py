"""What plain hooks see of a model: q and k that its own code rotates, its scores, frequencies, logits.

It shares nothing with `ropeaudit model`: no capture, no float64 mode, no reading of layouts.
"""

from __future__ import annotations

import inspect
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

NAME = "plain_hooks"
_ROTATES = ("apply_rotary", "apply_rotary_pos_emb", "rotate_queries", "apply_multimodal_rotary")


# Attention that is not called through transformers' interface, and returns its weights second.
_OWN = ("CodeGenAttention", "FalconAttention", "GPTJAttention", "GPTNeoXJapaneseAttention")


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
        self.rotated: list[Any] = []
        self.before: dict[int, list[Any]] = {}
        self.scores: dict[int, Any] = {}
        self.weights: dict[int, Any] = {}  # of attention in the model's own code
        self.modules: dict[int, Any] = {}

    def attention(
        self,
        module: Any,
        query: Any,
        key: Any,
        value: Any,
        attention_mask: Any = None,
        scaling: Any = None,
        **rest: Any,
    ) -> Any:
        eager = sys.modules[type(module).__module__].eager_attention_forward
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        if query.shape[-2:] == key.shape[-2:]:  # not of a sequence to another one
            self._keep(module, query, key, scale)
        self.rotated = []
        return eager(module, query, key, value, attention_mask, scaling=scale, **rest)

    def _keep(self, module: Any, query: Any, key: Any, scale: float) -> None:
        number = getattr(module, "layer_idx", None)
        again = next((n for n, one in self.modules.items() if one is module), None)
        if number is None or number < 0:
            number = max(self.modules, default=-1) + 1
        elif again is not None:
            number = again
        elif number in self.modules:
            number = max(self.modules) + 1
        self.modules[number] = module
        if self.rotated:
            self.before[number] = self.rotated
        groups = query.shape[1] // key.shape[1]
        scores = (query @ key.repeat_interleave(groups, 1).transpose(2, 3))[0] * scale
        self.scores[number] = scores.double().numpy()

    def own_attention(self, module: Any, arguments: Any, result: Any) -> None:
        """Keep what was rotated in a layer whose attention is its own code, and its softmax. Last of all."""
        self.before[module.layer_idx], self.rotated = self.rotated, []
        self.weights[module.layer_idx] = result[1].detach()[0].double().numpy()

    def rotation(self, function: Any) -> Any:
        names = list(inspect.signature(function).parameters)
        both = names[1] in ("k", "key", "xk", "k_rot", "key_states")

        def listening(*arguments: Any, **named: Any) -> Any:
            self.rotated += [*arguments, *named.values()][: 2 if both else 1]
            return function(*arguments, **named)

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
    try:
        model = load(folder, torch.float64, NAME).double()
    except KeyError:  # a class with a dict of its own attentions
        model = load(folder, torch.float64).double()
    for module in model.modules():
        if type(module).__name__ in _OWN:
            module.register_forward_hook(hooks.own_attention)
    patched = []
    for module in {
        type(m).__module__ for m in model.modules() if "transformers.models" in type(m).__module__
    }:
        for name, function in vars(sys.modules[module]).copy().items():
            if name.startswith(_ROTATES) and callable(function) and "vision" not in name:
                setattr(sys.modules[module], name, hooks.rotation(function))
                patched.append((sys.modules[module], name, function))
    narrow, to_narrow = torch.float32, torch.Tensor.float
    try:
        # what asks for float32 by name gets float64: norms and tables of the model that is compared with
        torch.float32, torch.Tensor.float = torch.float64, torch.Tensor.double  # type: ignore[misc]
        with torch.no_grad():
            model(tokens(count), position_ids=torch.arange(count)[None], use_cache=False)
    finally:
        torch.float32, torch.Tensor.float = narrow, to_narrow  # type: ignore[misc]
        for where, name, function in patched:
            setattr(where, name, function)
    return {"save_qk": before_rope(hooks, files), "scores": after_rope(folder, hooks, files, count)}


def before_rope(hooks: Hooks, files: dict[str, dict[str, Any]]) -> float | str:
    """Return the largest difference of saved q and k from those that go into the rotation, relative."""
    worst = 0.0
    for one in files.values():
        for index, layer in enumerate(one["layers"]):
            if not hooks.before.get(layer):
                return f"no rotation seen in layer {layer}"
            for name in "qk":
                all_seen = [x.double().numpy() for x in hooks.before[layer]]
                worst = max(worst, min(distance(one[name][index], seen) for seen in all_seen))
    return worst


def distance(own: Any, seen: Any) -> float:
    """Return the largest difference over the largest value. own (h, s, d); seen (1, h, s, r) or (1, s, h, r).

    Halves of the dims may be exchanged: a model that rotates the other way is the same model then. Where one
    normalises after it rotates, directions are compared; lengths are by the scores.
    """
    if seen.ndim != 4 or not np.any(seen):
        return math.inf
    seen = seen[0] if seen.shape[2] == own.shape[1] else seen[0].swapaxes(0, 1)
    if seen.shape[1] != own.shape[1] or seen.shape[2] > own.shape[2]:
        return math.inf
    own = own[..., : seen.shape[-1]]
    copies = max(1, len(own) // len(seen))  # one that heads share, or that is repeated afterwards
    results = []
    for x in (np.repeat(seen, copies, 0), np.tile(seen, (copies, 1, 1))):
        if x.shape == own.shape:
            for y in (own, np.roll(own, own.shape[-1] // 2, -1)):
                for a, b in ((x, y), (_directions(x), _directions(y))):
                    results.append(float(np.abs(a - b).max() / np.abs(a).max()))
    return min(results, default=math.inf)


def _directions(x: Any) -> Any:
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-300)


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
            if layer in hooks.weights:  # scores but for what a row of them has in common
                visible = np.tril(np.ones((count, count), bool))
                own, seen = scores - scores[..., :1], hooks.weights[layer]
                difference = (own - np.log(np.where(visible, seen, 1.0) / seen[..., :1]))[:, visible]
            else:
                difference = scores - hooks.scores[layer]
            worst = max(worst, float(np.abs(difference).max() / np.abs(scores).max()))
    return worst


def exactly_rotated(x: Any, setting: Any, count: int) -> Any:
    """Rotate x (h, s, d) at positions 0 ... s-1, written down anew from the setting."""
    from ropeaudit.arithmetic.formats import FP64
    from ropeaudit.rope import scaled
    from ropeaudit.rope.frequencies import frequencies

    at = replace(setting, length=setting.scaling.length_for(count))
    rates = np.asarray(frequencies(at, "inverse_power", FP64), np.float64)
    angles, r = np.arange(count)[:, None] * rates, setting.rotary_dim
    factor = scaled.attention_factor(setting.scaling)
    cos, sin = np.cos(angles) * factor, np.sin(angles) * factor
    one, two = (
        (slice(0, r, 2), slice(1, r, 2))
        if setting.layout == "interleaved"
        else (slice(0, r // 2), slice(r // 2, r))
    )
    result = x.copy()
    result[..., one] = x[..., one] * cos - x[..., two] * sin
    result[..., two] = x[..., two] * cos + x[..., one] * sin
    return result


def frequency_error(folder: Path) -> float | None:
    """Return how far frequencies of a config are from those that the model holds in float32, relative.

    The largest over its layer types, each against the module's list that is nearest; the factor of cos and
    sin too. None where the model holds none.
    """
    from ropeaudit.arithmetic.formats import FP64
    from ropeaudit.rope import hf_config, scaled
    from ropeaudit.rope.frequencies import frequencies

    held = _held(load(folder))
    if not held:
        return None
    worst = 0.0
    for setting in hf_config.read(str(folder / "config.json")).layers.values():
        at = replace(setting, length=setting.scaling.length_for(1))
        own = np.asarray(frequencies(at, "inverse_power", FP64), np.float64)
        factor = scaled.attention_factor(setting.scaling)
        errors = [
            max(float(np.max(np.abs(own - one) / np.where(one == 0, 1.0, one))), abs(times / factor - 1))
            for one, times in held
            if one.shape == own.shape
        ]
        worst = max(worst, min(errors, default=math.inf))
    return worst


def _held(model: Any) -> list[tuple[Any, float]]:
    """Return the lists of frequencies in a model's buffers; of a table of sines by its row of position 1."""
    results = []
    for module in model.modules():
        for name, values in module._buffers.items():
            if values is None or "original" in name:
                continue
            if name.endswith("inv_freq"):
                factor = getattr(module, name.replace("inv_freq", "attention_scaling"), 1.0)
                results.append((values.double().numpy().reshape(-1), float(factor or 1.0)))
            elif name == "embed_positions":
                row = values.double().numpy()[1]
                results.append((np.arcsin(row[: len(row) // 2]), 1.0))
    return results
