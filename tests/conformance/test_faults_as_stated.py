"""Each faulty kernel of the acceptance is wrong as it says, where it says, and right elsewhere.

Compared with float64 that shares nothing with the package (`exact64`).
Letters: b batch, h heads, g heads of k, s positions, d head_dim, p pairs.
"""

import exact64
import kernels_faulty
import ml_dtypes
import numpy as np
import pytest
import torch
from acceptance_kernels import BEYOND, BOTH, FAULTY, KERNELS, SERVED_FAULTY
from kernel_calls import called, held, wide
from test_kernels_as_stated import LAST, D, largest_excess, vectors


def bfloat16(x):
    return np.asarray(x, dtype=np.float64).astype(ml_dtypes.bfloat16).astype(np.float64)


def first_row(at):
    return np.stack([at[0], at[0]])


# name -> positions that it is given, and those that it rotates by
SEEN = {
    "one_position": (range(93700, 93900), lambda at: np.where(at == 93811, 93810, at)),
    "clamps": (range(65500, 65600), lambda at: np.minimum(at, 65535)),
    "restarts": (range(40000, 43100), lambda at: at[0] + (at - at[0]) % 3000),
    "decode_one_late": (range(500, 501), lambda at: at + 1),
    "pieces_by_page": (range(1000, 1400), lambda at: at - 1000 % 256),
    "first_row": (range(900, 960), first_row),
    "late_alone": (range(900, 960), lambda at: at - 1),
    "bfloat16_positions": (range(1000, 1100), bfloat16),
}
# name -> a call that it gets right
RIGHT_AT = {
    "decode_one_late": range(500, 502),
    "pieces_by_page": range(1000, 1256),
    "restarts": range(40000, 43000),
    "bfloat16_positions": range(257),
    "late_alone": range(900, 960),
}
FREQUENCIES = {
    "another_base": 10100.0 ** (-np.arange(0, D, 2) / D),
    "two_dims_short": np.where(np.arange(D // 2) < D // 2 - 1, exact64.frequencies(D), 0.0),
    "exponent_short": 10000.0 ** (-np.arange(0, D, 2) / (D - 2)),
    "cast_frequencies": bfloat16(exact64.frequencies(D)),
}


def errors(kernel, dtype, at, seen=None, frequencies=None, b=2):
    """Largest error over the allowance, of the rotation by `seen` or by `frequencies`: for each position."""
    q, k = vectors(np.shape(at)[-1], b)
    results = []
    for x, y in zip((q, k), called(kernel, kernel.instance(), q, k, at, dtype), strict=True):
        z, w = (exact64.as_pairs(each, kernel.layout) for each in (x, y))
        expected = exact64.turned(z, at if seen is None else seen, frequencies)
        allowed = exact64.allowance(at, D // 2, dtype)
        allowed = allowed[:, None] if allowed.ndim == 3 else allowed
        results.append((np.abs(w - expected) / (allowed * np.abs(z))).max(axis=(1, 3)))
    return np.max(results, axis=0)


def given(kernel, at, b):
    at = np.asarray(at, dtype=np.int64)
    return np.stack([at, at + 7][:b]) if kernel.rows else at


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("name", SEEN)
def test_positions_are_taken_for_others(name, dtype) -> None:
    kernel, b = KERNELS[name], 1 if name == "late_alone" else 2
    at, seen = given(kernel, SEEN[name][0], b), SEEN[name][1]
    assert errors(kernel, dtype, at, seen(at), b=b).max() <= 1
    off = errors(kernel, dtype, at, b=b) > 1
    assert off.any()
    assert (off == np.broadcast_to(seen(at) != at, off.shape)).all()
    if name in RIGHT_AT:
        assert errors(kernel, dtype, given(kernel, RIGHT_AT[name], 2)).max() <= 1


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("name", FREQUENCIES)
def test_frequencies_are_others(name, dtype) -> None:
    at = np.arange(LAST - 100, LAST + 1)
    assert errors(KERNELS[name], dtype, at, frequencies=FREQUENCIES[name]).max() <= 1
    assert errors(KERNELS[name], dtype, at).max() > 1


@pytest.mark.parametrize("dtype", BOTH)
def test_what_is_wrong_of_k(dtype) -> None:
    at = np.arange(500, 600)
    q, k = vectors(at.size)
    for name, wrong in (("crossed", [True, True]), ("last_head_of_k", [False, True])):
        first, second = called(KERNELS[name], KERNELS[name].thing, q, k, at, dtype)
        assert exact64.excess(q, first, at, "half", dtype).max() <= 1
        assert (exact64.excess(k, second, at, "half", dtype).max(axis=(0, 2, 3)) > 1).tolist() == wrong
        other = (q[:, :2], at) if name == "crossed" else (k[:, -1:], at - 1)
        part = second if name == "crossed" else second[:, -1:]
        assert exact64.excess(other[0], part, other[1], "half", dtype).max() <= 1


@pytest.mark.parametrize("dtype", BOTH)
def test_state_leaks(dtype) -> None:
    stale = KERNELS["StaleTable"]
    module = stale.instance()
    for at, wrong in ((range(300), 0), (range(300, 600), 1), (range(600, 800), 0), (range(300), 0)):
        assert (max(largest_excess(stale, dtype, at, module)) > 1) == wrong
    of_first = KERNELS["TableOfFirstDtype"]
    for before, wrong in (("fp32", False), ("bf16", dtype == "fp32")):
        module = of_first.instance()
        assert max(largest_excess(of_first, before, range(300), module)) <= 1
        assert (max(largest_excess(of_first, dtype, range(300), module)) > 1) == wrong


@pytest.mark.parametrize("dtype", BOTH)
def test_calls_that_show_nothing_wrong(dtype) -> None:
    """What is returned, eager, for contiguous input of a batch is right."""
    gradients = ("gradient_not_inverted", "gradient_in_bfloat16", "no_gradient")
    for name in (*gradients, "compiled_differs", "ignores_strides", "changes_input", "returns_bfloat16"):
        own = "bf16" if name == "returns_bfloat16" else dtype
        assert max(largest_excess(KERNELS[name], own, range(LAST - 99, LAST + 1))) <= 1


@pytest.mark.parametrize("dtype", BOTH)
def test_strides_inputs_and_dtypes(dtype) -> None:
    at, (q, _) = torch.arange(900, 950), vectors(50)
    x = held(q, dtype, KERNELS["ignores_strides"])
    apart = x.transpose(1, 2).contiguous().transpose(1, 2)
    strided = wide(kernels_faulty.ignores_strides(apart, at))
    assert exact64.excess(q, strided, at.numpy(), "half", dtype).max() > 1
    before = x.clone()
    kernels_faulty.changes_input(x, at)
    assert not torch.equal(x, before)
    one = torch.ones(at.numel(), D // 2)
    assert kernels_faulty.returns_float32(x, at).dtype == torch.float32
    assert kernels_faulty.returns_bfloat16(x, x, one, one)[0].dtype == torch.bfloat16
    aliased = KERNELS["in_place_aliased"]
    assert (max(largest_excess(aliased, dtype, range(50))) > 1) == (dtype in aliased.faulty)


RUN, ALL = np.arange(900, 904), np.s_[:]
# name -> b, h, g and positions that show it, what is wrong of q and of k, and b, h, g, positions that do not
SERVED = {
    "decode_reads_row_0": ((3, 2, 2, [[9], [70], [500]]), np.s_[1:], np.s_[1:], (3, 2, 2, [RUN] * 3)),
    "first_entry_only": ((1, 2, 2, [3, 9, 4, 4, 0]), np.s_[:, :, 1:], np.s_[:, :, 1:], (1, 2, 2, RUN)),
    "same_output": ((2, 2, 2, RUN), ALL, None, None),
    "one_key_head": ((2, 2, 1, RUN), None, ALL, (2, 2, 2, RUN)),
    "groups_over_four": ((1, 5, 1, RUN), ALL, None, (1, 8, 2, RUN)),
    "heads_from_40": ((1, 41, 1, RUN), np.s_[:, 40:], None, (1, 40, 1, RUN)),
    "tokens_from_4096": (
        (1, 1, 1, np.arange(5, 4103)),
        np.s_[:, :, 4096:],
        np.s_[:, :, 4096:],
        (1, 1, 1, np.arange(5, 4101)),
    ),
}


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("kernel", SERVED_FAULTY, ids=lambda kernel: kernel.name)
def test_calls_of_servers_show_what_is_wrong(kernel, dtype) -> None:
    shown, *wrong, hidden = SERVED[kernel.name]
    for (b, h, g, at), parts in ((shown, wrong), (hidden or shown, (None, None))):
        at = np.asarray(at)
        given = vectors(at.shape[-1], b, h, g)
        if hidden is None and parts == (None, None):  # each call by itself is right
            results = [wide(kernel.thing(held(x, dtype, kernel), torch.from_numpy(at))) for x in given]
        else:
            results = called(kernel, kernel.thing, *given, at, dtype)
        for x, y, part in zip(given, results, parts, strict=True):
            off = (exact64.excess(x, y, at, "half", dtype) > 1).any(axis=-1)
            expected = np.zeros_like(off)
            if part is not None:
                expected[part] = True
            assert (off == expected).all()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.filterwarnings("ignore")
def test_compiled(dtype) -> None:
    at, (q, _) = np.arange(LAST - 49, LAST + 1), vectors(50)
    for kernel, direction in ((KERNELS["compiled"], 1), (KERNELS["compiled_differs"], -1)):
        function = torch.compile(kernel.thing, dynamic=True)
        y = wide(function(held(q, dtype, kernel), torch.from_numpy(at)))
        assert exact64.excess(q, y, direction * at, kernel.layout, dtype).max() <= 1
        assert exact64.excess(q, y, -direction * at, kernel.layout, dtype).max() > 1


def test_every_fault_is_shown_to_be_one() -> None:
    shown = {*SEEN, *FREQUENCIES, "crossed", "last_head_of_k", "StaleTable", "TableOfFirstDtype"}
    shown |= {"ignores_strides", "changes_input", "in_place_aliased", "compiled_differs"}
    shown |= {kernel.name for kernel in FAULTY if kernel.name.startswith(("returns", "gradient", "no_"))}
    assert shown == {kernel.name for kernel in (*FAULTY, *BEYOND)} - {"returns_float32"}
    assert len(shown) >= 20
    assert SERVED.keys() == {kernel.name for kernel in SERVED_FAULTY}
