"""The output shown in README and in docs/ is what the blocks above it print.

`PYTHONPATH=tests python tests/documentation/test_readme.py` writes the outputs anew; with words, those of
pages whose names hold one.
"""

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
from documented import PAGES, PRINTED, ROOT, Block, blocks, executed, furnish, marked
from figures import differences

from ropeaudit.subjects.calling import conventions, signatures

SHOWN = [block for block in blocks() if block.output is not None]


@pytest.mark.processor
@pytest.mark.parametrize("block", marked(SHOWN))
def test_shown_output_is_real(block: Block, tmp_path: Path) -> None:
    if "\ncc " in block.text and shutil.which("cc") is None:
        pytest.skip("no C compiler")
    furnish(tmp_path, block.text)
    code, output, _ = executed(block.language, block.text, tmp_path)
    assert code == block.exit_code
    assert differences(block.output, output) == []


def test_what_readme_counts_is_what_the_pages_count() -> None:
    pages = {path.name: path.read_text(encoding="utf-8") for path in PAGES}
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    bugs, caught = (
        sum(
            map(
                int,
                re.search(
                    rf"^\| {row} \| (\d+) \| (\d+) \|$", pages["shipped-bugs.md"], re.MULTILINE
                ).groups(),
            )
        )
        for row in ("re-enacted", "caught")
    )
    assert f"{bugs} RoPE bugs" in text
    assert f"a command catches {caught} of them" in text
    [configs] = re.findall(r"^(\d+) config files", pages["fresh-configs.md"], re.MULTILINE)
    assert f"Of {configs} `config.json` files" in text
    assert "wrong" not in re.search(r"- Now: (.*)", pages["fresh-configs.md"])[1]
    [called] = re.findall(r"^- (\d+) implementations were measured", pages["survey.md"], re.MULTILINE)
    assert f"{called} implementations of" in text


def test_links_lead_somewhere() -> None:
    pages = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
    for path in pages:
        text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\(([^)#]*)(?:#[^)]*)?\)", text):
            assert target.startswith("http") or not target or (path.parent / target).exists(), (
                path.name,
                target,
            )
        for target, anchor in re.findall(r"\]\(([^)#]*)#([^)]*)\)", text):
            there = (path.parent / target).resolve() if target else path
            assert there in pages
            assert anchor in anchors(there), (path.name, target, anchor)


def anchors(path: Path) -> set[str]:
    """Return the names by which a page's headings are linked to."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_names_of_arguments_are_those_that_are_known() -> None:
    text = (ROOT / "docs" / "signatures.md").read_text(encoding="utf-8")
    named = {
        name for row in re.findall(r"^\| [^|]*\| (`[^|]*) \|$", text, re.MULTILINE) for name in names(row)
    }
    built = {
        name for row in re.findall(r"^\| (`[^|]*) \|[^|]*\|$", text, re.MULTILINE) for name in names(row)
    }
    building = {name for role in signatures.BUILDING for name in signatures.ROLES[role]}
    assert built == building
    assert (
        named - {"--rotary-dim", "--base", "--head-dim"}
        == {n for g in signatures.ROLES.values() for n in g} - building
    )
    assert all(f"`{order}`" in text for order in conventions.ORDERS)
    assert f"{signatures.LENGTH:,}" in text


def names(row: str) -> list[str]:
    """Return what stands in backticks."""
    return re.findall(r"`([^`]+)`", row)


def rewritten(match: re.Match[str]) -> str:
    """Return a block with the output that it has now."""
    language, text = match[1], match[2]
    with tempfile.TemporaryDirectory() as folder:
        furnish(Path(folder), text)
        code, output, _ = executed(language, text, Path(folder))
    note = f"<!-- exit code {code} -->\n" if code else ""
    return f"```{language}\n{text}```\n\n{note}```text\n{output}```"


if __name__ == "__main__":
    for page in PAGES:
        if len(sys.argv) == 1 or any(word in page.name for word in sys.argv[1:]):
            os.chdir(ROOT)
            page.write_text(PRINTED.sub(rewritten, page.read_text(encoding="utf-8")), encoding="utf-8")
