"""Many implementations, each in a process of its own: nobody's crash or sleep stops the others."""

import csv
import os
from pathlib import Path

import pytest
from optional import needs

from ropeaudit.audits import workers
from ropeaudit.audits.audit import Audit
from ropeaudit.audits.cases import Case
from ropeaudit.audits.cells import Task, by_implementation
from ropeaudit.audits.sweep import Sweep
from ropeaudit.main import main
from ropeaudit.subjects import third_party

KERNELS = Path(__file__).parents[1] / "kernels" / "audits" / "kernels_apart.py"
SMALL = ["--heads", "1", "--seq-len", "16", "--head-dim", "16", "--offset", "0,7", "-q"]
posix = pytest.mark.skipif(os.name != "posix", reason="spawned processes")


@pytest.fixture
def apart(monkeypatch):
    """Let own code be what "all" stands for; return its names."""
    names = [f"{KERNELS}:{name}" for name in ("right", "dies")]
    monkeypatch.setattr(Audit, "apart", lambda audit: [n for n in audit.implementations if str(KERNELS) in n])
    return names


def rows(path: Path) -> dict[tuple[str, str], list[dict[str, str]]]:
    results: dict[tuple[str, str], list[dict[str, str]]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            results.setdefault((row["implementation"].rpartition(":")[2], row["dtype"]), []).append(row)
    return results


@pytest.mark.slow  # processes
@posix
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_process_that_ends_is_refused_rows(apart, jobs, tmp_path, capsys) -> None:
    out = tmp_path / "x.csv"
    line = ["shift", "--impl", ",".join(apart), "--recipe", "hf", "--dtype", "fp32,bf16", *SMALL]
    assert main([*line, "--jobs", jobs, "-o", f"{out}"]) == 0
    found = rows(out)
    assert list(found) == [(name, fmt) for name in ("hf", "right", "dies") for fmt in ("float32", "bfloat16")]
    for (name, _), some in found.items():
        assert [row["offset"] for row in some] == ["0", "7"]
        refused = "raises" if name == "dies" else ""
        assert {row["refused"] for row in some} == {refused}
        assert {row["verdict"] == "refused" for row in some} == {name == "dies"}
    assert "its process ended with signal 9" in capsys.readouterr().out
    plain = tmp_path / "plain.csv"
    assert main(["shift", "--impl", apart[0], "--dtype", "fp32,bf16", *SMALL, "-o", f"{plain}"]) == 0
    assert rows(plain) == {key: some for key, some in found.items() if key[0] == "right"}


@pytest.mark.slow  # processes
@posix
def test_what_never_returns_is_ended(apart, monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setattr(workers, "PATIENCE", 15.0)
    monkeypatch.setattr(Audit, "apart", lambda audit: [f"{KERNELS}:hangs"])
    out = tmp_path / "x.csv"
    assert main(["shift", "--impl", f"{KERNELS}:hangs", "--dtype", "fp32", *SMALL, "-o", f"{out}"]) == 0
    [(_, some)] = rows(out).items()
    assert {row["refused"] for row in some} == {"raises"}
    assert "took longer than 15 s, and was ended" in capsys.readouterr().out


@pytest.mark.slow  # processes
@posix
def test_refused_rows_are_rows_of_a_sweep(apart, tmp_path) -> None:
    """A run that goes on measures what is missing and keeps what was refused."""
    out = tmp_path / "x.csv"
    line = ["shift", "--impl", ",".join(apart), "--dtype", "fp32", *SMALL, "-o", f"{out}"]
    assert main(line) == 0
    whole = out.read_text(encoding="utf-8")
    out.write_text("".join(whole.splitlines(keepends=True)[:2]), encoding="utf-8")
    assert main([*line, "--resume"]) == 0
    assert out.read_text(encoding="utf-8") == whole


def test_tasks_of_an_implementation_stay_together(apart) -> None:
    cases = [Case(heads=1, seq_len=8, head_dim=8), Case(heads=1, seq_len=9, head_dim=8)]
    audit = Audit(cases, ("hf",), ("fp32", "bf16"), (0, 1), implementations=[apart[0]])
    tasks = Sweep(audit).tasks(apart=apart)
    assert {task.alone for task in tasks} == {"", apart[0]}
    (unit,) = by_implementation(tasks)
    assert sum(len(task.cells) for task in unit) == 8
    own, moved = workers._by_itself(audit, unit)
    assert own.implementations == (apart[0],)
    assert {index for task in moved for index in task.factories} == {0, 1}


@pytest.mark.slow  # processes
@needs("transformers")
def test_only_one_of_many_is_apart() -> None:
    pattern = "transformers:llama*"
    audit = Audit(recipes=(), implementations=[pattern, "transformers:llama"])
    names = [name for name, _ in third_party.expanded([pattern])]
    assert "transformers:llama" in names
    assert audit.apart() == [name for name in names if name != "transformers:llama"]
    assert Audit(recipes=(), implementations=["transformers:llama"]).apart() == []

    def stop(tasks: list[Task]) -> None:
        planned.append({task.alone for task in tasks})
        raise InterruptedError

    planned: list[set[str]] = []
    for isolated in (False, True):  # a call from Python starts no process
        with pytest.raises(InterruptedError):
            next(Sweep(audit).run(isolated=isolated, on_plan=stop))
    assert planned == [{""}, {"", *audit.apart()}]
