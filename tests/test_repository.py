"""The files beside the package say what is so: paths that exist, the version, the floors, the hooks."""

import re
import tomllib
from email import message_from_string
from pathlib import Path

import pytest
import release
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


def test_the_workflow_runs_ci_on_the_versions_of_python_that_are_declared() -> None:
    yaml = pytest.importorskip("yaml")
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))["jobs"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    assert jobs["whole"]["strategy"]["matrix"]["python"] == declared
    assert ".ci/run" in [step.get("run") for step in jobs["whole"]["steps"]]
    assert jobs["fast"]["strategy"]["matrix"]["os"] == ["macos-latest", "windows-latest"]


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*-*.yml")), ids=lambda p: p.stem
)
def test_an_issue_form_has_what_its_schema_needs_and_asks_for_the_environment(path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= set(form)
    assert len({field["id"] for field in form["body"]}) == len(form["body"])
    assert all(field["attributes"]["label"] for field in form["body"])
    assert "`ropeaudit list environment`" in str(form)


def test_the_release_checklist_sees_what_is_missing() -> None:
    assert list(release.of_project()) == []
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert list(release.of_changelog(changelog, release.version(), final=False)) == []
    assert "begins with" in next(release.of_changelog(changelog, "9.9", final=False))
    assert "has no day" in next(release.of_changelog("## 1.0 (unreleased)\n", "1.0", final=True))
    assert list(release.of_changelog("## 1.0 (2026-12-01)\n", "1.0", final=True)) == []
    text = "a" * 1000 + '[b](docs/b.md) [c](#c) [d](https://d) <img src="e.png">\n```\n[f](g)\n```\n'
    assert [line.split()[4].strip(",") for line in release.of_description(text)] == ["docs/b.md", "e.png"]
    assert list(release.of_names(["a", "b/__pycache__/c.pyc"], ["a", "d"], "wheel")) == [
        "the wheel lacks d",
        "the wheel holds b/__pycache__/c.pyc",
    ]
    metadata = message_from_string("Version: 1\nProject-URL: Homepage, https://a\n\nshort")
    wrong = list(release.of_metadata(metadata, "2"))
    assert "version 1" in wrong[0]
    assert "the metadata has no link Issues" in wrong
    assert "the metadata has no link Homepage" not in wrong
    assert "the metadata has no description" in wrong


def test_links_of_the_readme_are_absolute_in_the_metadata() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    hook = project["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert any("docs/" in line for line in release.of_description(text))
    for one in hook["substitutions"]:
        text = re.sub(one["pattern"], one["replacement"], text)
    assert list(release.of_description(text)) == []
