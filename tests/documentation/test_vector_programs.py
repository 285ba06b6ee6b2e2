"""Programs in other languages rotate cases of vectors; with a fault in their source they are found out."""

import functools
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from cases import table
from vector_kernels import case

from ropeaudit.conformance import returned
from ropeaudit.conformance.vector_case import VectorCase
from ropeaudit.recognition.diagnosis import codes

EXAMPLES = Path(__file__).parents[2] / "examples"
# fault -> what stands in the source, what it puts there, and what fails and how that is named
SERVED_FAULTS = table(__file__, "vector_programs.toml")


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> VectorCase:
    """Give a case with calls as servers make them."""
    more = {"heads": 4, "kv_heads": 2, "served": True}
    return case(tmp_path_factory.mktemp("served") / "case", "bf16", 40000, **more)


PROGRAMS = {  # the ending of a source -> what builds or runs it, and its words
    "c": ("cc", "-O2 -Wall -Wextra -Werror -std=c11 -o kernel kernel.c -lm"),
    "js": ("node", ""),
    "rs": ("rustc", "-O --edition 2021 -D warnings -o kernel kernel.rs"),
}


def built(language: str, source: str, folder: Path) -> list[str]:
    """Return the command that runs a program; it is compiled where its language is."""
    name, words = PROGRAMS[language]
    tool = shutil.which(name)
    if tool is None:
        pytest.skip(f"no {name}")
    path = folder / f"kernel.{language}"
    path.write_text(source, encoding="utf-8")
    if not words:
        return [tool, str(path)]
    subprocess.run([tool, *words.split()], check=True, cwd=folder)
    return [str(folder / "kernel")]


@pytest.fixture(scope="module")
def programs(tmp_path_factory) -> Callable[[str], list[str]]:
    """Give the programs as they stand in the examples, each built once."""

    @functools.cache
    def program(language: str) -> list[str]:
        return built(language, source_of(language), tmp_path_factory.mktemp(language))

    return program


def source_of(language: str) -> str:
    return (EXAMPLES / f"rotate_vectors.{language}").read_text(encoding="utf-8")


def failed(read: VectorCase, program: list[str], out: Path) -> dict[str, str]:
    out.mkdir()
    subprocess.run([*program, str(read.folder), str(out)], check=True)
    results = returned.findings(read.folder, out)
    assert "does not name" not in results[0].detail
    return {one.check: f"{codes(one.diagnosis)}: {one.resembles}" for one in results if one.status == "fail"}


def failed_with(read: VectorCase, source: str, folder: Path, old: str, new: str) -> dict[str, str]:
    """Return what fails with a fault in the source of the program in C."""
    assert source.count(old) == 1
    return failed(read, built("c", source.replace(old, new), folder), folder / "out")


@pytest.mark.parametrize("language", PROGRAMS)
@pytest.mark.parametrize("model", ["gemma-3-4b", "gpt-j-6b"])
def test_the_program_passes_in_float32(language: str, model: str, programs, tmp_path: Path) -> None:
    more = {"model": model, "head_dim": None, "layer": "full_attention"}
    read = case(tmp_path / "case", "fp32", 1000, served=True, **more)
    assert failed(read, programs(language), tmp_path / "out") == {}


@pytest.mark.parametrize("language", PROGRAMS)
def test_the_program_passes_the_calls_that_servers_make(
    language: str, programs, served: VectorCase, tmp_path: Path
) -> None:
    assert failed(served, programs(language), tmp_path / "out") == {}


@pytest.mark.parametrize("fault", SERVED_FAULTS)
def test_a_fault_of_served_calls_is_found_in_them_and_named(
    fault: str, served: VectorCase, tmp_path: Path
) -> None:
    old, new, found = SERVED_FAULTS[fault].values()
    assert failed_with(served, source_of("c"), tmp_path, old, new) == found


@pytest.mark.parametrize("language", PROGRAMS)
def test_a_case_that_the_program_does_not_know_is_refused_by_it(
    language: str, programs, tmp_path: Path
) -> None:
    read = case(tmp_path / "case", "fp16")
    program = programs(language)
    done = subprocess.run([*program, str(read.folder), str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 1
    assert "float16" in done.stderr
    assert "not known here" in done.stderr
