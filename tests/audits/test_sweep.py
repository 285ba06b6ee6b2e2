"""Sweeps last: killed, torn, filled up, shared out or sharded, they end in the same bytes."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
from command_line import ran

from ropeaudit import merge
from ropeaudit.audits import cases, records
from ropeaudit.audits.case_run import CaseRun
from ropeaudit.audits.cases import Case
from ropeaudit.audits.sweep import Audit, Sweep
from ropeaudit.console import sweep_file
from ropeaudit.engine.plan import AttentionOptions
from ropeaudit.errors import BadInput
from ropeaudit.main import main
from ropeaudit.reports import reading
from ropeaudit.runtime import atomic_files

SIZES = ["--heads", "1", "--head-dim", "8", "--seq-len", "9,12"]
SMALL = ["shift", *SIZES, "--recipe", "hf,uniform", "--dtype", "fp64,fp16", "--offset", "0,7,-3,131072"]
# 1,600 cells, and as many columns as the rows that are stored have
MANY = ["shift", *SIZES, "--recipe", "hf,uniform", "--dtype", "bf16,fp16", "--columns", "all"]
MANY += ["--offset", "0-199+1"]
CELLS = 32
QUIET = ["-q", "-f", "csv"]  # a table takes longer than the rows of such small cells
posix = pytest.mark.skipif(os.name != "posix", reason="signals and spawned processes")


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """The folder where an uninterrupted run of SMALL wrote its files."""
    folder = tmp_path_factory.mktemp("whole")
    assert main([*SMALL, *QUIET, "-o", str(folder / "x.jsonl"), "-o", str(folder / "x.csv")]) == 0
    return folder


@pytest.fixture(scope="module")
def many(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("many")
    assert main([*MANY, *QUIET, "-o", str(folder / "x.jsonl")]) == 0
    return folder / "x.jsonl"


def run(folder: Path, *more: str, code: int = 0, base=SMALL, name: str = "x.jsonl") -> Path:
    assert main([*base, *QUIET, "-o", str(folder / name), *more]) == code
    return folder / name


def same(one: Path, other: Path) -> bool:
    return one.read_bytes() == other.read_bytes()


# ---------------------------------------------------------------------------- the plan


@pytest.mark.parametrize(
    "case",
    [
        {},
        {"qk": "ones", "seed": 3},
        {"qk": "previous", "seed": 3, "seq_len": 40},
        {"sample": 7, "qk": "ones"},
        {"scaling": "dynamic:factor=4,maximum=16", "length": "shifted"},
        {"clip": 20.0, "heads": 2, "kv_heads": 1},
        {"mrope": "2,1,1", "axis": "h", "mask": "window:3"},
        {"model": "llama-3.1-8b", "seed": 2},
        {"model": "llama-3.1-8b", "head_dim": 8},
    ],
)
@pytest.mark.parametrize("attention", [None, AttentionOptions()])
def test_the_plan_knows_what_the_rows_will_be(case, attention) -> None:
    if attention and case.get("sample"):
        return
    requested = Case(**({"heads": 1, "seq_len": 9, "head_dim": 8} | ({} if "model" in case else case)))
    if "model" in case:
        requested = Case(**({"heads": 1, "kv_heads": 1, "seq_len": 9} | case))
    audit = Audit([requested], ["hf", "uniform"], ["fp32", "bf16"], [5, 0, 77], attention=attention)
    assert [cell.key for cell in Sweep(audit).cells] == [row.key() for row in audit.run(1)]


def test_an_offset_that_is_asked_for_twice_is_measured_once() -> None:
    audit = Audit([Case(heads=1, seq_len=9, head_dim=8)], ["hf"], ["bf16"], [7, np.int64(0), 7, 0])
    assert audit.offsets == (7, 0)
    assert [row.offset for row in audit.run(1)] == [cell.offset for cell in Sweep(audit).cells] == [7, 0]


def test_a_plan_makes_no_vectors(monkeypatch) -> None:
    monkeypatch.setattr(Case, "load", None)
    sizes = Case(heads=64, seq_len=4096, seed=5)
    assert Sweep(Audit([sizes])).cells[0].scores == 64 * 4096 * 4097 // 2
    long = Case(heads=64, seq_len=2**20, sample=10)
    assert dict(zip(records.IDENTITY, Sweep(Audit([long])).cells[0].identity, strict=True))["source"] == (
        "gaussian-by-row"
    )


def test_rows_do_not_depend_on_what_is_measured_with_them() -> None:
    cases = [Case(heads=2, seq_len=530, head_dim=8, seed=seed) for seed in (0, 1)]
    audit = Audit(cases, ["hf", "uniform"], ["fp64", "bf16"], [7, 1000], attention=AttentionOptions())
    together = list(map(repr, audit.run(2)))
    sweep = Sweep(audit)
    for number in range(len(sweep.cells)):
        sweep.done = dict.fromkeys(set(range(len(sweep.cells))) - {number})  # type: ignore[arg-type]
        [row] = sweep.run(threads=1)
        assert repr(row) == together[number]


# ---------------------------------------------------------------------------- the file


@pytest.mark.parametrize("name", ["x.jsonl", "x.csv"])
def test_a_finished_sweep_is_read_and_nothing_measured(name, whole, tmp_path, monkeypatch) -> None:
    (tmp_path / name).write_bytes((whole / name).read_bytes())
    monkeypatch.setattr(CaseRun, "records", None)
    assert same(run(tmp_path, "--resume", name=name), whole / name)


@pytest.mark.parametrize("stored", [0, 1, 13, CELLS - 1])
def test_a_torn_file_is_completed(stored, whole, tmp_path) -> None:
    path = str(whole / "x.jsonl")
    rows = [sweep_file.line_of(row) for row in reading.records_of(path, reading.read(path))]
    random.Random(stored).shuffle(rows)
    (tmp_path / "x.jsonl.part").write_bytes(b"".join(rows[:stored]) + rows[stored][:40])
    assert same(run(tmp_path, "--resume"), whole / "x.jsonl")
    assert not (tmp_path / "x.jsonl.part").exists()


def test_a_sweep_is_extended_by_what_is_missing(whole, tmp_path, monkeypatch) -> None:
    run(tmp_path, base=[*SMALL[:-1], "0,7"])
    calls, usual = [], CaseRun.records

    def measure(self, wanted):
        calls.append({offset for _, offset in wanted})
        return usual(self, wanted)

    monkeypatch.setattr(CaseRun, "records", measure)
    assert same(run(tmp_path, "--resume"), whole / "x.jsonl")
    assert calls
    assert set().union(*calls) == {-3, 131072}


@pytest.mark.parametrize("how", ["nothing", "half a line"])
@pytest.mark.parametrize("after", [0, 5])
def test_a_full_disk_loses_no_row(
    how,
    after,
    whole,
    tmp_path,
    capsys,
    monkeypatch,
) -> None:
    usual, writes = os.write, []
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def write(number: int, line: bytes) -> int:
        writes.append(line)
        if len(writes) <= after:
            return usual(number, line)
        if how == "nothing" or len(writes) > after + 1:
            raise full
        return usual(number, line[:17])

    def fill(file: IO[bytes], content: bytes, target: Path, fill: Any = atomic_files.fill) -> None:
        if target.name == "x.jsonl":
            raise full
        fill(file, content, target)

    monkeypatch.setattr(sweep_file.os, "write", write)
    monkeypatch.setattr(atomic_files, "fill", fill)
    run(tmp_path, "-o", str(tmp_path / "y.jsonl"), code=2)
    monkeypatch.undo()
    assert same(tmp_path / "y.jsonl", whole / "x.jsonl")
    message = capsys.readouterr().err
    assert ("the rows in it are whole" if after else "no row is stored") in message
    part = tmp_path / "x.jsonl.part"
    assert part.exists() == bool(after)
    if after:
        assert part.read_bytes() == b"".join(writes[:after])
        assert "the rows that fitted are in" in message
    assert same(run(tmp_path, "--resume"), whole / "x.jsonl")


def test_what_is_not_this_sweep_is_refused(whole, tmp_path, capsys) -> None:
    def refused(text: bytes, fragment: str, name: str = "x.jsonl", *more: str) -> None:
        path = tmp_path / name
        path.write_bytes(text)
        asked = ["-o", str(tmp_path / name.removesuffix(".part")), "--resume", *more]
        assert main([*SMALL, *QUIET, *asked]) == 2
        assert fragment in capsys.readouterr().err
        assert path.read_bytes() == text
        path.unlink()

    rows = (whole / "x.jsonl").read_bytes()
    strange = rows.replace(b'"offset": 7,', b'"offset": 8,')
    refused(strange, "x.jsonl' holds 8 rows of another sweep, such as hf float64 at offset 8")
    refused(b"what\n", "is not a report of ropeaudit")
    refused(b"what\n", "does not hold rows of this version", "x.jsonl.part")
    refused(b"offset,implementation\n1,hf\n", "lacks the column 'dtype'", "x.csv")
    refused(b"# a\n", "--resume reads .csv, .json and .jsonl", "x.md")


def test_too_many_jobs_for_the_memory_are_named(monkeypatch, capsys) -> None:
    monkeypatch.setattr("ropeaudit.runtime.run_metadata.free_bytes", lambda: 2**30)
    cases.check_memory(2**30)  # of one
    assert "GiB are free; give fewer --jobs\n" in ran(capsys, [*SMALL, "--jobs", "100", "--dry-run"], 2).err


def test_an_empty_file_is_gone_on_with(whole, tmp_path) -> None:
    for name in ("x.jsonl", "x.csv"):
        (tmp_path / name).write_bytes(b"")  # a machine died
        assert same(run(tmp_path, "--resume", name=name), whole / name)


# ---------------------------------------------------------------------------- dry runs, shards, merging


def test_dry_run(capsys, snapshot) -> None:
    assert ran(capsys, [*SMALL, "--dry-run"]).out == snapshot


def test_a_dry_run_counts_what_is_done_and_writes_nothing(whole, tmp_path, capsys) -> None:
    lines = (whole / "x.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "x.jsonl").write_bytes(b"".join(lines[:10]))
    assert main([*SMALL, "-o", str(tmp_path / "x.jsonl"), "--resume", "--dry-run"]) == 0
    assert f"{CELLS} cells, 10 are done and {CELLS - 10} are to be measured" in capsys.readouterr().out
    assert (tmp_path / "x.jsonl").read_bytes() == b"".join(lines[:10])
    assert os.listdir(tmp_path) == ["x.jsonl"]


@pytest.mark.parametrize("name", ["x.jsonl", "x.csv"])
def test_merged_shards_are_the_whole(name, whole, tmp_path) -> None:
    shards = [run(tmp_path, "--shard", f"{number}/3", name=f"{number}-{name}") for number in (1, 2, 3)]
    assert main(["report", *map(str, shards), str(shards[1]), "-q", "-o", str(tmp_path / name)]) == 0
    assert same(tmp_path / name, whole / name)


def test_a_shard_may_be_empty(tmp_path) -> None:
    shards = [run(tmp_path, "--shard", f"{k}/70", base=SMALL, name=f"{k}.jsonl") for k in (1, 2, 3)]
    assert [len(path.read_text().splitlines()) for path in shards].count(0) > 0
    assert main(["report", *map(str, shards), "-q", "-f", "csv"]) == 0


def test_merge_refuses_what_contradicts_itself(whole, tmp_path, capsys) -> None:
    other = tmp_path / "other.jsonl"
    rows = [json.loads(line) for line in (whole / "x.jsonl").read_text().splitlines()]
    rows[3]["drift_rms"] = 7.0
    other.write_text("".join(json.dumps(row) + "\n" for row in rows))
    both = ["report", str(whole / "x.jsonl"), str(other)]
    for more in (["-f", "csv"], ["-o", str(tmp_path / "both.jsonl")]):
        message = ran(capsys, [*both, *more], 2).err
        assert "two different rows of the same cell: hf float64 at offset 131072" in message
        assert f"in {both[1]!r} and {both[2]!r}; leave out one of the files" in message
    assert not (tmp_path / "both.jsonl").exists()
    with pytest.raises(BadInput, match="two different rows of the same cell"):
        merge(both[1:])
    assert main(["report", str(tmp_path / "none.csv")]) == 2
    capsys.readouterr()
    (tmp_path / "few.csv").write_text("implementation,offset\nhf,1\n")
    assert main(["report", both[1], str(tmp_path / "few.csv"), "-f", "csv"]) == 2
    assert "lacks the column 'dtype'; write it again without --columns" in capsys.readouterr().err


def test_merge_takes_a_row_from_the_file_that_can_hold_it(tmp_path) -> None:
    # overflows: its bound is infinite
    wide = ["shift", *SIZES, "--dtype", "fp16", "--offset", "100000", "--columns", "core,bounds"]
    files = [str(run(tmp_path, base=wide, name=name)) for name in ("x.json", "x.csv")]
    assert "inf" in Path(files[1]).read_text()
    for order in (files, files[::-1]):
        assert main(["report", *order, "-q", "-o", str(tmp_path / "both.csv")]) == 0
        assert same(tmp_path / "both.csv", tmp_path / "x.csv")


# ---------------------------------------------------------------------------- processes


@posix
def test_two_processes_give_the_same_bytes(whole, tmp_path) -> None:
    assert same(run(tmp_path, "--jobs", "2"), whole / "x.jsonl")


# ---------------------------------------------------------------------------- killed runs


@posix
@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("--jobs", "2")])
def test_runs_that_are_killed_again_and_again_are_resumed(more, many, tmp_path) -> None:
    chance, path, part = random.Random(1), tmp_path / "x.jsonl", tmp_path / "x.jsonl.part"
    command, kills = [sys.executable, "-m", "ropeaudit", *MANY, *QUIET, "-o", path, "--resume", *more], 0
    while kills < 6:
        before = part.read_bytes() if part.exists() else b""
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True) as process:
            deadline = time.monotonic() + 60
            while process.poll() is None and time.monotonic() < deadline:
                with contextlib.suppress(FileNotFoundError):  # until the first row, and once all are reported
                    if part.stat().st_size > len(before):
                        time.sleep(chance.uniform(0, 0.1))
                        break
                time.sleep(0.005)
            done = process.poll() is not None
            os.killpg(process.pid, signal.SIGKILL) if not done else None
        kills += not done
        if process.returncode == 0 or path.exists():
            assert same(path, many)
            path.unlink()
            part.unlink(missing_ok=True)
            continue
        lines, _, _ = part.read_bytes().rpartition(b"\n")  # what is behind is a torn row
        assert lines.startswith(before.rpartition(b"\n")[0])  # no row is lost
        rows = [json.loads(line) for line in lines.splitlines()]
        keys = [tuple(row[name] for name in records.IDENTITY) for row in rows]
        assert len(set(keys)) == len(keys)  # nothing is there twice
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    assert same(path, many)


@pytest.mark.slow  # processes
@posix
def test_no_worker_outlives_a_killed_run(tmp_path) -> None:
    psutil = pytest.importorskip("psutil")
    command = [sys.executable, "-m", "ropeaudit", *MANY[:-1], "0-9999+1", *QUIET, "--jobs", "2"]
    with subprocess.Popen([*command, "-o", str(tmp_path / "x.jsonl")], stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 30
        while not (tmp_path / "x.jsonl.part").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        children: list = []
        while len(children) < 3 and time.monotonic() < deadline:  # two workers and a tracker of resources
            children = psutil.Process(process.pid).children(recursive=True)
            time.sleep(0.05)
        time.sleep(1.0)
        process.kill()
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive


LOCAL = ("--scheduler", "local")


@posix
@pytest.mark.parametrize(
    ("more", "wait", "times"),
    [
        ((), 0.0, 1),
        pytest.param((), 0.2, 1, marks=pytest.mark.slow),
        *(pytest.param(LOCAL, *one, marks=pytest.mark.slow) for one in ((0.5, 1), (1.5, 2), (3.0, 1))),
    ],
)
def test_ctrl_c_while_workers_start_is_one_line(more, wait, times, tmp_path) -> None:
    if more:
        pytest.importorskip("distributed")
    command = [sys.executable, "-m", "ropeaudit", *MANY[:-1], "0-9999+1", *QUIET, "--jobs", "2", *more]
    part = tmp_path / "x.jsonl.part"
    with subprocess.Popen(
        [*command, "-o", str(tmp_path / "x.jsonl")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    ) as process:
        deadline = time.monotonic() + 60
        while not part.exists() and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(wait)
        for _ in range(times):
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers too
            time.sleep(0.2 * (times - 1))
        message = process.communicate(timeout=120)[1]
    assert process.returncode == 130 or (times > 1 and process.returncode == -signal.SIGINT)  # as bash sees
    message = message.removeprefix("\n")  # behind the terminal's ^C, while the command line is still read
    assert "interrupted" in message
    assert "Traceback" not in message
    if not more:
        assert message.startswith("ropeaudit: interrupted")
        assert message.count("\n") == 1


# ---------------------------------------------------------------------------- documentation


@posix
def test_the_job_array_of_the_docs_runs(whole, tmp_path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "sweeps.md").read_text(encoding="utf-8")
    section = page.partition("## A job array")[2]
    job, merging = (block.partition("```")[0] for block in section.split("```bash\n")[1:3])
    requested = "--model all --recipe hf,vllm-cuda --dtype fp16,bf16 --offset 0,1k-1m*4"
    assert requested in job
    job = job.replace(requested, " ".join(SMALL[1:])).replace("1-16", "1-3").replace("/16", "/3")
    shell = f'set -e; ropeaudit() {{ "{sys.executable}" -m ropeaudit "$@"; }}; '
    for number in ("1", "2", "3"):
        again = os.environ | {"SLURM_ARRAY_TASK_ID": number}
        subprocess.run(["bash", "-c", shell + job], cwd=tmp_path, env=again, check=True, capture_output=True)
    subprocess.run(["bash", "-c", shell + merging], cwd=tmp_path, check=True, capture_output=True)
    rows = [json.loads(line) for line in (tmp_path / "sweep.jsonl").read_text().splitlines()]
    assert rows == [json.loads(line) for line in (whole / "x.jsonl").read_text().splitlines()]
