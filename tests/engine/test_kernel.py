"""The kernel takes arrays of any library: a tile, and pairs, of torch tensors."""

import math

import numpy as np
import pytest
import torch

from ropeaudit import RopeSetting, parse, recipes
from ropeaudit.arithmetic.formats import Format
from ropeaudit.engine import kernel
from ropeaudit.engine.array_library import NUMPY
from ropeaudit.engine.kernel import Workspace
from ropeaudit.engine.plan import CellStatistics
from ropeaudit.engine.statistics import Block
from ropeaudit.subjects.emulated import Emulated

DTYPES = {24: torch.float32, 53: torch.float64}


class Torch:
    """The library whose arrays are torch's tensors on the CPU; it refuses those of NumPy."""

    def empty(self, shape: tuple[int, ...], fmt: Format) -> torch.Tensor:
        return torch.full(shape, math.nan, dtype=DTYPES[fmt.precision])

    def precision(self, x: torch.Tensor) -> int:
        return {dtype: bits for bits, dtype in DTYPES.items()}[x.dtype]

    def converted(self, x: torch.Tensor, fmt: Format) -> torch.Tensor:
        return x.to(DTYPES[fmt.precision])

    def contiguous(self, x: torch.Tensor) -> torch.Tensor:
        return x.contiguous()

    def copy(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return out.copy_(x)

    def fill(self, x: torch.Tensor, value: float) -> None:
        x.fill_(value)

    def add(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        return torch.add(a, b, out=out)

    def subtract(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        return torch.subtract(a, b, out=out)

    def multiply(
        self, a: torch.Tensor, b: torch.Tensor | float, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        return torch.multiply(a, b, out=out)

    def matmul(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return torch.matmul(a, b, out=out) if a.dtype == out.dtype else out.copy_(a @ b)

    def row_products(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a * b).sum(dim=1)

    def add_product(self, total: torch.Tensor, a: torch.Tensor, b: torch.Tensor, fmt: Format) -> torch.Tensor:
        return torch.from_numpy(NUMPY.add_product(total.numpy(), a.numpy(), b.numpy(), fmt))

    def round(self, x: torch.Tensor, fmt: Format, scratch: torch.Tensor | None = None) -> None:
        NUMPY.round(x.numpy(), fmt)  # where it lies: a tensor of the CPU shares its memory

    def hide(self, x: torch.Tensor, hidden: torch.Tensor | None, value: float = 0.0) -> None:
        if hidden is not None:
            x.masked_fill_(hidden, value)

    def absolute(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        return torch.abs(x, out=out)

    def largest(self, x: torch.Tensor) -> float:
        return float(x.max())

    def largest_size(self, x: torch.Tensor) -> float:
        return float(x.abs().max())

    def argmax(self, x: torch.Tensor) -> int:
        return int(x.argmax())

    def finite(self, x: torch.Tensor) -> int:
        return int(torch.isfinite(x).sum())

    def total(self, x: torch.Tensor) -> float:
        return float(x.sum())

    def dot(self, a: torch.Tensor, b: torch.Tensor) -> float:
        return float((a * b).sum())


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
        results = measured(Torch(), lambda x: torch.from_numpy(x.copy()), subject, operands, exact, block)
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
