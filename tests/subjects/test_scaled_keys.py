"""Keys stored with scales: every score against float64 and torch, whatever shares a scale."""

import json

import numpy as np
import pytest
import torch

from ropeaudit.arithmetic.formats import parse
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.audits.cases import Case
from ropeaudit.main import main
from ropeaudit.recipes import named
from ropeaudit.subjects import emulated
from ropeaudit.subjects.emulated import Emulated

GROUPS = {"tensor": (0, 1, 2), "head": (1, 2), "token": (2,), "channel": (1,)}  # axes of (g, s, d)
CASE = Case(heads=2, seq_len=70, head_dim=16)
SMALL = ["--heads", "2", "--seq-len", "70", "--head-dim", "16"]


def quantised(k: np.ndarray, codes: str, axes: tuple[int, ...]) -> np.ndarray:
    values = torch.from_numpy(k).float()
    scale = values.abs().amax(axes, keepdim=True) / (127.0 if codes == "int8" else 448.0)
    if codes == "int8":
        return ((values / scale).round().clamp(-127, 127).to(torch.int8).float() * scale).numpy()
    return ((values / scale).to(torch.float8_e4m3fn).float() * scale).numpy()


@pytest.mark.parametrize("offset", [0, 1000])
@pytest.mark.parametrize("stage", ["input", "output"])
@pytest.mark.parametrize("codes", ["int8", "e4m3"])
@pytest.mark.parametrize("group", GROUPS)
def test_keys_are_those_of_torch(group: str, codes: str, stage: str, offset: int) -> None:
    inputs, setting = CASE.load()
    bf16, at = parse("bf16"), np.arange(70, dtype=np.int64)
    plain = Emulated(named("hf").resolve(bf16), setting)
    recipe = named("hf").changed({stage: f"{codes}:{group}"}).resolve(bf16, stores_keys=True)
    subject = emulated.stored(Emulated(recipe, setting), inputs)
    k = round_to(inputs.k, bf16)
    table = plain.table(at, offset)
    if stage == "input":
        k = round_to(quantised(k, codes, GROUPS[group]), bf16)
        expected = np.stack([plain.rotate(head, table) for head in k])
    else:
        rotated = np.stack([plain.rotate(head, table) for head in k])
        expected = round_to(quantised(rotated, codes, GROUPS[group]), bf16)
    given = round_to(inputs.k, bf16)
    own = subject.table(at, offset)
    for head in range(2):
        assert subject.rotate_head(given[head], own, True, head).tobytes() == expected[head].tobytes()
        assert subject.rotate(given[head], own).tobytes() == plain.rotate(given[head], table).tobytes()


def rows(capsys, *line: str) -> list[dict]:
    every = ["--columns", "all"] if line[0] == "shift" else []
    assert main([*line, *SMALL, "--dtype", "bf16", "-q", *every, "-f", "jsonl"]) == 0
    return [json.loads(row) for row in capsys.readouterr().out.splitlines()]


def test_after_the_rotation_keys_depend_on_the_position_and_before_it_they_do_not(capsys) -> None:
    own = {}
    for stage in ("input", "output"):
        for group in GROUPS:
            line = ("--offset", "1000", "--recipe", "fp64-angles", "--set", f"{stage}=e4m3:{group}")
            [row] = rows(capsys, "shift", *line)
            own[stage, group] = row["change_rms"]
            assert row["implementation"] == f"fp64-angles[{stage}=e4m3:{group}]"
            assert f"keys={stage}:float8_e4m3:{group}" in row["stages"]
            assert row["predicted_rms"] is None
            assert 0.01 < row["drift_relative"] < 0.06
    assert max(own["input", group] for group in GROUPS) < min(own["output", group] for group in GROUPS) / 3


def test_attention_parity_and_samples_store_keys_too(capsys) -> None:
    line = ("--recipe", "hf", "--set", "output=int8:token", "--offset", "1000")
    [whole] = rows(capsys, "shift", *line, "--attention")
    [plain] = rows(capsys, "shift", "--recipe", "hf", "--offset", "1000", "--attention")
    assert whole["attention_tv_mean"] > 1.2 * plain["attention_tv_mean"]
    [sampled] = rows(capsys, "shift", *line, "--sample", "2000")
    assert sampled["drift_rms"] == pytest.approx(whole["drift_rms"], rel=0.2)
    [pair] = rows(capsys, "parity", "hf[output=int8:head]", "hf", "--offset", "1000")
    assert 0.004 < pair["parity_rms"] < 0.02
