"""What a cell is guessed to take follows what it does; how near it comes is for benchmarks."""

from ropeaudit.audits import sweep
from ropeaudit.audits.cases import Outline

SIZES = Outline(4, 2, 3000, "gaussian", 0)


def guess(mask: str = "causal", stages: dict[str, str] | None = None, dims: int = 64, **rest) -> float:
    return sweep.cell_seconds(SIZES, dims, mask, stages or {}, **rest)


def test_more_work_is_guessed_to_take_longer() -> None:
    plain = guess(stages={"accumulate": "float32"})
    assert plain == guess() < guess("full") < guess("full", dims=128)
    assert guess("window:8") < plain
    assert plain < guess(attention=True)
    assert 10 * plain < guess(stages={"accumulate": "bfloat16"})
    assert guess(sample=10) < guess(sample=10, dims=128) < plain
    assert guess(cells=2) < plain < 2 * guess(cells=2)
