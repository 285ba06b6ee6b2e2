"""Rounding, against gfloat, torch, ml_dtypes and exact fractions."""

import itertools
from bisect import bisect_right
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ropeaudit.arithmetic import doubledouble as dd
from ropeaudit.arithmetic import rounding
from ropeaudit.arithmetic.formats import FORMATS, Format, parse
from ropeaudit.arithmetic.rounding import bits_differ, round_in_place, round_nearest, round_to
from ropeaudit.errors import UnknownName

FP16, BF16 = parse("fp16"), parse("bf16")
ORACLES = {  # names of gfloat
    "float64": "binary64",
    "float32": "binary32",
    "float16": "binary16",
    "bfloat16": "bfloat16",
    "float8_e4m3": "ocp_e4m3",
    "float8_e5m2": "ocp_e5m2",
}
PROBES = [
    (1 + 2**-8 + 2**-40, "bf16", 1.0078125),  # rounded twice, through float32, it gives 1.0
    (1 + 2**-11 + 2**-40, "fp16", 1.0009765625),
    (65519.999, "fp16", 65504.0),
    (65520.0, "fp16", np.inf),
    (2.0**-25, "fp16", 0.0),  # a tie, to even
    (2.0**-25 * 1.0001, "fp16", 2.0**-24),
    (464.0, "e4m3", 448.0),  # a tie, to even
    (464.1, "e4m3", np.nan),
    (61440.0, "e5m2", np.inf),
    (2.0**-150, "fp32", 0.0),
    (257.0, "bf16", 256.0),
    (2049.0, "tf32", 2048.0),
]


def codes(dtype: type) -> np.ndarray:
    """All finite values of a 16-bit dtype, in float64."""
    with np.errstate(invalid="ignore"):  # signalling nans
        values = np.arange(65536, dtype=np.uint16).view(dtype).astype(np.float64)
    return values[np.isfinite(values)]


def oracle(x: float, fmt: Format) -> float:
    gfloat = pytest.importorskip("gfloat")
    info = getattr(pytest.importorskip("gfloat.formats"), f"format_info_{ORACLES[fmt.name]}")
    saturate = fmt.overflow == "saturate"
    return gfloat.round_float(info, x, gfloat.RoundMode.TiesToEven, sat=saturate)


def same(a: np.ndarray, b: np.ndarray) -> bool:
    zeros = a == 0
    return bool(
        np.array_equal(a, b, equal_nan=True) and np.array_equal(np.signbit(a[zeros]), np.signbit(b[zeros]))
    )


def probes_around(values: np.ndarray) -> np.ndarray:
    """Values, the midpoints of neighbours, and the float64 numbers next to each midpoint."""
    ordered = np.unique(values)
    middle = ordered[:-1] + np.diff(ordered) / 2
    return np.concatenate([values, middle, np.nextafter(middle, -np.inf), np.nextafter(middle, np.inf)])


@pytest.mark.parametrize(("x", "name", "expected"), PROBES)
def test_known_traps(x: float, name: str, expected: float) -> None:
    assert same(round_to(np.array([x, -x]), parse(name)), np.array([expected, -expected], np.float32)) or (
        np.isnan(expected) and np.isnan(round_to(np.array([x]), parse(name))).all()
    )


@pytest.mark.parametrize(("fmt", "dtype"), [(FP16, np.float16), (BF16, ml_dtypes.bfloat16)])
def test_every_code_its_midpoints_and_their_neighbours(fmt: Format, dtype: type) -> None:
    values = codes(dtype)
    ordered, result = np.unique(values), probes_around(values)
    above = np.searchsorted(ordered, result, side="left").clip(1, ordered.size - 1)
    low, high = ordered[above - 1], ordered[above]
    exact = np.isin(result, ordered)
    # nearest by exact distances: found - low and high - found are exact for neighbours of a midpoint
    middle = low + (high - low) / 2
    even_low = (np.abs(low.astype(np.float32).astype(dtype).view(np.uint16).astype(int)) % 2) == 0
    nearest = np.where(result < middle, low, np.where(result > middle, high, np.where(even_low, low, high)))
    expected = np.where(exact, result, nearest)
    assert np.array_equal(round_to(result, fmt), expected.astype(np.float32))


@pytest.mark.parametrize("fmt", FORMATS[:1] + FORMATS[3:], ids=str)
def test_a_sample_against_gfloat(fmt: Format) -> None:
    if fmt.name not in ORACLES:
        pytest.fail("an oracle is missing")
    rng = np.random.default_rng(1)
    exponents = rng.uniform(fmt.emin - fmt.precision - 2, fmt.emax + 2, 3000)
    sample = np.ldexp(rng.uniform(-2, 2, 3000), np.minimum(exponents, 1020).astype(int))
    expected = np.array([oracle(x, fmt) for x in sample.tolist()])
    assert same(round_to(sample, fmt).astype(np.float64), expected)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("fp16", torch.float16), ("bf16", torch.bfloat16), ("e5m2", torch.float8_e5m2)],
)
def test_float32_patterns_against_torch(name: str, dtype: torch.dtype) -> None:
    bits = np.random.default_rng(2).integers(0, 2**32, 400_000, dtype=np.uint32)
    values = bits.view(np.float32)
    values = values[np.isfinite(values)]
    expected = torch.from_numpy(values).to(dtype).to(torch.float32).numpy()
    assert same(round_to(values, parse(name)), expected)


def test_tf32_is_float32_with_13_bits_dropped() -> None:
    bits = np.random.default_rng(3).integers(0, 2**31, 100_000, dtype=np.uint32)
    values = bits.view(np.float32)
    values = values[np.isfinite(values) & (values < 3e38)]
    whole = values.view(np.uint32).astype(np.uint64)
    stored, rest = whole >> np.uint64(13), whole & np.uint64(0x1FFF)
    up = (rest > 0x1000) | ((rest == 0x1000) & (stored & np.uint64(1) == 1))
    expected = ((stored + up) << np.uint64(13)).astype(np.uint32).view(np.float32)
    assert same(round_to(values, parse("tf32")), expected)


POSITIVE = {
    fmt: np.unique(np.abs(codes(dtype))) for fmt, dtype in ((FP16, np.float16), (BF16, ml_dtypes.bfloat16))
}


@pytest.mark.parametrize("fmt", POSITIVE, ids=str)
def test_exact_products_beside_midpoints_are_rounded_once(fmt: Format) -> None:
    """a*b lies within an ulp of float64 of a midpoint m, where a is any number and b is nearest to m/a.

    Rounding the float64 product goes wrong where it is m itself and the exact one is not: that is seen too.
    """
    rng, numbers = np.random.default_rng(2), POSITIVE[fmt]
    places = np.concatenate([np.arange(3), rng.integers(0, len(numbers) - 1, 3000)])
    midpoints = (numbers[places] + numbers[places + 1]) / 2
    a = rng.uniform(1, 2, midpoints.size)
    b = midpoints / a
    seen = round_nearest(a * b, lambda where: dd.to_odd(dd.two_product(a[where], b[where])), fmt)
    products = [Fraction(x) * Fraction(y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    assert [float(x) for x in seen] == [nearest(x, numbers.tolist()) for x in products]
    assert 100 < np.count_nonzero(round_to(a * b, fmt) != seen) < 2900


def nearest(x: Fraction, numbers: list[float]) -> float:
    """The number that is nearest to x, the one with the even code of two; 0 has code 0."""
    low = bisect_right(numbers, x) - 1
    below, above = x - Fraction(numbers[low]), Fraction(numbers[low + 1]) - x
    return numbers[low + (above < below or (above == below and low % 2 == 1))]


@given(st.lists(st.floats(width=32), min_size=1, max_size=40), st.sampled_from(FORMATS[2:]))
def test_rounding_twice_changes_nothing_and_carriers_agree(xs: list[float], fmt: Format) -> None:
    wide = np.array(xs, np.float64)
    once = round_to(wide, fmt)
    assert same(round_to(once, fmt), once)
    assert same(round_to(wide.astype(np.float32), fmt), once)


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
@pytest.mark.parametrize("carrier", [np.float64, np.float32])
@given(xs=st.lists(st.floats(width=32), min_size=1, max_size=20), tail=st.sampled_from((np.nan, np.inf, 0.0)))
@example(xs=[70000.0, 1e-7, 3.401992901712019e38], tail=np.nan)  # a nan once hid the overflow beside it
def test_a_value_is_rounded_as_if_it_were_alone(
    fmt: Format, carrier: type, xs: list[float], tail: float
) -> None:
    together = round_to(np.array([*xs, tail], carrier), fmt)[:-1]
    alone = [round_to(np.array([x], carrier), fmt)[0] for x in xs]
    assert same(together, np.array(alone))


def test_in_place_with_scratch_equals_a_new_array() -> None:
    x = np.random.default_rng(4).standard_normal((300, 1000)).astype(np.float32) * np.float32(1e-4)
    expected = round_to(x, FP16)
    round_in_place(x, FP16, np.empty_like(x))
    assert same(x, expected)


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_derived_numbers(fmt: Format) -> None:
    info = ml_dtypes.finfo(
        {
            "tf32": np.float32,
            "bfloat16": ml_dtypes.bfloat16,
            "float8_e4m3": ml_dtypes.float8_e4m3fn,
            "float8_e5m2": ml_dtypes.float8_e5m2,
        }.get(fmt.name, fmt.name)
    )
    assert fmt.smallest_normal == float(info.smallest_normal)
    if fmt.name != "tf32":
        assert fmt.largest == float(info.max)
        assert fmt.smallest_subnormal == float(info.smallest_subnormal)
    rounded = round_to(np.array([float(fmt.first_inexact_integer)]), fmt)
    assert int(rounded[0]) != fmt.first_inexact_integer
    assert parse(fmt.short) is fmt


def test_first_inexact_integers_are_those_of_the_literature() -> None:
    seen = {fmt.name: fmt.first_inexact_integer for fmt in FORMATS}
    assert (seen["bfloat16"], seen["float16"], seen["tf32"], seen["float32"]) == (257, 2049, 2049, 2**24 + 1)


def test_nan_payloads_stay_nan() -> None:
    weird = np.array([0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001], np.uint32).view(np.float32)
    for fmt in FORMATS:
        assert np.isnan(round_to(weird, fmt)).all()


def test_unknown_name() -> None:
    with pytest.raises(UnknownName, match=r"did you mean .*bfloat16"):
        parse("bfloat61")


# ---------------------------------------------------------------------------- nan, whatever its bits are


def nans(dtype: type) -> np.ndarray:
    """Twenty nans: quiet and signalling, of both signs, payloads up to all ones. Shape: (20,)."""
    info = np.finfo(dtype)
    word, length = (np.uint64 if info.bits == 64 else np.uint32), info.nmant
    quiet, ones = 1 << (length - 1), (1 << length) - 1
    payloads = [quiet, quiet | 1, quiet | quiet >> 1, quiet | 0x1234, quiet | ones >> 4, ones - 1, ones]
    payloads += [1, quiet >> 1, quiet - 1]  # signalling
    positive = (((1 << (info.bits - 1 - length)) - 1) << length) | np.array(payloads, dtype=object)
    patterns = np.concatenate([positive, positive | 1 << (info.bits - 1)])
    values: np.ndarray = patterns.astype(word).view(dtype)
    assert np.isnan(values).all()
    return values


def numpy_in_place(x: np.ndarray, fmt: Format) -> np.ndarray:
    round_in_place(x, fmt)
    return x


def numpy_with_scratch(x: np.ndarray, fmt: Format) -> np.ndarray:
    with np.errstate(all="ignore"):  # as tiles are rounded
        round_in_place(x, fmt, np.empty_like(x))
    return x


ROUNDERS = [round_to, numpy_in_place, numpy_with_scratch]


@pytest.mark.parametrize("rounded", ROUNDERS, ids=lambda function: function.__name__)
def test_a_nan_stays_one_and_its_neighbours_do_not_notice(rounded) -> None:
    """Whatever its bits are and wherever it stands, in the tail that no vector of a processor fills too."""
    for dtype, fmt, size in itertools.product((np.float32, np.float64), FORMATS, (1, 7, 33, 67)):
        plain = np.linspace(-3, 3, size).astype(dtype)
        wanted = rounded(plain.copy(), fmt)
        for place in sorted({0, size // 2, size - 1}):
            for pattern in nans(dtype)[:: 1 if size == 7 else 3]:
                x = plain.copy()
                x[place : place + 1] = pattern
                result = rounded(x, fmt)
                assert np.isnan(result[place]), (size, place, pattern)
                others = np.arange(size) != place
                assert same(result[others], wanted[others])
        every = np.resize(nans(dtype), size)
        assert np.isnan(rounded(every, fmt)).all()


@pytest.mark.parametrize("name", ["bf16", "tf32", "fp16", "e4m3"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_nan_stays_one_in_every_block_of_a_long_array(dtype: type, name: str) -> None:
    length = 3 * 2**17 // np.dtype(dtype).itemsize  # rounded at once
    x = np.random.default_rng(0).standard_normal(2 * length + 3).astype(dtype)
    for place in (0, length - 1, length, 2 * length, 2 * length + 2):
        x[place : place + 1] = nans(dtype)[6]  # all ones, which carry into the sign
    wanted = np.concatenate([round_to(part, parse(name)) for part in np.array_split(x, 1000)])
    round_in_place(x, parse(name))
    assert same(x, wanted)


@pytest.mark.parametrize("fmt", FORMATS[1:], ids=str)
def test_a_nan_stays_one_on_the_ways_to_a_rounding(fmt: Format) -> None:
    every = nans(np.float64)
    with np.errstate(invalid="ignore"):  # signalling nans
        assert np.isnan(dd.to_odd((every.copy(), np.full_like(every, 1e-30)))).all()
    assert np.isnan(round_nearest(every.copy(), lambda where: every[where], fmt)).all()


@pytest.mark.parametrize("spec", ["int8:head", "e4m3:token", "e5m2:tensor"])
def test_a_nan_stays_one_in_codes_with_a_scale(spec: str) -> None:
    for dtype in (np.float32, np.float64):
        stored = rounding.parse_scaled(spec).stored(nans(dtype), np.ones(1, dtype))
        assert np.isnan(stored).all()


def test_bits_that_differ():
    a = np.array([0.0, 1.0, np.nan, 1.0, np.inf, 2.0, 3.0])
    b = np.array([-0.0, 1.0 + 2.0**-20, -np.nan, np.nan, np.inf, 3.0, 3.0], np.float64)
    of_numbers = [True, True, False, True, False, True, False]  # the sign of 0, nan against 1, 2 against 3
    assert bits_differ(a, b).tolist() == of_numbers
    assert bits_differ(a.astype(np.float32), b).tolist() == of_numbers  # formats that differ, numbers that do
    rounded = bits_differ(round_to(a, parse("bf16")), round_to(b, parse("bf16")))
    assert rounded.tolist() == [True, False, False, True, False, True, False]


NUMBERS = arrays(np.float32, st.integers(1, 40), elements=st.floats(-1e4, 1e4, width=32))
LARGEST = {"int8": 127.0, "e4m3": 448.0, "e5m2": 57344.0}


def in_torch(name: str, x: np.ndarray) -> np.ndarray:
    """As quantisers write it: a float32 scale, a division, codes, a product."""
    values = torch.from_numpy(x)
    scale = values.abs().max() / torch.tensor(LARGEST[name])
    quotient = values / (scale if scale else torch.tensor(1.0))
    if name == "int8":
        return (quotient.round().clamp(-127, 127).to(torch.int8).float() * scale).numpy()
    dtype = torch.float8_e4m3fn if name == "e4m3" else torch.float8_e5m2
    return (quotient.clamp(-LARGEST[name], LARGEST[name]).to(dtype).float() * scale).numpy()


@pytest.mark.parametrize("name", LARGEST)
@given(x=NUMBERS)
def test_every_bit_is_torchs(name: str, x: np.ndarray) -> None:
    stored = rounding.parse_scaled(f"{name}:tensor").stored(x, np.abs(x).max())
    assert stored.dtype == np.float32
    assert stored.tobytes() == in_torch(name, x).tobytes()


@given(x=NUMBERS)
def test_int8_is_within_half_a_step(x: np.ndarray) -> None:
    largest = np.abs(x).max()
    stored = rounding.parse_scaled("int8:tensor").stored(x, largest).astype(np.float64)
    # half a step, and four float32 roundings: of scale, quotient (up to 127 steps), product
    room = float(largest) / 254 + 4 * 2.0**-24 * float(largest) + 2.0**-149 * 128
    assert np.abs(stored - x).max() <= room


def test_what_is_not_finite_is_not_hidden() -> None:
    x = np.array([1.0, np.inf], np.float32)
    for name in LARGEST:
        stored = rounding.parse_scaled(f"{name}:token").stored(x, np.abs(x).max())
        assert not np.isfinite(stored).any() or not np.isfinite(stored[1])
