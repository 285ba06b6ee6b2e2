"""Time and memory of the audit against the obvious torch script and against bare matrix products.

`page.py` runs it, and shows ratios within a run: the machine's own speed cancels out.
"""

from __future__ import annotations

import math
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

OURS = """
from ropeaudit import shift
for r in shift((0, 1000, 32768, 131072), recipes="uniform", heads={heads}, seq_len={seq}, mask="full"):
    print(r.dtype, r.offset, r.drift_max, r.drift_bias, r.drift_rms)
"""


class Child(NamedTuple):
    """What a child process took: seconds, peak MiB, seconds of processors."""

    seconds: float
    memory: float
    cpu: float


def run(command: list[str]) -> Child:
    """Run a child process and return what it took."""
    watcher = (
        "import resource, subprocess, sys, time\n"
        "t = time.perf_counter(); subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)\n"
        "u = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "print(time.perf_counter() - t, u.ru_maxrss / 1024, u.ru_utime + u.ru_stime)"
    )
    out = subprocess.run(
        [sys.executable, "-c", watcher, *command], check=True, stdout=subprocess.PIPE, text=True
    ).stdout.split()
    return Child(*map(float, out))


def bare_products(heads: int, seq: int, cells: int = 16) -> Child:
    """Return what the cells' float32 products alone take, in the tiles and on the threads of the audit."""
    import numpy as np
    from threadpoolctl import threadpool_limits

    from ropeaudit.engine.plan import TILE_COLUMNS, TILE_ROWS
    from ropeaudit.runtime.run_metadata import threads

    a = np.random.default_rng(0).standard_normal((seq, 128)).astype(np.float32)

    def strip(start: int) -> None:
        out = np.empty((min(TILE_ROWS, seq - start), min(TILE_COLUMNS, seq)), np.float32)
        for _ in range(cells):
            for column in range(0, seq, TILE_COLUMNS):
                k = a[column : column + TILE_COLUMNS]
                np.matmul(a[start : start + TILE_ROWS], k.T, out=out[:, : len(k)])

    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(threads()) as pool:
        list(pool.map(strip, range(0, seq, TILE_ROWS)))
        begin, busy = time.perf_counter(), time.process_time()
        for _ in range(heads):
            list(pool.map(strip, range(0, seq, TILE_ROWS)))
        return Child(time.perf_counter() - begin, math.nan, time.process_time() - busy)


def compared(heads: int, seq: int, torch: bool = True) -> tuple[Child, Child, Child]:
    """Return what the audit, the obvious torch script and the bare products take; nan: not run."""
    ours = run([sys.executable, "-c", OURS.format(heads=heads, seq=seq)])
    bare = bare_products(heads, seq)
    script = str(Path(__file__).with_name("obvious_torch.py"))
    theirs = run([sys.executable, script, str(heads), str(seq)]) if torch else Child(*[math.nan] * 3)
    return ours, theirs, bare
