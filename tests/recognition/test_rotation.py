"""Where code puts each rotated pair: faults break the gate and are named, ten right kernels pass."""

import itertools
import json
import re
import warnings
from dataclasses import replace
from pathlib import Path

import faulty_kernels
import misnamed_kernels
import numpy as np
import pytest
import torch
from cases import first_fast
from command_line import ran
from faulty_kernels import right, rotate

from ropeaudit import RopeSetting, parse, shift
from ropeaudit.arithmetic.formats import FP32
from ropeaudit.audits.cases import straddling
from ropeaudit.conformance import every_position
from ropeaudit.conformance.code_under_test import CodeUnderTest
from ropeaudit.errors import UsageError
from ropeaudit.inputs.qk import on_16_bit_grid
from ropeaudit.recognition import allowance, rotation, verification, wording
from ropeaudit.recognition.diagnosis import Diagnosis, Where, codes
from ropeaudit.rope.scaled import attention_factor
from ropeaudit.rope.scaling import Scaling
from ropeaudit.rope.scaling import parse as scaling
from ropeaudit.subjects import exact_rotation as exactly
from ropeaudit.subjects.calling import foreign
from ropeaudit.subjects.calling.foreign import in_process
from ropeaudit.subjects.calling.own_code import OwnCode
from ropeaudit.subjects.emulated import Emulated
from ropeaudit.testing import assert_shift_invariant

KERNELS = Path(faulty_kernels.__file__)
OF_ONE_VOICE = Path(__file__).parents[1] / "kernels" / "recognition" / "kernels_of_one_voice.py"
SIZES = {"heads": 2, "seq_len": 128, "head_dim": 64}
BHSD = {"order": "bhsd"}
OFFSETS = (0, 32768, 131072)


def audited(name, dtype="bf16", offsets=OFFSETS, **more):
    return list(shift(offsets, dtype, implementations=f"{KERNELS}:{name}", **SIZES | more))


def judged(rotate, setting=RopeSetting.of(64), dtype=FP32, first=100, size=32, heads=2, **how):  # noqa: B008
    """Return what is found of a function at `size` positions from the first on, and how it is called."""
    own = in_process(OwnCode("own", rotate, **how))
    q, k = np.random.default_rng(0).standard_normal((2, heads, size, setting.head_dim))
    vectors = verification.GivenVectors(q, k, np.arange(size))
    return verification.check(own.rotator(setting, dtype), setting, dtype, vectors, first), own


RIGHT = (
    *("x_positions", "q_k_positions", "q_k_tables", "x_tables", "q_k_complex", "module", "Built"),
    *("in_numpy", "x_offset", "bshd"),
)
DTYPES = ["bf16", pytest.param("fp32", marks=pytest.mark.slow), pytest.param("fp16", marks=pytest.mark.slow)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_right_kernels_are_in_place(dtype) -> None:
    wrong = []
    for name in RIGHT:
        for one in audited(name, dtype, (0, 131072), kv_heads=1):
            small = 0 < one.rotation_excess < 1 and one.drift_rms < 0.01
            silent = (one.diagnosis, one.resembles) == (None, None) and one.verdict != "wrong_rotation"
            if not (small and silent):
                wrong.append((name, one))
    assert wrong == []


@pytest.mark.slow  # a whole check
def test_a_base_is_told_of_four_pairs_and_more() -> None:
    for pairs, seen in ((4, True), (3, False)):
        (one,) = audited("other_base", "fp32", (1000,), head_dim=2 * pairs)
        assert one.verdict == "wrong_rotation"
        assert one.diagnosis == ("wrong-base" if seen else "unexplained")
        assert ("base 10500 instead of 10000" in one.resembles) == seen


@pytest.mark.slow
def test_every_position_is_looked_at_of_a_sample(capsys) -> None:
    results = audited("last_ones_late", offsets=(32768,), sample=200, seq_len=50000)
    assert [one.verdict for one in results] == ["wrong_rotation"]
    (sound,) = audited("x_offset", offsets=(32768,), sample=200, seq_len=5000)
    assert sound.verdict != "wrong_rotation"


def test_a_fault_behind_a_recipe_is_misplaced() -> None:
    """Positions in bfloat16 explain most of it, but not k."""
    code = lambda q, k, positions: (right(q, positions.bfloat16()), k)  # noqa: E731
    result, _ = judged(code, dtype=parse("bf16"), first=4001, size=96)
    assert result.wrong_rotation
    assert Diagnosis("no-rotation", where=Where(sides=("k",))) in list(result.diagnosis.parts())


SCALINGS = [
    *("default", "linear:factor=4", "yarn:factor=40,original=4096", "dynamic:factor=4,maximum=4096"),
    *("llama3:factor=8,low=1,high=4,original=8192", "proportional:fraction=0.5"),
]


@pytest.mark.parametrize("kind", SCALINGS)
@pytest.mark.parametrize("dtype", ["fp64", "fp32", "fp16", "bf16"])
def test_every_form_of_right_code_is_allowed(kind, dtype) -> None:
    """Emulated in the coarsest formats, over forms of the frequencies, with whatever scaling."""
    for d, base, form in itertools.product((64, 80), (1e4, 1e8), ("power", "exp", "exp2", "recurrence")):
        setting = RopeSetting.of(d, base=base, scaling=scaling(kind), length=8192)
        one = allowance.careful(parse(dtype)).recipe.changed({"frequency_form": form}).resolve(parse(dtype))
        at = np.array([0, 1, 77, 5000, 131071, 2**20])
        x = np.random.default_rng(0).standard_normal((1, at.size, d)).astype(one.dtype.carrier)
        subject = Emulated(one, setting)
        result = subject.rotate(x[0], subject.table(at, 0))[None]
        rule = allowance.careful(parse(dtype))
        over = allowance.excess(x[None], result[None], at[None], setting, rule)
        assert over.max() < 1, (d, base, form)


@pytest.mark.parametrize("kind", ["yarn:factor=40,original=4096", "linear:factor=4"])
def test_a_blend_of_frequencies_is_allowed_no_more_than_its_terms(kind) -> None:
    plain, at = RopeSetting.of(64), np.array([0, 1000])
    setting = RopeSetting.of(64, scaling=scaling(kind), length=8192)
    one = allowance.careful(parse("fp32"))
    more = 8 * 2.0**-24 * at[:, None] * allowance.frequencies(plain)  # a handful of roundings of a term
    most = (allowance.phase_error(one, plain, at) + more) * (1 + 1e-12)
    assert (allowance.phase_error(one, setting, at) <= most).all()


@pytest.mark.parametrize("token", [512, 599])
def test_one_token_of_a_call_is_told_by_its_position_not_by_what_fits_it_by_chance(token) -> None:
    """At position 512 float16 positions may fit, and at the last one positions that restart there."""

    def rotate(q, k, positions):
        kept = right(k, positions)
        if k.shape[-2] > token:
            kept[..., token, :] = k[..., token, :]
        return right(q, positions), kept

    seen, _ = judged(rotate, dtype=parse("bf16"), first=0, size=600)
    told = {"position": token, "seen": 0}
    assert seen.diagnosis == Diagnosis("another-position", told, Where(sides=("k",), position=token))


@pytest.mark.slow  # a whole check
def test_one_position_of_two_is_not_called_the_only_one() -> None:
    for count in (2, 3):
        seen, _ = judged(lambda x, positions: x, first=0, size=count)
        assert seen.diagnosis.where.position is None, seen.diagnosis


def test_offsets_of_code_straddle_what_breaks() -> None:
    results = straddling(2**17, 256)
    assert len(results) <= 16
    for end in (2**7, 2**8, 2**11, 2**15, 65504, 2**16):
        assert any(offset < end < offset + 256 for offset in results), end
    assert max(results) + 256 == 2**17
    assert straddling(100, 256) == [0]
    assert max(straddling(2**20, 256)) == 2**20 - 256


def test_code_gets_them_where_no_offset_is_given(capsys) -> None:
    requested = ["shift", "--impl", f"{KERNELS}:x_positions", "--dry-run", "-f", "json"]
    for more, last in (([], 2**17), (["--model", "llama-3.1-8b"], 2**17), (["--seq-len", "100000"], 2**17)):
        axes = {one["axis"]: one for one in json.loads(ran(capsys, [*requested, *more]).out)["records"]}
        assert axes["offset"]["count"] == len(straddling(last, 256 if "--seq-len" not in more else 100000))


@pytest.mark.parametrize(("first", "last"), [(400, 424), (400, 400), (400, 430), (0, 1), (100_000, 100_011)])
def test_a_table_that_ends_anywhere_within_a_call_is_named(first: int, last: int) -> None:
    found = judged(lambda x, positions: right(x, positions.clamp(max=last)), first=first, **BHSD)[0].diagnosis
    assert found is not None
    assert (found.code, found.values, found.alternatives) == ("table-ends", {"last": last}, ())


def test_a_clean_rotation_of_no_known_formula_is_told_by_its_frequencies() -> None:
    def rotated(x, positions):
        assert positions.ndim == 1
        return rotate(x, positions.double()[:, None] * torch.linspace(1.0, 0.01, 32, dtype=torch.float64))

    found = judged(rotated, **BHSD)[0].diagnosis
    assert (codes(found), found.values["last"]) == ("other-frequencies", 0.01)


@pytest.mark.parametrize("turned", [64, 16])
def test_other_dims_than_the_setting_rotates_are_named(turned) -> None:
    def rotate(x, positions):
        return torch.cat([right(x[..., :turned], positions), x[..., turned:]], -1)

    told = Diagnosis("partial-rotation", {"seen": turned, "asked": 32, "head_dim": 64})
    assert judged(rotate, RopeSetting.of(64, 32), **BHSD)[0].diagnosis == told


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("code", ["cos-sin-swapped", "first-position-only"])
def test_wrong_code_is_given_tables_in_the_layout_of_its_pairs(layout, code) -> None:
    def rotate(x, cos, sin):
        cos, sin = (sin, cos) if code == "cos-sin-swapped" else (cos[..., :1, :], sin[..., :1, :])
        if layout == "half":
            return x * cos + torch.cat([-x[..., 32:], x[..., :32]], -1) * sin
        return x * cos + torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2) * sin

    def together(x, freqs_cis):
        return rotate(x, *freqs_cis)

    for function, width in ((rotate, layout), (together, f"tuple {layout}")):
        # with other orders a table that is broadcast wrongly may fit
        found, own = judged(function, RopeSetting.of(64, layout=layout), **BHSD)
        assert found.diagnosis is not None
        assert found.diagnosis.code == code
        assert own.fit(RopeSetting.of(64)).convention.width == width


@pytest.mark.parametrize("computed", ["float32", "bfloat16"])
def test_frequencies_in_a_narrow_format_are_no_other_base(computed) -> None:
    """Computed in bfloat16 they are those of base 9970, but for a few."""

    def rotate(q, k, cos, sin):
        return rotated(q, cos, sin), rotated(k, cos, sin)

    def rotated(x, cos, sin):
        return x * cos + torch.cat([-x[..., 32:], x[..., :32]], -1) * sin

    changes = {"frequency": "bf16" if computed == "bfloat16" else "fp32/bf16"}
    for dtype in (parse("bf16"), FP32):
        found = judged(rotate, dtype=dtype, first=400, changes=changes)[0].diagnosis
        assert found is not None
        assert [one.code for one in (found, *found.also, *found.alternatives)] == ["narrow-frequencies"]
        assert (found.values["computed"], found.values["frequency"]) == (computed, "bfloat16")


def test_angles_are_given_where_complex_numbers_do_not_fit() -> None:
    def angled(x, freqs):
        assert freqs.ndim == 2
        return rotate(x, freqs.real.float() if freqs.is_complex() else freqs.float())

    fit = in_process(OwnCode("angled", angled)).fit(RopeSetting.of(64))
    assert fit.sure
    assert fit.convention.roles == ("x", "angles")


@pytest.mark.parametrize(("name", "stage"), [("q_k_tables", "table"), ("x_tables", "position")])
def test_tables_that_code_is_given_honour_changes(name, stage) -> None:
    plain, changed = (audited(name, offsets=(1000,), changes=one)[0] for one in (None, {stage: "bf16"}))
    assert f"{stage}=bf16" in changed.stages
    assert stage not in plain.stages
    assert changed.drift_rms != plain.drift_rms


@pytest.mark.parametrize(
    ("name", "stage"), [("q_k_tables", "rotation"), ("x_positions", "table"), ("x_positions", "accumulate")]
)
def test_changes_that_reach_nothing_are_errors(name, stage) -> None:
    with pytest.raises(UsageError, match=f"changes {stage}: .*add recipes, or leave it out"):
        audited(name, changes={stage: "bf16"})


# the pytest helper


@pytest.mark.parametrize(
    ("change", "told", "options"),
    first_fast(
        [
            (
                lambda at: torch.where(at == 54321, at - 1, at),
                "54321 alone: position 54321 rotated as 54320 [another-position]",
                {"offsets": (0, 1000, 60000)},  # between the offsets
            ),
            (
                lambda at: at.clamp(max=2000),
                "a table that ends at position 2000 [table-ends]",
                {"offsets": (0, 1000, 60000)},
            ),
            (  # 64 positions of a call never reach the 128th; whole rows between the offsets do
                lambda at: at[0] + (at - at[0]) % 128,
                "behaves like: positions that restart every 128 [restart]",
                {},
            ),
            (  # all 64 positions from 131072 on are 131072, as at the end of a table of 131073 rows
                lambda at: at.bfloat16(),
                "behaves like: bfloat16 positions",
                {"dtype": "fp16", "offsets": (0, 131072)},
            ),
            (
                lambda at: at % 65536,
                "at offset 131072",
                {"offsets": (one for one in OFFSETS), "whole": False},
            ),
        ],
        2,
    ),
)
def test_the_helper_names_positions(change, told, options) -> None:
    with pytest.raises(AssertionError, match=re.escape(told)):
        assert_shift_invariant(lambda x, positions: right(x, change(positions)), head_dim=64, **options)


def test_the_helper_needs_offsets() -> None:
    for empty in ((), iter(())):
        with pytest.raises(UsageError, match="there are no offsets"):
            assert_shift_invariant(faulty_kernels.x_positions, offsets=empty)


DIMS, BASES = (32, 48, 64, 80, 96, 112, 128, 160, 192, 256), (1e3, 1e4, 5e5, 1e6, 1e8)
GRID = list(itertools.product(DIMS, BASES, ("fp32", "bf16", "fp16")))
QUICK = [one for one in GRID if one[0] in (80, 192) and one[1] in (5e5, 1e8) and one[2] == "fp32"]


@pytest.mark.parametrize(
    "some", [QUICK, pytest.param(GRID[::4], marks=pytest.mark.slow)], ids=["quick", "more"]
)
def test_a_right_formula_raises_no_alarm(some) -> None:
    for d, base, dtype in some:
        case = {"dtype": dtype, "head_dim": d, "base": base, "heads": 2, "seq_len": 32, "whole": False}
        assert_shift_invariant(right, recipe="meta", offsets=(0, 1000, 131072, 2**20), **case)


def test_a_call_that_is_right_when_it_is_made_again_is_explained_by_itself_alone() -> None:
    """Where both sides are in place by then, none is left to explain."""
    seen: list[bool] = []

    def cold(x, positions):
        seen.append(int(positions[0]) == 100)
        return right(x, positions + 1 if seen[-1] and seen.count(True) == 1 else positions)

    found, _ = judged(cold, **BHSD)
    assert found.excess > 1
    of_q = Where(sides=("q",))
    assert found.diagnosis == Diagnosis("positions-off", {"by": 1}, of_q, certainty="in this call")


@pytest.mark.parametrize("heads", [1, 2])
def test_no_rotation_is_not_the_number_of_the_head(heads) -> None:
    """One head, whose number is 0, does not tell them apart; two do."""
    found = judged(lambda x, positions: x.clone(), heads=heads, **BHSD)[0].diagnosis
    assert (found.code, found.alternatives) == ("no-rotation", ())


TWICE, EIGHTHS = 1.2772588722239781, 1e4 ** (-np.arange(8) / 8)  # what YaRN of factor 16 multiplies by
YARN, YARN16 = "yarn:factor=4,original=512", "yarn:factor=16,original=512"


def short_ramp(truncate):
    """Frequencies of YaRN whose ramp ends at the last pair, though it should end behind it; factor 4."""
    low, high = (64 * np.log(131072 / (turns * 2 * np.pi)) / (2 * np.log(1e4)) for turns in (32, 1))
    assert high > 31
    low = np.floor(low) if truncate else low
    ramp = np.clip((np.arange(32) - low) / (31 - low), 0, 1)
    return 1e4 ** (-np.arange(32) / 32) * (1 - 0.75 * ramp)


@pytest.mark.parametrize(
    ("asked", "used", "factor", "code"),  # factor: on cos and sin; None: the one that is asked for
    [
        (YARN, "default", None, "missing-scaling"),
        (YARN, "default", 1.0, "missing-scaling"),
        (YARN, "yarn:factor=2,original=512", None, "other-scaling"),
        ("yarn:factor=4,original=131072", short_ramp(True), None, "other-scaling"),
        ("yarn:factor=4,original=131072", short_ramp(False), None, "other-scaling"),
        (f"{YARN16},attention_factor=1", f"{YARN16},attention_factor=1", TWICE, "attention-factor"),
        (f"{YARN16},mscale=1,mscale_all_dim=1", YARN16, TWICE, "attention-factor"),
        ("proportional:fraction=0.25", 1e4 ** (-np.arange(8) / 32), None, "pairs-in-block"),
        ("proportional:fraction=0.25", EIGHTHS, None, "pairs-in-block+exponent-denominator"),
        ("proportional:fraction=0.25,factor=2", 1e4 ** (-np.arange(8) / 32) / 2, None, "pairs-in-block"),
    ],
)
def test_what_code_makes_of_a_scaling_is_named(asked, used, factor, code) -> None:
    """A kernel without the scaling and with its factor was: factor twice in q, k 1.14 times as long."""
    setting = RopeSetting.of(64, scaling=scaling(asked))
    if isinstance(used, str):
        other = replace(setting, scaling=scaling(used))
    else:
        explicit = Scaling("explicit", frequencies=tuple(used.tolist()))
        other = RopeSetting.of(64, 2 * used.size, scaling=explicit)
    times = (factor or attention_factor(setting.scaling)) / attention_factor(other.scaling)

    def rotate(x, positions):
        y = exactly.rotated(x.double().numpy(), positions.numpy(), other)
        y[..., : other.rotary_dim] *= times
        return torch.from_numpy(y).to(x.dtype)

    found = judged(rotate, setting, first=1000, size=64, **BHSD)[0].diagnosis
    assert codes(replace(found, alternatives=())) == code
    assert found.where == Where()


@pytest.mark.parametrize("changed", [{"length": 2000}, {"base": 6000.0}])
def test_dynamic_scaling_of_another_length_is_as_likely_as_another_base(changed) -> None:
    setting = RopeSetting.of(64, scaling=scaling("dynamic:factor=4,maximum=1024"), length=4096)

    def rotate(x, positions):
        y = exactly.rotated(x.double().numpy(), positions.numpy(), replace(setting, **changed))
        return torch.from_numpy(y).to(x.dtype)

    found = judged(rotate, setting, parse("bf16"), 1000, 64, **BHSD)[0].diagnosis
    by_code = {one.code: one.values for one in (found, *found.alternatives)}
    assert list(by_code) == ["other-scaling", "wrong-base"]
    assert by_code["other-scaling"]["asked"] == "dynamic(length=4096)"
    if "length" in changed:
        assert by_code["other-scaling"]["seen"] == "dynamic(length=2000)"
    else:
        assert by_code["wrong-base"]["base"] == pytest.approx(6000, rel=1e-3)  # bfloat16 vectors tell no more


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("unscaled", {"base": 500000.0}),
        ("interleaved", {"layout": "interleaved"}),
        ("half_of_it", {"rotary_dim": 40}),
    ],
)
def test_an_option_that_is_offered_makes_the_code_right(name: str, given) -> None:
    spec, sizes = f"{OF_ONE_VOICE}:{name}", {"heads": 2, "seq_len": 64, "head_dim": 80}
    if name != "half_of_it":  # which is refused, with the option to try
        (wrong,) = shift(1000, "fp32", implementations=spec, **sizes, layout="half")
        assert wrong.verdict == "wrong_rotation"
        [(option, value)] = given.items()
        own = foreign.load(spec)
        (finding,) = every_position.short_sequences(
            CodeUnderTest(own, RopeSetting.of(80), parse("fp32"), 8192)
        )
        offered = f"--{option} {value if option == 'layout' else f'{value:g}'}"
        assert wording.option(finding.diagnosis) == offered
    (right,) = shift(1000, "fp32", implementations=spec, **sizes, **given)
    assert right.rotation_excess < 1
    assert right.diagnosis is None


# what hides in the batch or the heads


def test_the_second_batch_element_is_another_one_for_every_seed() -> None:
    """The numbers of q came twice: zeros at the end of a seed are lost."""
    for seed in range(3):
        q = on_16_bit_grid(np.random.default_rng(seed).standard_normal((2, 16, 8)))
        vectors = verification.GivenVectors(q, q, np.arange(16), seed)
        for given in next(vectors.blocks(FP32))[:2]:
            assert not (given[0] == given[1]).all(axis=-1).any()


def test_warnings_of_trial_calls_are_silent(recwarn) -> None:
    def rotate(x, positions):
        if positions.ndim == 1 and x.ndim == 4:
            warnings.warn("nonsense", stacklevel=1)
        return misnamed_kernels.right(x, positions)

    in_process(OwnCode("rotate", rotate)).fit(RopeSetting.of(8))
    assert not [one for one in recwarn if "nonsense" in str(one.message)]


def test_a_side_that_nothing_explains_is_said_beside_the_other() -> None:
    """That k alone is not rotated would say that q is right."""
    sides = {"q": Diagnosis("unexplained"), "k": Diagnosis("no-rotation")}
    assert wording.sentence(rotation.join_sides(sides)) == "k: no rotation; q: nothing known explains it"
    assert wording.sentence(rotation.join_sides({"k": Diagnosis("no-rotation")})) == "k alone: no rotation"
