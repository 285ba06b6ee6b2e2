"""Diagnoses in English: every code has its sentence, title, cause and remedy, and says where it holds."""

import string
from dataclasses import replace

import pytest

from ropeaudit import RopeSetting, parse
from ropeaudit.recognition import wording
from ropeaudit.recognition.diagnosis import Diagnosis, Where, codes, kinds
from ropeaudit.recognition.faults import of_operands, of_positions, of_settings
from ropeaudit.rope.scaling import parse as scaling

BF16 = parse("bf16")
SETTINGS = [
    RopeSetting.of(64),
    RopeSetting.of(64, layout="interleaved"),
    RopeSetting.of(64, rotary_dim=32),
    RopeSetting.of(64, scaling=scaling("yarn:factor=40,original=4096"), length=8192),
    RopeSetting.of(64, scaling=scaling("llama3:factor=8,low=1,high=4,original=8192"), length=8192),
]


def test_every_code_has_a_title_a_cause_and_what_it_shows() -> None:
    groups = ("precision", "setting", "positions", "operands", "state", "files", "unknown")
    for code, kind in kinds().items():
        assert kind.title, code
        assert kind.sentence, code
        assert kind.shows.endswith("."), code
        assert kind.cause.endswith("."), code
        assert kind.group in groups, code
        for text in (kind.sentence, kind.gradient, kind.option):
            assert all(
                name is None or name.isidentifier() for _, name, _, _ in string.Formatter().parse(text)
            )


def test_every_usual_fault_has_a_sentence_of_its_own_and_a_remedy() -> None:
    for setting in SETTINGS:
        told: dict[str, Diagnosis] = {}
        known = *of_settings(setting), *of_positions(100), *of_operands(setting)
        for fault in (one for one in known if not one.fitted):
            text = wording.sentence(fault.diagnosis)
            assert "{" not in text
            assert told.setdefault(text, fault.diagnosis) == fault.diagnosis
            assert wording.remedy(fault.diagnosis, BF16, 100), text
            alone = replace(fault.diagnosis, where=Where(sides=("k",)))
            assert wording.sentence(alone) == f"k alone: {text}"
            assert wording.remedy(alone, BF16, 100), text
        assert "wrong-layout" in {one.code for one in told.values()}


def test_what_explains_as_much_stands_beside_it() -> None:
    first, *rest = (Diagnosis("wrap", {"size": 2**power}) for power in range(4, 10))
    text = "positions that wrap at 16 or positions that wrap at 32 or positions that wrap at 64"
    three = replace(first, alternatives=tuple(rest[:2]))
    assert wording.sentence(three) == text
    assert wording.sentence(replace(first, alternatives=tuple(rest))) == f"{text} or 3 faults more"
    assert wording.remedy(three, BF16, 100) == wording.remedy(first, BF16, 100)
    either = replace(first, alternatives=(Diagnosis("no-rotation"),))
    assert wording.remedy(either, BF16, 100) == ""  # no remedy is that of one of several
    assert codes(either) == "wrap|no-rotation"


def test_faults_together_are_said_together() -> None:
    both = replace(Diagnosis("wrong-layout", {"layout": "interleaved"}), also=(Diagnosis("wrong-direction"),))
    assert wording.sentence(both) == "interleaved pairs and the other direction"
    assert wording.remedy(both, BF16, 100) == "pair dims i and i + d/2; negate sin"
    assert codes(both) == "wrong-layout+wrong-direction"


def test_an_option_is_named_where_it_makes_all_right() -> None:
    """Code of which one side has another base is not right with that of the other."""
    base = Diagnosis("wrong-base", {"base": 10500.0, "asked": 10000.0})
    assert wording.option(base) == "--base 10500"
    assert wording.option(replace(base, where=Where(since=9000))) == ""
    assert wording.option(replace(base, where=Where(sides=("k",)))) == wording.option(None) == ""


def test_a_code_that_is_no_row_is_refused() -> None:
    with pytest.raises(KeyError):
        Diagnosis("no-such-code")
