"""What a kernel wrote back is judged as its code would be; what is no answer to the case is refused."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from cases import first_fast
from safetensors.numpy import save_file
from vector_kernels import case, rotated, written

from ropeaudit.arithmetic.formats import parse
from ropeaudit.conformance import returned, vector_case
from ropeaudit.conformance.finding import Finding
from ropeaudit.conformance.vector_case import VectorCase
from ropeaudit.errors import BadInput
from ropeaudit.recognition.diagnosis import Diagnosis, Where

CHECKS = ["written back", "rotation", "score-error", "score-error-growth", "score-error-limit"]


@pytest.fixture(scope="module")
def given(tmp_path_factory) -> VectorCase:
    return case(tmp_path_factory.mktemp("bf16") / "case")


@pytest.fixture(scope="module")
def near(tmp_path_factory) -> VectorCase:
    """Give a case of few positions, where those that explain a fault are sought for quickly."""
    return case(tmp_path_factory.mktemp("near") / "case", offsets=1000)


def judged(read: VectorCase, out: Path, recipe: str | None = None) -> dict[str, Finding]:
    return {one.check: one for one in returned.findings(read.folder, out, recipe)}


def failed(results: dict[str, Finding]) -> set[str]:
    return {name for name, one in results.items() if one.status == "fail"}


# formats and layouts, a part of the head; llama3, yarn, longrope; yarn with a softmax scale, interleaved
RIGHT = [
    *({"dtype": dtype, "rotary_dim": 24} for dtype in ("fp64", "fp32", "fp16", "bf16", "fp8_e4m3")),
    *({"dtype": dtype, "rotary_dim": 24, "layout": "interleaved"} for dtype in ("fp64", "fp16", "fp8_e4m3")),
    *({"model": name, "head_dim": None} for name in ("llama-3.1-8b", "gpt-oss-20b", "phi-3.5-mini")),
    {"model": "deepseek-v3", "head_dim": None},
]


@pytest.mark.parametrize("asked", RIGHT)
def test_a_right_kernel_passes(asked, tmp_path: Path) -> None:
    read = case(tmp_path / "case", **asked)
    arrays = rotated(read, "fp64-angles" if asked.get("dtype") == "fp64" else "hf")
    results = judged(read, written(read, tmp_path / "out", arrays))
    assert (list(results), failed(results)) == (CHECKS, set())
    assert results["rotation"].measured < 1
    assert "does not name" not in results["written back"].detail


FAULTS = {
    "late": (Diagnosis("positions-off", {"by": 1}), lambda at: at + 1),
    "from 0": (Diagnosis("positions-from-0"), lambda at: at - at[0]),
    "other direction": (Diagnosis("wrong-direction"), lambda at: -at),
    "not rotated": (Diagnosis("no-rotation"), np.zeros_like),
    "int16": (Diagnosis("integer-width", {"bits": 16}), lambda at: (at + 2**15) % 2**16 - 2**15),
    "wrap": (Diagnosis("wrap", {"size": 65536}), lambda at: at % 2**16),
    "table": (Diagnosis("table-ends", {"last": 65535}), lambda at: np.minimum(at, 2**16 - 1)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_seen_and_named(fault: str, given: VectorCase, tmp_path: Path) -> None:
    diagnosis, seen = FAULTS[fault]
    results = judged(given, written(given, tmp_path / "out", rotated(given, seen=seen)))
    assert "rotation" in failed(results)
    assert results["rotation"].diagnosis == diagnosis
    assert results["rotation"].measured > 10 * results["rotation"].allowed
    assert ("written back" in failed(results)) == (fault == "not rotated")


@pytest.mark.parametrize(
    ("before", "behind", "offset"),
    [
        (lambda at: at + 1, lambda at: np.minimum(at, 1010), 0),
        (np.zeros_like, lambda at: at + 1, 1000),
    ],
)
def test_a_fault_of_one_offset_is_said_of_it(before, behind, offset, near, tmp_path: Path) -> None:
    """What leaves fewest others is named where it holds; another explains the rest."""
    arrays = rotated(near, seen=lambda at: before(at) if at[0] < 1000 else behind(at))
    place = judged(near, written(near, tmp_path / "out", arrays))["rotation"]
    assert place.diagnosis == Diagnosis("positions-off", {"by": 1}, Where(offset=offset))


def test_another_recipe_is_named_and_out_of_tolerance(given: VectorCase, tmp_path: Path) -> None:
    out = written(given, tmp_path / "out", rotated(given, "uniform"))
    results = judged(given, out)
    assert failed(results) == {"rotation", "score-error", "score-error-growth", "score-error-limit"}
    assert results["rotation"].diagnosis.code == "narrow-positions"
    assert "uniform" in results["rotation"].diagnosis.values["recipes"]
    assert "the coarsest right recipe in bfloat16" in results["score-error"].detail
    claimed = judged(given, out, "uniform")
    assert failed(claimed) == {
        "score-error-growth"
    }  # as drift as claimed, and the scores are broken all the same
    assert "drift is broken" in claimed["score-error-growth"].detail
    assert claimed["score-error-limit"].detail == "recipe uniform says what is allowed"
    assert claimed["score-error-limit"].status == "not applicable"
    assert claimed["rotation"].allowed > results["rotation"].allowed


@pytest.mark.parametrize(
    ("side", "b", "h", "i"), [("q", 0, 0, 0), ("q", 1, 1, 47), ("k", 1, 0, 5), ("k", 0, 0, 46)]
)
def test_one_wrong_vector_is_seen_where_it_is(side, b, h, i, given: VectorCase, tmp_path: Path) -> None:
    arrays = rotated(given)
    arrays[1000][side][b, h, i, 3] += 0.25
    place = judged(given, written(given, tmp_path / "out", arrays))["rotation"]
    assert place.status == "fail"
    assert place.detail.startswith("q and k, 2 and 1 heads, 2 batch elements, 48 tokens at 4 offsets up to")
    assert place.detail.endswith("out of place at 1 of them: 1000")
    assert place.where == f"offset 1000: {side}, batch element {b}, head {h}, position {1000 + i}, pair 3"


def test_q_and_k_swapped_and_batch_elements_mixed_up_are_named(tmp_path: Path) -> None:
    read = case(tmp_path / "case", heads=2, kv_heads=2, offsets=1000)
    right = rotated(read)
    crossed = {offset: {"q": one["k"], "k": one["q"]} for offset, one in right.items()}
    swapped = judged(read, written(read, tmp_path / "a", crossed))["rotation"]
    assert swapped.diagnosis == Diagnosis("q-k-swapped")
    mixed = {offset: {side: x[::-1] for side, x in one.items()} for offset, one in right.items()}
    assert judged(read, written(read, tmp_path / "b", mixed))["rotation"].status == "fail"


def test_nan_and_infinities_fail_with_their_count(given: VectorCase, tmp_path: Path) -> None:
    arrays = rotated(given)
    arrays[1000]["q"][0, 0, 3, :5] = np.nan
    arrays[0]["k"][1, 0, 0, 0] = np.inf
    results = judged(given, written(given, tmp_path / "out", arrays))
    assert failed(results) == {"written back", "rotation", "score-error", "score-error-limit"}
    assert "5 of 6,144 numbers of q.1000 are nan or infinite" in results["written back"].detail
    for one in arrays.values():
        for x in one.values():
            x[...] = np.nan
    assert failed(judged(given, written(given, tmp_path / "out", arrays))) == {"written back"}


def test_the_input_written_back_is_no_rotation(given: VectorCase, tmp_path: Path) -> None:
    vectors = given.vectors()
    results = judged(given, written(given, tmp_path / "out", dict.fromkeys(given.spec.offsets, vectors)))
    assert {"written back", "rotation"} <= failed(results)
    assert "q.1000 is what was given, number by number: nothing was rotated" in results["written back"].detail
    assert results["rotation"].diagnosis == Diagnosis("no-rotation")


AXES = {
    "batch, seq, heads": (0, 2, 1, 3),
    "seq, batch, heads": (2, 0, 1, 3),
    "heads, batch, seq": (1, 0, 2, 3),
}
FACTOR = {"model": "gpt-oss-20b", "head_dim": None}  # which has an attention factor
ORDERS = [*((order, {}) for order in AXES), ("batch, seq, heads", FACTOR)]


@pytest.mark.parametrize(("order", "more"), first_fast(ORDERS))
def test_another_order_of_axes_is_named(order: str, more: dict[str, object], tmp_path: Path) -> None:
    read = case(tmp_path / "case", offsets=1000, **more)
    kinds = {
        offset: {side: x.transpose(AXES[order]) for side, x in one.items()}
        for offset, one in rotated(read).items()
    }
    place = judged(read, written(read, tmp_path / "out", kinds))["rotation"]
    assert place.diagnosis == Diagnosis("axes-order", {"order": (*order.split(", "), "head_dim")})


def test_numbers_that_are_partly_right_are_not_said_to_be_no_rotation(
    near: VectorCase, tmp_path: Path
) -> None:
    arrays = rotated(near)
    for one in arrays.values():
        one["q"][0, 0] = np.random.default_rng(1).standard_normal(one["q"][0, 0].shape)
    place = judged(near, written(near, tmp_path / "out", arrays))["rotation"]
    assert place.status == "fail"
    assert place.diagnosis.code == "unexplained"


def test_another_byte_order_is_no_rotation(near: VectorCase, tmp_path: Path) -> None:
    out = written(near, tmp_path / "out", rotated(near))
    for path in out.glob("*.bin"):
        path.write_bytes(np.frombuffer(path.read_bytes(), "u2").byteswap().tobytes())
    place = judged(near, out)["rotation"]
    assert place.diagnosis == Diagnosis("not-a-rotation")


# ---------------------------------------------------------------------------- calls as servers make them

SERVED = ["ragged", "one token", "packed", "groups", "one key head"]


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> VectorCase:
    return case(tmp_path_factory.mktemp("served") / "case", heads=4, kv_heads=2, served=True)


@pytest.mark.parametrize(
    ("dtype", "want", "kv_heads"), [("bf16", "rotated", 2), ("fp32", "gradient", 4), ("fp16", "rotated", 1)]
)
def test_a_right_kernel_passes_served_calls(
    dtype: str,
    want: str,
    kv_heads: int,
    tmp_path: Path,
) -> None:
    more = {"heads": 4, "kv_heads": kv_heads, "served": True, "want": want, "model": "gpt-oss-20b"}
    read = case(tmp_path / "case", dtype, head_dim=None, **more)
    results = judged(read, written(read, tmp_path / "out", rotated(read)))
    assert list(results)[5:] == SERVED
    assert failed(results) == set()
    assert results["one token"].detail == (
        f"rows at positions of their own, one token each: 4 and {kv_heads} heads, 33 batch elements, 1 token"
    )


ROW_FAULTS = {
    "the first row's": (lambda at: at[:1] if at.ndim == 2 else at, "positions-of-another-row", {"row": 0}),
    "the row before": (lambda at: np.roll(at, 1, axis=0) if at.ndim == 2 else at, "rows-mixed-up", None),
    "the other way round": (lambda at: at[::-1] if at.ndim == 2 else at, "rows-mixed-up", None),
    "the first row's, one token": (
        lambda at: at[:1] if at.shape[-1] == 1 else at,
        "positions-of-another-row",
        {"row": 0},
    ),
}


@pytest.mark.parametrize("fault", ROW_FAULTS)
def test_rows_at_positions_of_others_are_named(fault: str, served: VectorCase, tmp_path: Path) -> None:
    seen, code, values = ROW_FAULTS[fault]
    results = judged(served, written(served, tmp_path / "out", rotated(served, seen=seen)))
    assert failed(results) == {"one token"} | ({"ragged"} if "one token" not in fault else set())
    for name in failed(results):
        found = results[name].diagnosis
        assert found.code == code
        assert found.values == (values or {"row": 0, "seen": len(found.where.batch) or found.values["seen"]})
        assert not found.alternatives
        assert results[name].remedy == "rotate each row by its own positions"
        assert results[name].where.startswith(f"{name.replace(' ', '-')}: ")


def test_positions_that_go_on_over_packed_sequences_are_named(served: VectorCase, tmp_path: Path) -> None:
    def counted(at: np.ndarray) -> np.ndarray:
        return at[..., :1] + np.arange(at.shape[-1])

    results = judged(served, written(served, tmp_path / "out", rotated(served, seen=counted)))
    assert failed(results) == {"packed"}
    assert results["packed"].diagnosis == Diagnosis("positions-counted")


@pytest.mark.parametrize(
    ("fault", "right"), [("late", set()), ("wrap", {"packed"})], ids=["in all", "told by some from others"]
)
def test_a_fault_of_several_calls_has_one_name(fault, right, served: VectorCase, tmp_path: Path) -> None:
    diagnosis, seen = FAULTS[fault]
    results = judged(served, written(served, tmp_path / "out", rotated(served, seen=seen)))
    found = {name: results[name].diagnosis for name in failed(results) & {"rotation", *SERVED}}
    assert found.keys() == {"rotation", *SERVED} - right
    for one in found.values():
        assert dataclasses.replace(one, where=Where()) == diagnosis


def test_one_wrong_vector_of_a_served_call_is_seen_where_it_is(served: VectorCase, tmp_path: Path) -> None:
    for key, side, b, h, i in (
        ("one-token", "k", 32, 1, 0),
        ("packed", "q", 0, 3, 95),
        ("groups", "q", 0, 15, 2),
    ):
        arrays = rotated(served)
        arrays[key][side][b, h, i, 3] += 0.25
        results = judged(served, written(served, tmp_path / "out", arrays))
        name = key.replace("-", " ")
        assert failed(results) == {name}
        assert results[name].where.startswith(f"{key}: {side}, batch element {b}, head {h}, position ")
        assert results[name].where.endswith("pair 3")


def test_served_calls_of_another_order_of_axes_are_named(tmp_path: Path) -> None:
    read = case(tmp_path / "case", offsets=1000, heads=2, kv_heads=2, served=True)
    arrays = rotated(read)
    for side, x in arrays["ragged"].items():
        arrays["ragged"][side] = x.transpose(AXES["batch, seq, heads"])
    results = judged(read, written(read, tmp_path / "out", arrays))
    assert failed(results) == {"ragged"}
    order = ("batch", "seq", "heads", "head_dim")
    assert results["ragged"].diagnosis == Diagnosis("axes-order", {"order": order})


def test_what_was_given_and_what_is_not_finite_is_seen_of_served_calls(
    served: VectorCase, tmp_path: Path
) -> None:
    arrays = rotated(served)
    call = next(call for call in served.spec.calls if call.key == "one-key-head")
    arrays["one-key-head"]["k"] = call.part(served.vectors()["k"], key=True)
    arrays["packed"]["q"][0, 0, 0, 0] = np.nan
    arrays["one-token"]["k"][:5] = np.inf
    results = judged(served, written(served, tmp_path / "out", arrays))
    assert failed(results) == {"written back", "packed", "one token", "one key head"}
    assert "1 of 12,288 numbers of q.packed are nan" in results["written back"].detail
    assert results["written back"].measured == 3
    assert results["one key head"].diagnosis == Diagnosis("no-rotation", where=Where(sides=("k",)))


# ---------------------------------------------------------------------------- gradients and scores


@pytest.mark.parametrize(
    ("layout", "dtype", "more"),
    [
        ("half", "bf16", {"model": "gpt-oss-20b", "head_dim": None}),
        ("half", "fp32", {"rotary_dim": 24}),
        ("interleaved", "fp32", {"model": "gpt-oss-20b", "head_dim": None}),
        ("interleaved", "bf16", {"rotary_dim": 24}),
    ],
)
def test_a_gradient_is_the_inverse_rotation(layout: str, dtype: str, more, tmp_path: Path) -> None:
    read = case(tmp_path / "case", dtype, want="gradient", layout=layout, offsets=1000, **more)
    results = judged(read, written(read, tmp_path / "out", rotated(read)))
    assert list(results) == [
        "written back",
        "gradient",
        "score-error",
        "score-error-growth",
        "score-error-limit",
    ]
    assert not failed(results)
    forward = judged(read, written(read, tmp_path / "out", rotated(read, seen=lambda at: -at)))["gradient"]
    assert forward.status == "fail"
    assert forward.diagnosis == Diagnosis("wrong-direction", where=Where(gradient=True))


def test_a_gradient_may_be_rounded_in_its_own_dtype(tmp_path: Path) -> None:
    read = case(tmp_path / "case", offsets=1000, want="gradient")
    out = written(read, tmp_path / "out", rotated(read, "hf"))
    assert judged(read, out, "meta")["gradient"].status == "pass"
    rotated_so = case(tmp_path / "rotated", offsets=1000)
    out = written(rotated_so, tmp_path / "out", rotated(rotated_so, "hf"))
    assert judged(rotated_so, out, "meta")["rotation"].status == "fail"


def test_no_gradient_at_all_is_seen(tmp_path: Path) -> None:
    read = case(tmp_path / "case", want="gradient", offsets=1000)
    vectors = read.vectors()
    passed_on = {"q": vectors["grad_rotated_q"], "k": vectors["grad_rotated_k"]}
    results = judged(read, written(read, tmp_path / "out", dict.fromkeys(read.spec.offsets, passed_on)))
    assert "grad_q.1000 is what was given" in results["written back"].detail
    zeros = {side: np.zeros_like(x) for side, x in passed_on.items()}
    results = judged(read, written(read, tmp_path / "out", dict.fromkeys(read.spec.offsets, zeros)))
    assert results["gradient"].status == "fail"


# ---------------------------------------------------------------------------- what is refused


def refused(read: VectorCase, out: Path, *parts: str) -> None:
    with pytest.raises(BadInput) as error:
        returned.findings(read.folder, out)
    assert all(part in str(error.value) for part in parts), str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_missing_or_of_another_size_is_refused(given: VectorCase, tmp_path: Path) -> None:
    refused(given, tmp_path / "none", "No such file or directory")
    out = written(given, tmp_path / "out", rotated(given))
    path = out / "k.1000.bin"
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    refused(given, out, "has 6,143 bytes instead of 6,144: ", "bfloat16 of shape (2, 1, 48, 32)")
    path.write_bytes(content + b"0")
    refused(given, out, "6,145 bytes instead of 6,144")
    path.unlink()
    path.mkdir()
    refused(given, out, "k.1000.bin cannot be read: it is no file")
    path.rmdir()
    refused(given, out, "1 of 8 arrays are missing, the first k.1000")
    refused(given, given.folder / "q.bin", "Not a directory")


@pytest.mark.slow  # a whole check
def test_what_is_of_another_case_is_refused(given: VectorCase, tmp_path: Path) -> None:
    other = case(tmp_path / "other", seed=1)
    out = written(other, tmp_path / "out", rotated(other))
    refused(given, out, "names another case, sha256:")
    (out / "case.txt").unlink()
    (out / "case.txt").mkdir()
    refused(given, out, "case.txt cannot be read: it is no file")
    (out / "case.txt").rmdir()
    results = judged(given, out)  # it may be a kernel that is wrong: judged, with what it looks like
    assert results["rotation"].diagnosis == Diagnosis("not-a-rotation")
    assert "it does not name its case" in results["written back"].detail
    (out / "q.2000.bin").write_bytes(b"")
    refused(given, out, "holds q.2000.bin, which the case does not ask for; it asks for q.0.bin, k.0.bin")


def as_tensors(read: VectorCase, arrays, dtype: str = "bf16") -> dict[str, np.ndarray]:
    return {
        f"{side}.{offset}": vector_case.array(x, parse(dtype))
        for offset, one in arrays.items()
        for side, x in one.items()
    }


def test_safetensors_are_judged_as_raw_files(given: VectorCase, tmp_path: Path) -> None:
    arrays = rotated(given)
    raw = judged(given, written(given, tmp_path / "raw", arrays))
    out = tmp_path / "out"
    out.mkdir()
    save_file(as_tensors(given, arrays), out / "outputs.safetensors", metadata={"case": given.digest})
    results = judged(given, out), raw, judged(given, out / "outputs.safetensors")
    assert len({repr(result) for result in results}) == 1  # nan equals itself in print alone


def test_safetensors_that_do_not_fit_are_refused(given: VectorCase, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    path, arrays = out / "outputs.safetensors", as_tensors(given, rotated(given))
    q = arrays["q.0"]
    for wrong, *parts in (
        (arrays | {"x": np.zeros(1)}, "holds x, which the case does not ask for"),
        (
            {name: x for name, x in arrays.items() if name != "q.0"},
            "1 of 8 arrays are missing, the first q.0",
        ),
        (arrays | {"q.0": q.astype("f4")}, "q.0 is float32 of shape (2, 2, 48, 32)", "bfloat16 of shape"),
        (arrays | {"q.0": q[:1]}, "q.0 is bfloat16 of shape (1, 2, 48, 32)"),
    ):
        save_file(wrong, path)
        refused(given, out, *parts)
    save_file(arrays, path, metadata={"case": "sha256:0123456789ab"})
    refused(given, out, "names another case, sha256:0123456789ab")
    for content, said in (
        (path.read_bytes()[:-9], "not a readable .safetensors"),
        (b"", "the file is empty"),
    ):
        path.write_bytes(content)
        refused(given, out, said)
    written_too = written(given, tmp_path / "both", rotated(given))
    save_file(arrays, written_too / "outputs.safetensors")
    refused(given, written_too, "both k.0.bin and outputs.safetensors")


def test_the_folder_of_the_case_may_take_what_is_written_back(tmp_path: Path) -> None:
    read = case(tmp_path / "case")
    for path in written(read, tmp_path / "out", rotated(read)).iterdir():
        path.rename(read.folder / path.name)
    assert not failed(judged(read, read.folder))


# ---------------------------------------------------------------------------- calls that are looked up


def test_what_is_measured_is_what_shift_measures_of_the_same_code(given: VectorCase, tmp_path: Path) -> None:
    results = judged(given, written(given, tmp_path / "out", rotated(given, "uniform")))
    from ropeaudit import shift

    save_file(
        {name: x[0].astype(np.float32) for name, x in given.vectors().items()}, tmp_path / "qk.safetensors"
    )
    expected = list(
        shift(
            given.spec.offsets,
            "bf16",
            "uniform",
            qk=str(tmp_path / "qk.safetensors"),
            changes={"accumulate": "fp64", "score": "fp64"},
        )
    )
    worst = max(expected, key=lambda record: record.drift_relative)
    assert results["score-error-limit"].measured == pytest.approx(worst.drift_relative, rel=1e-12)
    assert results["score-error-limit"].where.endswith(f"at offset {worst.offset}")
    growth = expected[-1].drift_rms / expected[-1].attainable_rms
    assert results["score-error-growth"].measured == pytest.approx(growth, rel=1e-6)
