"""Signatures of servers and trainers are understood: right code passes, and a planted fault is named."""

import numpy as np
import pytest
import torch
from kernels_signatures import KERNELS

from ropeaudit import RopeSetting, UsageError, parse
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.main import main
from ropeaudit.rope import scaling
from ropeaudit.subjects.calling.foreign import ForeignOwn, in_process
from ropeaudit.subjects.calling.own_code import OwnCode
from ropeaudit.subjects.exact_rotation import rotated


def setting_of(name: str, head_dim: int = 16) -> RopeSetting:
    given = dict(KERNELS[name].setting)
    if "scaling" in given:
        given["scaling"] = scaling.parse(given["scaling"])
    return RopeSetting.of(
        head_dim, **given | ({"rotary_dim": head_dim // 2} if "rotary_dim" in given else {})
    )


def own_code(name: str, wrong: bool = False) -> ForeignOwn:
    if name == "a_config_of_transformers":
        pytest.importorskip("transformers")
    return in_process(OwnCode(name, KERNELS[name].build(wrong)))


@pytest.mark.slow  # a whole check
def test_any_positions_heads_and_rows_are_given_as_the_signature_wants_them() -> None:
    draw, wrong = np.random.default_rng(5), []
    packed = np.r_[0:4, 0:6, 2, 40:43, 7, 7]
    calls = [packed, np.array([100]), np.arange(30, 17, -1), np.arange(5)]
    in_rows = [
        np.stack([np.r_[0:9], np.r_[50:59], np.r_[3, 2, 1, 0, 9, 9, 9, 60, 61]]),
        np.array([[4], [90], [0]]),
    ]
    for name in KERNELS:
        own, setting = own_code(name), setting_of(name)
        rotator = own.rotator(setting, parse("fp32"))
        layout = setting.layout if "layout" in KERNELS[name].setting else own.layout(setting)
        assert own.fit(setting).convention.order == KERNELS[name].order
        for at in [*calls, *(in_rows if own.fit(setting).rows is not None else [])]:
            for groups in (4, 2, 1):
                q, k = (
                    round_to(draw.standard_normal((3, heads, at.shape[-1], 16)), parse("fp32"))
                    for heads in (4, groups)
                )
                rows = np.broadcast_to(at, (3, at.shape[-1]))
                given = q.astype(np.float32), k.astype(np.float32)
                results = rotator.rotate_both(*given, at.astype(np.int64))
                for x, result in zip(given, results, strict=True):
                    exact = [
                        rotated(one[None].astype(np.float64), row, setting_with(setting, layout))[0]
                        for one, row in zip(x, rows, strict=True)
                    ]
                    if not np.allclose(result, np.stack(exact), rtol=1e-7, atol=3e-5):
                        wrong.append((name, at.tolist(), groups))
    assert wrong == []


def setting_with(setting: RopeSetting, layout) -> RopeSetting:
    return RopeSetting.of(16, setting.rotary_dim, setting.base, layout, scaling=setting.scaling)


NO_ROTATION = """
def adds(q, k, positions):
    return q + positions[:, None].to(q.dtype), k + positions[:, None].to(k.dtype)

def unknown(q, k, state, mesh, plan):
    return q, k

def raises(q, k, positions):
    raise ValueError("not so")

class Built:
    def __init__(self, registry):
        pass
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "kernels.py").write_text(NO_ROTATION)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow  # a whole check
@pytest.mark.parametrize(
    ("name", "way"),
    [("adds", "the nearest way to call it is f(q, k, positions) with torch tensors bhsd, layout half")],
)
def test_what_is_clear_and_no_rotation_fails_with_the_nearest_way(name, way, folder, capsys) -> None:
    small = ["--up-to", "128", "--head-dim", "16", "--under", "none", "--dtype", "fp32"]
    assert main(["check", f"kernels.py:{name}", *small, "-v"]) == 1
    seen = capsys.readouterr().out
    assert way in seen
    assert "error[not-a-rotation]" in seen


@pytest.mark.slow  # a whole check
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("unknown", "needs the arguments q, k, state, mesh, plan"),
        ("raises", "ValueError: not so"),
        ("Built", "needs arguments that are not known here"),
    ],
)
def test_what_is_not_understood_is_refused_and_a_wrapper_is_written(name, words, folder, capsys) -> None:
    small = ["--up-to", "128", "--head-dim", "16", "--under", "none", "--dtype", "fp32", "-q"]
    assert main(["check", f"kernels.py:{name}", *small]) == 2
    seen = capsys.readouterr().err
    assert words in seen
    assert "--write-wrapper FILE.py" in seen
    assert main(["check", f"kernels.py:{name}", *small, "--write-wrapper", "mine.py"]) == 2
    assert "mine.py holds a wrapper to edit" in capsys.readouterr().err
    assert main(["check", "mine.py:rotate", *small]) == 0
    text = (folder / "mine.py").read_text()
    assert f"EDIT: call {name} here" in text
    assert main(["check", f"kernels.py:{name}", *small, "--write-wrapper", "mine.py"]) == 2
    assert "give another name" in capsys.readouterr().err
    assert (folder / "mine.py").read_text() == text


def test_a_wrapper_is_written_whatever_the_positions_are(folder, capsys) -> None:
    asked = ["check", "kernels.py:unknown", "--head-dim", "16", "--under", "none", "--dtype", "fp32", "-q"]
    assert main([*asked, "--write-wrapper", "mine.py"]) == 2
    assert "mine.py holds a wrapper to edit" in capsys.readouterr().err
    assert (folder / "mine.py").exists()
    assert main([*asked, "--write-wrapper", "nowhere/mine.py"]) == 2
    assert "'nowhere/mine.py' cannot be written: No such file or directory" in capsys.readouterr().err


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
