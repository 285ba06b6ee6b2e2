"""The kernels of the acceptance are what they are said to be: right, or wrong in the way that is stated.

Compared with float64 that shares nothing with the package (`exact64`).
Letters: b batch, h heads, g heads of k, s positions, d head_dim, p pairs.
"""

import exact64
import ml_dtypes
import numpy as np
import pytest
import torch
from acceptance_kernels import BOTH, FAULTY, KERNELS, RIGHT, SERVED_RIGHT
from kernel_calls import called, held, wide

D, LAST = 128, 131071
# calls: one from 0, one that straddles a power of two, one in the middle, one that ends at the last position
CALLS = (range(300), range(65500, 65572), range(93780, 93840), range(LAST - 500, LAST + 1), range(777, 778))


def vectors(s, b=2, h=3, g=2, seed=0):
    """q (b, h, s, d) and k (b, g, s, d) that bfloat16 holds."""
    generator = np.random.default_rng([seed, s])
    shapes = ((b, h, s, D), (b, g, s, D))
    return [
        generator.standard_normal(shape).astype(ml_dtypes.bfloat16).astype(np.float64) for shape in shapes
    ]


def positions(kernel, at, b=2):
    at = np.asarray(at, dtype=np.int64)
    return np.stack([at, at + 7])[:b] if kernel.rows else at


def largest_excess(kernel, dtype, at, instance=None, b=2):
    """Of q and of k."""
    q, k = vectors(len(at), b)
    at = positions(kernel, at, b)
    rotated = called(kernel, instance or kernel.instance(), q, k, at, dtype)
    return [
        exact64.excess(x, y, at, kernel.layout, dtype).max() for x, y in zip((q, k), rotated, strict=True)
    ]


@pytest.mark.parametrize(("position", "i"), [(1, 0), (93811, 1), (LAST, 0), (LAST, 17), (LAST, 63)])
def test_float64_is_right(position, i) -> None:
    turned = exact64.turned(np.ones((1, 1, 1, D // 2), complex), [position])[0, 0, 0, i]
    assert abs(turned - exact64.exact_point(position, i, D)) < 1e-10


def gradients(kernel, dtype, at):
    """Those of q and k for the same gradients of their results, with the results' gradients; None: none."""
    axes = ["bhsd"[-len(kernel.order) :].index(axis) for axis in kernel.order]
    cotangents = vectors(len(at), 1, 2, 2, seed=1)
    leaves, results, given = [], [], []
    for x in vectors(len(at), 1, 2, 2):
        leaf = held((x if len(axes) == 4 else x[0]).transpose(axes), dtype, kernel).requires_grad_()
        leaves.append(leaf)
        given.append(leaf * 1)
    at = positions(kernel, at, 1)
    results = kernel.call(kernel.instance(), *given, torch.from_numpy(at))
    for result, cotangent in zip(results, cotangents, strict=True):
        y = held((cotangent if len(axes) == 4 else cotangent[0]).transpose(axes), dtype, kernel)
        if result.requires_grad:
            result.backward(y.to(result.dtype), retain_graph=True)
    back = [None if leaf.grad is None else wide(leaf.grad).transpose(np.argsort(axes)) for leaf in leaves]
    return (
        at,
        cotangents,
        [x if x is None else x.reshape(y.shape) for x, y in zip(back, cotangents, strict=True)],
    )


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("name", [k.name for k in (*RIGHT, *SERVED_RIGHT) if not k.numpy and not k.compiles])
def test_gradients_of_right_kernels_are_rotated_back(name, dtype) -> None:
    kernel = KERNELS[name]
    at, given, back = gradients(kernel, dtype, range(LAST - 40, LAST + 1))
    for x, y in zip(given, back, strict=True):
        assert exact64.excess(x, y, -at, kernel.layout, dtype).max() <= 1


@pytest.mark.parametrize("kernel", FAULTY, ids=lambda kernel: kernel.name)
def test_gradients_of_faulty_kernels(kernel) -> None:
    """They are right, but for the three whose fault they are, and those that rotate wrongly anyway."""
    if kernel.numpy or not kernel.name.startswith(("gradient", "no_", "returns_f", "ignores", "changes")):
        return
    for dtype in BOTH:
        at, given, back = gradients(kernel, dtype, range(LAST - 40, LAST + 1))
        if kernel.name == "no_gradient":
            assert back == [None, None]
            continue
        excess = [
            exact64.excess(x, y, -at, kernel.layout, dtype).max() for x, y in zip(given, back, strict=True)
        ]
        assert (max(excess) > 1) == (dtype in kernel.faulty and "gradient" in kernel.name)
        if kernel.name == "gradient_not_inverted":
            excess = [
                exact64.excess(x, y, at, kernel.layout, dtype) for x, y in zip(given, back, strict=True)
            ]
            assert np.max(excess) <= 1
        if kernel.name == "gradient_in_bfloat16":
            excess = [
                exact64.excess(x, y, -at, kernel.layout, "bf16") for x, y in zip(given, back, strict=True)
            ]
            assert np.max(excess) <= 1
