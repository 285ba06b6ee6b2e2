"""The files beside the package say what is so: paths that exist, the version, the floors, the hooks."""

import re
import tomllib
from pathlib import Path

import pytest
from test_layers import HOUSE

import ropeaudit

ROOT = Path(__file__).parent.parent
PAGES = ("CONTRIBUTING.md", "docs/architecture.md")


@pytest.mark.parametrize("page", PAGES)
def test_every_path_that_a_page_names_is_there(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    rooms = "|".join(room for rooms in HOUSE for room in rooms if room)
    names = re.findall(
        rf"(?<![\w/])(?:ropeaudit/|tests/|docs/)?(?:{rooms}|tests|docs)(?:/[\w.]+)*(?:\.py|/)", text
    )
    names += re.findall(r"`((?:tests|docs|ropeaudit)/[\w./]+)`", text)
    assert len(names) > 10
    for name in names:
        if not {"NAME", "test_AREA.py"} & set(name.split("/")):
            assert any((ROOT / start / name).exists() for start in ("", "ropeaudit")), name


def test_the_picture_of_the_floors_is_that_of_the_layer_test() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    picture = text.partition("```text\n")[2].partition("```")[0]
    pictured = {int(n): line for n, line in re.findall(r"^ +(\d+)  (.*)$", picture, re.MULTILINE)}
    assert sorted(pictured) == list(range(len(HOUSE)))
    for level, rooms in enumerate(HOUSE):
        named = re.findall(r"([\w/]+)(?:/|\.py)(?= |$)", pictured[level])
        seen = {name.partition("/")[0] for name in named}
        assert seen == set(rooms) - {""}, level


def test_the_citation_has_what_its_schema_needs_and_the_version_of_the_package() -> None:
    yaml = pytest.importorskip("yaml")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["cff-version"] == "1.2.0"
    assert citation["type"] == "software"
    assert all(set(author) in ({"name"}, {"given-names", "family-names"}) for author in citation["authors"])
    assert citation["version"] == ropeaudit.__version__
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert citation["license"] == project["license"]


def test_the_hooks_before_a_commit_are_the_checks_of_ci() -> None:
    yaml = pytest.importorskip("yaml")
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    (repository,) = config["repos"]
    assert repository["repo"] == "local"
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    for hook in repository["hooks"]:
        module = re.search(r"-m (\w+( (check|format))?)", hook["entry"])[1]
        assert f"-m {module}" in ci, hook["id"]
