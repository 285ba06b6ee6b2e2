"""What a cell is guessed to take follows what it does; how near it comes is for benchmarks."""

import pytest

from ropeaudit import shift
from ropeaudit.audits import sweep
from ropeaudit.audits.cases import Outline
from ropeaudit.engine.statistics import Block
from ropeaudit.inputs import masks

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


@pytest.mark.parametrize("mask", ["causal", "full", "window:40", "window:600"])
@pytest.mark.parametrize("seq_len", [5, 512, 700, 2048])
def test_hidden_scores_of_a_tile_count(mask, seq_len, monkeypatch) -> None:
    """Tiles as they are formed hold no more than twice what is guessed, nor less than half of it."""
    formed = []
    tile = Block.tile

    def seen(*given):
        block = tile(*given)
        formed.append(block.shape[0] * block.shape[1])
        return block

    monkeypatch.setattr(Block, "tile", seen)
    list(shift(0, "fp32", "meta", heads=1, seq_len=seq_len, head_dim=2, mask=mask))
    assert masks.count(mask, seq_len) <= sweep._formed(mask, seq_len)
    assert sum(formed) / 2 <= sweep._formed(mask, seq_len) <= 2 * sum(formed)
