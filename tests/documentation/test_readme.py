"""The output shown in README and in docs/ is what the blocks above it print.

`PYTHONPATH=tests python tests/documentation/test_readme.py` writes the outputs anew; with words, those of
pages whose names hold one.
"""

import contextlib
import io
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
from documented import PAGES, PRINTED, ROOT, WAS, Block, blocks, command, furnish, marked, shell
from figures import differences

from ropeaudit.main import main
from ropeaudit.subjects.calling import conventions, signatures

README = ROOT / "README.md"
SHOWN = [block for block in blocks() if block.output is not None]


def printed(language: str, text: str, folder: Path) -> tuple[int, str]:
    furnish(folder, text)
    if arguments := command(text):
        out = io.StringIO()
        with contextlib.chdir(folder), contextlib.redirect_stdout(out):
            return main(arguments), out.getvalue()
    if language == "python":
        (folder / "block.py").write_text(text, encoding="utf-8")
        text = "python block.py"
    done = shell(text, folder)
    return done.returncode, done.stdout


@pytest.mark.processor
@pytest.mark.parametrize("block", marked(SHOWN))
def test_shown_output_is_real(block: Block, tmp_path: Path) -> None:
    if "\ncc " in block.text and shutil.which("cc") is None:
        pytest.skip("no C compiler")
    code, output = printed(block.language, block.text, tmp_path)
    assert code == block.exit_code
    assert differences(block.output, output) == []


def test_every_cause_has_a_section_and_an_example() -> None:
    text = (ROOT / "docs" / "causes.md").read_text(encoding="utf-8")
    for cause in ("aliasing", "sensitivity", "quantisation", "cancellation", "overflow"):
        _, _, section = text.partition(f"\n## {cause.capitalize()}\n")
        (example,) = PRINTED.finditer(section.partition("\n## ")[0])
        assert re.search(rf"\b{cause}\b", example[4])


GENERATED = {
    "survey.md",
    "shipped-bugs.md",
    *(f"reference-{of}.md" for of in ("commands", "columns", "python")),
}
NO_QUESTION = {"architecture.md", "architectures.md", "benchmarks.md", "comparison.md", *GENERATED}


def test_every_page_that_answers_a_question_begins_with_a_command_and_its_output() -> None:
    for path in PAGES:
        if path.name in {"README.md", *NO_QUESTION}:
            continue
        text = path.read_text(encoding="utf-8")
        first = text.index("```")
        assert first < 2000, path.name
        assert PRINTED.search(text).start() == first, path.name


def test_readme_is_short_and_shows_what_its_first_line_prints() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.encode()) <= 12_000
    (shown,) = PRINTED.finditer(text)
    assert shown[2].startswith("python3 -m venv .venv && ")
    assert shown.start() == text.index("```")


def test_links_lead_somewhere() -> None:
    pages = [*PAGES, WAS, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
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


def test_no_sentence_stands_on_two_pages() -> None:
    pages: dict[str, set[str]] = {}
    for path in PAGES:
        if path.name in {"architecture.md", *GENERATED}:  # the one is of the inside, others generated
            continue
        text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        words = re.findall(r"[\w.]+", re.sub(r"\]\([^)]*\)", "", text).lower())
        for start in range(len(words) - 9):
            pages.setdefault(" ".join(words[start : start + 10]), set()).add(str(path.relative_to(ROOT)))
    assert len(pages) > 5000
    twice = {words: names for words, names in pages.items() if len(names) > 1}
    index = {"docs/README.md", "docs/faq.md"}  # the one asks the other's questions
    assert not {words: names for words, names in twice.items() if names != index}


def test_the_names_of_arguments_are_those_that_are_known() -> None:
    text = (ROOT / "docs" / "own-kernel.md").read_text(encoding="utf-8")
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
        code, output = printed(language, text, Path(folder))
    note = f"<!-- exit code {code} -->\n" if code else ""
    return f"```{language}\n{text}```\n\n{note}```text\n{output}```"


if __name__ == "__main__":
    for page in PAGES:
        if len(sys.argv) == 1 or any(word in page.name for word in sys.argv[1:]):
            os.chdir(ROOT)
            page.write_text(PRINTED.sub(rewritten, page.read_text(encoding="utf-8")), encoding="utf-8")
