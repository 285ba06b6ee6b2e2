"""Every command of README, docs/ and examples/ is run; what is not stands here with its reason."""

import re
import shlex
import socket
import tomllib
from pathlib import Path
from textwrap import indent

import pytest
from documented import (
    KNOWN,
    ROOT,
    SLOW,
    Block,
    blocks,
    calls,
    command,
    executed,
    furnish,
    in_comments,
    inline,
    marked,
    shell,
    unknown,
)

NOT_RUN, SMALLER = KNOWN["not run"], KNOWN["smaller"]
RESULTS = list(blocks())
SHELL, PYTHON = ([block for block in RESULTS if block.language == name] for name in ("bash", "python"))
SNIPPETS = [block for block in PYTHON if block.page == "docs/diagnoses.md"]  # lines of bodies of functions
SHELL += [Block("examples", 0, "bash", command) for command in in_comments()]
PRINTING = [block for block in RESULTS if block.output is not None]  # test_readme.py runs them


def excepted(text: str) -> bool:
    return any(text.startswith(beginning) for beginning in NOT_RUN)


def runs(block: Block) -> str:
    """The lines of a block that are run."""
    lines = [line for line in block.commands if not excepted(line)]
    for beginning, (part, instead, _) in SMALLER.items():
        lines = [line.replace(part, instead) if line.startswith(beginning) else line for line in lines]
    return "\n".join(lines)


def free_port() -> int:
    with socket.socket() as built:
        built.bind(("127.0.0.1", 0))
        return built.getsockname()[1]


RUN = [block for block in SHELL if runs(block)]
SYMPTOMS = {  # command -> what a table of symptoms says of it
    match[1]: match[2]
    for name in ("README.md", "docs/symptoms.md")
    for match in re.finditer(
        r"^\| [^|]*\| `(ropeaudit [^`]+)` \|(.*)$", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE
    )
    if " --device " not in match[1]
}
RUN += [one for one in PYTHON if one not in SNIPPETS and not excepted(one.text)]


@pytest.mark.slow
@pytest.mark.parametrize("block", marked([block for block in RUN if block not in PRINTING]))
def test_a_block_runs(block: Block, tmp_path: Path) -> None:
    text = runs(block) if block.language == "bash" else block.text
    furnish(tmp_path, text if block.language == "bash" else f"path/to/file.py\n{text}")
    text = text.replace("8786", str(free_port()))  # another scheduler may have that port
    alone = block.language == "bash" and all(map(command, text.splitlines()))
    for part in text.splitlines() if alone else [text]:
        code, out, error = executed(block.language, part, tmp_path)
        assert code == 0, out + error


@pytest.mark.slow
@pytest.mark.parametrize("text", SYMPTOMS)
def test_a_command_of_the_symptoms_answers(text: str, tmp_path: Path) -> None:
    """What fails has a code that the page names beside the command."""
    furnish(tmp_path, text)
    few = "" if "--up-to" in text or " check " not in text or ".py:" not in text else " --up-to 4096"
    code, out, error = executed("bash", text + few, tmp_path)
    assert code in (0, 1), error
    names = re.findall(r"`([\w-]+)`", SYMPTOMS[text])
    assert code == 0 or not names or any(f"error[{name}]" in out for name in names), out


def test_what_a_block_holds_is_known() -> None:
    assert {block.language for block in RESULTS} == {"bash", "python", "text", "toml", "yaml"}


def test_shell_is_shell(tmp_path: Path) -> None:
    for number, block in enumerate(SHELL):
        (tmp_path / f"{number}.sh").write_text(block.text, encoding="utf-8")
    done = shell('for one in *.sh; do bash -n "$one" || echo "$one"; done', tmp_path)
    wrong = [SHELL[int(name.partition(".")[0])] for name in done.stdout.split()]
    assert (wrong, done.returncode, done.stderr) == ([], 0, "")


def test_python_that_is_not_run_is_python() -> None:
    for block in PYTHON:
        text = f"def body():\n{indent(block.text, ' ')}" if block in SNIPPETS else block.text
        compile(text, f"{block.page}:{block.line}", "exec")


def test_options_exist() -> None:
    lines = [line for block in SHELL for line in block.commands] + [command for _, command in inline()]
    results = {line: [word for call in calls(line) for word in unknown(call)] for line in lines}
    assert not {line: words for line, words in results.items() if words}
    assert sum(1 for line in lines for _ in calls(line)) > 50
    assert unknown(["shift", "--offsets", "1", "--turns", "-16"]) == ["--offsets", "--turns"]


def test_extras_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [line for block in SHELL for line in block.commands] + [command for _, command in inline()]
    requested = {word for line in lines if "pip install" in line for word in shlex.split(line) if "[" in word}
    assert len(requested) >= 4
    for word in requested:
        name, _, extra = word.rstrip("]").partition("[")
        assert name in {"ropeaudit", "."}
        assert extra in project["optional-dependencies"]


def test_no_entry_of_the_lists_is_stale() -> None:
    texts = [block.text for block in PYTHON] + [line for block in SHELL for line in block.commands]
    for beginning in [*NOT_RUN, *SMALLER]:
        assert any(text.startswith(beginning) for text in texts), beginning
    assert all(any(part in text for text in texts) for part in SLOW)
    assert all(
        part in text
        for beginning, (part, _, _) in SMALLER.items()
        for text in texts
        if text.startswith(beginning)
    )
