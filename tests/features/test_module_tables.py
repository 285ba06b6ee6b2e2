"""Files of dumped frequencies, or of cos and sin: of every kind, misshapen, and unreadable."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from command_line import ran
from dumped_tables import BASE, PLAIN, RIGHT, cast, inv, npz, table
from safetensors.numpy import save_file

from ropeaudit import RopeSetting, module
from ropeaudit.errors import BadInput
from ropeaudit.recognition.diagnosis import codes

COS, SIN = (part.astype(np.float32) for part in table(RIGHT, 50))


INV, CIS, BOTH = RIGHT.astype(np.float32), COS + 1j * SIN, np.concatenate([COS, SIN], axis=1)
HALVES = {f"{name}_cached": np.tile(part, 2)[None, None] for name, part in (("cos", COS), ("sin", SIN))}
KINDS = {  # the right table in the forms that code dumps it in: what a file of the kind holds, and how many
    "npz": ({"inv_freq": INV, "other": np.zeros(2)}, 1),
    "npz-any": ({"anything": INV}, 1),
    "npz-halves": (HALVES, 2),
    "npz-side": ({"cos": np.repeat(COS, 2, axis=1), "sin": np.repeat(SIN, 2, axis=1)}, 2),
    "npz-real": ({"cache": np.stack([COS, SIN], axis=-1)}, 1),
    "npy": (INV, 1),
    "npy-cis": (CIS, 1),
    "npy-side": (BOTH, 1),
    "safetensors": ({"rotary.inv_freq": INV, "weight": np.zeros(3, np.float32)}, 1),
    "pt-layers": ({f"model.layers.{i}.rotary_emb.inv_freq": torch.tensor(INV) for i in range(3)}, 3),
    "pt-tensor": (torch.tensor(INV), 1),
    "pt-cis": (torch.tensor(CIS), 1),
    "pt-pair": ((torch.tensor(COS), torch.tensor(SIN)), 2),
}
WRITERS = {"npy": np.save, "safetensors": lambda file, held: save_file(held, file)}
WRITERS |= {"npz": lambda file, held: np.savez(file, **held), "pt": lambda file, held: torch.save(held, file)}


def right(audit, count):
    """Assert that so many buffers are right, pair by pair."""
    assert len(audit.buffers) == count
    for one in audit.buffers:
        assert one.agrees, one.finding
        assert one.diagnosis is None
        assert one.table is not None
        assert len(one.table.rows) == 64


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_file(tmp_path: object, kind: str) -> None:
    (held, count), suffix = KINDS[kind], kind.partition("-")[0]
    WRITERS[suffix](f"{tmp_path}/x.{suffix}", held)
    right(module(f"{tmp_path}/x.{suffix}", base=1e6), count)
    if kind == "npz-side":  # also apart
        np.save(f"{tmp_path}/c.npy", COS)
        np.save(f"{tmp_path}/s.npy", SIN)
        right(module(f"{tmp_path}/c.npy,{tmp_path}/s.npy", base=1e6), 2)


def test_a_dump_of_angles_and_one_of_sin_and_cos(tmp_path: object) -> None:
    """Kandinsky's angle tables, and GPT-J's embed_positions, whose sin stands first."""
    angles = np.arange(300)[:, None] * inv(PLAIN)
    for name, values, message in (
        ("args", angles, "the angle table agrees within float32 rounding"),
        ("args", cast(angles, "bf16"), "bfloat16 angles ("),
        ("embed_positions", np.hstack([np.sin(angles), np.cos(angles)]), "the cos/sin table agrees within"),
        ("anything", np.hstack([np.cos(angles), np.sin(angles)]), "the cos/sin table agrees within"),
    ):
        np.savez(f"{tmp_path}/x.npz", **{name: values.astype(np.float32)})
        (one,) = module(f"{tmp_path}/x.npz", base=1e6).buffers
        assert one.finding.startswith(message), one.finding


def test_bfloat16_files(tmp_path: object) -> None:
    values = RIGHT.astype(np.float32).astype(ml_dtypes.bfloat16)
    save_file({"inv_freq": values}, f"{tmp_path}/x.safetensors")
    torch.save({"inv_freq": torch.tensor(RIGHT).bfloat16()}, f"{tmp_path}/x.pt")
    np.savez(f"{tmp_path}/x.npz", inv_freq=values)
    for name in ("x.safetensors", "x.pt", "x.npz"):
        (one,) = module(f"{tmp_path}/{name}", base=1e6).buffers
        assert one.stored.values.tolist() == values.astype(np.float64).tolist()
        assert (one.cast, one.how) == ("bfloat16", "stored")
        assert codes(one.diagnosis) == "narrow-frequencies"


class Mine:
    """An object whose unpickling would write a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (self.path, "w")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"a": np.zeros(3), "b": np.zeros(3)},
            r"no inv_freq, cos and sin, or freqs_cis; it holds a of shape \(3,\), b of shape \(3,\); give",
        ),
        ({"cos": COS}, r"cos of shape \(50, 64\) has no partner of that shape; give cos and sin"),
        (
            {"cos": COS, "sin": SIN[1:]},
            r"cos of shape \(50, 64\) has no partner of that shape; give cos and sin",
        ),
        ({"cos": COS[:1], "sin": SIN[:1]}, "for 2 positions at least"),
        ({"cos": COS[0], "sin": SIN[0]}, "for 2 positions at least"),
        ({"inv_freq": np.array(["a"])}, "holds <U1; give real numbers"),
        ({"inv_freq": np.zeros((2, 0))}, r"it holds inv_freq of shape \(2, 0\); give"),
        ({"inv_freq": np.ones(32)}, "inv_freq has shape 32 and head_dim 128 has 64 pairs; give what"),
        ({"inv_freq": np.arange(128.0)}, "inv_freq has shape 128 and head_dim 128 has 64 pairs; give what"),
        ({"freqs_cis": np.ones((4, 3))}, r"it holds freqs_cis of shape \(4, 3\); give .* side by side"),
        ({"inv_freq": RIGHT * 1j}, "for 2 positions at least"),
    ],
)
def test_files_that_hold_no_table(tmp_path: object, arrays: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        module(npz(f"{tmp_path}/x.npz", **arrays), base=1e6, head_dim=128)


@pytest.mark.parametrize(
    ("base", "dims", "fmt", "code"),
    [
        (1e4, 64, "fp32", "partial-rotation"),
        (1e4, 8, "fp32", "partial-rotation"),
        (1e4, 64, "bf16", "partial-rotation+narrow-frequencies"),
        (5e5, 64, "fp32", "partial-rotation+wrong-base"),
        (1e4, 128, "fp32", None),  # more than the head has
    ],
)
def test_a_table_of_other_dims_of_the_head_is_named(
    tmp_path: object, base: float, dims: int, fmt: str, code: str | None
) -> None:
    path = npz(f"{tmp_path}/x.npz", inv_freq=cast(inv(RopeSetting.of(dims, base=base)), fmt))
    given: dict[str, Any] = {"base": 1e4, "head_dim": 64, "rotary_dim": 16}
    if code is None:
        with pytest.raises(BadInput, match=r"rotary_dim 16 has 8 pairs; give"):
            module(path, **given)
        return
    (one,) = module(path, **given).buffers
    assert one.wrong
    assert codes(one.diagnosis) == code
    assert one.diagnosis is not None
    assert one.diagnosis.values == {"seen": dims, "asked": 16, "head_dim": 64}
    assert (one.error, one.drift_near) == (None, None)  # of no pair that is asked for
    assert one.finding.endswith(f"(inv_freq has {dims // 2} pairs).")


def test_a_table_of_other_dims_is_named_only_where_its_values_show_them(tmp_path: object) -> None:
    noise = npz(f"{tmp_path}/noise.npz", inv_freq=np.random.default_rng(0).uniform(0.1, 1, 32))
    part = npz(f"{tmp_path}/part.npz", inv_freq=inv(RopeSetting.of(32, base=1e4)))
    with pytest.raises(BadInput, match="has 8 pairs; give what belongs"):
        module(noise, base=1e4, head_dim=64, rotary_dim=16)
    with pytest.raises(BadInput, match="has 32 pairs; give what belongs"):  # nothing asks for a part of them
        module(part, base=1e4, head_dim=64)


def test_a_tensor_that_is_alone_needs_no_name(tmp_path: object) -> None:
    """Neither its name nor its values tell what it is."""
    values = RIGHT * np.random.default_rng(0).uniform(0.5, 1.5, 64)
    np.save(f"{tmp_path}/x.npy", values)
    save_file({"x": values}, f"{tmp_path}/x.safetensors")
    for name in ("x.npy", "x.safetensors"):
        (one,) = module(f"{tmp_path}/{name}", base=1e6).buffers
        assert "nothing that was tried explains it, nor comes near." in one.finding


def test_files_that_cannot_be_read(tmp_path: object) -> None:
    for name, content in (
        ("e.npz", b""),
        ("d.npz", b"PK\x03\x04garbage"),
        ("d.pt", b"\x80\x04junk."),
        ("d.safetensors", b"\xff" * 30),
        ("d.npy", b"\x93NUMPY"),
        ("d.xyz", b"1"),
    ):
        with open(f"{tmp_path}/{name}", "wb") as file:
            file.write(content)
        with pytest.raises(BadInput, match=rf"^'{tmp_path}/{name}': "):
            module(f"{tmp_path}/{name}")
    torch.save({"inv_freq": Mine(f"{tmp_path}/made")}, f"{tmp_path}/m.pt")
    torch.save([1, 2], f"{tmp_path}/list.pt")
    np.save(f"{tmp_path}/o.npy", np.array([Mine(f"{tmp_path}/made")], dtype=object), allow_pickle=True)
    for name in ("m.pt", "list.pt", "o.npy", "missing.npz", "a\0b.npz", ""):
        with pytest.raises(BadInput, match=rf"^'{tmp_path}/[^']*': "):
            module(f"{tmp_path}/{name}")
    three = ",".join(f"{tmp_path}/{name}.npy" for name in "abc")
    with pytest.raises(BadInput, match=r"names 3 files; give one, or cos\.npy,sin\.npy"):
        module(three)
    assert not Path(f"{tmp_path}/made").exists()


def test_the_command_checks_a_dump(tmp_path: object, capsys) -> None:
    path = f"{tmp_path}/x.npz"
    np.savez(path, inv_freq=RIGHT)
    line = ["module", path, "--base", "1e6"]
    assert "1 of 1 RoPE table within float32 rounding" in ran(capsys, line).out
    shown = ran(capsys, [*line, "-v"]).out
    assert len([row for row in shown.splitlines() if row.startswith(("   0 ", "  63 "))]) == 2
    np.savez(path, inv_freq=BASE)
    shown = ran(capsys, [*line, "-f", "json", "-o", f"{tmp_path}/x.csv"], 1)
    result = json.loads(shown.out)
    assert result["headline"].endswith("1 of 1 RoPE table off (wrong-base)")
    assert result["records"][0]["agrees"] == "no"
    assert result["records"][0]["diagnosis"] == "wrong-base"
    assert result["hypotheses"][0]["explains"] is True
    assert result["hypotheses"][0]["diagnosis"] == "wrong-base"
    assert [row["pair"] for row in result["pairs"]] == list(range(64))
    with open(f"{tmp_path}/x.csv") as file:
        assert len(file.readlines()) == 2
    assert "assumed         base 500000, from the values" in ran(capsys, line[:2]).out
