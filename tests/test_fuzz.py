"""Random bad command lines and randomly damaged files: refused or reported, never a fault.

Everything is drawn from fixed seeds, so that a failure comes again.
"""

import io
import json
import os
import pickle
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save as safetensors_bytes

from ropeaudit.cli.main import main

SMALL = ["--heads", "1", "--seq-len", "3", "--head-dim", "4", "--dtype", "fp16", "--offset", "7"]
COMMAND_LINES, DAMAGES = 200, 60  # DAMAGES per kind of file


@pytest.fixture
def audited(capsys, tmp_path, monkeypatch) -> Callable[..., int]:
    """Run a command line; check that what came out goes with the exit code; return that."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> int:
        before = sorted(os.listdir())
        code = main(list(arguments))
        out, err = capsys.readouterr()
        told = (arguments, code, err)
        assert code in (0, 2), told
        assert "Traceback" not in err, told
        assert "Warning" not in err, told
        assert err.replace("\n", "").isprintable(), told
        assert sorted(os.listdir()) == before, told
        if code == 2:
            assert out == "", told
            assert err.startswith("ropeaudit: error: "), told
            assert len(err.splitlines()) <= 2, told
            assert len(err) < 4000, told
        elif "-f" in arguments:
            rows = [json.loads(line) for line in out.splitlines()]
            assert rows, told
        return code

    return run


# ---------------------------------------------------------------------------- command lines

_FLAGS = (
    "--offset --dtype --recipe --set --accumulate --seq-len --heads --kv-heads --head-dim --rotary-dim "
    "--base --layout --mask --qk --seed --scale --columns --fail-if -o --nope -x extra"
)
_WORDS = (
    "0 1 -1 7 8 1.5 -0.0 1e5 1e400 1e999999999 nan inf -inf None true 2^53 2^60 2**9 16k 1k5 k m 1_000 1__0 "
    "0x10 ١٠ ² 1-8*2 1-8+2 8-1+1 1-10 -4--1+1 0-9*0 1- -1- , ,, 1, ,1 fp16 fp17 bf16 e4m3 torch.half hf "
    "uniform x.toml ./x.toml gaussian ones x.npz x.safetensors x.pt q.npy,k.npy . / .. ~ full causal half "
    "interleaved angle=fp64 angle=fp17 angle= =fp32 trig=fp16/fp16 frequency_form=exp drift_rms "
    "drift_rms>1e9 drift_rms=>1 seed==0 verdict==floor x.csv nowhere/x.json x x.yaml [bold]x[/] %s {0} $HOME "
    "* \\ -- --help= 🦀 é \u202e \x1b[2J \x00 \ud800 \n \t"
)
FLAGS, WORDS = _FLAGS.split(" "), _WORDS.split(" ")


def random_word(dice: random.Random) -> str:
    word = dice.choice(WORDS)
    match dice.randrange(8):
        case 0:
            return word + dice.choice(WORDS)
        case 1:
            return ",".join(dice.choices(WORDS, k=dice.randrange(1, 5)))
        case 2:
            return "".join(dice.choices("0123456789+-*^._,eEkmg/\\='\"<> \x7f\x9b", k=dice.randrange(9)))
        case 3:
            return word * dice.choice((2, 3000))
        case _:
            return word


def random_line(dice: random.Random) -> list[str]:
    line = []
    for _ in range(dice.randrange(1, 4)):
        flag = dice.choice(FLAGS)
        line += [flag, random_word(dice)] if dice.random() < 0.95 else [flag]
    return line


def survives(audited: Callable[..., int], seed: int) -> None:
    line = random_line(random.Random(seed))
    if any(
        word.endswith((".csv", ".json", ".jsonl", ".ndjson", ".md", ".txt", ".markdown")) for word in line
    ):
        line = [word for word in line if word != "-o"]  # what -o writes is no fault
    line = ["extra" if word in ("-h", "--help") else word for word in line]
    audited("shift", *SMALL, "-q", "-f", "jsonl", *line)


@pytest.mark.parametrize("block", range(4))
def test_random_command_lines(block, audited) -> None:
    for seed in range(block, COMMAND_LINES, 4):
        survives(audited, seed)


@pytest.mark.slow
def test_many_random_command_lines(audited) -> None:
    for seed in range(COMMAND_LINES, 20 * COMMAND_LINES):
        survives(audited, seed)


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
