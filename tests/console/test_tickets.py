"""--ticket: one Markdown file of facts, snippet, command and versions, and none for nothing."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from command_line import ran
from safetensors.torch import save_file

from ropeaudit.main import main
from ropeaudit.reports import tickets
from ropeaudit.reports.tickets import Reproduction

SMALL = ["--heads", "1", "--seq-len", "24", "--head-dim", "16"]
SHIFT = ["shift", "--impl", "kernel.py:careless", "--dtype", "bf16", "--offset", "1000", *SMALL]
KERNEL = """import torch

def careless(x, positions):
    n = x.shape[-1]
    t = positions.to(x.dtype)[:, None] * 10000.0 ** -(torch.arange(0, n, 2, device=x.device) / n)
    c, s = t.cos(), t.sin()
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * c - b * s, b * c + a * s], -1).to(x.dtype)

def careful(x, positions):
    return careless(x.float(), positions).to(x.dtype)
"""
HEADINGS = ["Snippet", "Command", "Facts", "Versions"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kernel.py").write_text(KERNEL)
    return tmp_path


def checkpoint(folder: Path, base: float, maximum: int) -> None:
    """Write a folder m with a config of a base, and frequencies of base 10000."""
    config = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 1, "rope_theta": base}
    (folder / "m").mkdir()
    (folder / "m" / "config.json").write_text(json.dumps(config | {"max_position_embeddings": maximum}))
    theta = 10000.0 ** (-torch.arange(32, dtype=torch.float64) / 32)
    save_file({"layers.0.self_attn.rotary_emb.inv_freq": theta.float()}, folder / "m" / "model.safetensors")


def written(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name not in ("kernel.py", "__pycache__")]


@pytest.fixture
def believed(monkeypatch: pytest.MonkeyPatch) -> list[Reproduction]:
    """Snippets that are not run, which takes seconds each: the real run is tested once."""
    snippets: list[Reproduction] = []

    def believe(snippet: Reproduction) -> Reproduction:
        snippets.append(snippet)
        return replace(snippet, printed=f"drift_rms {snippet.value:.3g}")

    monkeypatch.setattr(tickets, "reproduced", believe)
    return snippets


def test_a_ticket_holds_facts_snippet_command_and_versions(here, believed, capsys) -> None:
    plain = ran(capsys, [*SHIFT, "-f", "csv"]).out
    out, err = ran(capsys, [*SHIFT, "-f", "csv", "--ticket", "t.md"])
    assert out == plain  # what is measured is the same with it
    text = Path("t.md").read_text(encoding="utf-8")
    title = text.splitlines()[0]
    assert title.startswith("# RoPE of kernel.py:careless in bfloat16 at offset 1000: ")
    assert title.endswith(" (narrow-positions)")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == HEADINGS
    [snippet] = believed
    assert f"```python\n{snippet.code}```" in text
    assert f"It prints `drift_rms {snippet.value:.3g}` here" in text
    assert "It reads kernel.py: add that file" in text
    for line in ("python: ", "torch: ", "cpu: ", "gpu: ", "cuda: ", "tf32 matmul: ", "blas: "):
        assert f"\n{line}" in text
    assert "| implementation | kernel.py:careless |" in text
    assert "adding an integer to every position changes nothing" in text
    assert "drift 38 % of the scores' RMS" in title
    assert "| distinct positions | 7 |" in text
    assert "| diagnosis | narrow-positions |" in text
    assert f"ticket written to 't.md': its snippet printed drift_rms {snippet.value:.3g} here" in err
    assert main([*SHIFT, "--ticket", "t.md"]) == 0
    assert "to 't.md', in place of the file that was there: its" in capsys.readouterr().err


def test_a_title_names_no_folder(here, believed, capsys) -> None:
    line = [one.replace("kernel.py", f"{here}/kernel.py") for one in SHIFT]
    assert main([*line, "--ticket", "t.md"]) == 0
    assert str(here) not in Path("t.md").read_text(encoding="utf-8").splitlines()[0]


def test_the_number_is_printed_by_the_snippet_itself(here, capsys) -> None:
    (here / "code").mkdir()
    (here / "code" / "rotate.py").write_text(KERNEL.replace("careless", "rotate"))
    line = [one.replace("kernel.py:careless", "code/rotate.py:rotate") for one in SHIFT]
    out, err = ran(capsys, [*line, "--ticket", "t.md", "-f", "json"])
    [row] = json.loads(out)["records"]
    number = re.search(r"its snippet printed drift_rms ([\d.]+) here", err)
    assert number
    assert float(number[1]) == pytest.approx(row["drift_rms"], rel=tickets._AGREES)
    assert row["source"] == "gaussian"  # the q and k of a run without --ticket
    text = Path("t.md").read_text(encoding="utf-8")
    assert "sys.path.insert(0, 'code')  # where rotate.py lies\nimport rotate as own\n" in text


def test_recipes_have_no_ticket(here, believed, capsys) -> None:
    assert main(["shift", "--recipe", "uniform", *SMALL, "--ticket", "t.md"]) == 2
    assert "--ticket is about code that is called; give --impl" in capsys.readouterr().err
    assert main([*SHIFT, "--recipe", "uniform", "--ticket", "t.md"]) == 0
    assert "| uniform |" not in Path("t.md").read_text(encoding="utf-8")


def test_a_pass_has_its_ticket_too(here, believed, capsys) -> None:
    careful = [one.replace("careless", "careful") for one in SHIFT]
    assert main([*careful, "--recipe", "uniform", "--ticket", "t.md"]) == 0
    text = Path("t.md").read_text(encoding="utf-8")
    assert text.startswith("# RoPE of kernel.py:careful in bfloat16 at offset 1000: ")
    assert "| within tolerance | yes |" in text
    checkpoint(here, 10000.0, 2048)
    titles = {
        "check m/config.json": "config.json: no check fails",
        "module m": "RoPE of m: 1 of 1 RoPE buffer within float32 rounding",
    }
    for line, title in titles.items():
        assert main([*line.split(), "--ticket", "t.md"]) == 0
        text = Path("t.md").read_text(encoding="utf-8")
        assert text.startswith(f"# {title}\n")
        assert re.findall(r"^## (.*)$", text, re.MULTILINE)[-3:] == HEADINGS[1:]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--ticket", "a.md", "-o", "a.md"], "-o 'a.md' and --ticket 'a.md' both write"),
        (["--ticket", "no/a.md"], "--ticket 'no/a.md' cannot be written"),
        (["--ticket", "-"], "--ticket - names no file"),
        pytest.param(
            ["--ticket", "/dev/full"],
            "--ticket '/dev/full' cannot be written",
            marks=pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux"),
        ),
    ],
)
def test_what_cannot_be_is_refused_before_the_work(options, message, here, believed, capsys) -> None:
    assert message in ran(capsys, [*SHIFT, *options], 2).err
    assert written(here) == []


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--qk", "diagonal"], "its q and k are diagonal"),
        (["--sample", "200"], "its scores are a sample"),
        (["--qk", "randn"], "its q and k are randn, which a few lines do not make; try --qk gaussian"),
    ],
)
def test_what_a_snippet_cannot_show_is_said_and_the_ticket_written(
    more,
    why,
    here,
    believed,
    capsys,
) -> None:
    assert f"it has no snippet: {why}" in ran(capsys, [*SHIFT, "--ticket", "t.md", *more]).err
    text = Path("t.md").read_text(encoding="utf-8")
    assert f"There is no short snippet of it: {why}" in text
    assert "```python" not in text


def test_check_writes_tickets_of_configs_and_module_of_stored_frequencies(
    here,
    believed,
    capsys,
) -> None:
    checkpoint(here, 500000.0, 60000)
    line = ["check", "m/config.json", "--recipe", "uniform", "--dtype", "fp16", "--ticket", "t.md"]
    assert main(line) == 1
    text = Path("t.md").read_text(encoding="utf-8")
    assert text.startswith("# config.json: limit in float16 fails")
    assert "There is no short snippet of it: no code was called, m/config.json is a config" in text
    assert "| check | limit |" in text
    assert main(["module", "m", "--ticket", "t.md"]) == 1
    text = Path("t.md").read_text(encoding="utf-8")
    assert text.startswith("# RoPE buffer layers.0.self_attn.rotary_emb.inv_freq is not what it should be")
    assert "(wrong-base)\n" in text
    assert "Either config.json or the stored tensor is wrong" in text
    assert "--base" not in text
    assert believed == []


FAULTS = """import torch

def rotated(x, positions):
    d = x.shape[-1]
    a = positions.float()[:, None] / 10000.0 ** (torch.arange(0, d, 2).float() / d)
    c, s = a.cos(), a.sin()
    u, v = x.float().chunk(2, -1)
    return torch.cat([u * c - v * s, v * c + u * s], -1)

def second_late(x, positions):
    out = rotated(x, positions)
    if len(x) > 1:
        out[1] = rotated(x[1:2], positions + 1)[0]
    return out.to(x.dtype)

def longer(x, positions):  # at every second position, and shorter at the others
    return (rotated(x, positions) * (1.006 - 0.012 * (positions % 2))[:, None]).to(x.dtype)
"""


@pytest.mark.slow  # a whole check
def test_a_fault_that_scores_do_not_show_has_no_snippet_that_prints_a_healthy_number(here, capsys) -> None:
    Path("faults.py").write_text(FAULTS)
    line = ["--dtype", "fp16", "--ticket", "t.md", "-q"]
    assert main(["shift", "--impl", "faults.py:second_late", "--offset", "1000", *SMALL, *line]) == 0
    assert main(["check", "faults.py:second_late", "--up-to", "128", "--head-dim", "16", *line]) == 1
    text = Path("t.md").read_text()
    assert "batch element 1" in text
    assert "the scores of one sequence do not show it" in text


@pytest.mark.slow  # a whole check
def test_a_drift_that_only_the_check_judges_has_its_snippet(here, capsys) -> None:
    Path("faults.py").write_text(FAULTS)
    line = ["--dtype", "bf16", "--up-to", "256", "--head-dim", "64", "--ticket", "t.md", "-q"]
    assert main(["check", "faults.py:longer", *line]) == 1
    text = Path("t.md").read_text()
    assert text.startswith("# faults.py:longer: rotation in bfloat16 fails (precision-loss)")
    assert "It prints `drift_rms 0.008" in text
