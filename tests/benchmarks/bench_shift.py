"""Time and memory of the audit against the obvious torch script and against bare matrix products.

Usage: python tests/benchmarks/bench_shift.py [--heads 8] [--seq 4096] [--repeat 1] [--no-torch]
Prints ratios within this run; the machine's own speed cancels out.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

OURS = """
from ropeaudit import shift
for r in shift((0, 1000, 32768, 131072), heads={heads}, seq_len={seq}, mask="full"):
    print(r.dtype, r.offset, r.drift_max, r.drift_bias, r.drift_rms)
"""


def run(command: list[str]) -> tuple[float, float]:
    """Return seconds and peak MiB of a child process."""
    watcher = (
        "import resource, subprocess, sys, time\n"
        "t = time.perf_counter(); subprocess.run(sys.argv[1:], check=True, stdout=sys.stderr)\n"
        "print(time.perf_counter() - t, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)"
    )
    out = subprocess.run(
        [sys.executable, "-c", watcher, *command], check=True, stdout=subprocess.PIPE, text=True
    ).stdout.split()
    return float(out[0]), float(out[1])


def bare_products(heads: int, seq: int, cells: int = 16) -> float:
    """Seconds of the cells' float32 products alone, in the tiles and on the threads of the audit."""
    import numpy as np
    from threadpoolctl import threadpool_limits

    from ropeaudit.circumstances import threads
    from ropeaudit.tile import TILE_COLUMNS, TILE_ROWS

    a = np.random.default_rng(0).standard_normal((seq, 128)).astype(np.float32)

    def strip(start: int) -> None:
        out = np.empty((min(TILE_ROWS, seq - start), min(TILE_COLUMNS, seq)), np.float32)
        for _ in range(cells):
            for column in range(0, seq, TILE_COLUMNS):
                k = a[column : column + TILE_COLUMNS]
                np.matmul(a[start : start + TILE_ROWS], k.T, out=out[:, : len(k)])

    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(threads()) as pool:
        list(pool.map(strip, range(0, seq, TILE_ROWS)))
        begin = time.perf_counter()
        for _ in range(heads):
            list(pool.map(strip, range(0, seq, TILE_ROWS)))
        return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--seq", type=int, default=4096)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--no-torch", action="store_true")
    options = parser.parse_args()
    script = OURS.format(heads=options.heads, seq=options.seq)
    obvious = [str(Path(__file__).with_name("obvious_torch.py")), str(options.heads), str(options.seq)]
    for _ in range(options.repeat):
        seconds, memory = run([sys.executable, "-c", script])
        products = bare_products(options.heads, options.seq)
        print(f"ropeaudit: {seconds:.1f} s, {memory:.0f} MiB; bare products {products:.1f} s")
        print(f"ratio to bare products: {seconds / products:.2f}")
        if not options.no_torch:
            torch_seconds, torch_memory = run([sys.executable, *obvious])
            print(f"obvious torch script: {torch_seconds:.1f} s, {torch_memory:.0f} MiB")
            print(f"times as fast: {torch_seconds / seconds:.1f}")
            print(f"share of its memory: {memory / torch_memory:.3f}")


if __name__ == "__main__":
    assert resource
    main()
