"""Presets of position axes against the classes that they are of: tables built and applied by their own code.

Scores are formed in float64 from what the classes rotate. Drift is then the rotation alone, and RMS drift
must agree with that of the recipe of the preset within 5 %: an operation in another order makes it not the
same, another computation makes it another.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from optional import needs

import ropeaudit
from ropeaudit.arithmetic.formats import parse
from ropeaudit.audits.cases import Case
from ropeaudit.reference import exact_scores
from ropeaudit.rope import axial_presets
from ropeaudit.rope.grids import Grid

torch = pytest.importorskip("torch")
pytestmark = needs("diffusers", "transformers")

SIZES = (2, 7, 10)  # positions of some presets are no binary fractions then
HEADS = 2
Turn = Callable[[Any, Grid, int], Any]  # x (h, s, d), grid, offset -> x rotated


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
    whole = torch.zeros(HEADS, x.shape[1], 2048, dtype=x.dtype)
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


def rms_of(
    name: str, turn: Turn, dtype: str, offset: int, full: tuple[int, ...] = SIZES
) -> tuple[float, float]:
    """Return RMS drift of a class, and of the preset's recipe on the same q and k."""
    rope = axial_presets.named(name)
    case = Case(axes=name, grid="x".join(map(str, full[-len(rope.axes) :])), heads=HEADS, mask="full", seed=1)
    inputs, setting = case.load()
    assert setting.grid is not None
    q, k = (
        turn(torch.tensor(x).to(getattr(torch, dtype)), setting.grid, offset).double().numpy()
        for x in (inputs.q, inputs.k)
    )
    table = exact_scores.distance_table(np.arange(setting.grid.count, dtype=np.float64), setting)
    drift = []
    for head in range(HEADS):
        factors = (exact_scores.rotated(x[head], table, setting, "double") for x in (inputs.q, inputs.k))
        drift.append(q[head] @ k[head].T - exact_scores.product(*factors)[0])
    wide = {"accumulate": "fp64", "score": "fp64"}
    [record] = ropeaudit.shift(offset, dtype, rope.recipe, changes=wide, cases=case)
    return float(np.sqrt(np.mean(np.square(drift)))) * setting.scale, record.drift_rms


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


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", AT_THE_ORIGIN)
def test_a_class_drifts_as_its_preset_says(name: str, dtype: str) -> None:
    measured, emulated = rms_of(name, AT_THE_ORIGIN[name], dtype, 0)
    assert emulated == pytest.approx(measured, rel=0.05)


@pytest.mark.parametrize("name", ["flux", "pixtral", "qwen2-vl-vision", "qwen3-vl"])
def test_a_class_drifts_as_its_preset_says_where_its_positions_are_shifted(name: str) -> None:
    measured, emulated = rms_of(name, AT_THE_ORIGIN[name], "float32", 1000)
    assert emulated == pytest.approx(measured, rel=0.05)


def test_ideogram_rotates_in_float32_at_65536() -> None:
    """Its class returns float32 for 16-bit q and k too, so that only float32 can be compared."""
    measured, emulated = rms_of("ideogram-4", ideogram_4, "float32", 0)
    assert emulated == pytest.approx(measured, rel=0.05)


@pytest.mark.parametrize(("dtype", "side", "rel"), [("bfloat16", 14, 0.05), ("float32", 14, 0.05)])
def test_dinov3_drifts_as_its_preset_says(dtype: str, side: int, rel: float) -> None:
    measured, emulated = rms_of("dinov3", dinov3, dtype, 0, (side, side))
    assert emulated == pytest.approx(measured, rel=rel)


def test_dinov3_multiplies_positions_by_two_pi_where_we_multiply_frequencies() -> None:
    """Where centres are exact in float32 that is seen: 9 % at 16 x 16, of a drift of 1e-7."""
    measured, emulated = rms_of("dinov3", dinov3, "float32", 0, (16, 16))
    assert emulated == pytest.approx(measured, rel=0.15)
    assert emulated != pytest.approx(measured, rel=0.05)


def held(name: str, sizes: tuple[int, ...]) -> np.ndarray:
    """Return the positions of all tokens of a preset as float32 holds them. Shapes: -> (s, a)."""
    grid = Grid(axial_presets.named(name), sizes, ())
    return grid.computed(np.arange(grid.count), parse("fp32"))


def test_positions_are_bit_for_bit_those_of_the_classes() -> None:
    from diffusers.models.transformers.transformer_ltx import LTXVideoRotaryPosEmbed
    from diffusers.pipelines.cogvideo.pipeline_cogvideox import get_resize_crop_region_for_grid
    from transformers.models.dinov3_vit.modeling_dinov3_vit import get_patches_center_coordinates

    centres = get_patches_center_coordinates(14, 9, torch.float32, torch.device("cpu"))
    np.testing.assert_array_equal(held("dinov3", (14, 9)), centres.double().numpy())
    shares = LTXVideoRotaryPosEmbed(2048)._prepare_video_coords(1, 90, 5, 6, (8 / 25, 32, 32), "cpu")[0]
    np.testing.assert_array_equal(held("ltx-video", (90, 5, 6)), (shares * 2 - 1).double().numpy())
    for h, w in ((14, 10), (40, 7), (30, 45)):
        (top, left), (bottom, right) = get_resize_crop_region_for_grid((h, w), 45, 30)
        rows = torch.linspace(top, bottom * (h - 1) / h, h, dtype=torch.float32).double().numpy()
        columns = torch.linspace(left, right * (w - 1) / w, w, dtype=torch.float32).double().numpy()
        ours = held("cogvideox", (1, h, w))
        # a machine without fused multiplication and addition rounds once more
        np.testing.assert_allclose(ours[::w, 1], rows, rtol=2**-23, atol=0)
        np.testing.assert_allclose(ours[:w, 2], columns, rtol=2**-23, atol=0)
