"""Compare what two states of the package put out: python tests/same_output.py OLD NEW [--only WORD].

OLD and NEW are folders that hold ropeaudit/. About sixty command lines over all commands and forms are run in
both, each in an empty folder beside the same inputs; exit codes, stdout and every file written must be equal
byte by byte, but for the metadata of a run. Messages on stderr that differ are listed.

With `--machine haswell` or `prescott` NEW runs as on that processor: words and what does not depend on it
must be the same, and of the rest the largest difference over its allowance is printed, which must be at most
1. Rows of `shift` have the allowance of `audits.summation`, other outputs that of tests/figures.py.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import math
import os
import re
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import figures
import other_machine

from ropeaudit import recipes
from ropeaudit.arithmetic.formats import parse
from ropeaudit.audits import records, summation
from ropeaudit.errors import RopeAuditError

KERNEL = """
import torch
def right(x, positions):
    inverse = 10000.0 ** (-torch.arange(0, x.shape[-1], 2).float() / x.shape[-1])
    angles = positions.float()[..., None] * inverse
    a, b = x.float().chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)
def wrong(x, positions):
    return right(x, positions % 65536)
class Rotary(torch.nn.Module):
    def __init__(self, dim=64, base=10000.0):
        super().__init__()
        self.register_buffer("inv_freq", (base ** (-torch.arange(0, dim, 2).float() / dim)).bfloat16())
    def forward(self, x, positions):
        return right(x, positions)
"""
CONFIG = {
    "model_type": "llama",
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 4096,
    },
}
SMALL = "--heads 2 --seq-len 48 --head-dim 32"
OUT = "-o a.csv -o a.json -o a.jsonl -o a.md -o a.html -o a.txt"
LINES = f"""
shift {SMALL}
shift {SMALL} -f csv {OUT}
shift {SMALL} -f json -o a.parquet --recipe fp64-angles,hf --dtype fp32
shift {SMALL} --recipe hf,meta,vllm-cuda,mlx-fallback --dtype fp32,bf16,fp16 --offset 0,1000,128k -f jsonl
shift {SMALL} --offset 1k-64k*4 --recipe uniform
shift {SMALL} --attention --softmax recipe --offset 1000 --dtype bf16 -f csv
shift {SMALL} --attention --anchor 4 --qk diagonal --offset 0,4096 --dtype fp16 -f markdown
shift {SMALL} --impl IN/kernel.py:right --dtype bf16,fp32
shift {SMALL} --impl IN/kernel.py:wrong --dtype bf16 -f csv --fail-if excess>9 --offset 0,70000 -o a.html
shift {SMALL} --impl transformers-llama,mistral-inference --offset 0,1000,131072 -f csv
shift --sample 500 --seq-len 5000 --head-dim 64 --offset 1000 --dtype bf16 -f csv -o a.md
shift {SMALL} --backend torch --offset 1000 --dtype bf16,fp16 -f csv
shift --config IN/config.json --heads 2 --kv-heads 1 --seq-len 64 --offset 4096 -f csv
shift --model llama-3.1-8b,gemma-3-27b --heads 1 --kv-heads 1 --seq-len 32 --dtype bf16 -f csv -o a.html
shift {SMALL} --mrope 8,4,4 --axis h,hw --offset 1000 --dtype bf16 -f csv
shift {SMALL} --scaling yarn:factor=4,original=1024 --length shifted --offset 8192 --dtype bf16 -f csv
shift {SMALL} --scaling dynamic:factor=2,maximum=64 --length shifted --offset 4096 --dtype fp32 -f csv
shift {SMALL} --mask window:8 --layout interleaved --rotary-dim 16 --clip 100 --dtype bf16,fp8_e4m3 -f csv
shift --qk IN/qk.npz --dtype fp16 -f csv
shift {SMALL} --set angle=fp64 --set accumulate=bf16 --recipe uniform --dtype bf16 --tolerance 5% -f json
shift {SMALL} --jobs 2 --seed 1,2 -o a.csv -q
shift {SMALL} --shard 2/3 -f csv
shift {SMALL} --dry-run
shift {SMALL} --columns offset,drift_rms,verdict -f markdown
shift {SMALL} --no-header -f csv
shift {SMALL} --baseline IN/before.csv --seed 1 --recipe hf --dtype bf16 --fail-if drift_rms>1.1x
shift {SMALL} --offset 1,,2
shift {SMALL} --dtype float8
shift --seq-len -3
shift {SMALL} --recipe nothing
limit --heads 1 --seq-len 16 --head-dim 32
limit --heads 1 --seq-len 16 --head-dim 32 --recipe hf,uniform --dtype bf16,fp16 --up-to 1m -f csv {OUT}
limit --model llama-3.1-8b --heads 1 --kv-heads 1 --seq-len 16 --dtype bf16 -f json
explain --heads 1 --seq-len 32 --head-dim 32 --dtype bf16 --recipe uniform --offset 1000 -f csv {OUT}
explain --heads 1 --seq-len 32 --head-dim 32 --dtype fp16 --recipe hf --by pair
explain --heads 1 --seq-len 32 --head-dim 32 --dtype bf16 --recipe uniform --by remedy -f markdown
parity hf meta --heads 2 --seq-len 32 --head-dim 32 -f csv {OUT}
parity hf uniform --heads 2 --seq-len 32 --head-dim 32 --dtype bf16
shift --heads 1 --seq-len 32 --head-dim 32 --rerotate 1,8 --dtype bf16 -f csv {OUT}
decay --distance 1-64*2 --head-dim 32 --vectors 8 -f csv {OUT}
decay --distance 1-64*2 --head-dim 32 --dtype bf16
list frequencies --head-dim 32 --dtype bf16,fp16 -f csv {OUT}
list frequencies --config IN/config.json --recipe hf --dtype bf16 -f json
module IN/table.npy --base 10000 --head-dim 64
explain IN/kernel.py:right --head-dim 32 --dtype bf16 -f csv {OUT}
explain IN/kernel.py:wrong --head-dim 32 --dtype bf16 --offset 0,70000
module IN/kernel.py:Rotary --head-dim 64 -f csv {OUT}
module IN/state.safetensors --head-dim 64
module IN/model
model IN/model --offset 0,1000 --dtype bf16 --tokens 16 -f csv {OUT}
model IN/model --offset 1000 --dtype bf16 --tokens 16 --by layer
list recipes
list implementations -f json
list formats -f csv
list models
list columns -f markdown
list verdicts
list diagnoses -f json
report IN/after.csv --against IN/before.csv -f csv {OUT}
report IN/after.csv --against IN/before.csv --all --fail-if drift_rms>1.1x
report IN/before.csv --by dtype -f csv {OUT}
report IN/before.csv --by implementation,dtype --worst
report IN/before.csv IN/after.csv {OUT}
report IN/before.csv IN/after.csv -o a.csv -o a.jsonl
plot IN/before.csv -o a.svg
plot --kind heatmap --heads 1 --seq-len 24 --head-dim 32 --offset 1000 --dtype bf16 -o a.png
plot IN/decay.json --kind decay -o a.svg
""".strip().splitlines()
# of a run, not of its results: when, on what, by which command line
METADATA = re.compile(r"(?s)<(?:dl|details)[^>]*>.*?</(?:dl|details)>|\d{4}-\d\d-\d\dT[\d:.+Z-]+")
PROGRESS = re.compile(r"(?m)^ropeaudit: +[0-9]+%.* to go\n?")
DATED = re.compile(rb"(?m)^ *(?:<dc:date>|/CreationDate).*$|id=\"[a-z]+[0-9a-f]{10}\"|#[a-z]?[0-9a-f]{10,}")


def inputs(folder: Path, package: Path) -> None:
    """Write what the lines read: own code, a config, q and k, tables, reports, a tiny model."""
    import numpy as np
    import torch
    from safetensors.torch import save_file

    sys.path.insert(0, str(Path(__file__).parent))
    import tiny_models

    folder.mkdir()
    (folder / "kernel.py").write_text(KERNEL)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    generator = np.random.default_rng(0)
    np.savez(folder / "qk.npz", **{name: generator.standard_normal((2, 48, 32)) for name in "qk"})
    theta = 10000.0 ** (-np.arange(0, 64, 2) / 64)
    np.save(folder / "table.npy", theta.astype(np.float16))
    save_file({"rotary.inv_freq": torch.from_numpy(theta).bfloat16()}, folder / "state.safetensors")
    tiny_models.make("llama", folder / "model", 2)
    for line in (
        f"shift {SMALL} --seed 1 -o before.csv -q",
        "decay --distance 1-64*2 --head-dim 32 -o decay.json -q",
    ):
        written = run(package, line, folder)
        assert written.returncode == 0, written.stderr
    for path in folder.glob("*.meta.json"):
        path.unlink()
    rows = list(csv.DictReader((folder / "before.csv").read_text().splitlines()))
    for row in rows[::3]:
        row["drift_rms"] = repr(float(row["drift_rms"]) * 1.5)
    with (folder / "after.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def run(package: Path, line: str, folder: Path, machine: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command line with the package that is in a folder, as on another machine where one is named."""
    environment = {**os.environ, "PYTHONPATH": str(package), "COLUMNS": "200", "LC_ALL": "C.UTF-8"}
    if machine:
        environment |= other_machine.environment(machine)
    command = [sys.executable, "-m", "ropeaudit", *shlex.split(line)]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def plain(path: Path) -> bytes:
    """Return the content of a file without the metadata of its run."""
    content = path.read_bytes()
    if path.name.endswith(".meta.json"):
        return b" ".join(sorted(name.encode() for name in json.loads(content)))
    if path.suffix == ".parquet":
        import pyarrow.parquet as parquet

        return str(parquet.read_table(path).to_pydict()).encode()
    if path.suffix in (".json", ".md", ".html", ".txt"):
        return without_run(content.decode()).encode()
    return DATED.sub(b"", content) if path.suffix == ".svg" else content


def without_run(text: str) -> str:
    """Return text without when, where and by which command line it was made."""
    text = re.sub(r"(?m)^.*\b(?:blas|simd)\b.*$", "", text)
    text = re.sub(r'(?s)"(?:run|circumstances|metadata|environment)": \{.*?\n  \}', "", text)
    text = re.sub(r"(?s)<script[^>]*type=.application/json.*?</script>", "", text)
    return "\n".join(
        one for one in METADATA.sub("", text).splitlines() if "command" not in one and "time" not in one
    )


# By how much a figure of scores of RMS 1 may move, where nothing says of how many: a few roundings of a sum,
# and a score of 136 that is stored as another number, four spacings at most.
FLOAT64, FLOAT32 = 2.0**-50, 2.0**-21
ONE_SCORE = {"float16": 4 * 2.0**-10 / 136, "bfloat16": 4 * 2.0**-7 / 136}


def moved(before: str, after: str) -> tuple[list[str], float]:
    """Return what of an output no other machine explains, and the largest change over its allowance."""
    old, new = structured(before), structured(after)
    if old and new:
        return rows_moved(old, new)
    before, after = without_run(before), without_run(after)
    lines = [list(figures.lines(text)) for text in (before, after)]
    wrong, largest = [], 0.0
    if len(lines[0]) != len(lines[1]):
        return [f"{len(lines[1])} lines instead of {len(lines[0])}"], math.inf
    for one, other in zip(*lines, strict=True):
        if one.words != other.words:
            wrong.append(f"{other.words!r} instead of {one.words!r}")
            continue
        for first, second in zip(one.figures, other.figures, strict=True):
            change = abs(float(second.text) - float(first.text))
            allowed = max(float(first.allowed), FLOAT32 * ("." in first.text))
            if change > allowed:
                wrong.append(
                    f"{second.text} instead of {first.text} in {one.words!r}; allowed: {allowed:.2g}"
                )
            largest = max(largest, change / allowed if change and allowed else 0.0)
    return wrong, largest


def structured(text: str) -> list[dict[str, Any]]:
    """Return the rows of CSV, JSON or JSON Lines; none of other text."""
    with contextlib.suppress(ValueError):
        if text.startswith(('{"', "[")):
            return [json.loads(line) for line in text.splitlines()]
        if text.startswith("{"):
            return list(json.loads(text)["records"])
    if re.match(r"\w+(,\w+)+\n", text):
        return list(csv.DictReader(text.splitlines()))
    return []


def rows_moved(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> tuple[list[str], float]:
    """Return the same of rows, by column: words and whole numbers exactly, others by their allowance."""
    wrong, largest = [], 0.0
    for old, new in zip(before, after, strict=True):
        for name in {*old, *new}:
            of_code = name.startswith("rotation_") and not of_recipe(old)  # as torch computes there
            if of_code or str(old.get(name)) == str(new.get(name)):
                continue
            try:
                sides = float(old[name]), float(new[name])
                allowed = allowance(old, new, name, *map(abs, sides))
            except (TypeError, ValueError, KeyError):
                allowed, sides = 0.0, (math.nan, 0.0)
            change = abs(sides[0] - sides[1])
            if not change <= allowed:
                wrong.append(f"{name}: {old.get(name)} -> {new.get(name)}, allowed {allowed}")
            largest = max(largest, change / allowed if allowed else math.inf)
    return wrong, largest


def allowance(old: dict[str, Any], new: dict[str, Any], name: str, *sizes: float) -> float:
    """Return how far a number of a row may move: of `shift` by its column, else by its dtype and size."""
    if "case" in old:
        allowed = summation.allowance(typed(old), typed(new), name)
        return allowed + max(float(old["reference_error"]), float(new["reference_error"])) * ("drift" in name)
    dtype = str(old.get("dtype") or "")
    moved = max(sizes) * figures.allowance(dtype, max(sizes), largest=True)
    return moved + (FLOAT64 if dtype == "float64" else FLOAT32 + ONE_SCORE.get(dtype, 0.0))


def typed(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with its numbers as numbers."""
    kinds = {name: column.kind for name, column in records.COLUMNS.items()}
    typed = {
        name: kinds[name](value) if value not in (None, "nan", "") else None for name, value in row.items()
    }
    return {"stages": stages_of(row)} | typed


def stages_of(row: dict[str, Any]) -> str:
    """Return the stages that the metadata of a run has for a row; other code has its scores in float64."""
    if not of_recipe(row):
        return "accumulate=float64 score=float64"
    stages = recipes.load(row["implementation"]).resolve(parse(row["dtype"])).stages()
    return " ".join(f"{stage}={fmt}" for stage, fmt in stages.items())


def of_recipe(row: dict[str, Any]) -> bool:
    """Return whether a row is of an emulated recipe, of which nothing hangs on what torch computes."""
    try:
        recipes.load(str(row.get("implementation")))
    except RopeAuditError:
        return False
    return True


def compared(number: int, line: str, old: Path, new: Path, scratch: Path, machine: str) -> list[str]:
    """Run a line in both; return what differs."""
    results, listed, files = [], [], []
    for name, package in (("old", old), ("new", new)):
        folder = scratch / name / str(number)
        folder.mkdir(parents=True)
        (folder / "IN").symlink_to(scratch / "inputs")
        results.append(run(package, line, folder, machine if name == "new" else ""))
        paths = [path for path in sorted(folder.iterdir()) if path.name != "IN"]
        listed.append({path.name: plain(path) for path in paths})
        files.append({path.name: path.read_bytes() for path in paths if path.suffix in WITH_FIGURES})
    before, after = results
    wrong = []
    if before.returncode != after.returncode:
        wrong.append(f"exit code {before.returncode} -> {after.returncode}: {after.stderr[-500:]}")
    if machine:
        wrong += elsewhere(line, *(one.stdout for one in results), *files)
    elif without_run(before.stdout) != without_run(after.stdout):
        wrong.append("stdout differs")
    if listed[0] != listed[1] and not machine:
        names = sorted(
            name for name in {*listed[0], *listed[1]} if listed[0].get(name) != listed[1].get(name)
        )
        wrong.append(f"files differ: {', '.join(names)}")
    messages = [PROGRESS.sub("", one.stderr).strip() for one in results]
    if messages[0] != messages[1]:
        wrong.append(f"message: {messages[0]!r} -> {messages[1]!r}")
    return [f"{line}\n    {text}" for text in wrong]


WITH_FIGURES = (".csv", ".json", ".jsonl", ".md", ".txt")  # pages and pictures draw the same rows
# what does not say of which dtype a figure is; what says which processor measured
UNNAMED = ("--columns", "--no-header", "--baseline", "--against")
LARGEST: dict[str, float] = {}  # command line -> its largest difference over the allowance


def elsewhere(line: str, before: str, after: str, old: dict[str, bytes], new: dict[str, bytes]) -> list[str]:
    """Return what of stdout and of files another machine does not explain."""
    outputs = {"stdout": (before, after)}
    for name in {*old, *new}:
        if Path(name).suffix in WITH_FIGURES and not name.endswith(".meta.json"):
            outputs[name] = tuple(side.get(name, b"").decode() for side in (old, new))
    wrong = []
    for name, sides in outputs.items():
        said, ratio = moved(*sides)
        wrong += [f"{name}: {text}" for text in said[:3]]
        LARGEST[line] = max(LARGEST.get(line, 0.0), ratio)
    return wrong


def main() -> int:
    """Compare; 1 where more than messages differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--machine", choices=other_machine.MACHINES, default="")
    given = parser.parse_args()
    lines = [line for line in LINES if given.only in line]
    if given.machine:
        lines = [line for line in lines if not any(word in line for word in UNNAMED)]
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        inputs(scratch / "inputs", given.old.resolve())
        with ThreadPoolExecutor(2) as pool:
            jobs = [
                pool.submit(
                    compared, number, line, given.old.resolve(), given.new.resolve(), scratch, given.machine
                )
                for number, line in enumerate(lines)
            ]
            wrong = [text for job in jobs for text in job.result()]
    print("\n".join(wrong))
    if given.machine:
        same = [line for line in lines if not LARGEST.get(line)]
        print(
            f"{len(same)} the same in every byte; the others, by the largest difference over its allowance:"
        )
        print(
            "\n".join(
                f"{LARGEST[line]:.2f}  {line}" for line in sorted(set(lines) - {*same}, key=LARGEST.get)
            )
        )
    bad = sum("\n    message:" not in text for text in wrong)
    print(f"{len(lines)} command lines: {bad} differences in what is put out, {len(wrong) - bad} in messages")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
