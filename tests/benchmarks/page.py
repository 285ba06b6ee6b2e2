"""Write the tables of docs/benchmarks.md anew, from measurements of this machine.

Usage: python tests/benchmarks/page.py [--only startup,memory] [--runs 3]
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import bench_shift

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"
ROPEAUDIT = [str(Path(sys.executable).with_name("ropeaudit"))]  # as it is typed
TORCH = [sys.executable, "-c", "import torch"]
MODEL_TWICE, TESTING = (
    [sys.executable, str(Path(__file__).with_name(name))] for name in ("model_twice.py", "obvious_testing.py")
)
KERNELS = Path(__file__).with_name("kernels.py")
CASE = ["--dtype", "bf16", "--recipe", "hf", "-q"]
Rows = list[tuple[str, str]]


@dataclass(frozen=True)
class Size:
    """How much is measured. runs: of which the least counts. rows: of a page."""

    runs: int = 3
    heads: int = 8
    seq: int = 4096
    long: int = 65536
    sampled: int = 2**20
    sample: int = 100_000
    cells: int = 512
    rows: int = 10_000


TINY = Size(runs=1, heads=1, seq=64, long=128, sampled=256, sample=100, cells=32, rows=20)


def least(size: Size, *commands: list[str]) -> list[bench_shift.Child]:
    """Return the least that each command took, run in turns so that a busy minute hits all."""
    runs = [[bench_shift.run(command) for command in commands] for _ in range(size.runs)]
    return [bench_shift.Child(*map(min, zip(*each, strict=True))) for each in zip(*runs, strict=True)]


def small(cells: int) -> list[str]:
    """Return a sweep of small cells, one offset each."""
    return [*ROPEAUDIT, "shift", *CASE, "--heads", "1", "--offset", f"256-{256 * cells}+256"]


def script(size: Size) -> Rows:
    runs = [bench_shift.compared(size.heads, size.seq) for _ in range(size.runs)]
    ours, theirs, bare = (
        bench_shift.Child(*map(min, zip(*each, strict=True))) for each in zip(*runs, strict=True)
    )
    return [
        ("times as fast as the obvious torch script", f"{theirs.cpu / ours.cpu:.1f}"),
        ("peak memory, share of that script's", f"{ours.memory / theirs.memory:.3f}"),
        ("time over that of the bare float32 products", f"{ours.cpu / bare.cpu:.2f}"),
    ]


def startup(size: Size) -> Rows:
    commands = "--help", "shift --offset 1000 --dtype fp16", "shift"
    torch, *ours = least(size, TORCH, *([*ROPEAUDIT, *one.split()] for one in commands))
    return [
        (f"`ropeaudit {name}`", f"{one.cpu / torch.cpu:.3f}")
        for name, one in zip(commands, ours, strict=True)
    ]


def commands(size: Size) -> Rows:
    tokens = [size.seq // 16, size.seq // 4, size.seq]
    offset = ["--offset", "1000"]
    every = {  # a command and what of it says how many tokens, positions, rows or distances
        "shift": (["shift", *CASE, *offset, "--heads", "1"], "--seq-len={}"),
        "parity": (
            ["parity", "hf", "uniform", "--dtype", "bf16", "-q", *offset, "--heads", "1"],
            "--seq-len={}",
        ),
        "explain": (["explain", *CASE, *offset, "--heads", "1"], "--seq-len={}"),
        "limit": (["limit", *CASE, "--up-to", "2k", "--heads", "1"], "--seq-len={}"),
        "decay": (["decay", *CASE], "--distance=0-{}+1"),
        "check` of a kernel": (["check", f"{KERNELS}:right", "--dtype", "bf16", "-q"], "--up-to={}"),
        "check` of a config": (["check", "{folder}/config.json", "--dtype", "bf16", "-q"], "--up-to={}"),
    }
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        bench_shift.run([*MODEL_TWICE, folder])
        for name, (given, option) in every.items():
            typed = [one.format(folder=folder) for one in given]
            torch, *ours = least(size, TORCH, *([*ROPEAUDIT, *typed, option.format(n)] for n in tokens))
            times = ", ".join(f"{one.cpu / torch.cpu:.2f}" for one in ours)
            shares = ", ".join(f"{one.memory / torch.memory:.2f}" for one in ours)
            rows.append((f"`ropeaudit {name}{'' if '`' in name else '`'}", f"{times}; memory {shares}"))
    return rows


def growth(size: Size) -> Rows:
    heads, seq = size.heads // 2 or 1, size.seq // 4
    every = {
        f"{{}} tokens, {heads} heads of 64 dims, an offset": [
            (n, (heads, n, 64, 1)) for n in (size.seq // 8, size.seq // 4, size.seq // 2, size.seq)
        ],
        f"{{}} heads of {seq:,} tokens and 64 dims, an offset": [
            (n, (n, seq, 64, 1)) for n in (4, 8, 16, 32)
        ],
        f"{{}} dims, {size.heads} heads of {seq:,} tokens, an offset": [
            (n, (size.heads, seq, n, 1)) for n in (32, 64, 128, 256)
        ],
        f"{{}} offsets, {heads} heads of {seq:,} tokens and 64 dims": [
            (n, (heads, seq, 64, n)) for n in (4, 8, 16, 32)
        ],
    }

    def command(heads: int, seq: int, dims: int, offsets: int) -> list[str]:
        sizes = ["--heads", str(heads), "--seq-len", str(seq), "--head-dim", str(dims)]
        return [*ROPEAUDIT, "shift", *CASE, *sizes, "--offset", f"1000-{1000 * offsets}+1000"]

    rows = []
    for what, cases in every.items():
        start, *runs = least(size, command(1, 2, 2, 1), *(command(*case) for _, case in cases))
        times = [one.cpu - start.cpu for one in runs]
        shares = ", ".join(f"{time / times[0]:.1f}" for time in times)
        rows.append((what.format(", ".join(f"{n:,}" for n, _ in cases)), shares))
    return rows


def memory(size: Size) -> Rows:
    shift = [*ROPEAUDIT, "shift", *CASE, "--offset", "1000"]
    one = ["--heads", "1", "--seq-len"]
    torch, default, sampled = least(
        size, TORCH, shift, [*shift, *one, str(size.sampled), "--sample", str(size.sample)]
    )
    whole = bench_shift.run([*shift, *one, str(size.long)])
    share = 100 * whole.memory * 2**20 / (4 * size.long**2)
    return [
        ("8 heads of 256 tokens", f"{default.memory / torch.memory:.2f}"),
        (
            f"a causal head of {size.long:,} tokens, one run",
            f"{whole.memory / torch.memory:.2f}, {share:.1f} % of its matrix in float32",
        ),
        (
            f"{size.sample:,} scores of a head of {size.sampled:,} tokens",
            f"{sampled.memory / torch.memory:.2f}",
        ),
    ]


def testing(size: Size) -> Rows:
    """Compare at sizes of its own, which what they see depends on."""
    few, many = "256", "4096"

    def check(name: str) -> list[str]:
        return [*ROPEAUDIT, "check", f"{KERNELS}:{name}", "--dtype", "bf16", "--up-to", many, "-q"]

    def printed(command: list[str]) -> str:  # a check that fails exits with 1
        return subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True).stdout.strip()

    rows = []
    for name in ("right", "another_base", "narrow_positions", "table_ends", "from_the_first"):
        first, second = (printed([*TESTING, name, positions]) for positions in (few, many))
        found = json.loads(printed([*check(name), "-f", "json"]))["records"]
        codes = [row["diagnosis"] for row in found if row["status"] == "fail"]
        said = f"`{codes[0]}`" if codes else "passes"
        rows.append((f"`{name}`", f"{first} at {few} positions, {second} at {many}; `check`: {said}"))
    theirs, ours = least(size, [*TESTING, "right", many], check("right"))
    return [*rows, ("time of `check` of `right` over that of its test", f"{ours.cpu / theirs.cpu:.1f}")]


def model(size: Size) -> Rows:
    tokens, offset = str(size.seq // 16), ["--offset", "1000"]
    with tempfile.TemporaryDirectory() as folder:
        bench_shift.run([*MODEL_TWICE, folder])
        config = f"{folder}/config.json"
        ours = {
            "check CONFIG": ["check", config, "--dtype", "bf16", "-q"],
            "shift --config CONFIG": ["shift", *CASE, "--config", config, "--seq-len", tokens, *offset],
            "model FOLDER": ["model", folder, "--dtype", "bf16", "-q", *offset, "--tokens", tokens],
        }
        twice, *runs = least(
            size, [*MODEL_TWICE, folder, tokens], *([*ROPEAUDIT, *one] for one in ours.values())
        )
    return [
        (
            f"`ropeaudit {name}`",
            f"{one.cpu / twice.cpu:.2f} of the time, {one.memory / twice.memory:.2f} of the memory",
        )
        for name, one in zip(ours, runs, strict=True)
    ]


def cells(size: Size) -> Rows:
    counts = [size.cells // 16, size.cells // 4, size.cells]
    torch, one, *many = least(size, TORCH, *(small(n) for n in (1, *counts)))
    each = [(run.cpu - one.cpu) / (n - 1) for n, run in zip(counts, many, strict=True)]
    return [
        (
            f"{n:,} cells",
            f"{1000 * time / torch.cpu:.1f} thousandths, {time / each[0]:.2f} of the first row's",
        )
        for n, time in zip(counts, each, strict=True)
    ]


def processes(size: Size) -> Rows:
    few, many, most = small(size.cells // 8), small(size.cells), small(8 * size.cells)
    cluster = ["--scheduler", "local", "--jobs", "1"]
    torch, here, there, long_here, long_there = (
        one.seconds for one in least(size, TORCH, few, [*few, *cluster], many, [*many, *cluster])
    )
    cell = (long_here - here) / (size.cells - size.cells // 8)
    more = ((long_there - long_here) - (there - here)) / (size.cells - size.cells // 8)
    one, two = (run.seconds for run in least(size, most, [*most, "--jobs", "2"]))
    return [
        (f"`--jobs 2`, {8 * size.cells:,} cells: times as fast as `--jobs 1`", f"{one / two:.2f}"),
        ("`--scheduler local --jobs 1`: time of a cell over that without it", f"{1 + more / cell:.2f}"),
        (
            f"the same: more for {size.cells // 8:,} cells, the cluster's start included",
            f"{(there - here) / torch:.1f} times `import torch`",
        ),
    ]


def page(size: Size) -> Rows:
    with tempfile.TemporaryDirectory() as folder:
        rows, built = Path(folder) / "rows.jsonl", Path(folder) / "page.html"
        bench_shift.run([*small(1), "-o", str(rows)])
        row = json.loads(rows.read_text(encoding="utf-8").splitlines()[-1])
        lines = (json.dumps(row | {"offset": n, "drift_rms": (n + 1) / 1e6}) for n in range(size.rows))
        rows.write_text("\n".join(lines) + "\n", encoding="utf-8")
        torch, run = least(size, TORCH, [*ROPEAUDIT, "report", str(rows), "-q", "-o", str(built)])
        return [
            (
                f"`ropeaudit report` of {size.rows:,} rows",
                f"{run.cpu / torch.cpu:.1f} of the time, {run.memory / torch.memory:.1f} of the memory",
            ),
            ("the page over the rows in JSON lines", f"{built.stat().st_size / rows.stat().st_size:.2f}"),
        ]


SECTIONS: dict[str, Callable[[Size], Rows]] = {
    section.__name__: section
    for section in (script, testing, model, startup, commands, memory, growth, cells, processes, page)
}


def machine() -> str:
    """Return the processor, its cores, and versions."""
    from ropeaudit.runtime.run_metadata import threads

    info = Path("/proc/cpuinfo")
    result = re.search(r"model name\s*: (.*)", info.read_text(encoding="utf-8")) if info.exists() else None
    name = result[1] if result else platform.processor() or platform.machine()
    versions = ", ".join(f"{package} {metadata.version(package)}" for package in ("numpy", "torch"))
    return f"{name}, {threads()} cores, Python {platform.python_version()}, {versions}"


def table(rows: Rows, size: Size) -> str:
    """Return a section's table and the circumstances that hold for it."""
    lines = ["| what | measured |", "| --- | --- |", *(f"| {what} | {figure} |" for what, figure in rows)]
    runs = "One run" if size.runs == 1 else f"The least of {size.runs} runs"
    return "\n".join([*lines, "", f"{runs} on {machine()}.", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, separated by commas")
    parser.add_argument("--runs", type=int, default=Size.runs)
    options = parser.parse_args()
    size = Size(runs=options.runs)
    for name in options.only.split(","):
        built = f"<!-- measured: {name} -->\n{table(SECTIONS[name](size), size)}<!-- end -->"
        print(built, flush=True)
        pattern = re.compile(rf"<!-- measured: {name} -->\n.*?<!-- end -->", re.DOTALL)
        text, count = pattern.subn(lambda _, built=built: built, PAGE.read_text(encoding="utf-8"))
        if count != 1:
            sys.exit(f"{PAGE.name} has no place for {name}")
        PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
