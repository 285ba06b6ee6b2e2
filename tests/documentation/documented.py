"""Commands and blocks of code that README, docs/ and examples/ show, and the files that they read."""

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import click
import numpy as np
import pytest
import tiny_models
from cases import table
from safetensors.numpy import save_file

from ropeaudit.console.help import commands
from ropeaudit.main import cli, main

# All commands by what one types, each imported; the command line itself imports one when it is called.
BY_NAME: dict[str, click.Command] = dict(commands(cli, click.Context(cli)))
ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = ROOT / "examples"
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# What stands right beneath a block of code is what it prints.
PRINTED = re.compile(
    r"^```(bash|python)\n((?:(?!```).*\n)+)```\n\n"
    r"(?:<!-- exit code (\d) -->\n)?```text\n((?:(?!```).*\n)*)```$",
    re.MULTILINE,
)
_INLINE = re.compile(r"`((?:ropeaudit|pip) [^`]+)`")
_ENDS = {";", ";;", "&", "&&", "|", "||", ">", ">>", "<", "(", ")"}


@dataclass(frozen=True)
class Block:
    """A fenced block of code: the page and the line where it begins, its language and what it holds.

    output: what stands beneath as its output, None where nothing does; exit_code: what it ends with.
    """

    page: str
    line: int
    language: str
    text: str
    output: str | None = None
    exit_code: int = 0

    @property
    def commands(self) -> list[str]:
        """The lines of a shell block, continued ones joined, without comments."""
        lines = self.text.replace("\\\n", "").splitlines()
        return [line for line in lines if line.strip() and not line.startswith("#")]


def blocks() -> Iterator[Block]:
    """Find every fenced block of every page."""
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        printed = {match.start(): match for match in PRINTED.finditer(text)}
        for match in _FENCE.finditer(text):
            line, shown = text.count("\n", 0, match.start()) + 1, printed.get(match.start())
            output, code = (shown[4], int(shown[3] or 0)) if shown else (None, 0)
            yield Block(path.relative_to(ROOT).as_posix(), line, match[1], match[2], output, code)


def inline() -> Iterator[tuple[str, str]]:
    """Find every command that stands within a sentence: page, command."""
    for path in PAGES:
        text = _FENCE.sub("", path.read_text(encoding="utf-8"))
        for match in _INLINE.finditer(text):
            yield path.name, " ".join(match[1].split())


def in_comments() -> list[str]:
    """Find the commands that comments of the examples give, each on a line of its own."""
    texts = (path.read_text(encoding="utf-8") for path in sorted(EXAMPLES.iterdir()) if path.is_file())
    return [command for text in texts for command in re.findall(r"^#\s+(ropeaudit .*)$", text, re.MULTILINE)]


def calls(command: str) -> Iterator[list[str]]:
    """Split a line of shell into the arguments of each call of ropeaudit in it."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split, results, before = True, None, ""
    for word in [*lexer, ";"]:
        if word in _ENDS:
            if results is not None:
                yield results
            results = None
        elif results is not None:
            results.append(word)
        elif (word == "ropeaudit" and before != "install") or word.endswith("/ropeaudit"):
            results = []
        before = word


def unknown(arguments: list[str]) -> list[str]:
    """Return the command, or the options, that ropeaudit does not have. Capitals are placeholders."""
    name = next((word for word in arguments if not word.startswith("-")), "")
    if isinstance(BY_NAME.get(name), click.Group) and arguments[1:]:
        name = " ".join(arguments[:2])
    if name and not name.isupper() and name not in BY_NAME:
        return [name]
    params = BY_NAME[name].params if name in BY_NAME else cli.params
    known = {flag for param in params for flag in (*param.opts, *param.secondary_opts)} | {
        "-h",
        "--help",
        "--help-all",
    }
    flags = (word.partition("=")[0] for word in arguments if re.match(r"--?[a-zA-Z]", word))
    return [flag for flag in flags if flag not in known]


def command(text: str) -> list[str]:
    """Return the arguments of a block that is one call of ropeaudit; none of any other block.

    Of the line that installs it, that is its last part.
    """
    line = text.replace("\\\n", "").strip()
    line = line.rpartition("&& .venv/bin/")[2] if line.startswith("python3 -m venv ") else line
    one = line.startswith("ropeaudit ") and not re.search(r"[;|&><$\n]", re.sub(r"'[^']*'", "", line))
    return shlex.split(line)[1:] if one else []


def shell(text: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a folder, with this environment's commands and what the folder holds importable.

    What it leaves running in the background ends with it. Its output goes through files, which those
    processes may hold open.
    """
    paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    python = os.pathsep.join([str(folder), str(ROOT)])
    child = os.environ | {"PATH": paths, "PYTHONPATH": python} | environment
    with open(folder / ".out", "w+") as out, open(folder / ".err", "w+") as err:
        started = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=folder,
            env=child,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        try:
            code = started.wait(1200)
        finally:
            with contextlib.suppress(ProcessLookupError):  # nothing is left of it
                os.killpg(started.pid, signal.SIGTERM)
        return subprocess.CompletedProcess(text, code, _text(out), _text(err))


def _text(file: TextIO) -> str:
    file.seek(0)
    return file.read()


# ---------------------------------------------------------------------------- files that commands read

_KERNEL = '''import torch


def apply_rope(x, positions):
    """Turn x of shape (batch, {axes}, head_dim) in float32, rounding once at the end."""
    d = x.shape[-1]
    frequencies = 1.0 / 10000.0 ** (torch.arange(0, d, 2, dtype=torch.float64) / d)
    angles = positions.double(){index} * frequencies
    cos, sin = angles.cos().float(), angles.sin().float()
    a, b = {halves}
    return {whole}.to(x.dtype)
'''
INTERLEAVED = _KERNEL.format(
    axes="heads, positions",
    index="[:, None]",
    halves="x.float()[..., ::2], x.float()[..., 1::2]",
    whole="torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)",
)
HALF = _KERNEL.format(
    axes="positions, heads",
    index="[:, None, None]",
    halves="x.float().chunk(2, dim=-1)",
    whole="torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)",
)
CONFIG = {
    "model_type": "gemma3_text",
    "head_dim": 64,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 6,
    "max_position_embeddings": 32768,
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
}
REPORT = ["shift", "--dtype", "bf16", "--recipe", "hf", "--offset", "0,128k", "-q"]


def report(path: Path) -> None:
    assert main([*REPORT, "-f", "csv", "-o", str(path)]) == 0


def captured(path: Path) -> None:
    """Write q and k of one layer, as examples/capture_qk.py does."""
    generator = np.random.default_rng(0)
    q, k = (generator.standard_normal((1, heads, 128, 64), np.float32) for heads in (4, 2))
    save_file({"q": q, "k": k}, path)


def shown_with(mark: str):
    """Make what writes the one block of Python of the pages that holds some text."""

    def write_block(path: Path) -> None:
        (text,) = (block.text for block in blocks() if block.language == "python" and mark in block.text)
        path.write_text(text, encoding="utf-8")

    return write_block


def short_table(path: Path) -> None:
    """Write 512 rows of cos and sin beside a config that serves 2,048 positions."""
    angles = np.tile(np.arange(512)[:, None] * 1e4 ** -(np.arange(0, 64, 2) / 64), 2)
    save_file({"cos": np.cos(angles).astype("f4"), "sin": np.sin(angles).astype("f4")}, path)
    config = {"model_type": "llama", "hidden_size": 256, "num_attention_heads": 4, "rope_theta": 1e4}
    (path.parent / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 2048}))


def language_model(path: Path) -> None:
    tiny_models.make("llama", path)
    tiny_models.add_tokenizer(path)


def converted(path: Path) -> None:
    """Write what a right conversion makes of `CONFIG`."""
    from gguf import GGUFWriter

    writer = GGUFWriter(path, "gemma3")
    writer.add_context_length(CONFIG["max_position_embeddings"])
    writer.add_embedding_length(CONFIG["hidden_size"])
    writer.add_head_count(CONFIG["num_attention_heads"])
    writer.add_head_count_kv(CONFIG["num_key_value_heads"])
    writer.add_key_length(CONFIG["head_dim"])
    writer.add_rope_freq_base(CONFIG["rope_theta"])
    writer.add_rope_freq_base_swa(CONFIG["rope_local_base_freq"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def write(text: str):
    return lambda path: path.write_text(text, encoding="utf-8")


FACTORIES = {
    "after.csv": report,
    "drift.csv": report,
    "before.csv": report,
    "captured.safetensors": captured,
    "exported/tables.safetensors": short_table,
    "llama-dir": language_model,
    "model.gguf": converted,
    "more.parquet": report,
    "mypkg.rope:": lambda path: write(INTERLEAVED)(path.parent / "mypkg" / "rope.py"),
    "my-model/config.json": write(json.dumps(CONFIG)),
    "notes.txt": write("the quick brown fox jumps over the lazy dog. " * 8),
    "older.jsonl": report,
    "path/to/file.py": write(HALF),
    "sweep.jsonl": report,
    "examples/": lambda path: shutil.copytree(EXAMPLES, path),
}


KNOWN = table(__file__, "documented.toml")
SLOW = KNOWN["slow"]  # blocks with one of these are slow


def marked(results: list[Block]) -> list[object]:
    """Make parameters of blocks, those that take long marked as slow."""
    return [
        pytest.param(
            block,
            id=f"{block.page}:{block.line}",
            marks=[pytest.mark.slow] if any(part in block.text for part in SLOW) else [],
        )
        for block in results
    ]


def furnish(folder: Path, text: str) -> None:
    """Write the files that a script names before it writes them itself."""
    for name, make in FACTORIES.items():
        before, result, _ = text.partition(name)
        if result and not before.endswith("-o "):
            path = folder / name
            (folder / "mypkg").mkdir(exist_ok=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            make(path)


def executed(language: str, text: str, folder: Path) -> tuple[int, str, str]:
    """Run a block in a folder that is furnished; return its exit code, stdout and stderr."""
    if arguments := command(text):
        out, error = io.StringIO(), io.StringIO()
        with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
            return main(arguments), out.getvalue(), error.getvalue()
    if language == "python":
        (folder / "block.py").write_text(text, encoding="utf-8")
        tested = "\ndef test_" in text
        text = f"python {'-m pytest -q -p no:cacheprovider ' if tested else ''}block.py"
    done = shell(text, folder)
    return done.returncode, done.stdout, done.stderr
