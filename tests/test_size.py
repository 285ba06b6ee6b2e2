"""Ceilings of lines, and guards against packing them: `python tests/test_size.py` prints where they stand.

What counts: every tracked `*.py` outside tests/ and examples/ is package; those of tests/ are tests, but for
tests/kernels/, which is code under check and so data. TOML and templates of the package have a ceiling of
their own; tables that a script generates do not count.
"""

from __future__ import annotations

import subprocess
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# step -> most lines at its end: of the package, of the tests
CEILINGS = {
    "19": (63_064, 59_795),
    "20": (58_000, 47_000),
    "21": (52_000, 41_000),
    "22": (50_500, 39_500),
    "22b": (45_000, 35_000),
    "23": (39_500, 31_000),
    "24": (36_000, 29_000),
    "25": (33_500, 28_000),
    "26": (32_500, 27_000),
    "27": (33_100, 28_000),
}
STEP, OPEN = "23", True  # the step that is worked on, and whether it still is
# While a step is open a net or a new mechanism stands beside the old one: above the ceiling before it.
ALLOWANCE = (2_500, 4_000)
DATA = 6_000  # lines of TOML, CSS, JavaScript and templates of the package
GENERATED = {"ropeaudit/data/model_types.toml"}
DATA_SUFFIXES = (".toml", ".css", ".js", ".j2", ".html")
# Mean length of a line that is not blank: 51.9 when the ceilings were set.
MEAN_LENGTH = 53.0
RUFF = {"line-length": 110, "target-version": "py311"}  # and no settings of the formatter


def tracked() -> dict[str, str]:
    """Return the text of every file that git knows: path from the root -> text."""
    if not (ROOT / ".git").exists():
        pytest.skip("the size of a checkout is held, not that of a source distribution")
    listing = ["git", "ls-files", "-z"]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    suffixes = (".py", *DATA_SUFFIXES)
    paths = {name: ROOT / name for name in names if name.endswith(suffixes)}
    return {name: path.read_text(encoding="utf-8") for name, path in paths.items() if path.is_file()}


def part_of(path: str) -> str:
    """Return what a file counts as: package, tests, data, or nothing."""
    if path.startswith(("examples/", "tests/kernels/")):
        return ""
    if path.endswith(".py"):
        return "tests" if path.startswith("tests/") else "package"
    return "data" if path.startswith("ropeaudit/") and path not in GENERATED else ""


def sizes(files: Mapping[str, str]) -> Counter[str]:
    """Return the lines of each part."""
    counted: Counter[str] = Counter()
    for path, text in files.items():
        counted[part_of(path)] += text.count("\n")
    return counted


def allowed(step: str, still_open: bool) -> tuple[int, int]:
    """Return the most lines of package and tests, at the end of a step or while it is open."""
    if not still_open:
        return CEILINGS[step]
    before = CEILINGS[list(CEILINGS)[list(CEILINGS).index(step) - 1]]
    return before[0] + ALLOWANCE[0], before[1] + ALLOWANCE[1]


def over(files: Mapping[str, str], step: str, still_open: bool) -> list[str]:
    """Return what is above its ceiling, and by how much."""
    package, tests = allowed(step, still_open)
    most, counted = {"package": package, "tests": tests, "data": DATA}, sizes(files)
    return [
        f"{part}: {counted[part]:,} lines, {counted[part] - most[part]:,} above its ceiling of {most[part]:,}"
        for part in most
        if counted[part] > most[part]
    ]


def mean_length(texts: Iterable[str]) -> float:
    """Return the mean length of the lines that are not blank, in characters."""
    lengths = [len(line) for text in texts for line in text.splitlines() if line.strip()]
    return sum(lengths) / len(lengths)


def loosened(pyproject: str) -> list[str]:
    """Return what of ruff's settings lets more fit on a line than when the ceilings were set."""
    ruff = tomllib.loads(pyproject)["tool"]["ruff"]
    changed = [f"{name} = {ruff.get(name)!r}" for name, value in RUFF.items() if ruff.get(name) != value]
    return changed + [f"[tool.ruff.{name}]" for name in ("format",) if name in ruff]


def test_package_tests_and_data_are_within_their_ceilings() -> None:
    assert over(tracked(), STEP, OPEN) == []


def test_lines_are_as_long_as_they_were() -> None:
    texts = {path: text for path, text in tracked().items() if path.endswith(".py")}
    for part in ("package", "tests"):
        assert mean_length(text for path, text in texts.items() if part_of(path) == part) <= MEAN_LENGTH, part


def test_ruff_formats_as_it_did() -> None:
    assert loosened((ROOT / "pyproject.toml").read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("path", "part"), [("ropeaudit/a.py", "package"), ("tests/a.py", "tests"), ("ropeaudit/a.toml", "data")]
)
def test_a_line_too_many_is_seen(path: str, part: str) -> None:
    package, tests = CEILINGS["22"]
    most = {"package": package, "tests": tests, "data": DATA}[part]
    assert over({path: "x\n" * most}, "22", False) == []
    assert over({path: "x\n" * (most + 1)}, "22", False) == [
        f"{part}: {most + 1:,} lines, 1 above its ceiling of {most:,}"
    ]


def test_an_open_step_has_an_allowance_over_the_ceiling_before_it() -> None:
    assert allowed("22", True) == (CEILINGS["21"][0] + 2_500, CEILINGS["21"][1] + 4_000)
    assert over({"docs/site/a.py": "x\n" * 54_501}, "22", True)
    assert not over({"setup.py": "x\n" * 54_500}, "22", True)


def test_kernels_under_check_and_examples_do_not_count() -> None:
    files = dict.fromkeys(["tests/kernels/a.py", "examples/a.py", *GENERATED, "docs/a.html"], "x\n" * 10**6)
    assert over(files, "27", False) == []


def test_packed_lines_and_a_wider_formatter_are_seen() -> None:
    assert mean_length(["x = 1\n\n" + "y" * 105 + "\n"]) == 55 > MEAN_LENGTH
    kept = "[tool.ruff]\nline-length = 110\ntarget-version = 'py311'\n"
    assert loosened(kept) == []
    assert loosened(kept.replace("110", "120")) == ["line-length = 120"]
    assert loosened(kept + "[tool.ruff.format]\nskip-magic-trailing-comma = true\n") == ["[tool.ruff.format]"]


def main() -> None:
    """Print the lines of each part beside its ceiling, and of each folder of the package."""
    files = tracked()
    counted, (package, tests) = sizes(files), allowed(STEP, OPEN)
    for part, most in (("package", package), ("tests", tests), ("data", DATA)):
        print(f"{part:<10}{counted[part]:>8,} of {most:,}")
    folders: Counter[str] = Counter()
    for path, text in files.items():
        if part_of(path) == "package":
            folders["/".join(path.split("/")[:-1][:3])] += text.count("\n")
    for folder, lines in sorted(folders.items()):
        print(f"  {folder:<40}{lines:>8,}")


if __name__ == "__main__":
    main()
