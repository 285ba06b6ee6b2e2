"""Every RoPE class of transformers that is built from a default config, run as built and after a cast.

`python tests/census.py` prints a row a class and the counts; --loaded names other ways than `.to`.
tests/features/test_module_runs.py looks at some of them.
"""

import argparse
import ast
import importlib.util
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ropeaudit.errors import RopeAuditError
from ropeaudit.features.module.analysis import module

OFFSET, LENGTH = 1000, 256  # positions up to their sum


@dataclass(frozen=True)
class Entry:
    """A class and what became of it: refused, not run, or run; and whether each way is off."""

    spec: str
    state: str
    why: str = ""
    built: bool = False
    cast: bool = False
    error: float = 0.0
    ways: tuple[str, ...] = ()


def specs() -> Iterator[str]:
    """Find the classes by their names: modules called rotary or rope that are not attention."""
    [place] = importlib.util.find_spec("transformers.models").submodule_search_locations
    for path in sorted(Path(place).rglob("modeling_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            name = getattr(node, "name", "")
            if isinstance(node, ast.ClassDef) and re.search("(Rotary|R[oO][pP][eE])(?!.*Attention)", name):
                yield f"transformers.models.{path.parent.name}.{path.stem}:{name}"


def entry(spec: str, loaded: Sequence[str] = ("built", "to")) -> Entry:
    try:
        audit = module(spec, loaded=loaded, up_to=OFFSET + LENGTH)
    except RopeAuditError as error:
        return Entry(spec, "refused", error.typed)
    by_way = {run.loaded: run for run in audit.runs}
    if "built" not in by_way or by_way["built"].measured is None:
        return Entry(spec, "not run", by_way["built"].reason if by_way else "no RoPE module")
    others = [run for way, run in by_way.items() if way != "built"]
    error = max((run.measured.cos_error for run in others if run.measured), default=0.0)
    ways = tuple(way for way, run in by_way.items() if run.measured)
    return Entry(spec, "run", "", by_way["built"].wrong, any(run.wrong for run in others), error, ways)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loaded", default="built,to")
    parser.add_argument("--only", default="")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    entries = []
    for spec in specs():
        if options.only in spec:
            entries.append(one := entry(spec, options.loaded.split(",")))
            print(f"{one.spec}\t{one.state}\t{one.why}\t{one.built}\t{one.cast}\t{one.error:.3g}", flush=True)
    ran = [one for one in entries if one.state == "run"]
    print(f"{len(entries)} classes, {len(ran)} run, {sum(one.built for one in ran)} of them off as built,")
    print(f"{sum(one.cast for one in ran)} of them off once loaded, within {OFFSET + LENGTH} positions; run:")
    for way in options.loaded.split(","):
        print(f"{way}: {sum(way in one.ways for one in ran)}")


if __name__ == "__main__":
    main(sys.argv[1:])
