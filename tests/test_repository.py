"""The files beside the package say what is so: paths that exist, the version, the floors, the workflows."""

import json
import re
import subprocess
import sys
import tomllib
from email import message_from_string
from pathlib import Path

import other_machine
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


def test_the_citation_and_the_record_of_zenodo_are_of_the_package() -> None:
    yaml = pytest.importorskip("yaml")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == ropeaudit.__version__
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert citation["license"] == project["license"]
    zenodo = json.loads((ROOT / ".zenodo.json").read_text(encoding="utf-8"))
    assert (zenodo["upload_type"], zenodo["access_right"]) == ("software", "open")
    assert zenodo["license"] == project["license"]
    assert "version" not in zenodo  # Zenodo takes it from the tag
    for ours, theirs in (("title", "title"), ("abstract", "description"), ("keywords", "keywords")):
        assert citation[ours] == zenodo[theirs]
    assert citation["authors"] == zenodo["creators"]


WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))
OF_A_SCHEMA = {
    "github-workflows": [*WORKFLOWS, ROOT / "examples" / "github-actions.yml"],
    "github-issue-forms": FORMS,
    "github-issue-config": [ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml"],
    "dependabot": [ROOT / ".github" / "dependabot.yml"],
    "citation-file-format": [ROOT / "CITATION.cff"],
}


def fits(schema: str, *paths: Path) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("check_jsonschema")
    tool = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    return subprocess.run([*tool, *map(str, paths)], capture_output=True, text=True)


@pytest.mark.parametrize("schema", OF_A_SCHEMA)
def test_files_that_services_read_fit_their_schemas(schema: str, tmp_path: Path) -> None:
    paths = OF_A_SCHEMA[schema]
    assert len(paths) >= {"github-workflows": 4, "github-issue-forms": 3}.get(schema, 1)
    done = fits(schema, *paths)
    assert done.returncode == 0, done.stdout
    broken = tmp_path / f"broken{paths[0].suffix}"
    broken.write_text(paths[0].read_text(encoding="utf-8") + "\nno-such-key: [1]\n", encoding="utf-8")
    assert fits(schema, broken).returncode == 1


def test_workflows_may_do_no_more_than_they_must() -> None:
    yaml = pytest.importorskip("yaml")
    writing = set()
    for path in WORKFLOWS:
        workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert workflow["permissions"] in ({}, {"contents": "read"}), path.name
        for name, job in workflow["jobs"].items():
            assert "uses" in job or job["timeout-minutes"] <= 120
            assert not [step for step in job.get("steps", []) if "${{" in step.get("run", "")]  # through env
            allowed = {key for key, value in job.get("permissions", {}).items() if value == "write"}
            writing |= {(path.stem, name, key) for key in allowed}
    assert writing == {
        ("release", "build", "id-token"),
        ("release", "build", "attestations"),
        ("release", "pypi", "id-token"),
        ("release", "github", "contents"),
        ("release", "site", "contents"),
        ("docs", "deploy", "contents"),
    }


def test_the_workflow_runs_ci_on_the_versions_of_python_that_are_declared() -> None:
    yaml = pytest.importorskip("yaml")
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))["jobs"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    assert jobs["whole"]["strategy"]["matrix"]["python"] == declared
    assert ".ci/run" in [step.get("run") for step in jobs["whole"]["steps"]]
    fast = jobs["fast"]["strategy"]["matrix"]
    assert fast["os"] == ["ubuntu-latest", "macos-latest", "windows-latest"]
    assert fast["python"] == [*declared, "3.14"]
    assert fast["exclude"] == [{"os": "ubuntu-latest", "python": version} for version in declared]
    assert jobs["machines"]["strategy"]["matrix"]["machine"] == list(other_machine.MACHINES)


def test_the_release_checklist_sees_what_is_missing() -> None:
    assert list(release.of_project()) == []
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert list(release.of_changelog(changelog, release.version(), final=False)) == []
    assert "begins with" in next(release.of_changelog(changelog, "9.9", final=False))
    assert "has no day" in next(release.of_changelog("## 1.0 (unreleased)\n", "1.0", final=True))
    assert list(release.of_changelog("## 1.0 (2026-12-01)\n", "1.0", final=True)) == []
    assert list(release.of_tag("v1.0", "1.0")) == list(release.of_tag(None, "1.0")) == []
    assert "is v1.1" in next(release.of_tag("v1.1", "1.0"))
    assert release.notes("# C\n\n## 1.0 (2026-12-01)\n\nb\n\n### c\n\n## 0.9\n\nd\n", "1.0") == "b\n\n### c"
    assert release.notes("## 1.0\n\nb\n", "1") == ""
    assert release.notes("## 1.0\n[b](c.md) [d](https://e)\n", "1.0").endswith("/v1.0/c.md) [d](https://e)")
    metadata = message_from_string("Version: 1\nProject-URL: Homepage, https://a\n\nshort")
    wrong = list(release.of_metadata(metadata, "2"))
    assert "version 1" in wrong[0]
    assert "the metadata has no link Issues" in wrong
    assert "the metadata has no link Homepage" not in wrong
    assert "the metadata has no description" in wrong
