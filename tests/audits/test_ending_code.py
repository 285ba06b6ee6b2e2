"""Code that ends its process, or never returns, is refused rows: it stops no other."""

import csv
import os
from pathlib import Path

import pytest
from command_line import ran

from ropeaudit.main import main

KERNELS = Path(__file__).parents[1] / "kernels" / "audits" / "kernels_apart.py"
SMALL = ["--heads", "1", "--seq-len", "16", "--head-dim", "16", "--offset", "0,7", "-q"]
posix = pytest.mark.skipif(os.name != "posix", reason="signals")


def rows(path: Path) -> dict[tuple[str, str], list[dict[str, str]]]:
    results: dict[tuple[str, str], list[dict[str, str]]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            results.setdefault((row["implementation"].rpartition(":")[2], row["dtype"]), []).append(row)
    return results


@posix
@pytest.mark.parametrize("jobs", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_a_process_that_ends_is_refused_rows(jobs, tmp_path, capsys) -> None:
    out, names = tmp_path / "x.csv", [f"{KERNELS}:right", f"{KERNELS}:dies"]
    line = ["shift", "--impl", ",".join(names), "--recipe", "hf", "--dtype", "fp32,bf16", *SMALL]
    assert main([*line, "--jobs", jobs, "-o", f"{out}"]) == 0
    found = rows(out)
    assert list(found) == [(name, fmt) for name in ("hf", "right", "dies") for fmt in ("float32", "bfloat16")]
    for (name, _), some in found.items():
        assert [row["offset"] for row in some] == ["0", "7"]
        assert {row["refused"] for row in some} == {"raises" if name == "dies" else ""}
        assert {row["verdict"] == "refused" for row in some} == {name == "dies"}
    assert "SIGKILL" in capsys.readouterr().out
    plain = tmp_path / "plain.csv"
    assert main(["shift", "--impl", names[0], "--dtype", "fp32,bf16", *SMALL, "-o", f"{plain}"]) == 0
    assert rows(plain) == {key: some for key, some in found.items() if key[0] == "right"}


@pytest.mark.parametrize(
    ("command", "bad"),
    [("limit", "raise RuntimeError('no')"), ("shift", "def f(x, positions): raise SystemExit(3)")],
)
def test_code_that_cannot_be_called_loses_no_other_row(command, bad, tmp_path, capsys) -> None:
    (tmp_path / "bad.py").write_text(bad)
    names, at = [f"{tmp_path}/bad.py:f", f"{KERNELS}:right"], ["--offset", "7", "--order", "bhsd"]
    line = [command, "--dtype", "fp32", "-o", f"{tmp_path}/x.csv", *SMALL[:-3], "-q"]
    line += at if command == "shift" else ["--up-to", "4"]
    assert main([*line, "--impl", names[0]]) == 2
    assert not (tmp_path / "x.csv").exists()
    assert "error: " in ran(capsys, [*line, "--impl", ",".join(names)], 2).err
    with (tmp_path / "x.csv").open(encoding="utf-8") as file:
        [first, second] = csv.DictReader(file)
    assert (first["implementation"], second["implementation"]) == tuple(names)
    if command == "shift":
        assert (first["refused"], second["refused"]) == ("uncalled", "")


@posix
def test_what_never_returns_is_ended(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setenv("ROPEAUDIT_TIMEOUT", "2")
    out = tmp_path / "x.csv"
    assert main(["shift", "--impl", f"{KERNELS}:hangs", "--dtype", "fp32", *SMALL, "-o", f"{out}"]) == 0
    [(_, some)] = rows(out).items()
    assert {row["refused"] for row in some} == {"raises"}
    assert "has not returned after 2 s" in capsys.readouterr().out
