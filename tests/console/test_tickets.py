"""--ticket: the file follows the form of a tracker, and no ticket is written over or for nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from snippets import assert_small, printed, same_digits

from ropeaudit.main import main
from ropeaudit.reports.tickets import reproduction, ticket
from ropeaudit.reports.tickets.reproduction import Reproduction, Snippet
from ropeaudit.reports.tickets.trackers import FILL_IN, TRACKERS

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
# what each form asks for, as its headings stand there
HEADINGS = {
    "vllm": ["Your current environment", "🐛 Describe the bug", "Before submitting a new issue..."],
    "transformers": [
        *("System Info", "Who can help?", "Information", "Tasks", "Reproduction", "Expected behavior"),
    ],
    "pytorch": ["🐛 Describe the bug", "Versions"],
    "llama.cpp": [
        *("Name and Version", "Operating systems", "Which llama.cpp modules do you know to be affected?"),
        *("Command line", "Problem description & steps to reproduce", "First Bad Commit"),
        "Relevant log output",
    ],
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kernel.py").write_text(KERNEL)
    return tmp_path


def written(folder: Path) -> list[str]:
    """Return the names of the files that a command wrote."""
    return [path.name for path in folder.iterdir() if path.name not in ("kernel.py", "__pycache__")]


@pytest.fixture
def believed(monkeypatch: pytest.MonkeyPatch) -> list[Snippet]:
    """Snippets that are not run, which takes seconds each: the real run is tested once."""
    snippets: list[Snippet] = []

    def believe(snippet: Snippet) -> Reproduction:
        snippets.append(snippet)
        return Reproduction(snippet, f"{snippet.column} {snippet.value:.3g}")

    monkeypatch.setattr(ticket, "reproduced", believe)
    return snippets


@pytest.mark.parametrize("tracker", TRACKERS)
def test_a_ticket_has_the_headings_of_its_form_and_all_that_is_asked_for(
    tracker, here, believed, capsys
) -> None:
    assert main([*SHIFT, "--ticket", tracker]) == 0
    out, err = capsys.readouterr()
    text = (here / f"ticket-{tracker}.md").read_text(encoding="utf-8")
    assert re.findall(r"^### (.*)$", text, re.MULTILINE) == HEADINGS[tracker]
    [snippet] = believed
    assert f"```python\n{snippet.text}```" in text
    assert f"It prints `drift_rms {snippet.value:.3g}` here" in text
    for line in ("python: ", "torch: ", "cpu: ", "gpu: ", "cuda: ", "tf32 matmul: ", "blas: "):
        assert f"\n{line}" in text
    assert "| kernel.py:careless | bfloat16 | 1000 |" in text
    assert "adding an integer to every position changes nothing" in text
    assert "kernel.py:careless in bfloat16 at offset 1000 drifts by" in text
    assert "wrongly: error" in text
    assert "| distinct positions | 7 |" in text
    assert "| tolerance | 0.01 |" in text
    assert text.count("- `drift_rms` (score): root mean square of drift") == 1
    assert "$ " not in text
    assert TRACKERS[tracker].url in text
    assert f"{text.count(f'{FILL_IN}:')} place" in err
    assert "ticket written" in err
    assert "ticket" not in out


def test_the_number_is_printed_by_the_snippet_itself(here, capsys) -> None:
    assert main([*SHIFT, "--ticket", "pytorch", "-f", "json"]) == 0
    out, err = capsys.readouterr()
    [row] = json.loads(out)["records"]
    number = re.search(r"its snippet printed drift_rms ([\d.]+) here", err)
    assert number
    assert float(number[1]) == pytest.approx(row["drift_rms"], rel=reproduction._AGREES)
    assert row["seed"] == 0
    assert row["source"] == "gaussian"  # the q and k of a run without --ticket


def test_a_ticket_changes_nothing_of_what_is_measured(here, believed, capsys) -> None:
    assert main([*SHIFT, "-f", "csv"]) == 0
    plain = capsys.readouterr().out
    assert main([*SHIFT, "-f", "csv", "--ticket", "vllm"]) == 0
    assert capsys.readouterr().out == plain
    assert "default_rng(0)" in believed[0].text


def test_a_title_names_no_folder(here, believed, capsys) -> None:
    line = [one.replace("kernel.py", f"{here}/kernel.py") for one in SHIFT]
    assert main([*line, "--ticket", "vllm"]) == 0
    title = (here / "ticket-vllm.md").read_text(encoding="utf-8").splitlines()[1]
    assert title.startswith("Title: [Bug]: RoPE of kernel.py:careless in bfloat16 at offset 1000: ")
    assert title.endswith(" (narrow-positions)")
    assert str(here) not in title


def test_recipes_have_no_ticket(here, believed, capsys) -> None:
    assert main(["shift", "--recipe", "uniform", *SMALL, "--ticket", "vllm"]) == 2
    assert "--ticket is about code that is called; give --impl" in capsys.readouterr().err
    assert main([*SHIFT, "--recipe", "uniform", "--ticket", "vllm"]) == 0
    text = (here / "ticket-vllm.md").read_text(encoding="utf-8")
    assert "| uniform |" not in text


def test_long_code_is_imported_and_its_snippet_runs_alone(here, capsys) -> None:
    longer = KERNEL.replace("    n = x", "".join(f"    m{n} = {n}\n" for n in range(20)) + "    n = x")
    (here / "code").mkdir()
    (here / "code" / "longer.py").write_text(longer)
    line = [one.replace("kernel.py", "code/longer.py") for one in SHIFT]
    assert main([*line, "--ticket", "vllm"]) == 0
    assert "its snippet printed drift_rms" in capsys.readouterr().err
    text = (here / "ticket-vllm.md").read_text(encoding="utf-8")
    assert "sys.path.insert(0, 'code')  # where longer.py lies\nfrom longer import careless\n" in text
    assert f"{FILL_IN}: longer.py, which the snippet reads" in text


def test_no_ticket_is_written_for_what_is_good_enough(here, believed, capsys) -> None:
    careful = [one.replace("careless", "careful") for one in SHIFT]
    assert main([*careful, "--recipe", "uniform", "--ticket", "vllm"]) == 0
    assert "no ticket was written: no row of code is out of the tolerance of 1 %" in capsys.readouterr().err
    assert written(here) == believed == []


def test_a_ticket_that_is_there_is_not_replaced_unless_its_file_is_named(here, believed, capsys) -> None:
    (here / "ticket-vllm.md").write_text("what I wrote")
    assert main([*SHIFT, "--ticket", "vllm"]) == 2
    assert "'ticket-vllm.md' is there, and may hold what you wrote" in capsys.readouterr().err
    assert (here / "ticket-vllm.md").read_text() == "what I wrote"
    assert main([*SHIFT, "--ticket", "vllm", "--ticket-file", "ticket-vllm.md"]) == 0
    assert "to 'ticket-vllm.md', in place of the file that was there: its" in capsys.readouterr().err
    assert "careless" in (here / "ticket-vllm.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--ticket", "vlm"], "vllm"),
        (["--ticket-file", "a.md"], "needs --ticket vllm or"),
        (["--ticket", "vllm", "--ticket-file", ""], "--ticket-file '' names no file"),
        (
            ["--ticket", "vllm", "--ticket-file", "a.md", "-o", "a.md"],
            "--ticket-file and -o both name 'a.md'",
        ),
        (["--ticket", "vllm", "--ticket-file", "no/a.md"], "--ticket-file 'no/a.md' cannot be written"),
        (["--ticket", "vllm", "--ticket-file", "-"], "--ticket-file - names no file"),
        pytest.param(
            ["--ticket", "vllm", "--ticket-file", "/dev/full"],
            "--ticket-file '/dev/full' cannot be written",
            marks=pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux"),
        ),
    ],
)
def test_what_cannot_be_is_refused_before_the_work(options, message, here, believed, capsys) -> None:
    assert main([*SHIFT, *options]) == 2
    assert message in capsys.readouterr().err
    assert written(here) == []


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--qk", "diagonal"], "its q and k are diagonal"),
        (["--sample", "200"], "its scores are a sample"),
        (["--scaling", "proportional:fraction=0.5"], "the scaling proportional takes more than a few lines"),
    ],
)
def test_what_a_snippet_cannot_show_is_said_and_the_ticket_written(more, why, here, believed, capsys) -> None:
    assert main([*SHIFT, "--ticket", "pytorch", *more]) == 0
    assert f"it has no snippet: {why}" in capsys.readouterr().err
    text = (here / "ticket-pytorch.md").read_text(encoding="utf-8")
    assert f"There is no short snippet of it: {why}" in text
    assert "```python" not in text


BUILD = """import torch
class Rotary(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("inv_freq", 1.0 / 10000 ** (torch.arange(0, 64, 2) / 64))
def cast():
    return Rotary().to(torch.bfloat16)
"""


def test_module_and_check_write_tickets(here, believed, capsys) -> None:
    (here / "mine.py").write_text(BUILD)
    assert main(["module", "mine.py:cast", "--base", "10000", "--ticket", "transformers"]) == 1
    text = (here / "ticket-transformers.md").read_text(encoding="utf-8")
    assert "Title: RoPE buffer inv_freq was cast to bfloat16, off by up to" in text
    assert "(narrow-frequencies)\n" in text
    config = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 1, "rope_theta": 10000.0}
    (here / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 60000}))
    code = main(["check", "config.json", "--recipe", "uniform", "--dtype", "fp16", "--ticket", "llama.cpp"])
    assert code == 1
    text = (here / "ticket-llama.cpp.md").read_text(encoding="utf-8")
    assert "Title: Misc. bug: config.json: limit in float16 fails" in text
    assert "There is no short snippet of it: no code was called, config.json is a config" in text
    assert "| check | limit |" in text
    assert text.count("<summary>Columns of the CSV</summary>") == 1
    assert [one.column for one in believed] == ["largest_error"]
    for snippet, shown in zip(believed, printed(believed, folder=str(here)), strict=True):
        assert_small(snippet)
        assert same_digits(shown, snippet.value)


def expected(text: str) -> str:
    """Return the section of what was expected of a ticket for transformers."""
    return text.partition("### Expected behavior\n\n")[2].partition("\n\n###")[0].rstrip()


CASTS = "not rounded to a narrower format afterwards"


def test_what_is_expected_of_stored_frequencies_is_of_the_fault(here, believed, capsys) -> None:
    config = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 1, "rope_theta": 500000.0}
    (here / "m").mkdir()
    (here / "m" / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 4096}))
    theta = 10000.0 ** (-torch.arange(32, dtype=torch.float64) / 32)
    file = here / "m" / "model.safetensors"
    save_file({"layers.0.self_attn.rotary_emb.inv_freq": theta.float()}, file)
    words = ["--ticket", "transformers", "--ticket-file", "t.md"]
    for command in (["check", "m", "--dtype", "bf16", "--up-to", "300"], ["module", "m"]):
        assert main([*command, *words]) == 1
        text = (here / "t.md").read_text(encoding="utf-8")
        assert expected(text) == (
            "By config.json, the values should be those of m, up to the rounding of float32. The exact "
            "values follow from the base and the dims alone, as the snippet computes them in float64. Either "
            "config.json or the stored tensor is wrong: transformers computes inv_freq from config.json and "
            "drops stored ones, and code that loads the tensor rotates by it."
        )
        assert "--base" not in text
    exact = 500000.0 ** (-torch.arange(32, dtype=torch.float64) / 32)
    save_file({"layers.0.self_attn.rotary_emb.inv_freq": exact.float().bfloat16().float()}, file)
    assert main(["module", "m", *words]) == 1
    assert CASTS in expected((here / "t.md").read_text(encoding="utf-8"))


BASES = """import torch


def rope(x, positions):
    theta = 20000.0 ** (-torch.arange(32) / 32)
    angles = positions.float()[..., None] * theta
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


class Rotary(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("inv_freq", 1.0 / 20000 ** (torch.arange(0, 64, 2) / 64))


def built():
    return Rotary()
"""


def test_a_remedy_in_a_ticket_names_no_option_of_this_program(here, believed, capsys) -> None:
    (here / "bases.py").write_text(BASES)
    words = ["--ticket", "transformers", "--ticket-file", "t.md"]
    options = ["--head-dim", "64", "--base", "10000", "--dtype", "fp32", "--under", "none"]
    assert main(["check", "bases.py:rope", *options, "--up-to", "512", *words]) == 1
    text = (here / "t.md").read_text(encoding="utf-8")
    assert "use the base that is asked for, 10000" in text
    assert "check it with" not in text
    assert "or check it with --base 20000" in capsys.readouterr().out  # it is for who runs the check
    assert main(["module", "bases.py:built", "--base", "10000", *words]) == 1
    assert expected((here / "t.md").read_text(encoding="utf-8")).endswith(
        " Use the base that is asked for, 10000."
    )


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

def longer(x, positions):
    return (rotated(x, positions) * 1.004).to(x.dtype)
"""


def test_a_fault_that_scores_do_not_show_has_no_snippet_that_prints_a_healthy_number(here, capsys) -> None:
    Path("faults.py").write_text(FAULTS)
    line = ["--dtype", "fp16", "--ticket", "vllm", "--ticket-file", "t.md", "-q"]
    assert main(["shift", "--impl", "faults.py:second_late", "--offset", "1000", *SMALL, *line]) == 0
    assert main(["check", "faults.py:second_late", "--up-to", "128", "--head-dim", "16", *line]) == 1
    text = Path("t.md").read_text()
    assert "batch element 1 wrongly: error" in text
    assert "should not change" not in text
    assert "the scores of one sequence do not show it" in text


def test_a_drift_that_only_the_check_judges_has_its_snippet(here, capsys) -> None:
    Path("faults.py").write_text(FAULTS)
    line = ["--dtype", "bf16", "--up-to", "256", "--head-dim", "64"]
    assert (
        main(["check", "faults.py:longer", *line, "--ticket", "pytorch", "--ticket-file", "t.md", "-q"]) == 1
    )
    text = Path("t.md").read_text()
    assert "Title: faults.py:longer: drift in bfloat16 fails" in text
    assert "It prints `drift_rms 0.008" in text
    assert "about something else" not in text
