"""Valid command lines with one word changed, and files that are damaged: exit codes 0, 1 and 2, and no more.

Every line is drawn from its number, so that a failure comes again; test_fuzz.py runs some, and many more
where the exhaustive tests are asked for.
"""

from __future__ import annotations

import collections
import contextlib
import io
import itertools
import json
import random
import re
import shlex
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from cases import table

from ropeaudit import shift
from ropeaudit.console import sweep_file
from ropeaudit.main import main

TABLE = table(__file__, "fuzz.toml")


def spelled(line: str) -> str:
    """Return a line of the table with what its words stand for."""
    for word in ("R", "S"):
        line = line.replace(f"<{word}>", TABLE["words"][word])
    return line


VALID = [shlex.split(spelled(line)) for line in TABLE["valid"]["lines"]]
READERS = {name: list(map(spelled, lines)) for name, lines in TABLE["read"].items()}
FLAGS = sorted(
    {word for line in VALID for word in line if word.startswith("-")} | {"--nope", "-x", "--column"}
)
_WORDS = " ".join(TABLE["anywhere"]["lines"]).replace("<surrogate>", "\ud800")
WORDS = [*_WORDS.split(" "), "", " ", "\n"]
LIKELY = ["1", "2", "4", "8", "0.5", "1e-3", "hf", "uniform", "bf16", "fp32", "0,7", "1-64*2", "full"]
SECONDS = 8  # after which a line is given up
Seen = collections.Counter[str]


def changed(dice: random.Random) -> list[str]:
    """Return a valid line with one word changed."""
    line = list(dice.choice(VALID))
    place = dice.randrange(1, len(line))
    values = [n for n in range(1, len(line)) if not line[n].startswith("-")] or [place]
    flags = [n for n in range(1, len(line)) if line[n].startswith("-")] or [place]
    match dice.randrange(14):
        case 9 | 10 | 11:
            line = likely(line, dice)
        case 12 | 13:
            line += likely(pair(dice, line[0]), dice)
        case 0:
            del line[place]
        case 1:
            line.insert(place, line[place])
        case 2:
            other = dice.randrange(1, len(line))
            line[place], line[other] = line[other], line[place]
        case 3:
            line[dice.choice(flags)] = dice.choice(FLAGS)
        case 4:
            line[dice.choice(values)] = tweaked(line[dice.choice(values)], dice)
        case 5:
            other_line = dice.choice(VALID)
            line.insert(place, dice.choice(other_line))
        case 6:
            line += pair(dice, dice.choice(VALID)[0])
        case _:
            line[dice.choice(values)] = dice.choice(WORDS)
    return [word for word in line if word not in ("-h", "--help", "--version")]


def pair(dice: random.Random, command: str) -> list[str]:
    """Return a flag of some valid line of a command, with its value."""
    line = dice.choice([line for line in VALID if line[0] == command])
    places = [n for n in range(1, len(line)) if line[n].startswith("-")]
    return line[dice.choice(places) :][:2] if places else []


def likely(line: list[str], dice: random.Random) -> list[str]:
    """Return a line in which one value is that of the same flag in some other line, or near it."""
    places = [n for n in range(1, len(line)) if line[n - 1].startswith("--") and not line[n].startswith("-")]
    if not places:
        return line
    place = dice.choice(places)
    pairs = (pair for other in VALID for pair in itertools.pairwise(other))
    pool = [value for flag, value in pairs if flag == line[place - 1]]
    value = dice.choice([*pool, *LIKELY, line[place]])
    if dice.random() < 0.3:
        value = re.sub(r"[0-9]+", lambda results: str(int(int(results[0]) * dice.choice((0.5, 2, 3)))), value)
    return [*line[:place], value, *line[place + 1 :]]


def tweaked(word: str, dice: random.Random) -> str:
    place = dice.randrange(len(word) + 1)
    match dice.randrange(5):
        case 0:
            return word[:place] + dice.choice("0123456789-+.,:=/>*ek\0 é\n") + word[place:]
        case 1:
            return word[:place] + word[place + 1 :]
        case 2:
            return word + "," + dice.choice(WORDS)
        case 3:
            return "".join(str(int(c) + dice.choice((-1, 1))) if c.isdecimal() else c for c in word)
        case _:
            return word[:place] + word[place + 1 : place + 2] + word[place : place + 1] + word[place + 2 :]


# ---------------------------------------------------------------------------- files

ODD = [
    *(None, True, [], {}, "", "x", "nan", -1, 0, 1.5, 1e308, 10**30, 2**63),
    *([1], {"a": 1}, "\u2028", "=1", "\ud800"),
]


def damaged(name: str, whole: bytes, dice: random.Random) -> bytes:
    """Return the bytes of a file with something wrong in them: bits, length, or the type of a value."""
    data, place = bytearray(whole), dice.randrange(len(whole))
    text = name.rpartition(".")[2] in ("csv", "json", "jsonl", "part", "toml")
    match dice.randrange(10):
        case 0:
            return whole[:place]
        case 1:
            return whole[place:]
        case 2:
            return whole[:place] + dice.randbytes(dice.randrange(1, 9)) + whole[place:]
        case 3:
            return whole[:place] + whole[place + dice.randrange(1, 40) :]
        case 4:
            data[place : place + 8] = dice.choice((b"\xff" * 8, b"\x00" * 8, b"9" * 8))
            return bytes(data)
        case 5 | 6 | 7 if text:
            return swapped(name, whole.decode(), dice).encode("utf-8", "surrogatepass")
        case 8 if text:
            depth = dice.choice((3, 100, 200_000))
            return whole[:place] + b"[" * depth + b'{"a":' * dice.choice((0, depth)) + whole[place:]
        case _:
            for _ in range(dice.choice((1, 1, 2, 8))):
                data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
            return bytes(data)


def swapped(name: str, text: str, dice: random.Random) -> str:
    """Return a text file with one value replaced by one of another type."""
    odd = dice.choice(ODD)
    if name.endswith((".csv", ".toml")):
        mark = "," if name.endswith(".csv") else '"'
        cells = text.split(mark)
        cells[dice.randrange(len(cells))] = str(odd)
        return mark.join(cells)
    lines = text.splitlines() if name.endswith((".jsonl", ".part")) else [text]
    number = dice.randrange(len(lines))
    whole = json.loads(lines[number])
    places = list(_places(whole))
    holder, key = dice.choice(places)
    if dice.random() < 0.2 and isinstance(holder, dict):
        holder[dice.choice((f"{key}x", "", "implementation"))] = holder.pop(key)
    else:
        holder[key] = odd
    lines[number] = json.dumps(whole)
    return "\n".join(lines) + "\n"


def _places(whole: Any) -> Iterator[tuple[Any, Any]]:
    keys = list(whole) if isinstance(whole, dict) else range(len(whole))
    for key in keys:
        yield whole, key
        if isinstance(whole[key], (dict, list)) and whole[key]:
            yield from _places(whole[key])


def prepared() -> dict[str, bytes]:
    """Write the files that the lines read into this folder; return name -> bytes."""
    import torch
    from safetensors.numpy import save_file

    q, k = (np.random.default_rng(0).standard_normal((heads, 3, 4)).astype(np.float32) for heads in (2, 1))
    np.savez("x.npz", q=q, k=k)
    np.save("q.npy", q)
    save_file({"q": q, "k": k}, "x.safetensors")
    tensors = {"q": torch.from_numpy(q), "k": torch.from_numpy(k)}
    torch.save(tensors, "x.pt")
    torch.save(tensors, "old.pth", _use_new_zipfile_serialization=False)
    np.savez_compressed("packed.npz", q=q, k=k)
    frequencies = (10000.0 ** (-np.arange(0, 8, 2) / 8)).astype(np.float32)
    np.savez("table.npz", inv_freq=frequencies)
    save_file({"layers.0.rotary_emb.inv_freq": frequencies}, "module.safetensors")
    Path("x.toml").write_text(
        'extends = "hf"\nname = "mine"\nangle = "fp32/fp16"\nscale_after_store = true\n'
    )
    config = {"model_type": "llama", "hidden_size": 16, "num_attention_heads": 2, "rope_theta": 1e4}
    config |= {"max_position_embeddings": 64, "num_key_value_heads": 1, "head_dim": 8}
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    Path("config.json").write_text(json.dumps(config | {"rope_scaling": yarn}))
    Path("k.py").write_text(TABLE["kernel"]["text"])
    for names, offset in (("-o a.csv -o a.json -o a.jsonl -o a.parquet", "0,7"), ("-o b.json", "7")):
        line = spelled(f"shift <R> --offset {offset} {names} -q")
        with contextlib.redirect_stdout(io.StringIO()):
            assert main(shlex.split(line)) == 0, line
    rows = shift((0, 7), "fp16", "hf", heads=1, seq_len=3, head_dim=4)
    Path("part.jsonl.part").write_bytes(b"".join(map(sweep_file.line_of, rows)))
    return {path.name: path.read_bytes() for path in Path().iterdir()}


# ---------------------------------------------------------------------------- running


class Defect(AssertionError):
    """A line that ended otherwise than it may."""


class _Long(BaseException):
    """A line that took too long."""


def run(line: list[str]) -> str:
    """Run a line in this process; return its exit code, or "long". Raises: Defect."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="")
    errors, late = io.StringIO(), []

    def stop(*_: Any) -> None:
        late.append(True)
        raise _Long

    main_thread = threading.current_thread() is threading.main_thread()
    if main_thread:
        before = signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors), warnings.catch_warnings():
            warnings.simplefilter("always")
            code = main(line)
    except _Long:
        code = 3
    except BaseException as error:
        raise Defect(f"{shlex.join(line)!a}: {type(error).__name__}: {error}") from error
    finally:
        if main_thread:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
    if late:
        return "long"
    out.flush()
    report, message = out.buffer.getvalue().decode(), errors.getvalue()
    if problem := wrong(line, code, report, message):
        raise Defect(f"{shlex.join(line)!a}: exit {code}, {problem}: {message[-600:]!a} {report[:200]!a}")
    return str(code)


def wrong(line: list[str], code: int, report: str, message: str) -> str:
    """Return what is wrong with an exit code and what was written; nothing where nothing is."""
    if code not in (0, 1, 2):
        return "exit code"
    if "Traceback" in message or "Warning" in message or not message.replace("\n", "").isprintable():
        return "stderr"
    if code == 2:
        lines = [one for one in message.splitlines() if not one.startswith("ropeaudit: note: ")]
        ok = lines and lines[0].startswith("ropeaudit: error: ") and len(lines) <= 2
        # what was measured is shown, though nothing is like it or a condition does not apply
        reported = not report or "--baseline" in line or "--fail-if" in line
        return "" if ok and reported else "an error of other words"
    return "" if report or line[0] in ("report", "plot") else "no report"


def lines(numbers: range, files: dict[str, bytes], report: Callable[[str], None]) -> Seen:
    seen: Seen = collections.Counter()
    for number in numbers:
        _run(changed(random.Random(f"line {number}")), f"line {number}", seen, report)
        restore(files)
    return seen


def damages(numbers: range, files: dict[str, bytes], report: Callable[[str], None]) -> Seen:
    seen: Seen = collections.Counter()
    for number in numbers:
        dice = random.Random(f"file {number}")
        name = dice.choice(sorted(READERS))
        Path(name).write_bytes(damaged(name, files[name], dice))
        _run(shlex.split(dice.choice(READERS[name])), f"file {number} {name}", seen, report)
        restore(files)
    return seen


def _run(line: list[str], name: str, seen: Seen, report: Callable[[str], None]) -> None:
    try:
        code = run(line)
        if code == "long":
            report(f"{name}: long: {shlex.join(line)!a}")
    except Defect as defect:
        code = "defect"
        report(f"{name}: {defect}")
    seen[code] += 1


def restore(files: dict[str, bytes]) -> None:
    for path in Path().iterdir():
        if path.name not in files and path.is_file():
            path.unlink()
    for name, content in files.items():
        if not Path(name).is_file() or Path(name).read_bytes() != content:
            Path(name).write_bytes(content)
