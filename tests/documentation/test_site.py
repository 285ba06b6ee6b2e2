"""The site of docs/: its picture is that of today, its links lead where they do on GitHub or fail."""

import importlib.util
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

import first_picture
import pytest
from documented import ROOT

_SPEC = importlib.util.spec_from_file_location("site_links", ROOT / "docs" / "site" / "links.py")
links = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(links)
BLOB = f"{links.REPOSITORY}/blob/main"
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")
CLOSE = 0.5  # points, of a picture 259 high: what the sums of another processor may move a line


def shape(svg: str) -> tuple[list[str], list[list[float]]]:
    """Return the elements of a picture's axes and legend with what they say, and the numbers of each line."""
    lines = [path.get("d") for path in axes(svg).findall(".//{*}path") if path.get("clip-path")]
    texts = re.findall(r"<!-- (.*?) -->", svg)
    numbers = [[float(number) for number in NUMBER.findall(line)] for line in lines]
    return texts, numbers


def axes(svg: str) -> xml.etree.ElementTree.Element:
    tree = xml.etree.ElementTree.fromstring(svg)  # noqa: S314 (written by this repository)
    return next(group for group in tree.findall(".//{*}g") if group.get("id") == "axes_1")


@pytest.mark.processor
def test_the_picture_is_what_the_commands_of_the_first_page_draw(tmp_path: Path, capsys) -> None:
    pytest.importorskip("matplotlib")
    stored = (first_picture.IMAGES / "drift.svg").read_text(encoding="utf-8")
    assert first_picture.dark(stored) == (first_picture.IMAGES / "drift-dark.svg").read_text(encoding="utf-8")
    texts, lines = shape(stored)
    now_texts, now_lines = shape(first_picture.drawn(tmp_path))
    assert texts == now_texts
    assert any("hf bfloat16" in text for text in texts)
    assert [len(line) for line in lines] == [len(line) for line in now_lines]
    assert len(lines) > 5
    for line, now in zip(lines, now_lines, strict=True):
        assert line == pytest.approx(now, abs=CLOSE)


def test_links_lead_where_they_do_on_github() -> None:
    def on_site(text: str, source: str = "docs/a.md") -> str:
        return links.rewritten(text, source)

    kept = "[a](check.md#status) [b](#c) [d](https://e)"
    assert on_site(kept) == kept
    assert on_site("[a](../README.md#in-ci)") == "[a](start.md#in-ci)"
    assert on_site("[a](../examples/sweep.sh)") == f"[a]({BLOB}/examples/sweep.sh)"
    assert (
        on_site("[a](../tests/kernels/shipped)") == f"[a]({links.REPOSITORY}/tree/main/tests/kernels/shipped)"
    )
    assert on_site("[a](../examples/none.sh)") == "[a](../examples/none.sh)"
    assert on_site("[a](docs/check.md) [b](LICENSE)", "README.md") == f"[a](check.md) [b]({BLOB}/LICENSE)"
    assert on_site("`[a](../README.md)`\n```\n[a](../README.md)\n```") == (
        "`[a](../README.md)`\n```\n[a](../README.md)\n```"
    )


def test_pictures_are_light_and_dark_on_the_site() -> None:
    text = links.rewritten((ROOT / "docs" / "README.md").read_text(encoding="utf-8"), "docs/README.md")
    assert "<picture>" not in text
    for name in ("drift.svg#only-light", "drift-dark.svg#only-dark"):
        assert f"](images/{name})" in text


def test_every_page_stands_in_the_navigation_once() -> None:
    listed = re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    pages = [path.name for path in (ROOT / "docs").glob("*.md")]
    assert sorted(listed) == sorted([*pages, *links.PAGES.values()])


BROKEN = {
    "[a](none.md)": "'none.md', but the target is not found",
    "[a](check.md#none)": "does not contain an anchor '#none'",
    "[a](../examples/none.py)": "'../examples/none.py'",
}


@pytest.mark.slow
@pytest.mark.parametrize("added", [{}, BROKEN], ids=["as it is", "broken"])
def test_a_broken_link_fails_the_build(added: dict[str, str], tmp_path: Path) -> None:
    for package in ("mkdocs", "material", "mike"):
        pytest.importorskip(package)
    for name in ("docs", "tests/kernels/shipped", "examples"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for path in (ROOT / "mkdocs.yml", *ROOT.glob("*.md")):
        shutil.copy(path, tmp_path)
    with open(tmp_path / "docs" / "faq.md", "a", encoding="utf-8") as page:
        page.write("\n" + "\n".join(added) + "\n")
    command = [sys.executable, "-m", "mkdocs", "build", "-d", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode == 0) == (not added), done.stderr
    assert [text for text in added.values() if text not in done.stderr] == []
