"""Programs in other languages rotate cases of vectors; with a fault in their source they are found out."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from vector_kernels import case

from ropeaudit.conformance import returned
from ropeaudit.conformance.vector_case import VectorCase
from ropeaudit.recognition.diagnosis import codes

EXAMPLES = Path(__file__).parents[2] / "examples"
# What stands in the source, what a fault puts there, which check fails, and what that is named if it can be.
C_FAULTS = {
    "positions in int16": (
        "(double)position *",
        "(double)(int16_t)position *",
        "rotation",
        "integer-width: positions held in int16",
    ),
    "the other direction": ("re * c - im * s", "re * c + im * s", "rotation", ""),
    "k one position late": (
        "positions[row % length],",
        "positions[row % length] + side,",
        "rotation",
        "positions-off: k alone: positions +1",
    ),
    # 40000 is a multiple of 64, the length of a call: positions that wrap there are the same
    "positions from 0": (
        "positions[row % length]",
        "row % length",
        "rotation",
        "positions-from-0|wrap: positions from 0",
    ),
    "second batch element not rotated": (
        "row < rows; row++",
        "row < rows / 2; row++",
        "rotation",
        "batch element 1 alone",
    ),
    "no scaling": (
        '!strcmp(scaling, "llama3")) {',
        "0) {",
        "rotation",
        "missing-scaling: no scaling of frequencies",
    ),
    "cut off to bfloat16": ("bits + 0x7fff + ((bits >> 16) & 1)", "bits", "drift", ""),
}
JS_FAULTS = {
    "positions in int16": (
        "Number(bytes.readBigInt64LE(8 * i))",
        "bytes.readInt16LE(8 * i)",
        "rotation",
        "integer-width: positions held in int16",
    ),
    "a table that ends": (
        "positions[row % seq_len]",
        "Math.min(positions[row % seq_len], 32767)",
        "rotation",
        "table-ends: a table that ends at position 32767",
    ),
}


@pytest.fixture(scope="module")
def given(tmp_path_factory) -> VectorCase:
    more = {"model": "llama-3.1-8b", "head_dim": None, "seq_len": 64, "heads": 4, "kv_heads": 2}
    return case(tmp_path_factory.mktemp("case") / "case", "bf16", 40000, **more)


def c_program(source: str, folder: Path) -> list[str]:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    (folder / "kernel.c").write_text(source, encoding="utf-8")
    command = [compiler, "-O2", "-Wall", "-Wextra", "-Werror", "-std=c99", "-o", "kernel", "kernel.c", "-lm"]
    subprocess.run(command, check=True, cwd=folder)
    return [str(folder / "kernel")]


def js_program(source: str, folder: Path) -> list[str]:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node")
    (folder / "kernel.js").write_text(source, encoding="utf-8")
    return [node, str(folder / "kernel.js")]


PROGRAMS: dict[str, Callable[[str, Path], list[str]]] = {"c": c_program, "js": js_program}


def failed(read: VectorCase, language: str, folder: Path, old: str = "", new: str = "") -> dict[str, str]:
    """Run a program on a case, with a fault in it, and return which checks fail, with what explains it."""
    source = (EXAMPLES / f"rotate_vectors.{language}").read_text(encoding="utf-8")
    if old:
        assert source.count(old) == 1
    program, out = PROGRAMS[language](source.replace(old, new) if old else source, folder), folder / "out"
    out.mkdir()
    subprocess.run([*program, str(read.folder), str(out)], check=True)
    results = returned.findings(read.folder, out)
    assert "does not name" not in results[0].detail
    return {one.check: f"{codes(one.diagnosis)}: {one.resembles}" for one in results if one.status == "fail"}


@pytest.mark.parametrize("language", PROGRAMS)
def test_the_program_passes(language: str, given: VectorCase, tmp_path: Path) -> None:
    assert failed(given, language, tmp_path) == {}


@pytest.mark.parametrize("language", PROGRAMS)
@pytest.mark.parametrize("model", ["mistral-7b-v0.3", "gemma-3-4b", "gpt-neox-20b", "gpt-j-6b"])
def test_the_program_passes_in_float32(language: str, model: str, tmp_path: Path) -> None:
    read = case(tmp_path / "case", "fp32", 1000, model=model, head_dim=None, layer="full_attention")
    assert failed(read, language, tmp_path) == {}


@pytest.mark.parametrize("fault", C_FAULTS)
def test_a_fault_in_c_is_found(fault: str, given: VectorCase, tmp_path: Path) -> None:
    old, new, check, name = C_FAULTS[fault]
    results = failed(given, "c", tmp_path, old, new)
    assert check in results
    assert name in results[check]


@pytest.mark.parametrize("fault", JS_FAULTS)
def test_a_fault_in_javascript_is_found(fault: str, given: VectorCase, tmp_path: Path) -> None:
    old, new, check, name = JS_FAULTS[fault]
    results = failed(given, "js", tmp_path, old, new)
    assert check in results
    assert name in results[check]


@pytest.mark.parametrize("language", PROGRAMS)
def test_a_case_that_the_program_does_not_know_is_refused_by_it(language: str, tmp_path: Path) -> None:
    read = case(tmp_path / "case", "fp16")
    program = PROGRAMS[language](
        (EXAMPLES / f"rotate_vectors.{language}").read_text(encoding="utf-8"), tmp_path
    )
    done = subprocess.run([*program, str(read.folder), str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 1
    assert "float16" in done.stderr
    assert "not known here" in done.stderr
