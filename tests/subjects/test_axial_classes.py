"""Presets of position axes against the classes that they are of: tables built and applied by their own code.

Scores are formed in float64 from what the classes rotate. Drift is then the rotation alone, and RMS drift
must agree with that of the recipe of the preset within 5 %: an operation in another order makes it not the
same, another computation makes it another.
"""

import numpy as np
import pytest
from optional import needs

import ropeaudit
from ropeaudit.arithmetic.formats import parse
from ropeaudit.audits.cases import Case
from ropeaudit.reference import exact_scores
from ropeaudit.rope import axial
from ropeaudit.rope.grids import Grid

torch = pytest.importorskip("torch")
from axial_classes import AT_THE_ORIGIN, Turn, dinov3, ideogram_4  # noqa: E402

pytestmark = needs("diffusers", "transformers")

SIZES = (2, 7, 10)  # positions of some presets are no binary fractions then
HEADS = 2
SHIFTED = ("flux", "pixtral", "qwen2-vl-vision", "qwen3-vl")  # presets whose positions are shifted


def rms_of(
    name: str, turn: Turn, dtype: str, offset: int, full: tuple[int, ...] = SIZES
) -> tuple[float, float]:
    """Return RMS drift of a class, and of the preset's recipe on the same q and k."""
    rope = axial.named(name)
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


BOTH = ("float32", "bfloat16")
CASES = [
    *((name, turn, dtype, 0, SIZES) for name, turn in AT_THE_ORIGIN.items() for dtype in BOTH),
    *((name, AT_THE_ORIGIN[name], "float32", 1000, SIZES) for name in SHIFTED),
    ("ideogram-4", ideogram_4, "float32", 0, SIZES),  # its class returns float32 for 16-bit q and k too
    *(("dinov3", dinov3, dtype, 0, (14, 14)) for dtype in BOTH),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[2]}-{case[3]}")
def test_a_class_drifts_as_its_preset_says(case: tuple[str, Turn, str, int, tuple[int, ...]]) -> None:
    measured, emulated = rms_of(*case)
    assert emulated == pytest.approx(measured, rel=0.05)


def test_dinov3_multiplies_positions_by_two_pi_where_we_multiply_frequencies() -> None:
    """Where centres are exact in float32 that is seen: 9 % at 16 x 16, of a drift of 1e-7."""
    measured, emulated = rms_of("dinov3", dinov3, "float32", 0, (16, 16))
    assert emulated == pytest.approx(measured, rel=0.15)
    assert emulated != pytest.approx(measured, rel=0.05)


def held(name: str, sizes: tuple[int, ...]) -> np.ndarray:
    """Return the positions of all tokens of a preset as float32 holds them. Shapes: -> (s, a)."""
    grid = Grid(axial.named(name), sizes, ())
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
