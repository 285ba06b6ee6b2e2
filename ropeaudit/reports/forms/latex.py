"""LaTeX: a table for a paper, with booktabs alone; as wide as a page takes, other columns by --columns."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ropeaudit.reports import Report
from ropeaudit.reports.fitting import fitted, is_number
from ropeaudit.reports.numbers import printable

_WIDTH = 100  # characters that fit across a page in \footnotesize
_LONG = 40  # rows that fit into a float
_NUMBER = re.compile(r"([+-]?[0-9.]+)(?:e([+-]?[0-9]+))?( %)?")
_MARKS = {
    "\\": r"\textbackslash{}",
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "`": r"\textasciigrave{}",
    "×": r"$\times$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "Σ": r"$\Sigma$",
    "θ": r"$\theta$",
    "²": r"$^2$",
    "·": r"$\cdot$",
    "§": r"\S{}",
    "–": "--",
    "…": r"\dots{}",
    "√": r"$\surd$",
    "→": r"$\to$",
}
_ESCAPED = str.maketrans(_MARKS)


def render(report: Report) -> str:
    """Return a table with its caption, the legend and the notes below; those with a headline follow."""
    report = report.for_readers()
    parts = [_table(report)] if report.screen else [f"\\noindent {_escaped(report.headline)}\n"]
    parts += [render(other) for other in report.further.values() if other.headline]
    return "\n".join(parts)


def _table(report: Report) -> str:
    report, layout, left_out = fitted(report, _WIDTH)
    right = [is_number(report.rows, name) for name in layout.names]
    headings = [
        _heading(text, "r" if number else "l") for text, number in zip(layout.headings, right, strict=True)
    ]
    body = [
        _line(
            _cell(report.shown(name, row[name]), number)
            for name, number in zip(layout.names, right, strict=True)
        )
        for row in report.rows
    ]
    below = " ".join(map(_escaped, filter(None, [report.full_legend().replace("\n", " "), *report.notes])))
    package = r"\usepackage{booktabs}" + (r" \usepackage{longtable}" if len(body) > _LONG else "")
    lines = [f"% {package}"]
    lines += [f"% Left out for want of room: {', '.join(left_out)}; --columns chooses."] if left_out else []
    columns = "".join("r" if number else "l" for number in right)
    head = [r"\toprule", _line(headings)] if report.header else [r"\toprule"]
    head += [r"\midrule"] if report.header else []
    caption = f"\\caption{{{_escaped(report.headline)}}}" if report.headline and report.header else ""
    write = _long if len(body) > _LONG else _float
    return "\n".join([*lines, *write(columns, caption, head, body, below)]) + "\n"


def _float(columns: str, caption: str, head: list[str], body: list[str], below: str) -> list[str]:
    return [
        r"\begin{table}",
        r"\centering\footnotesize\setlength{\tabcolsep}{4pt}",
        *([caption] if caption else []),
        f"\\begin{{tabular}}{{{columns}}}",
        *head,
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        *(["", r"\smallskip", f"\\parbox{{\\linewidth}}{{\\scriptsize {below}}}"] if below else []),
        r"\end{table}",
    ]


def _long(columns: str, caption: str, head: list[str], body: list[str], below: str) -> list[str]:
    """Return the lines of a table that goes over pages."""
    return [
        r"{\footnotesize\setlength{\tabcolsep}{4pt}",
        f"\\begin{{longtable}}{{{columns}}}",
        *([f"{caption}\\\\"] if caption else []),
        *head,
        r"\endfirsthead",
        *head,
        r"\endhead",
        *body,
        r"\bottomrule",
        r"\end{longtable}",
        *([f"\\noindent{{\\scriptsize {below}\\par}}"] if below else []),
        "}",
    ]


def _line(cells: Iterable[str]) -> str:
    return f"{' & '.join(cells)} \\\\"


def _heading(text: str, side: str) -> str:
    joined = r" \\ ".join(_escaped(line) for line in text.split("\n"))
    return f"\\shortstack[{side}]{{{joined}}}" if "\n" in text else joined


def _cell(text: str, number: bool) -> str:
    """Return a cell: numbers in mathematics, 5.23e-04 as a power of ten."""
    match = _NUMBER.fullmatch(text) if number else None
    if match is None:
        return _escaped(text)
    mantissa, exponent, percent = match.groups()
    power = f"\\times10^{{{int(exponent)}}}" if exponent else ""
    return f"${mantissa}{power}$" + (r"\,\%" if percent else "")


def _escaped(text: str) -> str:
    """Return text that LaTeX sets as it is."""
    return printable(text).translate(_ESCAPED)
