"""q and k of a model that computes attention in its own code: the products that go into a softmax.

Letters: b batch, h heads, g key-value heads, s positions, d head_dim. Scores are scaled, before softmax.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.features.model.layers import Capture, LayerVectors, as_array, visible_scores
from ropeaudit.features.model.provenance import before

_PRODUCTS = ("matmul", "__matmul__", "bmm", "baddbmm")  # whose factors are the last two tensors
_HIDDEN = -float(np.finfo(np.float16).max) / 2  # masks add the least number of a dtype, or twice that


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
