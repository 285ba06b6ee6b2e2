"""q and k of attention in a model's own code: seen where a product goes into a softmax, and only there."""

import numpy as np
import pytest
import torch

from ropeaudit.features.model.forward_pass import Capture
from ropeaudit.features.model.layers import tables

H, S, D = 3, 5, 4
Q, K, V = torch.randn(3, 1, H, S, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
MASK = torch.full((S, S), torch.finfo(torch.float32).min, dtype=torch.float64).triu(1)
FUSED = torch.nn.functional.scaled_dot_product_attention


def seen(attention, scales=None, exact=True):
    capture = Capture(scales, exact)
    with capture:
        attention()
    return capture.layers


def by_batches():
    q, k = Q[0], K[0]  # heads in the batch, as GPT-NeoX Japanese has them
    zeros = torch.zeros(H, S, S).double()
    return torch.baddbmm(zeros, batch1=q, batch2=k.transpose(1, 2), alpha=0.5).view(1, H, S, S)


@pytest.mark.parametrize(
    ("attention", "scale"),
    [
        (lambda: torch.softmax(Q @ K.transpose(2, 3) * 0.3 + MASK, -1) @ V, 0.3),
        (lambda: (Q @ K[:, :1].transpose(2, 3) / 2 + MASK).softmax(-1), 0.5),
        (lambda: torch.nn.Softmax(dim=-1)((torch.matmul(Q, K.transpose(2, 3)) + MASK) / 2), 0.5),
        (lambda: torch.nn.functional.softmax(by_batches() + MASK, dim=-1), 0.5),
        (lambda: FUSED(Q, K, V, is_causal=True), 0.5),
        (lambda: FUSED(query=Q, key=K, value=V, is_causal=True), 0.5),
        (lambda: FUSED(Q, K, V, attn_mask=MASK[None, None], scale=0.3), 0.3),
    ],
)
def test_q_and_k_of_own_attention(attention, scale) -> None:
    layers = seen(lambda: (attention(), attention()))
    assert list(layers) == [0, 1]
    for layer in layers.values():
        np.testing.assert_array_equal(layer.q, Q[0].numpy())
        np.testing.assert_array_equal(layer.k, K[0, : len(layer.k)].numpy())
        np.testing.assert_array_equal(layer.visible, np.tril(np.ones((S, S), bool)))
        assert layer.scale == pytest.approx(scale, rel=1e-12)


def test_scores_with_a_bias_are_left_out_and_counted() -> None:
    """ALiBi's are no multiple of q·k; the layer after them keeps its number."""

    def attention(bias):
        return torch.softmax(Q @ K.transpose(2, 3) * 0.3 + bias + MASK, -1)

    alibi = -torch.arange(S, dtype=torch.float64)
    assert list(seen(lambda: (attention(alibi), attention(0.0)))) == [1]
    assert seen(lambda: torch.softmax(torch.ones(1, H, S, S), -1)) == {}  # of no product at all


def test_a_narrow_run_takes_the_scales_of_the_float64_run() -> None:
    def attention():
        q, k = Q.bfloat16(), K.bfloat16()
        return torch.softmax(q @ k.transpose(2, 3) * 0.3 + MASK.bfloat16(), -1)

    [layer] = seen(attention, {0: 0.3}, exact=False).values()
    assert layer.scale == 0.3
    assert seen(attention, {}, exact=False) == {}


def test_what_goes_through_the_interface_is_not_taken_twice() -> None:
    capture = Capture({}, True)
    with capture:
        torch.softmax(Q @ K.transpose(2, 3), -1)  # something else before it
        capture(torch.nn.Identity(), Q, K, V, None, scaling=0.25)
        torch.softmax(Q @ K.transpose(2, 3), -1)
    assert [layer.scale for layer in capture.layers.values()] == [0.25]


def test_frequencies_of_tables_of_sines() -> None:
    rates = np.array([1.0, 0.1, 0.01])
    angles = torch.arange(4)[:, None] * torch.tensor(rates)

    def table(*columns):
        module = torch.nn.Module()
        module.register_buffer("t", torch.cat(columns, -1), persistent=False)
        return tables(module, 6)

    for columns in ((angles.sin(), angles.cos()), (angles.cos(), angles.sin())):
        [(frequencies, factor)] = table(*columns)
        np.testing.assert_allclose(frequencies, rates, rtol=1e-15)
        assert factor == 1.0
    assert table(angles, angles) == table(angles.sin() + 1, angles.cos()) == []
    assert table(*[angles.sin()] * 2, *[angles.cos()] * 2) == []  # wider than a head: added to embeddings
