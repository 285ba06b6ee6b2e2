"""Rotations by the classes that presets of axes are of. Shapes: x (h, s, d), grid, offset -> like x."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ropeaudit.rope.grids import Grid

Turn = Callable[[Any, Grid, int], Any]


def ids(grid: Grid, offset: int) -> Any:
    return torch.tensor(grid.positions() + offset)


def flux(x: Any, grid: Grid, offset: int) -> Any:
    from diffusers.models.embeddings import apply_rotary_emb
    from diffusers.models.transformers.transformer_flux import FluxPosEmbed

    return apply_rotary_emb(x[None], FluxPosEmbed(10000, [16, 56, 56])(ids(grid, offset)))[0]


def wan(x: Any, grid: Grid, offset: int) -> Any:
    """As its attention processor, which keeps this in a function of its own, does."""
    from diffusers.models.transformers.transformer_wan import WanRotaryPosEmbed

    t, h, w = grid.sizes
    table = WanRotaryPosEmbed(128, (1, 2, 2), 64)(torch.zeros(1, 1, t, 2 * h, 2 * w))
    cos, sin = table[0][0, :, 0, 0::2], table[1][0, :, 0, 1::2]
    a, b, out = x[..., 0::2], x[..., 1::2], torch.empty_like(x)
    out[..., 0::2], out[..., 1::2] = a * cos - b * sin, a * sin + b * cos
    return out


def qwen_image(x: Any, grid: Grid, offset: int) -> Any:
    from diffusers.models.transformers.transformer_qwenimage import QwenEmbedRope, apply_rotary_emb_qwen

    table, _ = QwenEmbedRope(10000, [16, 56, 56], True)([grid.sizes], torch.device("cpu"), 1)
    return apply_rotary_emb_qwen(x.transpose(0, 1)[None], table, use_real=False)[0].transpose(0, 1)


def ltx_video(x: Any, grid: Grid, offset: int) -> Any:
    from diffusers.models.transformers import transformer_ltx

    scales = 8 / 25, 32, 32
    table = transformer_ltx.LTXVideoRotaryPosEmbed(2048)(torch.zeros(1, 1), *grid.sizes, scales)
    whole = torch.zeros(x.shape[0], x.shape[1], 2048, dtype=x.dtype)
    whole[..., 31 * 64 :] = x
    return transformer_ltx.apply_rotary_emb(whole, table)[..., 31 * 64 :]


def cogvideox(x: Any, grid: Grid, offset: int) -> Any:
    from diffusers.models.embeddings import apply_rotary_emb, get_3d_rotary_pos_embed
    from diffusers.pipelines.cogvideo.pipeline_cogvideox import get_resize_crop_region_for_grid

    t, h, w = grid.sizes
    crop = get_resize_crop_region_for_grid((h, w), 45, 30)
    return apply_rotary_emb(x[None], get_3d_rotary_pos_embed(64, crop, (h, w), t))[0]


def hunyuan_video(x: Any, grid: Grid, offset: int) -> Any:
    from diffusers.models.embeddings import apply_rotary_emb
    from diffusers.models.transformers.transformer_hunyuan_video import HunyuanVideoRotaryPosEmbed

    t, h, w = grid.sizes
    table = HunyuanVideoRotaryPosEmbed(2, 1, [16, 56, 56], 256.0)(torch.zeros(1, 1, t, 2 * h, 2 * w))
    return apply_rotary_emb(x[None], table)[0]


def ideogram_4(x: Any, grid: Grid, offset: int) -> Any:
    module = pytest.importorskip("diffusers.models.transformers.transformer_ideogram4")
    cos, sin = module.Ideogram4MRoPE(256, 5_000_000, (24, 20, 20))(ids(grid, offset)[None])
    return x * cos[0] + module._rotate_half(x) * sin[0]


def dinov3(x: Any, grid: Grid, offset: int) -> Any:
    from transformers import DINOv3ViTConfig
    from transformers.models.dinov3_vit import modeling_dinov3_vit as module

    h, w = grid.sizes
    rope = module.DINOv3ViTRopePositionEmbedding(DINOv3ViTConfig()).eval()
    return module.apply_rotary_pos_emb(x, x, *rope(torch.zeros(1, 1, 16 * h, 16 * w, dtype=x.dtype)))[0]


def pixtral(x: Any, grid: Grid, offset: int) -> Any:
    from transformers import PixtralVisionConfig
    from transformers.models.pixtral import modeling_pixtral as module

    at = ids(grid, offset).T[None]
    table = module.PixtralVisionRotaryEmbedding(PixtralVisionConfig())(x, at)
    return module.apply_rotary_pos_emb(x, x, *table, unsqueeze_dim=0)[0][0]


def qwen2_vl_vision(x: Any, grid: Grid, offset: int) -> Any:
    from transformers.models.qwen2_vl import modeling_qwen2_vl as module
    from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLVisionConfig

    cos, sin = module.Qwen2VLVisionRotaryEmbedding(Qwen2VLVisionConfig())(x, ids(grid, offset).T[None])
    q = x.transpose(0, 1)
    return module.apply_rotary_pos_emb_vision(q, q, cos[0], sin[0])[0].transpose(0, 1)


def qwen3_vl_vision(x: Any, grid: Grid, offset: int) -> Any:
    from transformers.models.qwen3_vl import modeling_qwen3_vl as module
    from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig

    cos, sin = module.Qwen3VLVisionRotaryEmbedding(Qwen3VLVisionConfig())(x, ids(grid, offset).T[None])
    q = x.transpose(0, 1)
    return module.apply_rotary_pos_emb_vision(q, q, cos[0], sin[0])[0].transpose(0, 1)


def qwen2_vl(x: Any, grid: Grid, offset: int) -> Any:
    from transformers.models.qwen2_vl import modeling_qwen2_vl as module
    from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLTextConfig

    table = module.Qwen2VLRotaryEmbedding(Qwen2VLTextConfig())(x, ids(grid, offset).T[:, None])
    return module.apply_rotary_pos_emb(x[None], x[None], *table)[0][0]


def qwen3_vl(x: Any, grid: Grid, offset: int) -> Any:
    from transformers.models.qwen3_vl import modeling_qwen3_vl as module
    from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLTextConfig

    table = module.Qwen3VLTextRotaryEmbedding(Qwen3VLTextConfig())(x, ids(grid, offset).T[:, None])
    return module.apply_rotary_pos_emb(x[None], x[None], *table)[0][0]


AT_THE_ORIGIN: dict[str, Turn] = {
    "flux": flux,
    "wan": wan,
    "qwen-image": qwen_image,
    "ltx-video": ltx_video,
    "cogvideox": cogvideox,
    "hunyuan-video": hunyuan_video,
    "pixtral": pixtral,
    "qwen2-vl-vision": qwen2_vl_vision,
    "qwen3-vl-vision": qwen3_vl_vision,
    "qwen2-vl": qwen2_vl,
    "qwen3-vl": qwen3_vl,
}
