"""The release checklist: builds wheel and sdist, and says what keeps them from being released.

Run it: python tests/release.py [--final] [--tag TAG] [--dist FOLDER], or --notes
--final: the CHANGELOG names the day too, and what a script cannot see is listed. --tag: that of the release.
Exit code 1 if something is missing. --notes prints the CHANGELOG's section of this version, and does no more.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from email import message_from_bytes
from email.message import Message
from pathlib import Path

ROOT = Path(__file__).parent.parent
BY_HAND = (
    "the addresses of [project.urls] are those of the repository",
    "the exhaustive tests and the benchmarks were run, and docs/benchmarks.md is of this version",
    "the tag is v and the version, on the commit that CI passed; .github/workflows/release.yml does the rest",
)
IN_WHEEL = (
    "py.typed",
    "data/checks.toml",
    "data/recipes.toml",
    "data/models.toml",
    *("data/model_types.toml", "data/remote_types.toml", "data/code_facts.toml"),
    *("data/scalings.toml", "data/verdicts.toml"),
    "data/report.css",
    "data/report.js",
)
IN_SDIST = (
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "CITATION.cff", "LICENSE", "constraints.txt"),
    *("pyproject.toml", "mkdocs.yml", "tests/conftest.py", "docs/README.md", "examples/kernel.py"),
)
LINKS = ("Homepage", "Documentation", "Changelog", "Issues")


def version() -> str:
    """Return the version of the package's file."""
    text = (ROOT / "ropeaudit" / "_version.py").read_text(encoding="utf-8")
    return re.search(r'__version__ = "(.*)"', text)[1]


def of_changelog(text: str, expected: str, final: bool) -> Iterator[str]:
    """Yield what is wrong with the first heading of the CHANGELOG."""
    heading = re.search(r"^## (\S+)(?: \((.*)\))?$", text, re.MULTILINE)
    if not heading or heading[1] != expected:
        yield f"CHANGELOG.md begins with {heading[1] if heading else 'no version'}, the package is {expected}"
    elif final and not re.fullmatch(r"\d{4}-\d\d-\d\d", heading[2] or ""):
        yield f"CHANGELOG.md: {expected} has no day; write '## {expected} (YEAR-MONTH-DAY)'"


def of_tag(tag: str | None, expected: str) -> Iterator[str]:
    """Yield that a tag is not the one of the version."""
    if tag not in (None, f"v{expected}"):
        yield f"the tag is {tag}, that of this version is v{expected}"


def notes(text: str, expected: str) -> str:
    """Return what the CHANGELOG says of a version, its links to files at that tag; empty if nothing."""
    section = re.search(
        rf"^## {re.escape(expected)}(?: [^\n]*)?\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL
    )
    files = f"https://github.com/ropeaudit/ropeaudit/blob/v{expected}/"
    return re.sub(r"\]\((?!https?://|#)", f"]({files}", section[1].strip()) if section else ""


def of_metadata(metadata: Message, expected: str) -> Iterator[str]:
    """Yield what is wrong with the metadata of a wheel or an sdist."""
    if metadata["Version"] != expected:
        yield f"the metadata is of version {metadata['Version']}, the package is {expected}"
    for name in ("Summary", "License-Expression", "Requires-Python", "Description-Content-Type"):
        if not metadata[name]:
            yield f"the metadata has no {name}"
    links = dict(link.split(", ", 1) for link in metadata.get_all("Project-URL", []))
    yield from (
        f"the metadata has no link {name}" for name in LINKS if not links.get(name, "").startswith("https://")
    )
    yield from of_description(metadata.get_payload())


def of_description(text: str) -> Iterator[str]:
    """Yield the links of a README that lead nowhere from an index, and that it is empty."""
    if len(text) < 1000:
        yield "the metadata has no description"
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)", prose) + re.findall(r'(?:src|srcset|href)="([^"]+)', prose):
        if not target.startswith(("https://", "#")):
            yield f"the description links to {target}, which is nowhere on an index"


def of_names(names: Iterable[str], needed: Iterable[str], what: str) -> Iterator[str]:
    """Yield which files an archive lacks, and which it should not have."""
    held = set(names)
    yield from (f"the {what} lacks {name}" for name in needed if name not in held)
    for name in sorted(held):
        if re.search(r"(^|/)(__pycache__|\.venv|\.git|\.hypothesis|build|dist)/|\.pyc$|\.env$", name):
            yield f"the {what} holds {name}"


def of_archives(folder: Path, expected: str) -> Iterator[str]:
    """Yield what is wrong with the wheel and the sdist in a folder."""
    wheel = folder / f"ropeaudit-{expected}-py3-none-any.whl"
    sdist = folder / f"ropeaudit-{expected}.tar.gz"
    missing = [path.name for path in (wheel, sdist) if not path.is_file()]
    if missing:
        yield f"{' and '.join(missing)} were not built"
        return
    modules = [path.relative_to(ROOT).as_posix() for path in (ROOT / "ropeaudit").rglob("*.py")]
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        yield from of_names(names, [*modules, *(f"ropeaudit/{name}" for name in IN_WHEEL)], "wheel")
        roots = {name.partition("/")[0] for name in names}
        about = f"ropeaudit-{expected}.dist-info"
        yield from (f"the wheel installs {root}" for root in sorted(roots - {"ropeaudit", about}))
        yield from of_names(names, [f"{about}/licenses/LICENSE", f"{about}/entry_points.txt"], "wheel")
        yield from of_metadata(message_from_bytes(archive.read(f"{about}/METADATA")), expected)
    with tarfile.open(sdist) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    yield from of_names(names, [*modules, *IN_SDIST], "sdist")


def of_project() -> Iterator[str]:
    """Yield what is wrong with pyproject.toml and the citation."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    yield from (f"pyproject.toml has no link {name}" for name in LINKS if name not in project.get("urls", {}))
    if f"\nversion: {version()}\n" not in (ROOT / "CITATION.cff").read_text(encoding="utf-8"):
        yield f"CITATION.cff is not of version {version()}"


def main() -> int:
    """Build, check, and say what is missing; return 1 if something is."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--final", action="store_true", help="the CHANGELOG names the day too")
    parser.add_argument("--tag", help="the tag of the release")
    parser.add_argument("--dist", type=Path, help="where wheel and sdist go")
    parser.add_argument("--notes", action="store_true", help="print the CHANGELOG's section, and do no more")
    options = parser.parse_args()
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if options.notes:
        print(notes(changelog, version()))
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.dist or Path(scratch)
        subprocess.run([sys.executable, "-m", "build", "-q", "--outdir", str(folder), str(ROOT)], check=True)
        wrong = [
            *of_tag(options.tag, version()),
            *of_changelog(changelog, version(), options.final),
            *of_project(),
            *of_archives(folder, version()),
        ]
    for line in wrong:
        print(f"missing: {line}")
    print(
        f"ropeaudit {version()}: {len(wrong)} things are missing"
        if wrong
        else f"ropeaudit {version()}: complete"
    )
    if options.final:
        print("By hand:", *BY_HAND, sep="\n- ")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
