"""The GitHub Action and the hook of pre-commit: what they run is run here."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from documented import EXAMPLES, ROOT, shell

yaml = pytest.importorskip("yaml")
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
[HOOK] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
[CHECK] = [step for step in ACTION["runs"]["steps"] if step.get("id") == "check"]
CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 1,
    "num_hidden_layers": 1,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
}
UNUSED = CONFIG | {"rope_thetta": 5}  # a key that nothing reads fails


def run(
    folder: Path,
    targets: str,
    options: str = "",
    dtype: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run the step of the action that checks, with inputs as the runner would give them."""
    inputs = {"targets": targets, "options": options, "dtype": dtype}
    given = {name: inputs[value.split(".")[1].rstrip(" }")] for name, value in CHECK["env"].items()}
    return shell(
        CHECK["run"],
        folder,
        GITHUB_ACTION_PATH=str(ROOT),
        GITHUB_OUTPUT=str(folder / "output"),
        GITHUB_STEP_SUMMARY=str(folder / "summary.md"),
        RUNNER_TEMP=str(folder),
        **given,
    )


@pytest.mark.slow  # processes
def test_the_action_annotates_what_fails(tmp_path) -> None:
    (tmp_path / "my model").mkdir()
    (tmp_path / "my model" / "config.json").write_text(json.dumps(UNUSED))
    (tmp_path / "kernel.py").write_text((EXAMPLES / "kernel.py").read_text(encoding="utf-8"))
    ran = run(tmp_path, "\n  kernel.py:careless\n\nmy model/config.json \n", "--up-to 1k --quiet", "bf16")
    assert ran.returncode == 1, ran.stderr
    lines = ran.stderr.splitlines()
    assert any(line.startswith("::error file=kernel.py,line=18,title=ropeaudit%3A narrow-") for line in lines)
    assert any(line.startswith("::error file=my model/config.json,title=ropeaudit%3A ") for line in lines)
    [output] = (tmp_path / "output").read_text().splitlines()
    found = json.loads(Path(output.removeprefix("sarif=")).read_text())
    assert len(found["runs"][0]["results"]) == len(lines)
    for text in ((tmp_path / "summary.md").read_text(encoding="utf-8"), ran.stdout):
        assert len(re.findall("^FAIL  ", text, re.MULTILINE)) == 2


def test_the_action_passes_and_refuses(tmp_path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    ran = run(tmp_path, "config.json", "--up-to 1k", "bf16")
    assert (ran.returncode, "::error" in ran.stderr) == (0, False), ran.stderr
    assert not run(tmp_path, "config.json", "--no-such-option").returncode < 2
    empty = run(tmp_path, " \n")
    assert (empty.returncode, "no targets" in empty.stderr) == (2, True)


def test_every_input_of_the_action_is_used_and_none_is_pasted_into_a_script() -> None:
    text = (ROOT / "action.yml").read_text(encoding="utf-8")
    assert all(f"inputs.{name}" in text for name in ACTION["inputs"])
    assert not any("${{" in step.get("run", "") for step in ACTION["runs"]["steps"])


def git(folder: Path, *arguments: str) -> str:
    """Run git as nobody in particular."""
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    command = ["git", *who, *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.mark.slow  # processes
def test_the_hook_checks_the_configs_that_changed(tmp_path: Path) -> None:
    """By pre-commit itself, with this environment in place of one that it would make."""
    if importlib.util.find_spec("pre_commit") is None:
        pytest.skip("pre-commit is not installed")
    home, folder = tmp_path / "home", tmp_path / "models"
    folder.mkdir()
    assert HOOK["language"] == "python"
    own = {"id": HOOK["id"], "args": [*HOOK["args"], "--up-to", "1k"], "language": "system"}
    own["entry"] = f"{sys.executable} -m {HOOK['entry']}"
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]

    def hooked() -> subprocess.CompletedProcess[str]:
        git(folder, "add", "-A")
        command = f"{sys.executable} -m pre_commit run --verbose {HOOK['id']}"
        there = {"PRE_COMMIT_HOME": str(home), "PYTHONPATH": os.pathsep.join(paths), "PATH": commands}
        return shell(command, folder, **there)

    # no `ropeaudit` but that of the hook
    commands = os.pathsep.join([str(Path(shutil.which("git") or "").parent), os.defpath])
    git(folder, "init", "-q")
    (folder / ".gitignore").write_text(".out\n.err\n")
    (folder / ".pre-commit-config.yaml").write_text(
        yaml.safe_dump({"repos": [{"repo": "local", "hooks": [HOOK | own]}]})
    )
    (folder / "package.json").write_text("{}")
    ran = hooked()
    assert ran.returncode == 0, ran.stdout
    assert "no files to check" in ran.stdout
    (folder / "right").mkdir()
    (folder / "right" / "config.json").write_text(json.dumps(CONFIG))
    ran = hooked()
    assert (ran.returncode, "Passed" in ran.stdout) == (0, True), ran.stdout
    (folder / "config.json").write_text(json.dumps(UNUSED))
    ran = hooked()
    assert ran.returncode == 1
    assert "FAIL  config.json" in ran.stdout
    assert "PASS  right/config.json" in ran.stdout
