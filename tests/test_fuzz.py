"""Valid command lines with one word changed and damaged files: refused or reported, never a fault.

Everything is drawn from fixed seeds, so that a failure comes again.
"""

import collections
import contextlib
import io
import json
import os
import pickle
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import fuzz
import numpy as np
import pytest
from safetensors.numpy import save as safetensors_bytes
from safetensors.numpy import save_file

from ropeaudit.main import main

COMMAND_LINES, DAMAGES = 100, 60  # DAMAGES per kind of file


@pytest.fixture
def audited(capsys, tmp_path, monkeypatch) -> Callable[..., int]:
    """Run a command line; check that what came out goes with the exit code; return that."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> int:
        before = sorted(os.listdir())
        code = main(list(arguments))
        out, err = capsys.readouterr()
        reported = (arguments, code, err)
        assert code in (0, 2), reported
        assert "Traceback" not in err, reported
        assert "Warning" not in err, reported
        assert err.replace("\n", "").isprintable(), reported
        assert sorted(os.listdir()) == before, reported
        if code == 2:
            assert out == "", reported
            assert err.startswith("ropeaudit: error: "), reported
            assert len(err.splitlines()) <= 2, reported
            assert len(err) < 4000, reported
        elif "-f" in arguments:
            rows = [json.loads(line) for line in out.splitlines()]
            assert rows, reported
        return code

    return run


# ---------------------------------------------------------------------------- valid lines, one word changed


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Iterator[dict[str, bytes]]:
    """A folder with the files that the lines of `fuzz` read."""
    with contextlib.chdir(tmp_path_factory.mktemp("fuzz")):
        yield fuzz.prepared()


def check(work, numbers: range, files: dict[str, bytes]) -> collections.Counter[str]:
    defects: list[str] = []
    seen = work(numbers, files, defects.append)
    assert not seen["defect"], defects
    assert sum(seen.values()) == len(numbers)
    return seen


def test_valid_lines_are_accepted(folder) -> None:
    for line in fuzz.VALID:
        assert fuzz.run(line) in ("0", "1"), line
        fuzz.restore(folder)


def test_changed_lines(folder) -> None:
    seen = check(fuzz.lines, range(COMMAND_LINES), folder)
    assert seen["0"] + seen["1"] > COMMAND_LINES // 5


def test_changed_files(folder) -> None:
    seen = check(fuzz.damages, range(COMMAND_LINES), folder)
    assert min(seen["0"], seen["2"]) > COMMAND_LINES // 20


def test_frequencies_that_are_not_finite_are_a_finding_without_warnings(folder) -> None:
    for odd in (np.inf, np.nan, 3e38):
        save_file({"a.inv_freq": np.array([1, odd, 0.01, odd], np.float32)}, "module.safetensors")
        assert fuzz.run(["module", "module.safetensors", "-f", "json"]) == "1"
    fuzz.restore(folder)


@pytest.mark.slow
@pytest.mark.parametrize("work", [fuzz.lines, fuzz.damages])
def test_many_changes(work, folder) -> None:
    check(work, range(COMMAND_LINES, 20 * COMMAND_LINES), folder)


# ---------------------------------------------------------------------------- files

Q, K = (np.random.default_rng(0).standard_normal((heads, 3, 4)).astype(np.float32) for heads in (2, 1))


def npz_bytes(compressed: bool = False) -> bytes:
    file = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(file, q=Q, k=K)
    return file.getvalue()


def npy_bytes() -> bytes:
    file = io.BytesIO()
    np.save(file, Q[:1])
    return file.getvalue()


def torch_bytes(zipped: bool = True) -> bytes:
    import torch

    file = io.BytesIO()
    value = {"q": torch.from_numpy(Q), "k": torch.from_numpy(K)}
    torch.save(value, file, _use_new_zipfile_serialization=zipped)
    return file.getvalue()


RECIPE = b'extends = "hf"\nname = "mine"\nangle = "fp32/fp16"\nscale_after_store = true\n'
KINDS: dict[str, tuple[Callable[[], bytes], list[str]]] = {
    "x.npz": (npz_bytes, ["--qk", "x.npz"]),
    "packed.npz": (lambda: npz_bytes(True), ["--qk", "packed.npz"]),
    "q.npy": (npy_bytes, ["--qk", "q.npy,q.npy"]),
    "x.safetensors": (lambda: safetensors_bytes({"q": Q, "k": K}), ["--qk", "x.safetensors"]),
    "x.pt": (torch_bytes, ["--qk", "x.pt"]),
    "old.pth": (lambda: torch_bytes(False), ["--qk", "old.pth"]),
    "x.toml": (lambda: RECIPE, ["--recipe", "x.toml", "--heads", "1", "--seq-len", "3", "--head-dim", "4"]),
}


def damaged(whole: bytes, dice: random.Random) -> bytes:
    """Return the bytes of a file with something wrong in them."""
    data = bytearray(whole)
    place = dice.randrange(len(data))
    match dice.randrange(8):
        case 0:
            return whole[:place]
        case 1:
            return whole[place:]
        case 2:
            return dice.randbytes(dice.randrange(1, 300))
        case 3:
            return whole[: dice.randrange(1, 12)] + dice.randbytes(dice.randrange(300))
        case 4:
            return whole[:place] + dice.randbytes(dice.randrange(1, 9)) + whole[place:]
        case 5:
            length = dice.randrange(1, 40)
            return whole[:place] + whole[place + length :] or b"x"
        case 6:
            data[place : place + 8] = dice.choice((b"\xff" * 8, b"\x00" * 8, b"9" * 8))
        case _:
            for _ in range(dice.choice((1, 1, 2, 8))):
                data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    return bytes(data)


def read_damaged(audited: Callable[..., int], name: str, seeds: range) -> list[int]:
    make, flags = KINDS[name]
    whole, codes = make(), []
    for seed in seeds:
        Path(name).write_bytes(damaged(whole, random.Random(f"{name} {seed}")))
        codes.append(audited("shift", *flags, "--dtype", "fp32", "--offset", "7", "-q", "-f", "jsonl"))
    return codes


@pytest.mark.parametrize("name", KINDS)
def test_damaged_files(name, audited) -> None:
    codes = read_damaged(audited, name, range(DAMAGES))
    assert codes.count(2) > DAMAGES // 4  # the damage is felt, and not by all: see the next test


@pytest.mark.parametrize("name", KINDS)
def test_whole_files_are_read(name, audited) -> None:
    make, flags = KINDS[name]
    Path(name).write_bytes(make())
    assert audited("shift", *flags, "--dtype", "fp32", "--offset", "7", "-q", "-f", "jsonl") == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_more_damaged_files(name, audited) -> None:
    read_damaged(audited, name, range(DAMAGES, 25 * DAMAGES))


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".pt", ".pth", ".toml", ".npy"])
def test_files_of_another_kind(suffix, audited) -> None:
    flag = "--recipe" if suffix == ".toml" else "--qk"
    for number, make in enumerate([make for make, _ in KINDS.values()] + [lambda: pickle.dumps({"q": 1})]):
        name = f"{number}{suffix}"
        Path(name).write_bytes(make())
        assert audited("shift", flag, f"{name},{name}" if suffix == ".npy" else name, "-q") in (0, 2)
