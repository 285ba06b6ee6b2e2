"""Too much is refused before it is made or read."""

import io
import json
import math
import zipfile

import numpy as np
import pytest
from command_line import ran
from hypothesis import given, settings
from hypothesis import strategies as st

from ropeaudit.audits import sweep
from ropeaudit.audits.cases import Case
from ropeaudit.audits.sweep import Audit, Sweep
from ropeaudit.errors import BadInput
from ropeaudit.inputs import qk
from ropeaudit.tensor_files import tensors

SMALL = ["shift", "--heads", "1", "--seq-len", "3", "--head-dim", "4", "--recipe", "hf", "--dtype", "fp16"]


def test_ten_thousand_million_rows_are_refused_before_any_is_made(capsys, monkeypatch) -> None:
    monkeypatch.setattr(sweep, "identity_columns", lambda *_: pytest.fail("a cell was made"))
    for more in ([], ["--dry-run"], ["--shard", "3/100"]):
        out, err = ran(capsys, [*SMALL, "--seed", "1-9999+1", "--offset", "1-99999+1", *more], 2)
        assert out == ""
        assert "9,999 settings x 1 implementations x 99,999 offsets are 999,890,001 rows" in err
        assert "--shard 1/1000" in err


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(1, 9), st.integers(1, 30))
@settings(deadline=None, max_examples=40)
def test_shards_in_order_hold_each_cell_once(lengths, offsets, count) -> None:
    cases = [Case(heads=1, seq_len=100 * one, head_dim=4, seed=n) for n, one in enumerate(lengths)]
    audit = Audit(cases, ["hf"], ["fp16", "bf16"], range(offsets))
    whole = Sweep(audit).cells
    shards = [Sweep(audit, (number, count)).cells for number in range(1, count + 1)]
    assert [cell for one in shards for cell in one] == whole
    fair = math.fsum(cell.seconds for cell in whole) / count
    largest = max(cell.seconds for cell in whole)
    assert all(math.fsum(cell.seconds for cell in one) <= fair + largest for one in shards)


# ---------------------------------------------------------------------------- archives

HUGE = (1, 2**25, 128)  # 16 GiB in float32


def npy(shape: tuple[int, ...], content: bytes) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return file.getvalue() + content


def archive(path, content: bytes, packed: bool) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED) as file:
        for name in "qk":
            file.writestr(f"{name}.npy", content)


@pytest.fixture
def unread(monkeypatch) -> None:
    monkeypatch.setattr(np, "load", lambda *_, **__: pytest.fail("it was read"))


@pytest.mark.usefixtures("unread")
def test_an_array_that_declares_more_than_it_holds(tmp_path) -> None:
    (tmp_path / "q.npy").write_bytes(npy(HUGE, bytes(4096)))
    archive(tmp_path / "x.npz", npy(HUGE, bytes(4096)), False)
    for spec in (f"{tmp_path}/q.npy,{tmp_path}/q.npy", str(tmp_path / "x.npz")):
        with pytest.raises(BadInput, match=r"17,179,869,184 bytes, and holds 4,096"):
            qk.from_file(spec)


@pytest.mark.usefixtures("unread")
def test_an_archive_that_is_packed_too_well(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("ropeaudit.tensor_files.tensors._FREE_OF_DOUBT", 2**20)
    archive(tmp_path / "x.npz", npy((1, 2**13, 128), bytes(2**22)), True)
    with pytest.raises(BadInput, match="more than tensors can be packed"):
        qk.from_file(str(tmp_path / "x.npz"))
    (tmp_path / "x.npz").rename(tmp_path / "x.safetensors")  # whatever it is called
    with pytest.raises(BadInput, match="more than tensors can be packed"):
        tensors.search_files([tmp_path / "x.safetensors"], lambda *_: True)


def test_tensors_without_room(tmp_path, monkeypatch) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.numpy import save_file

    wide = torch.zeros(1).expand(1, 2**20, 128)  # a few bytes in the file
    torch.save({"q": wide, "k": wide, "a.inv_freq": wide}, tmp_path / "x.pt")
    save_file({"q": np.zeros((1, 2**12, 4)), "k": np.zeros((1, 2**12, 4))}, tmp_path / "x.safetensors")
    archive(tmp_path / "x.npz", npy((1, 2**12, 4), bytes(2**16)), True)
    np.save(tmp_path / "q.npy", np.zeros((1, 2**12, 4)))
    assert qk.from_file(str(tmp_path / "x.npz")).q.shape == (1, 2**12, 4)
    monkeypatch.setattr("ropeaudit.runtime.run_metadata.free_bytes", lambda: 2**16)
    for name in ("x.pt", "x.safetensors", "x.npz"):
        with pytest.raises(BadInput, match="are free; give a smaller part"):
            qk.from_file(str(tmp_path / name))
    with pytest.raises(BadInput, match="are free"):
        qk.from_file(f"{tmp_path}/q.npy,{tmp_path}/q.npy")
    with pytest.raises(BadInput, match="are free"):
        tensors.search_files([tmp_path / "x.pt"], lambda name, shape, head: "inv_freq" in name)


# ---------------------------------------------------------------------------- numbers

DIGITS = "1" * 5000
FILES = {
    "c.json": f'{{"model_type": "llama", "rope_theta": -{DIGITS}, "head_dim": 8}}',
    "spare.json": '{"model_type": "llama", "rope_theta": 1e4, "head_dim": 8, "num_attention_heads": 1, '
    f'"vocab_size": {DIGITS}}}',
    "r.json": f'{{"records": [{{"implementation": "hf", "offset": {DIGITS}}}]}}',
    "r.jsonl": f'{{"implementation": "hf", "offset": {DIGITS}}}\n',
    "r.csv": f"implementation,offset\nhf,{DIGITS}\n",
    "r.toml": f'extends = "hf"\nangle = {DIGITS}\n',
    "w.toml": f"[[waive]]\ncheck = {DIGITS}\n",
    "a.toml": f"[mine]\naxes = {DIGITS}\n",
    "model.safetensors.index.json": f'{{"weight_map": {{"a": {DIGITS}}}}}',
}
DIGITS_SAID = "it holds an integer of more than 4,300 digits"
HUGE_NUMBERS = [
    (
        "shift --config c.json",
        "'c.json': rope_theta = an integer beyond 1e18 is not a finite number",
    ),
    ("report r.json --against r.json", f"'r.json' is not a report of ropeaudit: {DIGITS_SAID}"),
    ("report r.jsonl", f"'r.jsonl' is not a report of ropeaudit: {DIGITS_SAID}"),
    ("plot --kind limit r.json -o x.svg", DIGITS_SAID),
    ("report r.csv", "row 1 has offset '1111"),
    ("shift --recipe r.toml", f"recipe file 'r.toml' is not TOML: {DIGITS_SAID}"),
    ("check c.json --waive w.toml", "'w.toml': is not TOML in UTF-8: it holds an integer of more than"),
    ("shift --axes a.toml --grid 2x2", f"axes 'a.toml': {DIGITS_SAID}; give one"),
    ("module .", f"index.json': {DIGITS_SAID}; give the whole checkpoint"),
]


def test_an_integer_of_thousands_of_digits_is_said_in_a_line(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "config.json").write_text(FILES["spare.json"])
    for line, message in HUGE_NUMBERS:
        seen = ran(capsys, line.split(), 2).err
        assert message in seen, line
        assert not {"set_int_max_str_digits", "Exceeds"} & {*seen.split()}
        assert seen.count("\n") == 1


def test_a_huge_integer_that_nobody_asks_for_does_no_harm(tmp_path, capsys) -> None:
    (tmp_path / "c.json").write_text(FILES["spare.json"])
    line = ["shift", "--config", str(tmp_path / "c.json"), "--seq-len", "3", "--offset", "7", "-f", "json"]
    assert {row["base"] for row in json.loads(ran(capsys, line).out)["records"]} == {1e4}
