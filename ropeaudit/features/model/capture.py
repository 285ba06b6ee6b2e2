"""q and k as attention gets them: in a function of ours, or in the products that go into a softmax.

Letters: b batch, h heads, g key-value heads, s positions, d head_dim. Scores are scaled, before softmax.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.overrides import TorchFunctionMode

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.features.model.layers import LayerVectors
from ropeaudit.features.model.provenance import as_array, before

_PRODUCTS = ("matmul", "__matmul__", "bmm", "baddbmm")  # whose factors are the last two tensors
_HIDDEN = -float(np.finfo(np.float16).max) / 2  # masks add the least number of a dtype, or twice that


class Capture:
    """An attention function for transformers: it keeps q and k and leaves the rest to the model's own.

    attended: whether the model has called it.
    """

    def __init__(self) -> None:
        """Begin with nothing."""
        self.layers: dict[int, LayerVectors] = {}
        self.attended = False
        self._modules: dict[int, Any] = {}

    def __call__(
        self,
        module: Any,
        query: Any,
        key: Any,
        value: Any,
        attention_mask: Any,
        scaling: float | None = None,
        dropout: float = 0.0,
        **others: Any,
    ) -> Any:
        """Keep q and k of a layer and attend. Shapes: (b, h, s, d), (b, g, s, d)."""
        if not self.attended:
            self.attended = True
            self.layers.clear()  # of products elsewhere, see `Products`
        scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
        if query.shape[-2:] == key.shape[-2:]:  # else keys are joined, or have dims of their own
            visible = visible_scores(attention_mask, query.shape[-2])
            self.layers[self._number(module)] = LayerVectors(
                as_array(query[0]), as_array(key[0]), scale, visible, before(query, key)
            )
        eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", _attend)
        return eager(module, query, key, value, attention_mask, scaling=scale, dropout=dropout, **others)

    def _number(self, module: Any) -> int:
        """Return the layer's own number, or the next one where it has none or another stack has taken it."""
        number = getattr(module, "layer_idx", None)
        number = None if number is None or number < 0 else int(number)  # where layers share their attention
        known = next((n for n, one in self._modules.items() if one is module), None)
        if number is not None and known is not None:
            return known  # it runs again
        if number is None or number in self._modules:
            number = max(self._modules, default=-1) + 1
        self._modules[number] = module
        return number


def visible_scores(mask: Any, size: int) -> NDArray[np.bool_]:
    """Return the scores that a query sees. mask: added to them, or true where it sees."""
    if mask is None:
        return np.tril(np.ones((size, size), np.bool_))
    plane = mask[0, 0, :, :size]
    visible: NDArray[np.bool_] = (plane if plane.dtype == torch.bool else plane > -1).cpu().numpy().copy()
    return visible


def _attend(
    module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: float, dropout: float = 0.0, **_: Any
) -> Any:
    """Return plain attention, for models that have no function of their own."""
    groups = query.shape[1] // key.shape[1]
    scores = query @ key.repeat_interleave(groups, 1).transpose(2, 3) * scaling
    scores = scores if mask is None else scores + mask
    weights = torch.softmax(scores, -1, dtype=torch.float32).to(query.dtype)
    return (weights @ value.repeat_interleave(groups, 1)).transpose(1, 2).contiguous(), weights


class Products(TorchFunctionMode):
    """Listens to torch for q·k, in models that do not attend through `Capture`; fills its layers.

    A layer is a product of (…, s, d) and (…, d, s) whose multiple, plus a mask, goes into a softmax. scales:
    of each layer as float64 shows it; where it was shown before, those are taken. Layers are numbered in the
    order in which they run. Left out are scores that are more than a multiple of q·k, such as ALiBi's.
    """

    def __init__(self, capture: Capture, scales: dict[int, float], exact: bool) -> None:
        """Begin with nothing. exact: whether the model computes in float64, and so shows its scales."""
        super().__init__()
        self.capture, self.scales, self.exact = capture, scales, exact
        self.number = 0
        self.factors: tuple[Any, Any] | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result, name = func(*args, **(kwargs or {})), getattr(func, "__name__", "")
        if self.capture.attended:
            return result
        if name in _PRODUCTS:
            given = [x for x in (*args, *(kwargs or {}).values()) if isinstance(x, torch.Tensor)]
            self._product(*given[-2:])
        elif name == "scaled_dot_product_attention":
            self._fused(*args, **(kwargs or {}))
        elif name == "softmax" and args and self.factors is not None:
            self._softmax(args[0], *self.factors)
        return result

    def _product(self, q: Any, transposed: Any) -> None:
        if q.ndim >= 3 and transposed.ndim >= 3 and q.shape[-2:] == transposed.shape[:-3:-1]:
            self.factors = (_heads(q), _heads(transposed.transpose(-1, -2)))

    def _fused(
        self, query: Any, key: Any, value: Any, attn_mask: Any = None, *rest: Any, **named: Any
    ) -> None:
        """Note a layer of torch's own attention. Shapes: (b, h, s, d), (b, g, s, d)."""
        q, k = query, key
        if q.shape[-2:] == k.shape[-2:]:
            scale = named.get("scale") or q.shape[-1] ** -0.5
            causal = named.get("is_causal", rest[1] if len(rest) > 1 else False)
            visible = visible_scores(attn_mask, q.shape[-2])
            if attn_mask is None and not causal:
                visible = np.ones_like(visible)
            self._keep(_heads(q), _heads(k), scale, visible)

    def _softmax(self, scores: Any, q: Any, k: Any) -> None:
        """Note a layer, if its scores are a multiple of the last product. Shapes: (…, s, s)."""
        self.factors = None
        if tuple(scores.shape[-2:]) != (q.shape[-2], k.shape[-2]):
            return
        first = as_array(scores.reshape(-1, *scores.shape[-2:])[0])
        visible = first > _HIDDEN * q.shape[-1] ** -0.5  # some divide after they mask
        if self.exact:
            self._scale(np.matmul(as_array(q[0]), as_array(k[0]).T), first, visible)
        scale = self.scales.get(self.number)
        if scale is None:
            self.number += 1
        else:
            self._keep(q, k, scale, visible)

    def _scale(self, products: Array, scores: Array, visible: Any) -> None:
        """Note the scale of a layer, where scores are that multiple. 1e-9: far above rounding of float64."""
        seen, given = scores[visible], products[visible]
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            scale = float(seen @ given / (given @ given))
            if np.abs(seen - scale * given).max(initial=0.0) <= 1e-9 * np.abs(seen).max(initial=0.0):
                self.scales[self.number] = scale

    def _keep(self, q: Any, k: Any, scale: float, visible: Any) -> None:
        arrays = as_array(q), as_array(k)
        self.capture.layers[self.number] = LayerVectors(*arrays, float(scale), visible, before(q, k))
        self.number += 1


def _heads(x: Any) -> Any:
    """Return the heads of the first of a batch of one. Shapes: (1, h, s, d) or (h, s, d) -> (h, s, d)."""
    return x.detach().reshape(-1, *x.shape[-2:])
