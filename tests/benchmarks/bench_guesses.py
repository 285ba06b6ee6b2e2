"""How far off the guesses of the time that is left are, of each command that takes long.

Usage: python tests/benchmarks/bench_guesses.py [--repeat 3] [--only limit] [--points]
Prints for each command the worst factor between a guess and what was left, how many guesses are more than a
factor of 2 off, and how much of the work passed before the first one. Less than a second counts as a second,
since whole seconds are shown. For sweeps, the plan's guess over the time that they took follows.
Time is that of one processor, children included, so that other work on the machine does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
TINY = "TINY"  # stands for the folder of a tiny model

CODE = """
import torch

def apply_rope(q, k, position_ids, theta=10000.0):
    d = q.shape[-1]
    frequencies = theta ** -(torch.arange(0, d, 2, dtype=torch.float32) / d)
    angles = position_ids.float()[..., None] * frequencies
    angles = torch.cat([angles, angles], -1)
    cos, sin = angles.cos().to(q.dtype), angles.sin().to(q.dtype)
    if angles.dim() == 3:
        cos, sin = cos[:, None], sin[:, None]

    def rotated(x):
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat((-b, a), -1) * sin

    return rotated(q), rotated(k)
"""

COMMANDS = {
    "shift": "shift --seq-len 4096 --heads 8 --recipe hf,gpt-neox --offset 0,1000,100k",
    "shift, narrow sums": "shift --seq-len 512 --dtype bf16,fp32 --set accumulate=bf16 --offset 0,1k,32k",
    "shift, sampled": "shift --model llama-3.1-8b --seq-len 64k --sample 100000 --offset 0,1k",
    "limit": "limit --model llama-3.1-8b --dtype bf16,fp32",
    "limit, tolerances": "limit --dtype bf16,fp16,fp32 --tolerance drift_rms=1e-3,drift_relative=1e-2",
    "check of code": "check CODE:apply_rope --dtype bf16,fp32",
    "check of an adapter": "check transformers-llama --dtype bf16,fp16",
    "check of a config": "check llama-3.1-8b",
    "explain": "explain --dtype bf16,fp16,fp32 --offset 1000,32k",
    "model": f"model {TINY} --tokens 2048 --offset 100,1000,32k",
    "decay": "decay --model llama-3.1-8b,llama-2-7b,qwen3-8b --dtype bf16,fp16,fp32 --vectors 1024",
}

CHILD = """
import json, os, sys, time
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
from ropeaudit.console import rows

def clock():
    return sum(os.times()[:4])

class Recorded(rows.Progress):
    def __init__(self, quiet, total=0):
        super().__init__(True, total)
        self.points = points

    def __call__(self, share):
        now = clock()
        self.points.append((now, share, self.forecast.left(share, now)))

points = []
rows.Progress = Recorded
from ropeaudit.main import main

code = main(json.loads(sys.argv[2]))
with open(sys.argv[1], "w") as file:
    json.dump({"code": code, "points": points, "end": clock()}, file)
"""


def run(arguments: list[str], folder: Path) -> dict[str, Any]:
    """Run a command; return its exit code, the (seconds, share, guess) that it reported, and its end."""
    file = folder / "points.json"
    environment = {**os.environ, "PYTHONPATH": str(TESTS.parent), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", CHILD, str(file), json.dumps(arguments)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    result: dict[str, Any] = json.loads(file.read_text())
    if result["code"] not in (0, 1):
        raise SystemExit(f"exit code {result['code']}: {' '.join(arguments)}")
    return result


def factors(result: dict[str, Any]) -> list[tuple[float, float, float]]:
    """Return the seconds of each guess, the guess, and the factor that it is off by."""
    guesses = [(now, max(1.0, guess)) for now, _, guess in result["points"] if guess is not None]
    left = [max(1.0, result["end"] - now) for now, _ in guesses]
    return [(now, guess, max(guess / x, x / guess)) for (now, guess), x in zip(guesses, left, strict=True)]


def planned(arguments: list[str]) -> float:
    """Return the seconds that a plan guesses before anything is measured."""
    command = [sys.executable, "-m", "ropeaudit", *arguments, "--dry-run", "-f", "json"]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=TESTS.parent).stdout
    return float(json.loads(out)["seconds"])


def line(name: str, arguments: list[str], folder: Path, points: bool) -> str:
    """Run a command and return its line."""
    result = run(arguments, folder)
    seen, end = factors(result), result["end"]
    if points:
        for now, share, guess in result["points"]:
            print(f"  {now:8.2f} s {share:7.4f} {'-' if guess is None else f'{guess:.1f}'}")
    worst = max(seen, key=lambda one: one[2], default=(end, 0.0, 1.0))
    off = sum(one[2] > 2 for one in seen)
    words = f"{name:20} {end:6.1f} s, {len(seen):4} guesses, {off:3} beyond x2, worst x{worst[2]:.2f}"
    words += f" at {worst[0]:.1f} s, first at {seen[0][0] if seen else end:.1f} s"
    return f"{words}, plan x{planned(arguments) / end:.2f}" if arguments[0] == "shift" else words


def main() -> None:
    """Run the commands and print a line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--only", default="", help="what the name of a command begins with")
    parser.add_argument("--points", action="store_true", help="print every reported share too")
    options = parser.parse_args()
    sys.path.insert(0, str(TESTS))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "rope.py").write_text(CODE)
        if "model".startswith(options.only):
            import tiny_models  # it imports torch and transformers

            tiny_models.make("llama", folder / "tiny", 1)
        for title, text in COMMANDS.items():
            if title.startswith(options.only):
                text = text.replace(TINY, str(folder / "tiny")).replace("CODE", str(folder / "rope.py"))
                for _ in range(options.repeat):
                    print(line(title, text.split(), folder, options.points), flush=True)


if __name__ == "__main__":
    main()
