"""Positions of image patches, as pipelines and models of diffusers build them in 16 bits: which ones merge.

docs/cases.md has these figures.
"""

import importlib
from collections.abc import Callable
from typing import Any

import pytest
from optional import needs

torch = pytest.importorskip("torch")
pytestmark = needs("diffusers", "transformers")

T, H, W = 1, 4, 2100  # patches; whole numbers are exact to 256 in bfloat16, to 2048 in float16
LEFT = {"float32": H * W, "bfloat16": 2576, "float16": 8300}  # of Flux, in that dtype
PIPELINES = [
    "flux.pipeline_flux",
    "flux.pipeline_flux_kontext",
    "flux.pipeline_flux_fill",
    "bria.pipeline_bria",
]
PIPELINES += ["chroma.pipeline_chroma", "bria_fibo.pipeline_bria_fibo", "ovis_image.pipeline_ovis_image"]


def distinct(*tables: Any) -> int:
    """Return how many patches differ in a table. Shapes: (patches, columns)."""
    return len(torch.unique(torch.cat([table.double() for table in tables], -1), dim=0))


def pipeline(module: str) -> Any:
    """Return the pipeline of a module that builds ids of image patches."""
    held = vars(importlib.import_module(f"diffusers.pipelines.{module}"))
    (found,) = [one for name, one in held.items() if name.endswith("Pipeline") and own(one, module)]
    return found


def own(one: Any, module: str) -> bool:
    return hasattr(one, "_prepare_latent_image_ids") and one.__module__.endswith(module)


@pytest.mark.parametrize("dtype", LEFT)
@pytest.mark.parametrize("module", PIPELINES)
def test_pipelines_that_count_in_the_dtype_of_the_prompt_merge_patches(module: str, dtype: str) -> None:
    ids = pipeline(module)._prepare_latent_image_ids(1, H, W, "cpu", getattr(torch, dtype))
    assert str(ids.dtype) == f"torch.{dtype}"
    assert distinct(ids.reshape(-1, 3)) == LEFT[dtype]


def flux(dtype: Any) -> tuple[Any, ...]:
    from diffusers import FluxPipeline
    from diffusers.models.transformers.transformer_flux import FluxPosEmbed

    table: tuple[Any, ...] = FluxPosEmbed(10000, [16, 56, 56])(
        FluxPipeline._prepare_latent_image_ids(1, H, W, "cpu", dtype)
    )
    return table


def wan(dtype: Any) -> tuple[Any, ...]:
    from diffusers.models.transformers.transformer_wan import WanRotaryPosEmbed

    cos, sin = WanRotaryPosEmbed(128, (1, 2, 2), 4096).to(dtype)(latents(dtype))
    return cos[0, :, 0], sin[0, :, 0]


def hunyuan_video(dtype: Any) -> tuple[Any, ...]:
    from diffusers.models.transformers.transformer_hunyuan_video import HunyuanVideoRotaryPosEmbed

    table: tuple[Any, ...] = HunyuanVideoRotaryPosEmbed(2, 1, [16, 56, 56]).to(dtype)(latents(dtype))
    return table


def ltx_video(dtype: Any) -> tuple[Any, ...]:
    from diffusers.models.transformers.transformer_ltx import LTXVideoRotaryPosEmbed

    hidden = torch.zeros(1, H * W, 128, dtype=dtype)
    cos, sin = LTXVideoRotaryPosEmbed(2048).to(dtype)(hidden, T, H, W, (8 / 25, 32, 32))
    return cos[0], sin[0]


def qwen_image(dtype: Any) -> tuple[Any, ...]:
    from diffusers.models.transformers.transformer_qwenimage import QwenEmbedRope

    table, _ = QwenEmbedRope(10000, [16, 56, 56], True).to(dtype)([(T, H, W)], torch.device("cpu"), 1)
    return (torch.view_as_real(table).flatten(1),)


def latents(dtype: Any) -> Any:
    return torch.zeros(1, 16, T, 2 * H, 2 * W, dtype=dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("tables", [wan, hunyuan_video, ltx_video, qwen_image])
def test_models_that_count_by_themselves_keep_every_patch(
    tables: Callable[[Any], tuple[Any, ...]], dtype: str
) -> None:
    assert distinct(*tables(getattr(torch, dtype))) == H * W


@pytest.mark.parametrize("dtype", LEFT)
def test_the_angles_of_flux_bring_no_patch_back(dtype: str) -> None:
    assert distinct(*flux(getattr(torch, dtype))) == LEFT[dtype]
