"""Of code: imitations of recipes, and real packages, are told apart by their numbers and their dtypes."""

import math

import imitations
import numpy as np
import pytest
from cases import first_fast, table

from ropeaudit import parse
from ropeaudit.features.explain import tracing
from ropeaudit.features.explain.analysis import CodeExplanation
from ropeaudit.features.explain.report import dtypes_rows
from ropeaudit.features.explain.report import report as explain_report
from ropeaudit.recognition.diagnosis import Diagnosis
from ropeaudit.subjects.calling.foreign import in_process
from ropeaudit.subjects.calling.own_code import OwnCode

IMITATIONS = table(__file__, "imitations.toml")["imitations"]
OFFSETS = (0, 32768)


def traced(thing, dtype="bf16", offsets=OFFSETS):
    thing = getattr(imitations, thing) if isinstance(thing, str) else thing
    return tracing.trace(in_process(OwnCode(thing.__name__, thing)), parse(dtype), offsets=offsets)


def told(trace):
    """The report of code whose stages get no shares."""
    return explain_report([CodeExplanation(trace)], None, {}, "dtypes")


def test_imitations_are_known_by_their_numbers_and_their_dtypes() -> None:
    wrong = []
    for kernel, recipe, dtypes in IMITATIONS:
        result = traced(kernel)
        best, seen = result.nearest()[0], result.narrowest()
        near = best.distance < 0.3 and best.profile < 1.1 and best.differing == ()
        if not (near and recipe in result.recipes() and dtypes.items() <= seen.items()):
            wrong.append((recipe, result.recipes(), best, seen))
    assert not wrong


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kernel", "package", "recipe"),
    first_fast(
        [
            ("rotary_embedding_torch_call", "rotary_embedding_torch", "rotary-embedding-torch"),
            ("cohere_call", "transformers", "vllm-cuda"),
        ]
    ),
)
def test_real_packages_behave_like_their_recipes(kernel, package, recipe) -> None:
    pytest.importorskip(package)
    result = traced(kernel)
    assert recipe in result.recipes()
    assert result.nearest()[0].equal > 0.98


def test_float16_and_float64_are_told_apart_too() -> None:
    for kernel, recipe, _ in IMITATIONS[:2]:
        assert recipe in traced(kernel, "fp16").recipes()
    single, double = (traced(one, "fp64", (0, 1024)) for one in ("hf", "flux_double"))
    assert "hf" in single.recipes()
    assert "uniform" not in single.recipes()
    assert "fp64-angles" in double.recipes()
    assert double.nearest()[0].distance < 0.5


def test_numpy_code_has_a_profile_alone() -> None:
    def rotate(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
        d = x.shape[-1]
        angles = positions[:, None] * 10000.0 ** (-np.arange(0, d, 2) / d)
        a, b = np.split(x.astype(np.float32), 2, axis=-1)
        cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)

    result = traced(rotate)
    assert result.stages == {}
    assert "diffusers-flux" in result.recipes()
    assert [row["stage"] for row in dtypes_rows(result)] == ["none"]


def test_profiles_are_those_of_the_audit() -> None:
    from ropeaudit import shift

    result = traced("hf")
    case = {"heads": 2, "seq_len": 48, "changes": {"accumulate": "fp64", "score": "fp64"}}
    for record in shift(OFFSETS, "bf16", "hf", **case):
        assert result.drifts[record.offset] == pytest.approx(record.drift_rms, rel=0.01)


@pytest.mark.parametrize(
    ("kernel", "found", "words"),
    first_fast(
        [
            (
                "wrong_exponent",
                Diagnosis("exponent-denominator", {"dims": 126, "asked": 128}),
                "exponents over 126 instead of 128",
            ),
            ("unheard_of_rows", Diagnosis("unexplained"), "nothing known explains it"),
        ]
    ),
)
def test_what_explains_nothing_is_not_listed(kernel, found, words) -> None:
    result = traced(kernel, offsets=(0,))
    assert result.likely == ()
    assert result.faults == {0: found}
    assert result.diagnosis() == found.code
    report = told(result)
    assert report.answers[0].status == "FAIL"
    assert report.answers[0].decides == "bf16: behaves like no known recipe"
    assert [(one.code, one.title) for one in report.answers[0].causes] == [(found.code, words)]
    assert {(row["nearest"], row["behaviour"]) for row in dtypes_rows(result)} == {("none", words)}
    assert report.further["recipes"].rows == []
    assert all(math.isnan(row["predicted_rms"]) for row in report.further["profiles"].rows)


def test_a_fault_at_some_offsets_alone_is_said_with_them() -> None:
    result = traced("clamped", offsets=(0, 1024, 131072))
    assert result.likely == ()
    assert result.faults == {131072: Diagnosis("table-ends", {"last": 65535})}
    assert result.diagnosis() == "table-ends"
    assert result.fault_words() == "a table that ends at position 65535 at offset 131072"


def test_offsets_past_a_cache_are_named(tmp_path, capsys) -> None:
    result = traced("short_cache", offsets=(*OFFSETS, 131072))
    assert list(result.drifts) == [0, 32768]
    assert list(result.dropped) == [131072]
    (note,) = told(result).notes
    assert "offset 131072 was left out: IndexError: index 131072 is out of bounds" in note
    assert "meta" in result.recipes()
