"""The kernel takes arrays of any library: a tile, and pairs, of torch tensors."""

import numpy as np
import pytest
import torch

from ropeaudit import RopeSetting, parse, recipes
from ropeaudit.engine import kernel, torch_library
from ropeaudit.engine.array_library import NUMPY
from ropeaudit.engine.kernel import Workspace
from ropeaudit.engine.plan import CellStatistics
from ropeaudit.engine.statistics import Block
from ropeaudit.subjects.emulated import Emulated

TORCH = torch_library.on(torch.device("cpu"))


def measured(library, convert, subject, operands, exact, block) -> list[CellStatistics]:
    """Measure a block whose arrays `convert` makes those of the library."""
    weights = None if block.weights is None else convert(block.weights)
    hidden = None if block.hidden is None else convert(block.hidden)
    own = Block(library, block.shape, block.visible, block.corner, hidden, weights)
    scores = convert(exact[0]), None if exact[1] is None else convert(exact[1])
    results = [CellStatistics.sampled() if weights is not None else CellStatistics() for _ in operands]
    sides = [None if pair is None else tuple(map(convert, pair)) for pair in operands]
    kernel.gather_reference(scores, 1e-9, own, results)
    kernel.measure(subject, sides, subject.setting.scale, scores, own, results, Workspace(library))
    library.settle()
    return results


@pytest.mark.parametrize("shape", ["tile", "masked tile", "pairs"])
@pytest.mark.parametrize(
    ("dtype", "accumulate"), [("fp64", None), ("fp32", None), ("fp16", None), ("bf16", "bf16")]
)
@pytest.mark.parametrize("nonfinite", [False, True])
def test_tensors_give_the_statistics_of_arrays(shape, dtype, accumulate, nonfinite) -> None:
    """q and k are small multiples of 1/4, so that products are exact in any order of their sums."""
    rng, d, rows, cols = np.random.default_rng(7), 64, 40, 40 if shape == "pairs" else 48
    recipe = recipes.named("hf").changed({"accumulate": accumulate} if accumulate else {})
    subject = Emulated(recipe.resolve(parse(dtype)), RopeSetting.of(d, scale=0.3))
    carrier = np.float64 if dtype == "fp64" else np.float32

    def side(count: int) -> np.ndarray:
        return (rng.integers(-8, 9, (count, d)) / 4).astype(carrier)

    operands = [(side(rows), side(cols) if shape == "pairs" else side(cols).T.copy()) for _ in range(3)]
    q, k = (x.astype(float) for x in operands[0])
    if shape == "pairs":
        high, block = 0.3 * (q * k).sum(1), Block.pairs(5, rng.uniform(0.5, 2.0, rows))
    else:
        mask = "full" if shape == "tile" else "causal"
        high, block = 0.3 * (q @ k), Block.tile(mask, 1, slice(8, 8 + rows), slice(4, 4 + cols))
    exact = high + 1e-3 * rng.standard_normal(high.shape), 1e-17 * rng.standard_normal(high.shape)
    if nonfinite:
        operands[1][0][3] = np.inf
        operands[2] = None
    with np.errstate(invalid="ignore", over="ignore"):
        wanted = measured(NUMPY, np.copy, subject, operands, exact, block)
        results = measured(TORCH, lambda x: torch.from_numpy(x.copy()), subject, operands, exact, block)
    assert [one.drift.nonfinite > 0 for one in wanted] == [False, nonfinite, nonfinite]
    for result, want in zip(results, wanted, strict=True):
        assert result.error == want.error == 1e-9
        for name in ("drift", "self_drift", "reference"):
            mine, other = getattr(result, name), getattr(want, name)
            assert (mine.count, mine.nonfinite, mine.place) == (other.count, other.nonfinite, other.place)
            assert mine.largest == other.largest
            for moment in ("squares", "total", "absolute", "fourths"):
                near = pytest.approx(getattr(other, moment), rel=1e-12, abs=1e-12 * other.absolute)
                assert getattr(mine, moment) == near
    assert 0 < wanted[0].drift.rms < 1
    assert wanted[0].self_drift.rms == 0
    assert nonfinite or wanted[1].self_drift.rms > 1
