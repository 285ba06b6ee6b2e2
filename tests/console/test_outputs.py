"""What -o must not do: write over an input, shrink a report, replace a link, a pipe or somebody's file."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from cases import first_fast
from command_line import ran

from ropeaudit.audits.case_run import CaseRun
from ropeaudit.console import output_files
from ropeaudit.main import main

SIZES = ["--heads", "1", "--head-dim", "8", "--seq-len", "4"]
SMALL = ["shift", *SIZES, "--recipe", "hf", "--dtype", "fp16", "--offset", "0,7", "-q", "-f", "csv"]
posix = pytest.mark.skipif(os.name != "posix", reason="links, pipes and signals")
CONFIG = {"model_type": "llama", "hidden_size": 16, "num_attention_heads": 2, "rope_theta": 1e4}
CONFIG |= {"max_position_embeddings": 64, "num_hidden_layers": 1, "num_key_value_heads": 2}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    for name in ("a.json", "a.csv", "a.jsonl", "b.json"):
        assert main([*SMALL, "-o", str(folder / name)]) == 0
    for name in ("why.json", "safe.json", "f.pt"):
        (folder / name).write_text('{"records": []}')
    (folder / "model").mkdir()
    for path in (folder / "c.json", folder / "model" / "config.json", folder / "config.json"):
        path.write_text(json.dumps(CONFIG))
    (folder / "r.toml").write_text('extends = "hf"\n')
    (folder / "mine.py").write_text("def turn(x, positions):\n    return x\n")
    (folder / "t.txt").write_text("a b c")
    rng = np.random.default_rng(0)
    np.savez(folder / "x.npz", q=rng.standard_normal((1, 4, 8)), k=rng.standard_normal((1, 4, 8)))
    for name in ("q.npy", "k.npy"):
        np.save(folder / name, rng.standard_normal((1, 4, 8)))
    np.savez(folder / "f.npz", inv_freq=1e4 ** -np.linspace(0, 1, 4, endpoint=False))
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


OWN_INPUTS = [  # the command and which of its files is its output, as LINK where the suffix must be another
    ("shift --config c.json", "c.json"),
    ("shift --config model", "model/config.json"),
    ("shift --baseline a.csv", "a.csv"),
    ("shift --baseline a.csv", "a.csv.meta.json"),
    ("shift --qk x.npz", "x.npz"),
    ("shift --qk q.npy,k.npy", "k.npy"),
    ("shift --recipe hf,r.toml", "r.toml"),
    ("shift --impl mine.py:turn", "mine.py"),
    ("shift --impl mine:turn", "mine.py"),
    ("shift --config c.json --dry-run", "c.json"),
    ("report b.json --against a.json", "a.json"),
    ("report b.json --against a.json", "b.json"),
    ("report a.json b.json", "b.json"),
    ("report a.csv", "a.csv.meta.json"),
    ("plot a.json", "a.json"),
    ("plot --kind stages why.json", "why.json"),
    ("plot --kind heatmap --qk x.npz", "x.npz"),
    ("list frequencies --config c.json", "c.json"),
    ("explain --config c.json", "c.json"),
    ("limit --recipe r.toml", "r.toml"),
    ("parity r.toml[angle=fp64] hf", "r.toml"),
    ("decay --config c.json", "c.json"),
    ("explain mine.py:turn", "mine.py"),
    ("module model", "model/config.json"),
    ("module f.pt --config c.json", "c.json"),
    ("module f.pt", "config.json"),
    ("model model", "model/config.json"),
    ("model model --text t.txt", "t.txt"),
]


@pytest.mark.parametrize("how", ["itself", "link", "absolute", "hard link"])
def test_no_command_writes_over_what_it_reads(how, inputs, tmp_path, capsys, monkeypatch) -> None:
    folder = tmp_path / "inputs"
    shutil.copytree(inputs, folder)
    monkeypatch.chdir(folder)
    wrong = []
    for line, name in OWN_INPUTS if how in ("itself", "link") else OWN_INPUTS[::5]:
        suffix = ".svg" if line.startswith("plot") else ".json"
        target = str(folder / name) if how == "absolute" else name
        linked = how.endswith("link") or not name.endswith(suffix)
        if linked:
            target = f"other{suffix}"
            (os.link if how == "hard link" else os.symlink)(name, target)
        before = contents(folder)
        code = main([*line.split(), "-q", "-o", target])
        seen = capsys.readouterr()
        said = f"-o {target!r} is one of the files to read" in seen.err and "give another name" in seen.err
        if not said or (code, seen.out, seen.err.count("\n"), contents(folder)) != (2, "", 1, before):
            wrong.append(f"{line} -o {name}: {code} {seen.err}")
        if linked:
            os.unlink(target)
    assert wrong == []


def test_what_own_code_may_import_is_no_output(tmp_path, monkeypatch, capsys) -> None:
    """The code is not loaded to find out: a Python file that lies beside it or below is left alone."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pkg").mkdir()
    for name in ("mine.py", "helper.py", "pkg/part.py"):
        Path(name).write_text("def f(x, positions): return x")
    os.symlink("helper.py", "link.json")
    for target in ("helper.py", "pkg/part.py", "link.json"):
        text = ran(capsys, ["check", "mine.py:f", "-q", "--ticket", target], 2).err
        assert f"--ticket {target!r} is a Python file beside 'mine.py', which may import it" in text
    for free in ("new.py", "a.json"):
        output_files.refuse_clashes({"outputs": (free,), "targets": ("mine.py:f",)})
    output_files.refuse_clashes({"outputs": ("helper.py",), "targets": ("pkg/part.py:f",)})


def test_saved_vectors_do_not_take_the_place_of_weights(tmp_path, capsys) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    weights = str(tmp_path / "model.safetensors")
    assert main(["model", str(tmp_path), "--save-qk", weights]) == 2
    assert main(["model", str(tmp_path), "--save-qk", weights, "-o", str(tmp_path / "x.json")]) == 2
    assert f"--save-qk {weights!r} is one of the files to read" in capsys.readouterr().err
    for more in (["--ticket", weights], ["--junit", weights]):
        assert main(["check", str(tmp_path), "-q", *more]) == 2
    assert "is one of the files to read" in capsys.readouterr().err
    of_a_layer = tmp_path / "q-full_attention.safetensors"
    of_a_layer.write_bytes(b"weights")
    assert main(["model", str(tmp_path), "--save-qk", str(tmp_path / "q.safetensors")]) == 2
    assert f" writes {str(of_a_layer)!r} too, which is one of the files to read" in capsys.readouterr().err
    assert (tmp_path / "model.safetensors").read_bytes() == of_a_layer.read_bytes() == b"weights"


MEETING = {  # options -> the file that both would write
    "-o x.json -o ./x.json": "./x.json",
    "-o x.json -o linked/y/../x.json": "linked/y/../x.json",
    "-o x.json -o {here}/x.json": "{here}/x.json",
    "-o x.json -o hard.json": "hard.json",
    "-o hard.json -o soft.json": "soft.json",
    "-o nowhere.json -o y.json": "y.json",
    "-o x.json --ticket ./x.json": "./x.json",
    "-o x.json --junit soft.json": "soft.json",
    "--junit x.json --ticket hard.json": "hard.json",
    "--junit y.json --ticket nowhere.json": "nowhere.json",
    "-o x.csv -o x.csv.meta.json": "x.csv.meta.json",
    "-o a.csv --ticket b.csv": "b.csv",
    "-o a.csv --ticket a.csv.part": "a.csv.part",
    "-o c.csv": "c.csv.meta.json",
}


@posix
def test_one_file_named_twice_is_refused_whatever_it_is_called(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.json").write_text("old")
    Path("y").mkdir()
    os.link("x.json", "hard.json")
    links = {"soft.json": "x.json", "nowhere.json": "y.json", "b.csv": "a.csv.meta.json", "linked": "."}
    for name, target in (links | {"c.csv.meta.json": "c.csv"}).items():
        os.symlink(target, name)
    before = sorted(os.listdir())
    for words, file in MEETING.items():
        line, file = (text.replace("{here}", str(tmp_path)) for text in (words, file))
        command = ["check", "llama-3.1-8b"] if "--junit" in line else SMALL
        said = ran(capsys, [*command, *line.split()], 2).err
        assert f" both write {file!r}; give one of them another name\n" in said, (line, said)
        assert all(repr(word) in said for word in line.split()[1::2])
    assert sorted(os.listdir()) == before
    assert Path("x.json").read_text() == "old"


def test_names_that_differ_in_case_are_one_file(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for one, other in (("x.json", "X.json"), ("x.csv", "X.CSV.meta.json"), ("stra\u00dfe.md", "STRASSE.md")):
        assert " both write " in ran(capsys, [*SMALL, "-o", one, "-o", other], 2).err
    assert os.listdir() == []
    assert main([*SMALL, "-o", "x.json", "-o", "y.json"]) == 0


def test_a_name_of_the_files_that_runs_clear_is_refused(tmp_path, capsys) -> None:
    path = tmp_path / ".x.csv.abcdefgh.ropeaudit"
    path.write_text("mine")
    more = ["--up-to", "64", "-q", "-o", str(tmp_path / "x.csv"), "--ticket", str(path)]
    assert main(["check", "llama-3.1-8b", "--dtype", "bf16", *more]) == 2
    assert "has a name of ropeaudit's own, which runs remove; give another" in capsys.readouterr().err
    assert path.read_text() == "mine"


# ---------------------------------------------------------------------------- what is there already


def test_circumstances_do_not_take_the_place_of_somebodys_file(tmp_path, capsys) -> None:
    about = tmp_path / "x.csv.meta.json"
    others: list[dict[str, object]] = [
        {"mine": 1},
        {"command": "ropeaudit shift", "environment": {"python": "3.11", "ropeaudit": "0.1.0"}},
        {"csv": "notes"},
        {"command": "ropeaudit shift", "records": []},  # a report
    ]
    for text in ("mine", "[1]", "[" * 100_000, *map(json.dumps, others)):
        about.write_text(text)
        assert main([*SMALL, "-o", str(tmp_path / "x.csv")]) == 2
        assert "is there and not from ropeaudit" in capsys.readouterr().err
        assert about.read_text() == text
        assert os.listdir(tmp_path) == ["x.csv.meta.json"]
    about.unlink()
    for _ in range(2):
        assert main([*SMALL, "-o", str(tmp_path / "x.csv")]) == 0
    assert json.loads(about.read_text())["command"]


def test_metadata_of_an_earlier_run_are_replaced_and_a_report_of_the_same_name_is_not(
    tmp_path, capsys
) -> None:
    path, about = tmp_path / "x.csv", tmp_path / "x.csv.meta.json"
    for command in (SMALL, ["limit", *SIZES, "--recipe", "hf", "--dtype", "fp16", "--up-to", "9"]):
        assert main([*command, "-o", str(path)]) == 0
        assert main([*SMALL, "-o", str(path)]) == 0
    assert main([*SMALL, "-o", str(about)]) == 0  # a JSON report, as was asked for
    report = about.read_bytes()
    assert main([*SMALL, "-o", str(path)]) == 2
    assert (
        f"{str(about)!r} is there and not from ropeaudit as the metadata of a CSV" in capsys.readouterr().err
    )
    assert about.read_bytes() == report


@posix
def test_permissions_of_a_report_stay(tmp_path, monkeypatch, capsys) -> None:
    path = tmp_path / "x.jsonl"
    path.touch(mode=0o600)
    path.chmod(0o640)
    assert main([*SMALL, "-o", str(path)]) == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    before = path.read_bytes()
    monkeypatch.setattr(output_files.os, "access", lambda *_: False)  # root may do everything
    assert main([*SMALL, "-o", str(path)]) == 2
    assert f"-o {str(path)!r} is write-protected; give another place" in capsys.readouterr().err
    assert path.read_bytes() == before


# ---------------------------------------------------------------------------- runs that are broken off


def broken_after(calls: int, patch: pytest.MonkeyPatch, error: BaseException) -> None:
    whole, seen = CaseRun.records, []

    def measure(self, *arguments):
        seen.append(1)
        if len(seen) > calls:
            raise error
        yield from whole(self, *arguments)

    patch.setattr(CaseRun, "records", measure)


MANY = [*SMALL, "--seed", "0-3+1"]  # a task a seed: four of two rows


def timeless(content: bytes) -> list[bytes]:
    """The lines of a file, but for the one of a Markdown report that says when it was written."""
    return [line for line in content.splitlines(keepends=True) if not line.startswith(b"time: ")]


@pytest.mark.parametrize("name", ["x.jsonl", "x.csv", "x.parquet"])
def test_a_finished_report_does_not_shrink(name, tmp_path, capsys) -> None:
    pytest.importorskip("pyarrow")
    path, page = tmp_path / name, tmp_path / "x.html"
    requested = [*MANY, "-o", str(path), "-o", str(page)]
    assert main(requested) == 0
    before = contents(tmp_path)
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        broken_after(1, patch, KeyboardInterrupt())
        assert main(requested) == 130
    message = capsys.readouterr().err
    assert "interrupted: 2 rows done" in message
    assert "written" not in message
    assert f"{str(path)!r}, {str(page)!r} are left as before" in message
    assert f"the rows are in '{path}.part'; the same command with --resume goes on" in message
    part = Path(f"{path}.part")
    assert part.read_bytes().count(b"\n") == 2
    part_bytes = part.read_bytes()
    part.unlink()
    assert contents(tmp_path) == before
    part.write_bytes(part_bytes)
    assert "go on with --resume" in ran(capsys, requested, 2).err
    assert part.read_bytes() == part_bytes
    part.write_bytes(part_bytes + part_bytes[:30])  # torn
    assert main([*requested, "--resume"]) == 0
    assert set(contents(tmp_path)) == set(before)
    if name != "x.parquet":  # which holds the time
        assert timeless(path.read_bytes()) == timeless(before[str(path)])


def test_a_report_that_was_not_there_is_written_when_broken_off(tmp_path, capsys) -> None:
    path, about = tmp_path / "x.csv", tmp_path / "x.csv.meta.json"
    for more, rows in ((), 2), (("--resume",), 4):
        with pytest.MonkeyPatch.context() as patch:
            broken_after(1, patch, KeyboardInterrupt())
            assert main([*MANY, "-o", str(path), *more]) == 130
        message = capsys.readouterr().err
        assert f"interrupted: {rows} rows done" in message
        assert ("and written" in message) == (rows == 2)
        assert path.read_text().count("\n") == 1 + 2
        assert json.loads(about.read_text())["interrupted"] == "after 2 rows"
        # the part has all columns of the rows
        assert sorted(os.listdir(tmp_path)) == ["x.csv", "x.csv.meta.json", "x.csv.part"]
    assert main([*MANY, "-o", str(path), "--resume"]) == 0
    assert main([*MANY, "-o", str(tmp_path / "y.csv")]) == 0
    assert path.read_bytes() == (tmp_path / "y.csv").read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["x.csv", "x.csv.meta.json", "y.csv", "y.csv.meta.json"]


@pytest.mark.parametrize("name", ["x.jsonl", "x.csv", "x.json"])
def test_a_shard_does_not_take_the_place_of_another(name, tmp_path, capsys) -> None:
    path = tmp_path / name
    requested = [*MANY, "-o", str(path)]
    assert main([*requested, "--shard", "1/2"]) == 0
    before = contents(tmp_path)
    for more in ([], ["--resume"]):
        assert f"{str(path)!r} holds " in ran(capsys, [*requested, "--shard", "2/2", *more], 2).err
        assert contents(tmp_path) == before
    assert main([*requested, "--shard", "1/2"]) == 0
    assert main([*requested, "--shard", "1/2", "--resume"]) == 0
    path.write_text("something else\n")
    assert main([*requested, "--shard", "2/2"]) == 0


def test_other_commands_do_not_shrink_a_report_either(tmp_path, capsys, monkeypatch) -> None:
    from ropeaudit.features.limit import analysis as limit

    path = tmp_path / "x.json"
    requested = ["limit", *SIZES, "--recipe", "hf,uniform", "--dtype", "fp16", "--up-to", "100", "-f", "csv"]
    assert main([*requested, "-o", str(path)]) == 0
    before, usual, calls = path.read_bytes(), limit.Search.__iter__, []

    def search(one):
        calls.extend([one] * (one.seq_len > 1))  # the others are of distances
        if one.seq_len > 1 and len(calls) % 2 == 0:
            raise KeyboardInterrupt
        return usual(one)

    monkeypatch.setattr(limit.Search, "__iter__", search)
    capsys.readouterr()
    seen = ran(capsys, [*requested, "-o", str(path)], 130)
    assert f"interrupted: 1 row done; {str(path)!r} is left as before" in seen.err
    assert seen.out.count("\n") == 2
    assert path.read_bytes() == before
    path.unlink()
    assert "interrupted: 1 row done and written\n" in ran(capsys, [*requested, "-o", str(path)], 130).err
    assert len(json.loads(path.read_text())["records"]) == 1


@posix
@pytest.mark.parametrize("number", first_fast([signal.SIGTERM, signal.SIGINT, signal.SIGKILL]))
def test_a_signal_leaves_a_finished_report_as_it_was(number, tmp_path) -> None:
    path, part = tmp_path / "x.jsonl", tmp_path / "x.jsonl.part"
    path.write_text("finished\n")
    more = ["0-99999+1", *SMALL[-3:], "-o", str(path)]
    command = [sys.executable, "-m", "ropeaudit", *SMALL[:-4], *more]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not (part.exists() and part.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(number)
        message = process.communicate(timeout=60)[1]
    assert path.read_text() == "finished\n"
    written = part.read_bytes()
    assert b"}\n" in written
    if number != signal.SIGKILL:  # which may end a write between two pages of memory
        assert written.endswith(b"}\n")
        assert process.returncode == 130
        assert message.count("\n") == 1
        assert f"{str(path)!r} is left as before; the rows are in {str(part)!r}; the same command" in message


@pytest.mark.parametrize(
    ("error", "code"), [(KeyboardInterrupt(), 130), (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), 2)]
)
def test_where_a_report_cannot_be_written_it_is_said_where_the_rows_are(
    error, code, tmp_path, capsys, monkeypatch
) -> None:
    def stop(*_: object) -> None:
        raise error

    path = tmp_path / "x.jsonl"
    path.write_text("finished\n")
    monkeypatch.setattr(output_files.os, "fsync", stop)
    message = ran(capsys, [*SMALL, "-o", str(path)], code).err
    assert f"the rows are in '{path}.part'; the same command with --resume goes on" in message
    assert path.read_text() == "finished\n"
    assert sorted(os.listdir(tmp_path)) == ["x.jsonl", "x.jsonl.part"]
    assert (tmp_path / "x.jsonl.part").read_bytes().count(b"\n") == 2


# ---------------------------------------------------------------------------- links, pipes, devices


@posix
@pytest.mark.parametrize(("name", "there"), [("x.jsonl", True), ("x.csv", False)])
def test_a_link_is_written_through(name, there, tmp_path) -> None:
    real, link = tmp_path / "far" / "real", tmp_path / name
    real.parent.mkdir()
    link.symlink_to(Path("far") / "real")
    if there:
        real.write_text("old")
    assert main([*SMALL, "-o", str(link)]) == 0
    assert main([*SMALL, "-o", str(tmp_path / f"plain-{name}")]) == 0
    assert link.is_symlink()
    assert not real.is_symlink()
    assert real.read_bytes() == (tmp_path / f"plain-{name}").read_bytes()
    assert os.listdir(real.parent) == ["real"]
    with pytest.MonkeyPatch.context() as patch:
        broken_after(1, patch, ValueError())
        assert main([*MANY, "-o", str(link)]) == 3
    assert sorted(os.listdir(real.parent)) == ["real", "real.part"]
    assert main([*MANY, "-o", str(link), "--resume"]) == 0
    assert os.listdir(real.parent) == ["real"]
    assert real.read_bytes().count(b"\n") == 8 + (name == "x.csv")


@posix
@pytest.mark.parametrize("name", ["x.csv", "x"])
def test_a_pipe_is_written_into(name, tmp_path, capfd) -> None:
    pipe, got = tmp_path / name, []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    assert main([*SMALL, "-o", str(pipe)]) == 0
    reader.join(10)
    assert got == [capfd.readouterr().out.encode()]
    assert os.listdir(tmp_path) == [name]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.skipif(not os.path.exists("/dev/tty"), reason="terminals")
def test_a_terminal_that_is_not_there_is_no_pipe_to_wait_for(tmp_path) -> None:
    command = [sys.executable, "-m", "ropeaudit", *SMALL, "-o", "/dev/tty"]
    seen = subprocess.run(command, capture_output=True, text=True, start_new_session=True)
    assert (seen.returncode, seen.stdout) == (2, "")
    reason = os.strerror(errno.ENXIO)
    assert seen.stderr == f"ropeaudit: error: -o '/dev/tty' cannot be written: {reason}; give a file\n"


@posix
def test_devices_are_written_into(tmp_path, capfd) -> None:
    assert main([*SMALL, "-o", "/dev/null"]) == 0
    alone = capfd.readouterr().out
    assert main([*SMALL, "-o", "/dev/stdout"]) == 0
    assert capfd.readouterr().out == alone + alone
    (tmp_path / "x.jsonl").symlink_to("/dev/null")
    assert main([*SMALL, "-o", str(tmp_path / "x.jsonl"), "-o", str(tmp_path / "y.jsonl")]) == 0
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert sorted(os.listdir(tmp_path)) == ["x.jsonl", "y.jsonl"]
    assert not os.path.exists("/dev/null.part")


@posix
def test_rows_are_stored_beside_the_first_file_that_is_no_stream(tmp_path, capsys) -> None:
    path = tmp_path / "x.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        broken_after(1, patch, ValueError())
        assert main([*MANY, "-o", "/dev/null", "-o", str(path)]) == 3
    assert os.listdir(tmp_path) == ["x.jsonl.part"]
    assert main([*MANY, "-o", "/dev/null", "-o", str(path), "--resume"]) == 0
    assert path.read_bytes().count(b"\n") == 8
    capsys.readouterr()
    assert main([*MANY, "-o", "/dev/null", "--resume"]) == 2
    assert "--resume needs the file to go on with" in capsys.readouterr().err


@posix
@pytest.mark.parametrize(
    ("stream", "name", "message"),
    [
        ("stdout", "x.csv", "is the file that stdout goes to; give another name"),
        ("stdout", "x.csv.part", "-o 'x.csv' writes 'x.csv.part' too, which is the file"),
        ("stderr", "x.csv", "-o 'x.csv' is the file that stderr goes to"),
    ],
)
def test_streams_that_go_where_a_file_goes(stream, name, message, tmp_path) -> None:
    line = [sys.executable, "-m", "ropeaudit", *SMALL, "-o"]
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with (tmp_path / name).open("wb") as file:
        seen = subprocess.run([*line, "x.csv"], cwd=tmp_path, **both | {stream: file})
    assert seen.returncode == 2
    written = (tmp_path / name).read_text()
    assert message in (written if stream == "stderr" else seen.stderr.decode())
    assert stream == "stderr" or written == ""
    with (tmp_path / name).open("wb") as file:
        subprocess.run([*line, "/dev/stdout"], cwd=tmp_path, stdout=file, check=True)
    lines = (tmp_path / name).read_text().splitlines()
    assert (len(lines), lines[3:]) == (6, lines[:3])
    assert os.listdir(tmp_path) == [name]


@posix
def test_a_socket_is_no_place_for_a_report(tmp_path, capsys, monkeypatch) -> None:
    import socket

    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("x.csv")
        assert "-o 'x.csv' is no file that can be replaced" in ran(capsys, [*SMALL, "-o", "x.csv"], 2).err
    assert stat.S_ISSOCK(os.stat("x.csv").st_mode)
