"""Bad input gives one clear message on stderr, exit code 2, nothing on stdout and no file.

The command lines of both refused.toml run in this process; streams and signals need one of their own.
"""

import json
import os
import pickle
import shlex
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from command_line import ran
from safetensors.numpy import save_file

from ropeaudit import data, shift
from ropeaudit.main import main
from ropeaudit.reports import reading

SMALL = ["shift", "--heads", "1", "--seq-len", "4", "--head-dim", "4", "--offset", "5", "--dtype", "fp16"]
TINY = SMALL[:7]  # without offsets and dtypes
RNG = np.random.default_rng(0)
Q, K = (RNG.standard_normal((heads, 5, 4)).astype(np.float32) for heads in (2, 1))


@pytest.fixture
def refused(capsys, tmp_path, monkeypatch):
    """Run a command line that must be refused in an empty folder; return its message."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> str:
        before = sorted(os.listdir(tmp_path))
        code = main(list(arguments))
        out, err = capsys.readouterr()
        assert code == 2, (code, err)
        assert out == ""
        assert err.startswith("ropeaudit: error: ")
        assert "Traceback" not in err
        lines = err.rstrip("\n").split("\n")
        assert len(lines) == 1 + ("\nTry `" in err)
        assert all(line.isprintable() and len(line) < 2000 for line in lines)
        assert sorted(os.listdir(tmp_path)) == before
        return err

    return run


FOLDERS = (Path(__file__).parents[1] / "net", Path(__file__).parent)
TABLE = {
    f"{command} {options}".strip(): said
    for folder in FOLDERS
    for command, refusals in tomllib.loads((folder / "refused.toml").read_text(encoding="utf-8")).items()
    for options, said in refusals.items()
}


def test_bad_command_lines_are_refused(refused) -> None:
    said = {line: refused(*shlex.split(line)) for line in TABLE}
    assert {line: text for line, text in said.items() if TABLE[line] not in text} == {}
    assert not [line for line, text in said.items() if line.startswith("check ") and "--impl" in text]


WITHDRAWN = {
    tuple(one.rsplit(" ", 1)): instead
    for instead, gone in data.table("help.toml")["withdrawn"].items()
    for one in gone
}
LOADED = "ropeaudit check FILE:NAME --under to:bf16` calls a module as it was loaded"
GONE = {
    "shift --columns engine": "NumPy forms all scores",
    "shift --fail-if engine>1": "NumPy forms all scores",
    "decay --columns subject_bound": "use drift_rms or drift_relative",
    "decay --columns subject_first_failing": "use drift_rms or drift_relative",
    "model x --columns routing_flips": "use change_rms",
    "module f.npz --columns loaded": f"`{LOADED}",
    "explain --by position": "--by pair says where drift sits",
    "explain --by head": "--by pair says where drift sits",
    "model --by head": "--by pair says it of each pair of a head",
    "model --by cache": "decode with the default cache is in every run: see decode_max",
}
# command line -> what its message holds
INSTEAD = {
    "vectors --want scores -o case": "known: rotated, gradient (scores are judged from rotated q and k)",
    "module x.xml": "'x.xml': OpenVINO IR is no longer read; give the .onnx file that it is made of",
    **{line: f"; it was withdrawn: {instead}\n" for line, instead in GONE.items()},
    **{
        f"{command} --ticket {name}": "it was withdrawn: any tracker takes the one form; give a file"
        for command in ("check", "shift", "module")
        for kind, name in WITHDRAWN
        if kind == "--ticket"
    },
    **{
        f"{kind.removeprefix('option of ')} {option} anything": f" was withdrawn; {instead}\n"
        for (kind, option), instead in WITHDRAWN.items()
        if kind.startswith("option of ")
    },
}


def test_each_thing_withdrawn_says_what_to_use_instead(refused) -> None:
    np.savez("f.npz", inv_freq=1e4 ** -(np.arange(4) / 4))
    Path("x.xml").write_text("<net/>")
    said = {line: refused(*line.split()) for line in INSTEAD}
    assert {line: text for line, text in said.items() if INSTEAD[line] not in text} == {}
    assert len(INSTEAD) >= 20


NAMED = {  # what is typed -> what the message says, beside rope_kernel.py
    "rope_kernel.py": "; known: half, Rope, apply_rotary; type rope_kernel.py:apply_rotary\n",
    "rope_kernel.py:": "; type rope_kernel.py:apply_rotary\n",
    "rope_kernle.py:half": "rope_kernle.py: there is no such file; did you mean rope_kernel.py?\n",
    "./rope_kernle.py:half": "there is no such file; did you mean rope_kernel.py?\n",
    "other/rope_kernel.py:half": "there is no such file; try mypackage.rope:apply_rope or",
    "broken.py": "'broken.py' does not say which function; try mypackage.rope:apply_rope or",
}


def test_code_is_named_by_its_file_and_a_function_of_it(refused) -> None:
    kernel = "def half(x): ...\ndef _own(x): ...\nclass Rope: ...\nasync def later(): ...\n1 / 0\n"
    Path("rope_kernel.py").write_text(f"{kernel}def apply_rotary(q, k): ...\n", encoding="utf-8")
    Path("broken.py").write_text("def f(:", encoding="utf-8")
    said = {target: refused("check", target) for target in NAMED}
    assert {target: text for target, text in said.items() if NAMED[target] not in text} == {}


@pytest.mark.parametrize(
    "sizes", ["--seq-len 1e12", "--heads 1e9", "--head-dim 1e9", "--seq-len 4,1e12", "--layout half,nope"]
)
def test_an_absurd_size_is_refused_before_any_work(sizes, refused, monkeypatch) -> None:
    for work in ("inputs.qk.make", "engine.measure.measure", "audits.sweep.rows_of"):
        monkeypatch.setattr(f"ropeaudit.{work}", lambda *_: pytest.fail("work was done"))
    message = refused("shift", *sizes.split())
    known = ("GiB of memory and", "positions past 2^53", "from 2 to 65536", "unknown layout 'nope'")
    assert any(text in message for text in known)


def test_long_and_strange_words_give_short_messages(refused) -> None:
    for arguments in (
        ["--offset", "9" * 100_000],
        ["--offset", "1-" * 50_000],
        ["--offset", ",".join(map(str, range(3000))) + ",x"],
        ["--dtype", "f" * 100_000],
        ["--columns", ",".join(["drift_rms"] * 5000 + ["nope"])],
        ["--fail-if", " " * 20_000 + "a"],
        ["--qk", "a" * 5000 + ".npz"],
        ["-o", "a" * 5000 + ".csv"],
        ["--recipe", "a\0.toml"],
        ["-o", "a\0.csv"],
    ):
        refused("shift", *arguments)


ESCAPE = "\x1b[31mred\x9b\r\n\u202e"


def test_escape_codes_in_arguments_do_not_reach_the_terminal(refused) -> None:
    for arguments in (
        [ESCAPE],
        ["shift", ESCAPE],
        ["shift", "--" + ESCAPE],
        ["shift", "--dtype", ESCAPE],
        ["shift", "--recipe", ESCAPE + ".toml"],
        ["shift", "--qk", ESCAPE + ".npz"],
        ["shift", "--fail-if", ESCAPE],
        ["shift", "-o", ESCAPE + "/x.csv"],
    ):
        assert "\\x1b[31m" in refused(*arguments), arguments


@pytest.mark.parametrize("offsets", ["-5", "-10--5+1", "-10-5+5", "-2^40,2^40", "-9007199254740988"])
def test_negative_offsets_work(offsets, capsys) -> None:
    assert ran(capsys, [*TINY, "--offset", offsets, "--dtype", "fp64", "-q"]).err == ""


def test_what_is_lossy_but_possible_is_a_finding(capsys) -> None:
    line = ["--offset", "9007199254740000", "--dtype", "bf16,fp16,e4m3", "--recipe", "uniform", "-f", "json"]
    seen = ran(capsys, [*TINY, *line])
    assert len(json.loads(seen.out)["records"]) == 3
    assert " collapses " in seen.out
    assert "nan or infinite" in seen.out


# ---------------------------------------------------------------------------- captured q and k


def write_torch(path: Path, value: object, **options: object) -> None:
    import torch

    torch.save(value, path, **options)


def tensors(**arrays: np.ndarray) -> dict[str, object]:
    import torch

    return {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}


BAD_ARRAYS: dict[str, dict[str, object]] = {
    "no tensor called q or query; it holds a, b": {"a": Q, "b": K},
    "no tensor called k or key; it holds q": {"q": Q},
    "they must agree in positions and head_dim": {"q": Q, "k": K[:, :4]},
    "q has shape (5, 4); give (heads, seq, head_dim)": {"q": Q[0], "k": K[0]},
    "give (heads, seq, head_dim)": {"q": np.float32(1), "k": np.float32(1)},
    "head_dim even": {"q": Q[..., :3], "k": K[..., :3]},
    "none of them 0": {"q": Q[:0], "k": K},
    "2 key-value heads do not divide 3 heads": {"q": np.repeat(Q, 2, 0)[:3], "k": Q},
    "k has 20 nan or infinite values of 20": {"q": Q, "k": K * np.nan},
    "give one between 1e-60 and 1e+60": {"q": Q.astype(float) * 1e99, "k": K},
    "give real numbers": {"q": Q > 0, "k": K > 0},
}
NUMPY_ONLY: dict[str, dict[str, object]] = {
    "q holds <U8; give real numbers": {"q": Q.astype("U8"), "k": K.astype("U8")},
    "it holds Python objects": {"q": Q.astype(object), "k": K.astype(object)},
    "q holds |V4; give real numbers": {"q": Q.view("V4"), "k": K.view("V4")},
    "nan or infinite": {"q": np.longdouble("1e4000") * Q, "k": K},
}


def test_bad_arrays(refused) -> None:
    for fragment, arrays in (BAD_ARRAYS | NUMPY_ONLY).items():
        np.savez("x.npz", **arrays)
        assert fragment in refused("shift", "--qk", "x.npz")
        if fragment in NUMPY_ONLY:
            continue
        write_torch(Path("x.pt"), tensors(**{name: np.asarray(array) for name, array in arrays.items()}))
        assert fragment in refused("shift", "--qk", "x.pt")
        stored = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        if all(stored[name].shape == np.shape(array) for name, array in arrays.items()):
            save_file(stored, "x.safetensors")
            assert fragment in refused("shift", "--qk", "x.safetensors")


def good_files(folder: Path) -> dict[str, str]:
    """Write the same q and k in every form; return kind -> value of --qk."""
    np.savez(folder / "x.npz", q=Q, k=K)
    save_file({"q": Q, "k": K}, folder / "x.safetensors")
    write_torch(folder / "x.pt", tensors(q=Q, k=K))
    write_torch(folder / "old.pth", tensors(query=Q, key=K), _use_new_zipfile_serialization=False)
    np.save(folder / "q.npy", Q)
    np.save(folder / "k.npy", K)
    names = {name: str(folder / name) for name in ("x.npz", "x.safetensors", "x.pt", "old.pth")}
    return names | {"q.npy": f"{folder / 'q.npy'},{folder / 'k.npy'}"}


KINDS = ("x.npz", "x.safetensors", "x.pt", "old.pth", "q.npy")


def test_every_form_of_the_same_q_and_k_gives_the_same_rows(tmp_path) -> None:
    seen = [
        [record.drift_rms for record in shift((0, 1000), "fp32", qk=spec)]
        for spec in good_files(tmp_path).values()
    ]
    assert all(rows == seen[0] for rows in seen)


@pytest.mark.parametrize("form", ["npz", "safetensors", "npy"])
def test_bfloat16_is_read_as_such(form, tmp_path) -> None:
    short = {name: x.astype(ml_dtypes.bfloat16) for name, x in (("q", Q), ("k", K))}
    path = str(tmp_path / f"x.{form}")
    if form == "npz":
        np.savez(path, **short)
    elif form == "safetensors":
        save_file(short, path)
    else:
        path = f"{tmp_path}/q.npy,{tmp_path}/k.npy"
        np.save(tmp_path / "q.npy", short["q"])
        np.save(tmp_path / "k.npy", short["k"])
    np.savez(tmp_path / "same.npz", **{name: x.astype(np.float64) for name, x in short.items()})
    (record,) = shift(1000, "bf16", "uniform", qk=path)
    (same,) = shift(1000, "bf16", "uniform", qk=str(tmp_path / "same.npz"))
    assert record.drift_rms == same.drift_rms


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files(kind, refused, tmp_path) -> None:
    spec = good_files(tmp_path)[kind]
    path = tmp_path / kind
    whole = path.read_bytes()
    damaged = {
        "empty": b"",
        "truncated": whole[:-9],
        "half": whole[: len(whole) // 2],
        "magic": b"\xff\xff\xff\xff" + whole[4:],
        "text": b"q and k",
        "pickle": pickle.dumps({"q": Q, "k": K}),
    }
    for damage, content in damaged.items():
        path.write_bytes(content)
        message = refused("shift", "--qk", spec)
        assert f"--qk '{path}" in message or f"--qk '{spec}'" in message, damage
    path.unlink()
    path.mkdir()
    message = refused("shift", "--qk", spec)
    assert f"--qk '{path}" in message or f"--qk '{spec}'" in message


def test_a_pickle_is_never_run(refused, tmp_path) -> None:
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "sprung"),)

    Path("x.pt").write_bytes(pickle.dumps({"q": Trap(), "k": Trap()}))
    write_torch(Path("y.pt"), {"q": Trap(), "k": Trap()})
    with zipfile.ZipFile("x.npz", "w") as archive:
        archive.writestr("q.npy", pickle.dumps(Trap()))
        archive.writestr("k.npy", pickle.dumps(Trap()))
    for name in ("x.pt", "y.pt", "x.npz"):
        refused("shift", "--qk", name)
    assert not (tmp_path / "sprung").exists()


def test_strange_files(refused) -> None:
    import torch

    def texts(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("q", "no array")
            archive.writestr("k", "no array")

    q, k = (torch.from_numpy(x) for x in (Q, K))
    for name, write, said in (
        ("x.pt", lambda path: write_torch(path, {"q": q.to_sparse(), "k": k}), "--qk 'x.pt'"),
        ("x.pt", lambda path: write_torch(path, [1, 2, 3]), "holds a list; give a dict of tensors"),
        ("x.pt", lambda path: write_torch(path, q), "no tensor called q or query; it holds x"),
        ("x.npz", texts, "q is no array; give real numbers"),
        ("x.bin", lambda path: path.write_bytes(b"1234"), "give one of .safetensors, .npz, .pt, .pth"),
        ("q.npy", lambda path: np.save(path, Q), "one .npy file holds one tensor"),
    ):
        write(Path(name))
        assert said in refused("shift", "--qk", name)


def test_names_of_tensors_are_shown_safely(refused) -> None:
    np.savez("x.npz", **{"a" + ESCAPE: Q, "b" * 3000: K})
    message = refused("shift", "--qk", "x.npz")
    assert "\\x1b[31m" in message
    assert len(message) < 400


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may do everything")
def test_files_without_permission(refused, tmp_path) -> None:
    np.savez("x.npz", q=Q, k=K)
    os.chmod("x.npz", 0)
    assert "ermission" in refused("shift", "--qk", "x.npz")
    os.mkdir("shut")
    os.chmod("shut", 0o500)
    assert "ermission" in refused("shift", "-o", "shut/x.csv")
    os.chmod("shut", 0)
    assert "ermission" in refused("shift", "--qk", "shut/x.npz")
    os.chmod("shut", 0o700)


HOSTILE = "a|<b>[bold]*_`\x1b[31m\n.npz"


@pytest.mark.parametrize(
    ("form", "color"),
    [
        *(("table", option) for option in ("--color", "--no-color")),
        *((form, "") for form in ("csv", "json", "jsonl", "markdown")),
    ],
)
def test_a_hostile_file_name_is_text_in_every_report(form, color, capfd, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez(HOSTILE, q=Q, k=K)
    words = ["shift", "--qk", HOSTILE, "--dtype", "fp16", "--columns", "source", "-f", form]
    words += [color] * bool(color)
    monkeypatch.setattr(sys, "argv", ["ropeaudit"])
    assert main([*words, "-o", "x.csv", "-o", "x.md", "-o", "x.txt"]) == 0
    seen = capfd.readouterr()
    for text in (seen.out, seen.err, *(Path(f"x.{end}").read_text() for end in ("csv", "md", "txt"))):
        assert "\x1b[31m" not in text
        assert "red\n.npz" not in text
    assert {"markdown": "\\<b\\>\\[bold\\]"}.get(form, "<b>[bold]*_`") in seen.out


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are bytes there")
def test_a_name_that_is_no_text_gives_valid_json(capfd, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("x.npz", q=Q, k=K)
    os.rename("x.npz", b"\xff.npz")
    words = ["shift", "--qk", "\udcff.npz", "--dtype", "fp16", "--columns", "implementation,offset,source"]
    monkeypatch.setattr(sys, "argv", ["ropeaudit", *words])
    for form in ("csv", "json", "table", "markdown"):
        assert main([*words, "-f", form, "-o", "x.json", "-o", "x.csv", "-o", "x.jsonl"]) == 0
        text = capfd.readouterr().out
        assert "udcff" in text
        assert form != "json" or json.loads(text)["records"]
    for name in ("x.json", "x.csv", "x.jsonl"):
        (row,) = {row["source"] for row in reading.read(name)}
        assert row.startswith("\\udcff.npz")


# ---------------------------------------------------------------------------- recipe files

BAD_RECIPES = {
    b"angle = ": "is not TOML: ",
    b"\xff\xfe\x00binary": "is not TOML: ",
    b"x = " + b"[" * 5000: "is not TOML: ",
    b"# " + b"x" * 70_000: "is larger than 64 KiB",
    b"angel = 'fp32'": "unknown stage 'angel'; did you mean angle",
    b"[angle]\nx = 1": "angle = {'x': 1} is not text; put text in quotes",
    b"angle = 3": 'angle = 3 is not text; put text in quotes, as in angle = "fp32"',
    b"extends = 'nope'": "unknown recipe 'nope'",
    b"name = 3": "name = 3 is not text",
    b"scale_after_store = 'yes'": "scale_after_store = 'yes': give true or false",
    b"refused = 'because'": "cannot be emulated: because",
    b'"\\u001b[31m" = 1': "unknown stage '\\x1b[31m'",
}


def test_bad_recipe_files(refused) -> None:
    for text, fragment in BAD_RECIPES.items():
        Path("x.toml").write_bytes(text)
        assert fragment in refused("shift", "--recipe", "./x.toml"), text[:24]


def test_a_recipe_file_that_is_a_folder_or_endless(refused) -> None:
    os.mkdir("folder.toml")
    assert "Is a directory" in refused("shift", "--recipe", "folder.toml")
    if os.path.exists("/dev/zero"):
        os.symlink("/dev/zero", "endless.toml")
        assert "is larger than" in refused("shift", "--recipe", "endless.toml")


# ---------------------------------------------------------------------------- files to write


def test_an_output_file_that_is_a_folder(refused, tmp_path) -> None:
    os.mkdir("x.csv")
    assert "-o 'x.csv' is a folder; give a file's name" in refused(*SMALL, "-o", "x.csv")
    os.mkdir("y.csv.meta.json")
    Path("y.csv").write_text("old")
    assert "is a folder" in refused(*SMALL, "-o", "y.csv")
    assert Path("y.csv").read_text() == "old"


def test_a_failed_run_leaves_an_existing_file_as_it_was(refused) -> None:
    Path("x.csv").write_text("old")
    refused("shift", "--seq-len", "0", "-o", "x.csv", "-o", "y.json")
    refused("shift", "--qk", "nowhere.npz", "-o", "x.csv", "-o", "y.json")
    refused(*SMALL, "-o", "x.csv", "-o", "nowhere/y.json")
    assert Path("x.csv").read_text() == "old"


# ---------------------------------------------------------------------------- processes and streams

posix = pytest.mark.skipif(os.name != "posix", reason="a shell with pipes")


def in_shell(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a line of bash in which `r` is ropeaudit."""
    script = f'r() {{ "{sys.executable}" -m ropeaudit "$@"; }}; {line}'
    return subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, env=os.environ | environment, timeout=60
    )


@posix
@pytest.mark.parametrize("line", ["r list recipes -f csv | head -1", "r shift --help | true"])
def test_a_closed_pipe_is_no_error(line) -> None:
    seen = in_shell(f"{line} >/dev/null; exit ${{PIPESTATUS[0]}}")
    assert (seen.returncode, seen.stderr) == (0, "")


@posix
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
@pytest.mark.parametrize("line", ["list formats", "--help"])
def test_a_full_stdout_is_an_error(line) -> None:
    seen = in_shell(f"r {line} >/dev/full")
    assert seen.returncode == 2
    assert seen.stderr == "ropeaudit: error: cannot write to stdout: No space left on device\n"


@posix
def test_closed_streams() -> None:
    line = shlex.join(SMALL)
    closed = in_shell(f"r {line} >&-")
    assert (closed.returncode, closed.stdout) == (2, "")
    assert closed.stderr == "ropeaudit: error: cannot write to stdout: it is closed\n"
    mute = in_shell("r shift --dtype nope 2>&-")
    assert (mute.returncode, mute.stdout) == (2, "")


def test_inputs_that_overflow_the_dtype_are_a_finding(capsys, tmp_path) -> None:
    np.savez(tmp_path / "x.npz", q=Q * 1e6, k=K)
    seen = ran(capsys, ["shift", "--qk", str(tmp_path / "x.npz"), "--dtype", "fp16", "-f", "jsonl", "-q"])
    assert {json.loads(line)["verdict"] for line in seen.out.splitlines()} == {"overflow"}
    assert seen.err == ""
