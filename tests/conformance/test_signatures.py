"""Signatures of servers and trainers are understood: right code passes, and a planted fault is named."""

import shutil

import pytest
import torch
from command_line import ran
from net.kernel_rows import KERNELS

from ropeaudit import RopeSetting, UsageError
from ropeaudit.main import main
from ropeaudit.subjects.calling import foreign
from ropeaudit.subjects.calling.foreign import in_process
from ropeaudit.subjects.calling.own_code import OwnCode


@pytest.fixture
def folder(tmp_path, monkeypatch):
    shutil.copy(KERNELS / "called" / "not_understood.py", tmp_path / "kernels.py")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow  # a whole check
def test_what_is_not_understood_is_refused_and_a_wrapper_is_written_once(folder, capsys) -> None:
    asked = ["--head-dim", "16", "--under", "none", "--dtype", "fp32", "-q"]
    for name, words in (
        ("unknown", "known: q, k; unknown: state, mesh, plan"),
        ("raises", "ValueError: not so"),
        ("Built", "what to build kernels.py:Built with is not known"),
    ):
        command, file = ["check", f"kernels.py:{name}", *asked], f"wrapped_{name}.py"
        seen = ran(capsys, command, 2).err
        assert words in seen
        assert "--write-wrapper FILE.py" in seen
        assert f"{file} holds a wrapper to edit" in ran(capsys, [*command, "--write-wrapper", file], 2).err
        assert main(["check", f"{file}:rotate", "--up-to", "128", *asked]) == 2  # until it is edited
        text = (folder / file).read_text()
        assert f"return {name}(" in text
        capsys.readouterr()
        assert "give another name" in ran(capsys, [*command, "--write-wrapper", file], 2).err
        assert (folder / file).read_text() == text
        seen = ran(capsys, [*command, "--write-wrapper", "nowhere/mine.py"], 2).err
        assert "'nowhere/mine.py' cannot be written: No such file or directory" in seen


def halved(x):
    """Rotated by half of each position, rounded down: two tokens share one."""
    at = torch.arange(x.shape[-2]) // 2
    t = at[:, None] * 1e4 ** (-torch.arange(0, x.shape[-1], 2) / x.shape[-1])
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * t.cos() - b * t.sin(), b * t.cos() + a * t.sin()], -1).to(x.dtype)


def sums_and_differences(x):
    a, b = x.chunk(2, -1)
    return torch.cat([a + b, a - b], -1) * 2**-0.5


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (halved, "does not rotate pairs of dims by angles that grow evenly with the position"),
        (sums_and_differences, "turns no pair of dims from one position to the next"),
        (lambda x: x, "turns no pair of dims from one position to the next"),
    ],
)
def test_code_without_positions_that_may_be_meant_otherwise_is_refused(code, reason) -> None:
    """In another order of axes a head counts as a position: "no rotation" would be said of what rotates."""
    with pytest.raises(UsageError, match="could not be called in any way that is known") as refused:
        in_process(OwnCode("own", code)).fit(RopeSetting.of(16))
    assert reason in str(refused.value)


def test_it_is_said_how_many_calls_raised_at_which_line() -> None:
    path = KERNELS / "cases" / "always_raises.py"
    for name, how, line in ("shape_called", "every call", 21), ("wrong_axis", r"\d+ of \d+ calls", 26):
        with pytest.raises(UsageError, match=rf"{how} of .* raised \w+Error \({path.name}:{line}\)") as told:
            foreign.load(f"{path}:{name}").fit(RopeSetting.of(16))
        assert told.value.place == (str(path), line)


def rope_3d(x, cos_t, sin_t, cos_h, sin_h, cos_w, sin_w):
    raise ValueError("not so")


def told_sizes(x, grid_sizes):
    raise ValueError("not so")


@pytest.mark.parametrize("code", [rope_3d, told_sizes])
def test_code_of_several_axes_is_refused_with_what_to_give(code) -> None:
    with pytest.raises(UsageError, match="axes NAME grid HxW, or mrope T,H,W"):
        in_process(OwnCode(code.__name__, code)).fit(RopeSetting.of(16))
