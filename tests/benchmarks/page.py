"""Write the tables of docs/benchmarks.md anew, from measurements of this machine.

Usage: python tests/benchmarks/page.py [--only startup,memory] [--runs 3]
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from statistics import median

import bench_shift

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"
ROPEAUDIT = [str(Path(sys.executable).with_name("ropeaudit"))]  # as it is typed
CASE = ["--dtype", "bf16", "--recipe", "hf", "-q"]
Rows = list[tuple[str, str]]


@dataclass(frozen=True)
class Size:
    """How much is measured: runs for a median, heads and tokens, scores, cells of a sweep, rows of a page."""

    runs: int = 3
    heads: int = 8
    seq: int = 4096
    long: int = 65536
    sampled: int = 2**20
    sample: int = 100_000
    cells: int = 512
    rows: int = 10_000


TINY = Size(runs=1, heads=1, seq=64, long=128, sampled=256, sample=100, cells=32, rows=20)


def middle(size: Size, measure: Callable[[], bench_shift.Child]) -> bench_shift.Child:
    """Return the medians of several runs."""
    return bench_shift.Child(*map(median, zip(*(measure() for _ in range(size.runs)), strict=True)))


def ratio(size: Size, one: list[str], other: list[str], field: str) -> float:
    """Return the median of one's share of other, both run in turns so that a busy minute hits both."""
    runs = ((bench_shift.run(one), bench_shift.run(other)) for _ in range(size.runs))
    return median(getattr(a, field) / getattr(b, field) for a, b in runs)


def small(cells: int) -> list[str]:
    """Return a sweep of small cells, one offset each."""
    return [*ROPEAUDIT, "shift", *CASE, "--heads", "1", "--offset", f"256-{256 * cells}+256"]


def script(size: Size) -> Rows:
    runs = [bench_shift.compared(size.heads, size.seq) for _ in range(size.runs)]
    fast, share, bare = (median(values) for values in zip(*runs, strict=True))
    return [
        ("times as fast as the obvious torch script", f"{fast:.1f}"),
        ("peak memory, share of that script's", f"{share:.3f}"),
        ("time over that of the bare float32 products", f"{bare:.2f}"),
    ]


def startup(size: Size) -> Rows:
    torch = [sys.executable, "-c", "import torch"]
    commands = "--help", "shift --offset 1000 --dtype fp16", "shift"
    return [
        (f"`ropeaudit {one}`", f"{ratio(size, [*ROPEAUDIT, *one.split()], torch, 'cpu'):.3f}")
        for one in commands
    ]


def growth(size: Size) -> Rows:
    def cpu(heads: int, seq: int, dims: int) -> float:
        sizes = ["--heads", str(heads), "--seq-len", str(seq), "--head-dim", str(dims)]
        return middle(
            size, lambda: bench_shift.run([*ROPEAUDIT, "shift", *CASE, "--offset", "1000", *sizes])
        ).cpu

    start, seq = cpu(1, 2, 2), size.seq // 4
    every = {
        f"{{}} tokens, {size.heads // 2 or 1} heads of 64 dims": [
            (n, (size.heads // 2 or 1, n, 64))
            for n in (size.seq // 8, size.seq // 4, size.seq // 2, size.seq)
        ],
        f"{{}} heads of {seq:,} tokens and 64 dims": [(n, (n, seq, 64)) for n in (4, 8, 16, 32)],
        f"{{}} dims, {size.heads} heads of {seq:,} tokens": [
            (n, (size.heads, seq, n)) for n in (32, 64, 128, 256)
        ],
    }
    rows = []
    for what, cases in every.items():
        times = [cpu(*case) - start for _, case in cases]
        shares = ", ".join(f"{time / times[0]:.1f}" for time in times)
        rows.append((what.format(", ".join(f"{n:,}" for n, _ in cases)), f"{times[0]:.2f} s times {shares}"))
    return rows


def memory(size: Size) -> Rows:
    shift = [*ROPEAUDIT, "shift", *CASE, "--offset", "1000"]
    one = ["--heads", "1", "--seq-len"]
    default = middle(size, lambda: bench_shift.run(shift))
    whole = bench_shift.run([*shift, *one, str(size.long)])
    sampled = middle(
        size, lambda: bench_shift.run([*shift, *one, str(size.sampled), "--sample", str(size.sample)])
    )
    share = 100 * whole.memory * 2**20 / (4 * size.long**2)
    return [
        ("8 heads of 256 tokens", f"{default.memory:.0f} MiB"),
        (
            f"a causal head of {size.long:,} tokens, one run ({whole.seconds:.0f} s)",
            f"{whole.memory:.0f} MiB, {share:.1f} % of its matrix in float32",
        ),
        (
            f"{size.sample:,} scores of a head of {size.sampled:,} tokens ({sampled.seconds:.0f} s)",
            f"{sampled.memory:.0f} MiB",
        ),
    ]


def cells(size: Size) -> Rows:
    counts = [size.cells // 16, size.cells // 4, size.cells]
    one = middle(size, lambda: bench_shift.run(small(1))).cpu
    many = [middle(size, lambda n=n: bench_shift.run(small(n))).cpu for n in counts]
    each = [1000 * (cpu - one) / (n - 1) for n, cpu in zip(counts, many, strict=True)]
    return [
        (f"{n:,} cells", f"{ms:.1f} ms a cell, {ms / each[0]:.2f} of the first row's")
        for n, ms in zip(counts, each, strict=True)
    ]


def processes(size: Size) -> Rows:
    few, many = small(size.cells // 8), small(size.cells)
    cluster = ["--scheduler", "local", "--jobs", "1"]
    commands = [few, [*few, *cluster], many, [*many, *cluster]]
    here, there, long_here, long_there = (
        middle(size, lambda command=command: bench_shift.run(command)).seconds for command in commands
    )
    each = ((long_there - long_here) - (there - here)) / (size.cells - size.cells // 8)
    most = small(8 * size.cells)
    two = ratio(size, most, [*most, "--jobs", "2"], "seconds")
    return [
        (f"`--jobs 2`, {8 * size.cells:,} cells: times as fast as `--jobs 1`", f"{two:.2f}"),
        ("`--scheduler local --jobs 1`: more for each cell than without it", f"{1000 * each:.1f} ms"),
        (
            f"the same: more for {size.cells // 8:,} cells, the cluster's start included",
            f"{there - here:.1f} s",
        ),
    ]


def page(size: Size) -> Rows:
    with tempfile.TemporaryDirectory() as folder:
        rows, built = Path(folder) / "rows.jsonl", Path(folder) / "page.html"
        bench_shift.run([*small(1), "-o", str(rows)])
        row = json.loads(rows.read_text(encoding="utf-8").splitlines()[-1])
        lines = (json.dumps(row | {"offset": n, "drift_rms": (n + 1) / 1e6}) for n in range(size.rows))
        rows.write_text("\n".join(lines) + "\n", encoding="utf-8")
        report = [*ROPEAUDIT, "report", str(rows), "-q", "-o", str(built)]
        run = middle(size, lambda: bench_shift.run(report))
        return [
            (f"`ropeaudit report` of {size.rows:,} rows", f"{run.seconds:.1f} s, {run.memory:.0f} MiB"),
            ("the page", f"{built.stat().st_size / 1e6:.1f} MB"),
        ]


SECTIONS: dict[str, Callable[[Size], Rows]] = {
    "script": script,
    "startup": startup,
    "memory": memory,
    "growth": growth,
    "cells": cells,
    "processes": processes,
    "page": page,
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
    runs = "One run" if size.runs == 1 else f"Medians of {size.runs} runs"
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
