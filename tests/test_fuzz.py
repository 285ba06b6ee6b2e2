"""Valid command lines with one word changed and damaged files: refused or reported, never a fault.

Everything is drawn from fixed seeds, so that a failure comes again.
"""

import collections
import contextlib
import pickle
from collections.abc import Iterator
from pathlib import Path

import fuzz
import numpy as np
import pytest
from safetensors.numpy import save_file

COMMAND_LINES, DAMAGES = 40, 200


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Iterator[dict[str, bytes]]:
    with contextlib.chdir(tmp_path_factory.mktemp("fuzz")):
        yield fuzz.prepared()


def check(work, numbers: range, files: dict[str, bytes]) -> collections.Counter[str]:
    defects: list[str] = []
    seen = work(numbers, files, defects.append)
    assert not seen["defect"], defects
    assert sum(seen.values()) == len(numbers)
    return seen


@pytest.mark.slow  # a whole command each; that most changed lines run shows the same, below
def test_valid_lines_are_accepted(folder) -> None:
    for line in fuzz.VALID:
        assert fuzz.run(line) in ("0", "1"), line
        fuzz.restore(folder)


def test_changed_lines(folder) -> None:
    seen = check(fuzz.lines, range(COMMAND_LINES), folder)
    assert seen["0"] + seen["1"] > COMMAND_LINES // 5


def test_changed_files(folder) -> None:
    seen = check(fuzz.damages, range(DAMAGES), folder)
    assert min(seen["0"], seen["2"]) > DAMAGES // 20


def test_frequencies_that_are_not_finite_are_a_finding_without_warnings(folder) -> None:
    for odd in (np.inf, np.nan, 3e38):
        save_file({"a.inv_freq": np.array([1, odd, 0.01, odd], np.float32)}, "module.safetensors")
        assert fuzz.run(["module", "module.safetensors", "-f", "json"]) == "1"
    fuzz.restore(folder)


@pytest.mark.exhaustive
@pytest.mark.parametrize("work", [fuzz.lines, fuzz.damages])
def test_many_changes(work, folder) -> None:
    check(work, range(DAMAGES, 10 * DAMAGES), folder)


def test_files_of_another_kind(folder) -> None:
    """Whatever a file is called, its content is read or refused."""
    contents = [folder[name] for name in fuzz.READERS if name in folder] + [pickle.dumps({"q": 1})]
    for suffix in (".npz", ".safetensors", ".pt", ".pth", ".toml", ".npy"):
        flag = "--recipe" if suffix == ".toml" else "--qk"
        spec = "other.npy,other.npy" if suffix == ".npy" else f"other{suffix}"
        for content in contents:
            Path(f"other{suffix}").write_bytes(content)
            assert fuzz.run(["shift", flag, spec, "--dtype", "fp32", "--offset", "7", "-q"]) in ("0", "2")
    fuzz.restore(folder)
