"""Put small faults into the package, one at a time, and see whether a fast test notices.

Usage: python tests/mutate.py [--count 300] [--seed 0] [--jobs 2] [--only 'ropeaudit/rope/*'] [--budget 60]

Needs `pip install -e '.[test]'`. Nothing of the working tree is changed: mutants live in copies.

1. The files are those of the package but adapters, data and presentation (`core`).
2. Mutants are made by `ast` (`mutation/operators.py`), and sampled with a seed, one a line at most.
3. Which fast test runs which line is recorded once (`mutation/covering.py`; a quarter of an hour).
4. A mutant runs in a fork of this process (`mutation/forked.py`), against the tests of its line up to the
   first failure, the telling ones first (`mutation/held.py`). Past a time limit it counts as killed.
5. Results go to build/mutation/results.jsonl as they come; a later call goes on from there.
6. Survivors that mean the same are in `mutation/equivalent.json`, each with its reason.

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
from collections.abc import Iterable, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from mutation import covering, forked, held
from mutation.operators import Mutant, mutants

FOLDER = forked.ROOT / "build" / "mutation"
EQUIVALENT = Path(__file__).parent / "mutation" / "equivalent.json"
_OUTSIDE = {"third_party", "data", "reports", "console", "command", "report", "rows", "words", "plot", "main"}
_WEIGHTY = [  # what makes verdicts and numbers
    *("audits/records", "audits/judging", "audits/case_run"),
    *("engine/*", "bounds/*"),
    *("reference/*", "recipes", "rope/*", "recognition/*", "subjects/emulated", "features/limit/*"),
    *("console/gates", "console/sweep_file"),
]
_JUDGING = ("gates", "values", "sweep_file")  # of console: they decide, they do not present


def core(package: Path = forked.PACKAGE) -> list[str]:
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
        source = (forked.ROOT / file).read_bytes()
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


def _stamps(file: str) -> tuple[str, str]:
    tests = sorted((forked.ROOT / "tests").rglob("*.py"))
    return covering.digest([forked.ROOT / file]), covering.digest(
        [path for path in tests if path.name != "mutate.py"]
    )


def earlier(results: Path) -> dict[tuple[str, str, int], dict[str, Any]]:
    """Return what earlier calls came to and what still holds."""
    result: dict[tuple[str, str, int], dict[str, Any]] = {}
    if not results.exists():
        return result
    now: dict[str, tuple[str, str]] = {}
    for line in results.read_text(encoding="utf-8").splitlines():
        one = json.loads(line)
        if not (forked.ROOT / one["file"]).exists():
            continue
        source, tests = now.setdefault(one["file"], _stamps(one["file"]))
        same = one["source"] == source and (one["outcome"] in ("killed", "timeout") or one["tests"] == tests)
        key = one["file"], one["put"], one["start"]
        result.pop(key, None)
        if same:
            result[key] = one
    return result


def as_record(outcome: held.Outcome) -> dict[str, Any]:
    """Return an outcome as a line of the results."""
    m = outcome.mutant
    source, tests = _stamps(m.file)
    names = {"file": m.file, "line": m.line, "operator": m.operator, "before": m.before, "after": m.after}
    became = {"outcome": outcome.outcome, "by": outcome.by, "ran": outcome.ran, "covering": outcome.covering}
    where = {"start": m.start, "put": m.put, "source": source, "tests": tests}
    return names | became | {"seconds": round(outcome.seconds, 1)} | where


def diff(mutant: Mutant) -> str:
    """Return a mutant as a diff."""
    source = (forked.ROOT / mutant.file).read_bytes()
    changed = mutant.applied(source) or source
    sides = [text.decode().splitlines() for text in (source, changed)]
    lines = list(difflib.unified_diff(*sides, lineterm="", n=1))[3:]
    return "\n".join(f"    {line}" for line in lines)


def report(
    picked: list[Mutant],
    results: Mapping[tuple[str, str, int], dict[str, Any]],
    least: float,
) -> int:
    """Print what became of the mutants; return the exit code."""
    known, counts, left = equivalents(), Counter[str](), []
    for mutant in picked:
        one = results.get((mutant.file, mutant.put, mutant.start))
        outcome = one["outcome"] if one else "not run"
        alive = outcome in ("survived", "uncovered")
        if alive and mutant.key in known:
            outcome = "equivalent"
        elif alive and one:
            left.append((mutant, one))
        counts[outcome] += 1
    for mutant, one in sorted(left, key=lambda pair: (pair[0].file, pair[0].line)):
        ran = f"{one['ran']} of {one['covering']} tests" if one["covering"] else "no test runs it"
        print(f"{mutant.file}:{mutant.line} {mutant.operator}, {one['outcome']}: {ran} {one['by']}")
        print(diff(mutant))
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
    parser.add_argument("--budget", type=float, default=60.0, help="recorded seconds of tests a mutant")
    parser.add_argument("--least", type=float, default=0.95, help="share that must be killed")
    parser.add_argument("--results", type=Path, default=FOLDER / "results.jsonl")
    requested = parser.parse_args()
    os.nice(19)
    forked.preload()
    covering.record(FOLDER / "lines", requested.jobs)
    tests = covering.Covering(FOLDER / "lines")
    picked = sampled(
        [file for file in core() if fnmatch(file, requested.only)], requested.count, requested.seed
    )
    results = earlier(requested.results)
    todo = [mutant for mutant in picked if (mutant.file, mutant.put, mutant.start) not in results]
    requested.results.parent.mkdir(parents=True, exist_ok=True)
    with requested.results.open("a", encoding="utf-8") as file:
        for outcome in held.held(todo, tests, FOLDER / "copies", requested.jobs, requested.budget):
            one = as_record(outcome)
            file.write(json.dumps(one) + "\n")
            file.flush()
            results[one["file"], one["put"], one["start"]] = one
            shown = f"{outcome.outcome} {one['file']}:{one['line']} {one['operator']} {outcome.by}"
            print(f"{len(results)}: {shown} ({one['seconds']} s)", file=sys.stderr, flush=True)
    return report(picked, results, requested.least)


if __name__ == "__main__":
    sys.exit(main())
