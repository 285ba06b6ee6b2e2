"""Diagnoses in English: every code has its sentence, title, cause and remedy, and says where it holds."""

import string
from dataclasses import replace

import pytest

from ropeaudit import RopeSetting, parse
from ropeaudit.recognition import known_recipes, wording
from ropeaudit.recognition.diagnosis import Diagnosis, Where, codes, kinds
from ropeaudit.recognition.faults import faults
from ropeaudit.rope.scaling import parse as scaling

BUFFER = "frequencies (inv_freq; casting a module casts its buffers)"
BF16 = parse("bf16")
STAGES = {"position": "float32", "frequency": "float32", "computed": "float32", "angle": "float32"}
STAGES |= {"table": "float32", "rotation": "float32", "form": "inverse_power", "rounding": "each"}
STAGES |= {"dtype": "bfloat16", "recipes": ()}
# code -> values as the recogniser gives them, and the sentence; None: the fault has more than one of them
SENTENCES = {
    "narrow-positions": (STAGES | {"position": "bfloat16"}, "bfloat16 positions, float32 rotation"),
    "narrow-frequencies": (STAGES | {"frequency": "bfloat16"}, "bfloat16 frequencies, float32 rotation"),
    "narrow-angles": (STAGES | {"angle": "bfloat16"}, "bfloat16 angles, float32 rotation"),
    "narrow-table": (STAGES | {"table": "float16"}, "float16 table, float32 rotation"),
    "narrow-rotation": (STAGES | {"rotation": "bfloat16"}, "bfloat16 rotation"),
    "narrow-input": (
        {"formats": "float16"},
        "vectors rounded to float16, then rotated",
    ),
    "narrow-output": (
        {"format": "bfloat16"},
        "what it returns is off by what roundings in bfloat16 explain",
    ),
    "narrow-accumulator": ({"format": "float16"}, "drift as large as that of a float16 accumulator"),
    "known-recipe": (
        STAGES | {"table": "bfloat16", "rotation": "bfloat16", "recipes": ("hf",)},
        "rounded table, bfloat16 rotation (hf)",
    ),
    "nonfinite": ({"recipes": ("uniform",)}, "nan or inf, as uniform"),
    "uninitialised": ({"value": 1.1e24}, "uninitialised: 1.1e+24"),
    "missing-scaling": (
        {"asked": "llama3(factor=8)"},
        "no scaling of frequencies: llama3(factor=8) is asked for",
    ),
    "other-scaling": (
        {"seen": "linear(factor=2)", "asked": "linear(factor=4)"},
        "linear(factor=2) instead of linear(factor=4)",
    ),
    "wrong-base": ({"base": 10500.0, "asked": 10000.0}, "base 10500 instead of 10000"),
    "exponent-denominator": ({"dims": 62, "asked": 64}, "exponents over 62 instead of 64"),
    "wrong-layout": ({"layout": "interleaved"}, "interleaved pairs"),
    "mixed-layout": (
        {"table": "interleaved", "rotation": "half"},
        "cos and sin of interleaved pairs on half pairs",
    ),
    "pairs-in-block": (
        {"dims": 16, "half": 8, "asked": 32},
        "dims i and i + 8 of the first 16 are paired, not i and i + 32",
    ),
    "partial-rotation": (
        {"seen": 128, "asked": 64, "head_dim": 128},
        "128 of 128 dims are rotated instead of 64",
    ),
    "attention-factor": (
        {"seen": 1.0, "asked": 1.25},
        "cos and sin are multiplied by 1 instead of 1.25, as where it is left out",
    ),
    "scaled-vectors": ({"times": 1.1}, "vectors 1.1 times as long as they should be"),
    "pair-order": ({}, "the frequencies in reverse order: the slowest first"),
    "inverse-frequencies": ({}, "inverses of the frequencies: tokens per radian"),
    "turns-per-token": ({}, "frequencies in turns per token"),
    "no-rotation": ({}, "no rotation"),
    "rotation-unasked": ({}, "rotates, though it is a layer without RoPE"),
    "wrong-direction": ({}, "the other direction"),
    "rotated-twice": ({}, "rotated twice"),
    "positions-off": ({"by": 1}, "positions +1"),
    "positions-from-0": ({}, "positions from 0, as where the offset is left out"),
    "positions-reversed": ({}, "positions in reverse order"),
    "first-position-only": ({}, "every position taken for the first"),
    "positions-counted": ({}, "positions counted on from the first of the call"),
    "positions-of-another-row": ({"row": 0}, "positions of batch element 0"),
    "rows-by-other-heads": (
        {"seen": 4, "asked": 2},
        "rows of the batch counted by 4 heads instead of 2",
    ),
    "rows-mixed-up": (
        {"row": 1, "seen": 3},
        "rows of the batch by the positions of others: batch element 1 by those of 3",
    ),
    "rotated-by-head": ({}, "rotated by the number of the head, not of the token"),
    "integer-width": ({"bits": 16}, "positions held in int16"),
    "wrap": ({"size": 65536}, "positions that wrap at 65536"),
    "table-ends": ({"last": 4095}, "a table that ends at position 4095"),
    "restart": ({"size": 128}, "positions that restart every 128"),
    "positions-stop": ({"count": 128}, "positions that stop after 128 tokens of a call"),
    "another-position": ({"position": 50, "seen": 77}, "position 50 rotated as 77"),
    "q-k-swapped": ({}, "q and k swapped"),
    "cos-sin-swapped": ({}, "cos and sin swapped"),
    "halves-swapped": ({}, "the two numbers of each pair swapped"),
    "pairs-left-out": ({"pairs": tuple(range(16, 32))}, "pair 16 to 31 is not rotated"),
    "gradient-zero": ({"vectors": ("q", "k")}, "the gradient of q and k is 0"),
    "not-a-rotation": ({}, "no rotation of what was given: pairs have other lengths"),
    "random": ({}, "two calls alike give different numbers"),
    "state-left": ({"how": "afresh"}, "state that an earlier call left: called afresh it is right"),
    "output-shared": ({}, "the next call overwrites what this one returned"),
    "threads-meet": ({}, "calls from two threads take each other's values"),
    "right-so": ({}, "called so it is right: the plain call is not"),
    "buffer-cast": ({"format": "bfloat16"}, "a buffer cast to bfloat16"),
    "entries-off": (
        {"count": 1, "total": 64, "things": "pairs", "entries": (5,)},
        "1 of 64 pairs off: 5",
    ),
    "axes-order": (
        {"order": ("batch", "seq", "heads", "head_dim")},
        "axes in the order batch, seq, heads, head_dim",
    ),
    "other-head-dim": ({"seen": 64, "asked": 128}, "heads of 64 dims instead of 128"),
    "other-sections": (
        {"seen": "none", "asked": "8/12/12"},
        "sections none instead of 8/12/12 pairs for time, height and width",
    ),
    "unexplained": ({}, "nothing known explains it"),
}
NOT_MENDED = {  # codes for which nothing can be said
    *("known-recipe", "nonfinite", "another-position", "not-a-rotation", "unexplained"),
}


def diagnosis(code, **where):
    return Diagnosis(code, SENTENCES[code][0], Where(**where))


def test_every_code_is_in_the_table_of_sentences():
    assert set(SENTENCES) == set(kinds()), "give SENTENCES the values and the sentence of each code"


@pytest.mark.parametrize("code", SENTENCES)
def test_every_code_has_a_sentence(code):
    assert wording.sentence(diagnosis(code)) == SENTENCES[code][1]
    assert wording.sentence(diagnosis(code, sides=("k",))) == f"k alone: {SENTENCES[code][1]}"
    assert codes(diagnosis(code)) == code


@pytest.mark.parametrize("code", SENTENCES)
def test_every_code_has_a_title_a_cause_and_what_it_shows(code):
    kind = kinds()[code]
    assert wording.title(code) == kind.title
    assert kind.title
    assert kind.shows.endswith(".")
    assert kind.cause.endswith(".")
    groups = ("precision", "setting", "positions", "operands", "state", "files", "unknown")
    assert kind.group in groups


@pytest.mark.parametrize("code", SENTENCES)
def test_every_code_has_a_remedy_but_where_nothing_can_be_said(code):
    text = wording.remedy(diagnosis(code), parse("fp32"), 100)
    assert bool(text) == (code not in NOT_MENDED)
    assert "{" not in text


def test_sentences_name_no_value_that_is_not_given():
    for code, kind in kinds().items():
        for text in (kind.sentence, kind.gradient, kind.option):
            names = {name for _, name, _, _ in string.Formatter().parse(text) if name}
            assert code in SENTENCES, f"{code}: add its values and its sentence to SENTENCES"
            assert names - {"stages", "more", "pairing"} <= set(SENTENCES[code][0]), code


SETTINGS = [
    RopeSetting.of(64),
    RopeSetting.of(64, layout="interleaved"),
    RopeSetting.of(64, rotary_dim=32),
    RopeSetting.of(64, scaling=scaling("yarn:factor=40,original=4096"), length=8192),
    RopeSetting.of(64, scaling=scaling("llama3:factor=8,low=1,high=4,original=8192"), length=8192),
]


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_usual_fault_has_a_sentence_of_its_own_and_a_remedy(setting):
    told = {}
    for fault in faults(setting, 100):
        text = wording.sentence(fault.diagnosis)
        assert told.setdefault(text, fault.diagnosis) == fault.diagnosis
        assert wording.remedy(fault.diagnosis, BF16, 100), text
        assert wording.remedy(replace(fault.diagnosis, where=Where(sides=("k",))), BF16, 100), text


@pytest.mark.parametrize(
    ("code", "where", "values", "words"),
    [
        ("positions-from-0", {}, {}, "add the offset to the positions"),
        ("first-position-only", {}, {}, "give each token a position of its own"),
        ("integer-width", {}, {}, "hold positions in 32 bits or more"),
        (
            "wrap",
            {},
            {},
            "let positions grow past that number: hold them in 32 bits or more, and do not take them modulo "
            "the length of a table",
        ),
        ("table-ends", {}, {}, "make the table longer, or compute cos and sin at the positions given"),
        ("restart", {}, {}, "count on from block to block"),
        ("positions-stop", {}, {}, "count on to the last token of the call"),
        ("positions-reversed", {}, {}, "rotate each token by its own position"),
        ("positions-off", {}, {}, "rotate the first token by the position that is given"),
        ("wrong-direction", {}, {}, "negate sin"),
        ("no-rotation", {}, {}, "rotate by the positions that are given"),
        ("rotated-twice", {}, {}, "rotate once: it may get what is rotated already"),
        ("wrong-layout", {}, {}, "pair dims i and i + d/2"),
        (
            "wrong-layout",
            {},
            {"layout": "half"},
            "pair dims 2i and 2i + 1",
        ),
        ("exponent-denominator", {}, {}, "divide by the number of rotated dims in the exponent"),
        ("wrong-base", {}, {}, "use the base that is asked for, 10000"),
        (
            "wrong-base",
            {"until": 0, "since": 9000},
            {},
            "see what changes at that position: another table, another branch, a limit",
        ),
        (
            "scaled-vectors",
            {},
            {},
            "leave vectors as long as they are; the setting's attention factor is accounted for",
        ),
        ("q-k-swapped", {}, {}, "return q and k in the order in which they come"),
        ("state-left", {}, {}, "compute a stored table anew where dtype, length or positions change"),
        ("narrow-input", {}, {}, "rotate q and k in the dtype in which they come, or in a wider one"),
        (
            "narrow-output",
            {},
            {},
            "keep what is computed, and what is returned, in the dtype of the input",
        ),
        ("wrong-direction", {"gradient": True}, {}, "negate sin in the backward pass"),
        ("narrow-output", {"gradient": True}, {}, "compute the backward pass in the dtype of the output"),
        ("no-rotation", {"gradient": True}, {}, "rotate the upstream gradient back: negate sin"),
    ],
)
def test_what_to_change(code, where, values, words):
    found = Diagnosis(code, SENTENCES[code][0] | values, Where(**where))
    assert wording.remedy(found, BF16, 131072) == words


@pytest.mark.parametrize(
    ("name", "dtype", "words"),
    [
        ("uniform", "bf16", f"keep positions, {BUFFER} and angles in float32"),
        ("hf-model-cast", "fp16", f"keep {BUFFER} in float32"),
        ("gpt-neox-te", "bf16", "keep angles in float32"),
        ("rotary-embedding-torch", "bf16", "keep positions in float32"),
        ("hf", "fp64", "compute positions, frequencies, angles, cos and sin and the rotation in float64"),
        ("hf", "bf16", ""),
    ],
)
def test_the_narrow_stages_of_a_recipe(name, dtype, words):
    [group] = [one for one in known_recipes.groups(parse(dtype)) if name in one.names]
    assert wording.remedy(group.diagnosis(), parse(dtype), 131072) == words


def narrow(code, **stages):
    return Diagnosis(code, STAGES | stages)


def test_a_table_or_a_rotation_is_narrow_below_the_dtype_alone():
    table = narrow("narrow-table", table="float16")
    assert wording.remedy(table, parse("fp32"), 100) == "keep table in float32"
    assert wording.remedy(table, BF16, 100) == ""
    rotation = narrow("narrow-rotation", rotation="bfloat16")
    assert wording.remedy(rotation, parse("fp16"), 100) == "keep rotation in float32"


def test_positions_past_float32_are_kept_in_float64():
    positions = narrow("narrow-positions", position="bfloat16")
    assert wording.remedy(positions, BF16, 2**24) == "keep positions in float32"
    assert wording.remedy(positions, BF16, 2**25) == "keep positions in float64"


def test_what_frequencies_are_computed_in_is_said() -> None:
    values = STAGES | {"frequency": "bfloat16", "computed": "bfloat16"}
    words = wording.sentence(Diagnosis("narrow-frequencies", values))
    assert words == "frequencies computed in bfloat16, float32 rotation"


def test_what_is_not_known_has_no_remedy():
    assert wording.remedy(None, BF16, 100) == ""
    assert wording.remedy(diagnosis("unexplained", pair=3), BF16, 100) == ""
    assert wording.sentence(None) == ""


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ({"sides": ("q",)}, "q alone: no rotation"),
        ({"sides": ("q",), "heads": (1,), "of_heads": 4}, "q alone, head 1 of 4 alone: no rotation"),
        ({"batch": (1,)}, "batch element 1 alone: no rotation"),
        ({"batch": (0, 2, 3, 4)}, "batch element 0, 2 to 4 alone: no rotation"),
        ({"heads": (0, 1, 3), "of_heads": 5}, "head 0, 1, 3 of 5 alone: no rotation"),
        ({"position": 77}, "position 77 alone: no rotation"),
        ({"pair": 5}, "pair 5 alone: no rotation"),
        ({"unrotated": True}, "dims that are not rotated: no rotation"),
        ({"offset": 1000}, "no rotation (at offset 1000)"),
        ({"until": 0, "since": 9000}, "positions 0 to 8999 are right, from 9000 on no rotation"),
        ({"gradient": True}, "the gradient is passed on as it comes, not rotated back"),
    ],
)
def test_a_sentence_says_where(where, words):
    assert wording.sentence(diagnosis("no-rotation", **where)) == words


def test_what_explains_as_much_stands_beside_it():
    first, *rest = (Diagnosis("wrap", {"size": 2**power}) for power in range(4, 10))
    text = "positions that wrap at 16 or positions that wrap at 32 or positions that wrap at 64"
    three = replace(first, alternatives=tuple(rest[:2]))
    assert wording.sentence(three) == text
    assert wording.sentence(replace(first, alternatives=tuple(rest[:3]))) == f"{text} or 1 fault more"
    assert wording.sentence(replace(first, alternatives=tuple(rest))) == f"{text} or 3 faults more"
    assert wording.remedy(three, BF16, 100) == wording.remedy(first, BF16, 100)
    assert codes(three) == "wrap"


def test_no_remedy_is_that_of_one_of_several():
    either = replace(diagnosis("wrap"), alternatives=(diagnosis("table-ends"),))
    assert wording.remedy(either, BF16, 100) == ""
    assert codes(either) == "wrap|table-ends"


def test_faults_together_are_said_together():
    both = replace(diagnosis("wrong-layout"), also=(diagnosis("wrong-direction"),))
    assert wording.sentence(both) == "interleaved pairs and the other direction"
    assert wording.remedy(both, BF16, 100) == "pair dims i and i + d/2; negate sin"
    assert codes(both) == "wrong-layout+wrong-direction"


def test_an_option_is_named_where_it_makes_all_right():
    """Code of which one side has another base is not right with that of the other."""
    told = "use the base that is asked for, 10000"
    assert wording.remedy(diagnosis("wrong-base", sides=("k",)), BF16, 100) == told
    assert wording.remedy(diagnosis("wrong-base"), BF16, 100) == told
    assert wording.option(diagnosis("wrong-base")) == "--base 10500"
    assert wording.option(diagnosis("wrong-layout")) == "--layout interleaved"
    assert wording.option(diagnosis("wrong-base", since=9000)) == ""
    assert wording.option(diagnosis("wrong-base", sides=("k",))) == wording.option(None) == ""
    either = replace(diagnosis("wrong-base"), alternatives=(diagnosis("wrong-layout"),))
    assert wording.option(either) == ""


def test_what_some_calls_do_is_not_said_of_all():
    found = replace(diagnosis("rotated-twice"), certainty="in this call")
    assert wording.sentence(found) == "rotated twice, though not in every call"


def test_what_is_wrong_with_a_gradient_is_said_of_it():
    assert (
        wording.sentence(diagnosis("positions-off", gradient=True)) == "the gradient is that of positions +1"
    )
    text = "the gradient is off by what roundings in bfloat16 explain"
    assert wording.sentence(diagnosis("narrow-output", gradient=True)) == text


@pytest.mark.parametrize(
    ("code", "values", "text"),
    [
        (
            "other-scaling",
            {"seen": "linear(factor=4)", "asked": "default"},
            "linear(factor=4) instead of no scaling",
        ),
        (
            "other-scaling",
            {"seen": "longrope", "asked": "longrope", "seen_divisors": "short", "asked_divisors": "long"},
            "the short divisors instead of the long divisors",
        ),
        (
            "other-scaling",
            {"seen": "yarn(factor=4)", "seen_ramp": "inverted", "asked": "yarn(factor=4)"},
            "yarn(factor=4) with its ramp inverted instead of yarn(factor=4)",
        ),
        (
            "other-scaling",
            {"seen": "yarn(factor=4)", "seen_ramp": "short", "asked": "yarn(factor=4)"},
            "yarn(factor=4) with its ramp ended at the last pair instead of yarn(factor=4)",
        ),
        (
            "attention-factor",
            {"seen": 1.25**2, "asked": 1.25},
            "cos and sin are multiplied by 1.5625 instead of 1.25, as where it is applied twice",
        ),
        (
            "attention-factor",
            {"seen": 1.3, "asked": 1.25},
            "cos and sin are multiplied by 1.3 instead of 1.25",
        ),
        (
            "narrow-output",
            {"format": "bfloat16", "held": "bfloat16"},
            "what it returns is off by what roundings in bfloat16 explain, and every number of it is a "
            "bfloat16 number",
        ),
        ("nonfinite", {}, "nan or inf"),
        ("nonfinite", {"recipes": ("hf", "meta")}, "nan or inf, as hf, meta"),
        ("pairs-left-out", {"pairs": (0, 3, 4, 5)}, "pair 0, 3 to 5 is not rotated"),
        ("gradient-zero", {"vectors": ("k",)}, "the gradient of k is 0"),
    ],
)
def test_a_clause_is_made_of_values(code, values, text):
    assert wording.sentence(Diagnosis(code, values)) == text


def test_a_code_that_is_no_row_is_refused():
    with pytest.raises(KeyError):
        Diagnosis("no-such-code")


def test_a_remedy_names_frequencies_that_were_computed_or_stored_narrow_and_no_other_stage_for_it():
    """What frequencies were computed in says nothing of positions, angles or the table."""
    computed = STAGES | {"computed": "bfloat16"}
    assert wording._narrow(computed, parse("fp32"), parse("fp32")) == BUFFER
    assert wording._narrow(computed | {"frequency": "float16"}, parse("fp32"), parse("fp32")) == BUFFER
    assert wording._narrow(STAGES | {"angle": "bfloat16"}, parse("fp32"), parse("fp32")) == "angles"
