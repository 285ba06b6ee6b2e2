"""Put small faults into the package, one at a time, and see whether a fast test notices.

Usage: python tests/mutate.py [--count 300] [--seed 0] [--jobs 2] [--only 'ropeaudit/rope/*'] [--budget 60]

Needs `pip install -e '.[test]'`. Nothing of the working tree is changed: mutants live in copies.

1. The files are those of the package but adapters, data and presentation (`core`).
2. Mutants are made by `ast` (`mutation/operators.py`), and sampled with a seed, one a line at most.
3. Which fast test runs which line is recorded once for the sources as they are (`mutation/held.py`).
4. A mutant is held against the tests of its line up to the first failure, the telling ones first. Past a
   time limit it counts as killed.
5. Survivors that mean the same are in `mutation/equivalent.json`, each with its reason.

Printed: counts, the share killed of those that are not equivalent, and each survivor as a diff. The exit
code is 1 below `--least` (0.95).
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import os
import random
import sys
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path

from mutation import held
from mutation.operators import Mutant, mutants

FOLDER = held.ROOT / "build" / "mutation"
EQUIVALENT = Path(__file__).parent / "mutation" / "equivalent.json"
_OUTSIDE = {"third_party", "data", "reports", "console", "command", "report", "rows", "words", "plot", "main"}
_WEIGHTY = [  # what makes verdicts and numbers
    *("audits/records", "audits/judging", "audits/case_run"),
    *("engine/*", "bounds/*"),
    *("reference/*", "recipes", "rope/*", "recognition/*", "subjects/emulated", "features/limit/*"),
    *("console/gates", "console/sweep_file"),
]
_JUDGING = ("gates", "values", "sweep_file")  # of console: they decide, they do not present


def core(package: Path = held.PACKAGE) -> list[str]:
    """Return the files that compute, decide, read or write; those that only present are left out."""
    files = {path.relative_to(package.parent).with_suffix(""): path for path in package.rglob("*.py")}
    modules = {".".join(name.parts).removesuffix(".__init__"): path for name, path in files.items()}
    requested = [name for name in modules if not _OUTSIDE & set(name.split("."))]
    requested += [
        name for name in modules if name.split(".")[1:-1] == ["console"] and name.endswith(_JUDGING)
    ]
    seen: set[str] = set()
    while requested:
        name = requested.pop()
        if name not in seen and name.split(".")[1:2] != ["__main__"]:
            seen.add(name)
            requested += [
                other for other in _imported(modules[name]) if other in modules and _computes(other)
            ]
    return sorted(str(modules[name].relative_to(package.parent)) for name in seen)


def _computes(module: str) -> bool:
    return not {"third_party", "data", "main", "command"} & set(module.split("."))


def _imported(path: Path) -> list[str]:
    """Return what a file imports at once: what functions import belongs to whoever calls them."""
    results = []
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            results += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return results


def sampled(files: Iterable[str], count: int, seed: int) -> list[Mutant]:
    """Return mutants of the files, at most one a line; the same for the same seed and code.

    Lines are taken at even distances, twice as densely in files that `_WEIGHTY` names, in no order.
    """
    chance = random.Random(seed)
    lines: list[tuple[bytes, list[Mutant]]] = []
    reached = [0.0]
    for file in files:
        source = (held.ROOT / file).read_bytes()
        weight = 2.0 if any(fnmatch(file, f"ropeaudit/{kind}.py") for kind in _WEIGHTY) else 1.0
        at: dict[int, list[Mutant]] = defaultdict(list)
        for mutant in mutants(file, source):
            at[mutant.line].append(mutant)
        for here in at.values():
            lines.append((source, here))
            reached.append(reached[-1] + weight)
    chance.shuffle(spots := [reached[-1] * (number + chance.random()) / count for number in range(count)])
    picked = []
    for place in dict.fromkeys(bisect_right(reached, spot) - 1 for spot in spots):
        source, here = lines[place]
        chance.shuffle(here)
        picked += [one for one in here if one.applied(source) is not None][:1]
    return picked


def equivalents() -> dict[tuple[str, str, str, str], str]:
    """Return the reason why a mutant means the same, by what names it."""
    listed = json.loads(EQUIVALENT.read_text(encoding="utf-8"))
    return {(one["file"], one["line"], one["mutated"], one["operator"]): one["reason"] for one in listed}


def diff(mutant: Mutant) -> str:
    """Return a mutant as a diff."""
    source = (held.ROOT / mutant.file).read_bytes()
    changed = mutant.applied(source) or source
    sides = [text.decode().splitlines() for text in (source, changed)]
    lines = list(difflib.unified_diff(*sides, lineterm="", n=1))[3:]
    return "\n".join(f"    {line}" for line in lines)


def report(outcomes: list[held.Outcome], least: float) -> int:
    """Print what became of the mutants; return the exit code."""
    known, counts, left = equivalents(), Counter[str](), []
    for one in outcomes:
        alive = one.outcome in ("survived", "uncovered")
        equivalent = alive and one.mutant.key in known
        counts["equivalent" if equivalent else one.outcome] += 1
        left += [one] if alive and not equivalent else []
    for one in sorted(left, key=lambda one: (one.mutant.file, one.mutant.line)):
        ran = f"{one.tests} tests" if one.tests else "no test runs it"
        print(f"{one.mutant.file}:{one.mutant.line} {one.mutant.operator}, {one.outcome}: {ran} {one.by}")
        print(diff(one.mutant))
    dead = counts["killed"] + counts["timeout"]
    judged = dead + len(left)
    share = dead / judged if judged else 1.0
    print(", ".join(f"{count} {name}" for name, count in sorted(counts.items())))
    print(f"{dead} of {judged} that are not equivalent were killed: {100 * share:.1f} %")
    return 0 if share >= least else 1


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=300, help="mutants")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="*", help="files, as ropeaudit/rope/*")
    parser.add_argument("--tests", nargs="*", default=[], help="files or folders of tests; all fast ones")
    parser.add_argument("--budget", type=float, default=60.0, help="recorded seconds of tests a mutant")
    parser.add_argument("--least", type=float, default=0.95, help="share that must be killed")
    asked = parser.parse_args()
    os.nice(19)
    held.record(FOLDER / "lines", asked.tests)
    files = [file for file in core() if fnmatch(file, asked.only)]
    picked, outcomes = sampled(files, asked.count, asked.seed), []
    tests = held.Covering(FOLDER / "lines")
    for one in held.held(picked, tests, FOLDER / "copies", asked.jobs, asked.budget):
        outcomes.append(one)
        shown = f"{one.outcome} {one.mutant.file}:{one.mutant.line} {one.mutant.operator} {one.by}"
        print(f"{len(outcomes)} of {len(picked)}: {shown}", file=sys.stderr, flush=True)
    return report(outcomes, asked.least)


if __name__ == "__main__":
    sys.exit(main())
