"""Templates of `data/templates`: what becomes of a report that people read as a page, Markdown or a ticket.

Control characters, and marks that turn the direction of writing, are written out. In a page all is text.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ropeaudit import data
from ropeaudit.reports import Report, heading
from ropeaudit.reports.numbers import exact, printable
from ropeaudit.reports.verdicts import quality

if TYPE_CHECKING:
    from jinja2 import Environment

_STORED = 4096  # texts that are remembered: most cells say what another one said
# what Markdown could take for markup; an underscore within a word is none
_MARKS = re.compile(r"[\\|<>*`\[\]&]|(?<![^\W_])_|_(?![^\W_])")


def render(name: str, /, **values: Any) -> str:
    """Return the text that a template makes of values."""
    return _environment().get_template(name).render(values)


def markdown(text: Any) -> str:
    r"""Return text that Markdown shows as it is.

    >>> markdown("a|b <i> drift_rms __x__")
    'a\\|b \\<i\\> drift_rms \\_\\_x\\_\\_'
    """
    return _MARKS.sub(r"\\\g<0>", printable(str(text)))


def made(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return when and where a run was made, as far as its metadata say it."""
    facts = {name: metadata[name] for name in ("rows", "time") if name in metadata}
    return {**facts, **metadata.get("environment", {})}


def numeric(report: Report) -> set[str]:
    """Return the columns on the screen that hold numbers."""
    return {name for name in report.screen if report.numeric(name)}


def stages(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the number format of each stage by subject, as far as known."""
    return {
        subject: " ".join(f"{stage}={fmt}" for stage, fmt in formats.items())
        for subject, formats in metadata.get("stages", {}).items()
        if isinstance(formats, dict)  # a file may say anything
    }


def sha256(text: str) -> str:
    """Return the digest by which a Content Security Policy lets a style or a script be."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@functools.cache
def _environment() -> Environment:
    """Return the environment; a missing name is an error."""
    # in-function: few runs write pages
    from jinja2 import Environment, FunctionLoader, StrictUndefined, select_autoescape
    from markupsafe import Markup

    shown = functools.lru_cache(_STORED)(printable)
    environment = Environment(
        loader=FunctionLoader(lambda name: data.text(f"templates/{name}")),
        autoescape=select_autoescape(["html.j2"]),
        finalize=lambda value: value if isinstance(value, Markup) else shown(str(value)),
        keep_trailing_newline=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for function in (exact, heading, made, markdown, numeric, quality, sha256, stages):
        environment.filters[function.__name__] = function
    return environment
