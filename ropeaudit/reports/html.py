"""Text and elements of HTML: whatever comes from outside is text, wherever it stands.

Markup, quotes, control characters and marks that turn the direction of writing are written out, so that a
name in a report can neither become markup nor look like another name.
"""

from __future__ import annotations

import html
from typing import Any

from ropeaudit.reports.numbers import printable


def text(value: Any) -> str:
    r"""Return a value as text that may stand between tags and in quoted attributes.

    >>> text('<b title="x">'), text("a\u202eb")
    ('&lt;b title=&quot;x&quot;&gt;', 'a\\u202eb')
    """
    return html.escape(printable(str(value)))


def element(name: str, inside: str, **attributes: Any) -> str:
    """Return an element; `inside` is HTML already, attributes are plain values, None leaves one out.

    >>> element("p", text("a < b"), class_="note", hidden=None)
    '<p class="note">a &lt; b</p>'
    """
    return f"{tag(name, **attributes)}{inside}</{name}>"


def tag(name: str, **attributes: Any) -> str:
    """Return the opening tag of an element; class_ is class and aria_label is aria-label."""
    given = (
        f' {key.rstrip("_").replace("_", "-")}="{text(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{''.join(given)}>"


def listed(items: list[str], name: str = "ul", **attributes: Any) -> str:
    """Return a list of items that are HTML already; none without items."""
    return element(name, "\n".join(element("li", item) for item in items), **attributes) if items else ""


def definitions(pairs: dict[str, Any]) -> str:
    """Return a list of names and values."""
    inside = "".join(f"<dt>{text(key)}</dt><dd>{text(value)}</dd>\n" for key, value in pairs.items())
    return f"<dl>{inside}</dl>" if pairs else ""


def section(title: str, inside: str, id_: str) -> str:
    """Return a section with a heading, or nothing where it would be empty."""
    if not inside:
        return ""
    heading = element("h2", text(title), id=f"{id_}-title")
    return element("section", f"\n{heading}\n{inside}\n", id=id_, aria_labelledby=f"{id_}-title")


def ascii_only(page: str) -> str:
    """Return a page with every other character as a reference: it reads the same in any encoding."""
    return page.encode("ascii", "xmlcharrefreplace").decode("ascii")
