"""Snippets of tickets print the number of the row, with torch and the audited package alone."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys

import pytest

from ropeaudit.audits.cases import Case
from ropeaudit.audits.sweep import Audit
from ropeaudit.reports import Report, tickets
from ropeaudit.reports.tickets import NoSnippet, Reproduction, Ticket, reproduced

LINES = 25

_RUNNER = """
import contextlib, io, json, sys
results = []
for code in json.load(sys.stdin):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(code, {})
    results.append(out.getvalue())
assert "ropeaudit" not in sys.modules
print(json.dumps(results))
"""


def printed(snippets: list[Reproduction]) -> list[str]:
    """Return what each prints, all of them run in one process, for an import of torch takes seconds."""
    run = subprocess.run(
        [sys.executable, "-c", _RUNNER],
        input=json.dumps([one.code for one in snippets]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return json.loads(run.stdout.splitlines()[-1])


def same_digits(text: str, value: float) -> bool:
    """Return whether three digits are those of a number, up to one in the last: BLAS orders its sums."""
    number = float(text.split()[-1])
    return abs(number - value) <= 1.01 * 10.0 ** (math.floor(math.log10(value)) - 2)


SMALL = {"heads": 2, "seq_len": 48, "head_dim": 32}
# cases with something of their own
CASES = {
    "plain": {},
    "grouped": {"kv_heads": 1, "seed": 7},
    "full": {"mask": "full", "scale": 1.0},
    "window": {"mask": "window:8", "layout": "interleaved"},
    "part": {"rotary_dim": 16},
    "linear": {"scaling": "linear:factor=4"},
    "llama3": {"scaling": "llama3:factor=8,low=1,high=4,original=8192", "base": 5e5},
    "step": {"scaling": "llama3:factor=8,low=1,high=1,original=8192", "base": 5e5},
    "yarn": {"scaling": "yarn:factor=4,original=32768", "base": 1e6},
    "dynamic": {"scaling": "dynamic:factor=2,maximum=32"},
    "proportional": {"scaling": "proportional:fraction=0.5"},
}

FUNCTIONS = {"window": "pairs", "part": "front"}  # of OWN, where it is not tables


def snippets_of(audit: Audit) -> list[tuple[Reproduction, float]]:
    """Return the snippets of an audit and their numbers, those that there are."""
    results = []
    for record in audit.run():
        factory = next(
            one
            for one in audit.factories()
            if (one.name, one.dtype.name) == (record.implementation, record.dtype)
        )
        try:
            snippet = tickets.snippet(record, factory.make(record.setting, None))
        except NoSnippet:
            continue
        assert len(snippet.code.splitlines()) <= LINES
        assert "ropeaudit" not in snippet.code
        assert snippet.code.startswith("import torch\n")
        results.append((snippet, record.drift_rms))
    return results


def check(results: list[tuple[Reproduction, float]]) -> None:
    texts = printed([snippet for snippet, _ in results])
    wrong = [
        (snippet.where, text, value)
        for (snippet, value), text in zip(results, texts, strict=True)
        if not same_digits(text, value)
    ]
    assert wrong == []


@pytest.mark.slow  # processes
def test_the_snippet_of_every_setting_prints_its_row(tmp_path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    results = []
    for name, case in CASES.items():
        code = f"{tmp_path}/mine.py:{FUNCTIONS.get(name, 'tables')}"
        audit = Audit((Case(**SMALL | case),), (), ("bf16",), (1000, -30), implementations=(code,))
        of_case = snippets_of(audit)
        assert len(of_case) == 2, name
        results += of_case
    check(results)


OWN = '''"""Own code."""
import torch
INVERSE = 1.0 / 10000 ** (torch.arange(0, 32, 2) / 32)
def unused():
    return 3
def rope(q, k, positions):
    """Rotate."""
    angle = positions.to(q.dtype)[:, None] * INVERSE.to(q.dtype)
    cos, sin = angle.cos().repeat(1, 2), angle.sin().repeat(1, 2)
    return [y * cos + torch.cat([-y[..., 16:], y[..., :16]], -1) * sin for y in (q, k)]
def tables(x, cos, sin):
    x1, x2 = x.chunk(2, -1)
    return torch.cat([x1 * cos.to(x) - x2 * sin.to(x), x2 * cos.to(x) + x1 * sin.to(x)], -1)
def numbered(x, offset, seq_dim, unsqueeze_dim, dim, base):
    at = torch.arange(x.shape[seq_dim])[:, None] + offset
    angle = at * base ** (-torch.arange(0, dim, 2) / dim)
    return tables(x, angle.cos(), angle.sin())
def front(x, cos, sin):
    return torch.cat([tables(x[..., :16], cos, sin), x[..., 16:]], -1)
def pairs(x, cos, sin):
    x1, x2 = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([x1 * cos.to(x) - x2 * sin.to(x), x2 * cos.to(x) + x1 * sin.to(x)], -1).flatten(-2)
'''


def test_the_snippet_of_own_code_imports_it(tmp_path) -> None:
    (tmp_path / "mine.py").write_text(
        OWN + "def sbhd(x, positions):\n"
        "    y = x.permute(1, 2, 0, 3)\n    return rope(y, y, positions)[0].permute(2, 0, 1, 3)\n"
    )
    names = [f"{tmp_path}/mine.py:{name}" for name in ("rope", "tables", "sbhd", "numbered")]
    results = []
    for name in names:
        results += snippets_of(Audit((Case(**SMALL),), (), ("bf16",), (1000,), implementations=(name,)))
    assert len(results) == len(names)
    assert all(snippet.file == "mine.py" for snippet, _ in results)
    assert "offset=int(at[0]), seq_dim=2, unsqueeze_dim=1, dim=32, base=10000.0)" in results[-1][0].code
    check(results)


@pytest.mark.slow
def test_the_snippets_of_third_party_code_print_their_rows() -> None:
    from ropeaudit.subjects import third_party

    names = [name for name, entry in third_party.ENTRIES.items() if entry.snippet and entry.installed]
    assert len(names) >= 4
    results = []
    for name in names:
        layout = third_party.ENTRIES[name].layouts[0]
        case = Case(**SMALL | {"layout": layout})
        results += snippets_of(Audit((case,), (), ("bf16", "fp16"), (1000,), implementations=(name,)))
    assert len(results) == 2 * len(names)
    check(results)


@pytest.mark.parametrize(
    ("code", "missing"),
    [
        ("print('drift_rms 0.502')", ""),
        ("print('drift_rms 0.52')", "one printed drift_rms 0.520, and the table has 0.500"),
        ("print('none')", "one printed no number"),
        ("raise ValueError('a\\nb')", "one raised b"),
    ],
)
def test_a_snippet_that_does_not_print_the_number_is_not_handed_on(code: str, missing: str) -> None:
    one = reproduced(Reproduction(code, 0.5))
    assert (one.agrees, one.missing) == (not missing, missing)
    text = Ticket("x", Report((), (), ()), {}, "what is right", one).text({})
    assert missing in text
    assert ("```python" in text) is one.agrees


def test_a_snippet_that_takes_too_long_is_none(monkeypatch) -> None:
    def late(command, timeout, **_):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", late)
    result = reproduced(Reproduction("pass", 0.5))
    assert not result.agrees
    assert re.fullmatch(r"one took more than \d+ s", result.missing)


HOSTILE = "```\n# no\n<img src=x> [a](b) `c` \u202e\x1b[31m"


def test_nothing_in_a_ticket_ends_the_block_that_it_stands_in(monkeypatch) -> None:
    monkeypatch.setattr(sys, "argv", ["ropeaudit", "check", HOSTILE])
    said = Report((), (), (), headline=HOSTILE, notes=[HOSTILE])
    for reproduction in (
        Reproduction(f"x = 1  # {HOSTILE!r}\n", 0.5, HOSTILE, HOSTILE, HOSTILE),
        Reproduction(missing=HOSTILE),
    ):
        text = Ticket(HOSTILE, said, {HOSTILE: HOSTILE}, HOSTILE, reproduction).text({HOSTILE: HOSTILE})
        lines = text.splitlines()
        assert [line for line in lines if line.startswith("#")][1:] == [
            f"## {name}" for name in ("Snippet", "Command", "Facts", "Versions")
        ]
        fences = [line for line in lines if line.startswith("```")]
        opened = ["```python", "```"] * bool(reproduction.code) + ["```shell", "```", "```text"]
        assert fences == [*opened, fences[-2], "```"]
        assert fences[-2].startswith("```\\n# no")  # a fact among the versions, whose fence has no words
        outside = re.sub(r"^```\w+\n.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
        in_words = re.sub(r"(?<!\\)`[^`\n]*`", "", outside)  # the printed line is code
        assert not re.search(r"(?<!\\)[<\[`]", in_words)
        assert text.isprintable() or set(filter(lambda c: not c.isprintable(), text)) == {"\n"}
