"""What the site needs beside docs/: pages of the repository's root, links out of docs/, two pictures for one.

A hook of MkDocs. On GitHub the pages are read as they are. On the site, a link to README, CONTRIBUTING or
CHANGELOG leads to a page made of that file, any other link out of docs/ to the repository, at
ROPEAUDIT_DOCS_REF (a tag) or main. A link to what is not there is left as it is: a strict build fails.
"""

import os
import posixpath
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
REPOSITORY = "https://github.com/ropeaudit/ropeaudit"
PAGES = {"README.md": "start.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
_CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)((?:#[^)\s]*)?)\)")
_OUTPUT = re.compile(r'(<div class="language-text highlight"><pre><span></span><code[^>]*>)([^\n]+)')
_PICTURE = re.compile(r'<picture>.*?srcset="([^"]+)".*?alt="([^"]*)"\s+src="([^"]+)".*?</picture>', re.DOTALL)


def on_files(files, config):
    """Add the pages that are made of files of the repository's root."""
    from mkdocs.structure.files import File

    for source, page in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown, page, config, files):
    """Rewrite what leads elsewhere on the site than on GitHub; the first page has no pages beside it."""
    if page.is_homepage:
        page.meta["hide"] = ["navigation"]
    sources = {name: source for source, name in PAGES.items()}
    return rewritten(markdown, sources.get(page.file.src_uri, f"docs/{page.file.src_uri}"))


def on_page_content(html, page, config, files):
    """Mark the first line of every output, which the style sheet wraps: it is the answer."""
    return _OUTPUT.sub(r'\1<span class="headline">\2</span>', html)


def rewritten(text: str, source: str) -> str:
    """Return a page for the site; source is its file, from the root of the repository."""
    parts = _CODE.split(_PICTURE.sub(_pictures, text))
    for number in range(0, len(parts), 2):
        parts[number] = _LINK.sub(lambda link: f"]({_target(link[1], source)}{link[2]})", parts[number])
    return "".join(parts)


def _pictures(match: re.Match[str]) -> str:
    dark, words, light = match.groups()
    return f"![{words}]({light}#only-light) ![{words}]({dark}#only-dark)"


def _target(link: str, source: str) -> str:
    """Return where a link of a page leads on the site."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    if path in PAGES:
        return PAGES[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path.startswith("..") or not (ROOT / path).exists():
        return link
    kind = "tree" if (ROOT / path).is_dir() else "blob"
    return f"{REPOSITORY}/{kind}/{os.environ.get('ROPEAUDIT_DOCS_REF', 'main')}/{path}"
