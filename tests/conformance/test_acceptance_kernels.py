"""`ropeaudit check` is right on every kernel of the acceptance, names its fault or says that it cannot.

CPU seconds are printed, imports and compilation aside; no test asserts them.
"""

from __future__ import annotations

import csv
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import acceptance_kernels
import pytest
from acceptance_kernels import BOTH, FAULTY, KERNELS, RIGHT, SERVED_FAULTY, SERVED_RIGHT, Kernel
from cases import thinned

from ropeaudit.main import main

FILE = Path(acceptance_kernels.__file__)
EVERY = [kernel.name for kernel in (*RIGHT, *FAULTY, *SERVED_RIGHT, *SERVED_FAULTY)]
HANDFUL = ("numpy_half", "one_position")
UNNAMED = r"cannot be named|not named|no known|nothing (that is )?known|not known"
SECONDS: dict[str, float] = {}

pytestmark = pytest.mark.filterwarnings("default")  # those of torch's compiler, in code of others


def checked(name: str, dtype: str, folder: Path) -> tuple[int, list[dict[str, str]]]:
    """Run the command; return its exit code and the rows of its report."""
    report = folder / "check.csv"
    began = time.process_time()
    thorough = ["--thorough"] if KERNELS[name].check == "compile" else []  # others are caught without
    with compilations() as compiling:
        code = main(["check", f"{FILE}:{name}", "--dtype", dtype, "-q", "-o", str(report), *thorough])
    SECONDS[f"{name} {dtype}"] = time.process_time() - began - sum(compiling)
    print(f"{name} {dtype}: {SECONDS[f'{name} {dtype}']:.1f} s of CPU, exit code {code}")
    with report.open(encoding="utf-8", newline="") as lines:
        return code, list(csv.DictReader(lines))


@contextmanager
def compilations() -> Iterator[list[float]]:
    """CPU seconds of this process in torch's compiler, of which each compilation adds one."""
    from torch._dynamo.callback import callback_handler

    seconds, began = [], [0.0]

    def start(_: object) -> None:
        began[0] = time.process_time()

    def end(_: object) -> None:
        seconds.append(time.process_time() - began[0])

    callback_handler.register_start_callback(start)
    callback_handler.register_end_callback(end)
    try:
        yield seconds
    finally:
        callback_handler.remove_start_callback(start)
        callback_handler.remove_end_callback(end)


def failures(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    return [row for row in rows if row["status"] == "fail"]


def judge(kernel: Kernel, dtype: str, folder: Path) -> None:
    code, rows = checked(kernel.name, dtype, folder)
    failed = failures(rows)
    if dtype not in kernel.faulty:
        assert (code, failed) == (0, [])
        return
    assert code == 1
    checks, texts = (
        " ".join(row["check"] for row in failed),
        " ".join(" ".join(row.values()) for row in failed),
    )
    assert re.search(kernel.check, checks, re.IGNORECASE), checks
    named = re.search(kernel.diagnosis, texts, re.IGNORECASE | re.DOTALL)
    assert named or re.search(UNNAMED, texts, re.IGNORECASE), texts


@pytest.fixture(scope="module", autouse=True)
def times() -> Iterator[None]:
    yield
    for name, seconds in sorted(SECONDS.items(), key=lambda item: -item[1])[:5]:
        print(f"{seconds:6.1f} s of CPU: {name}")


def test_there_are_twenty_of_each() -> None:
    assert len(RIGHT) >= 20
    assert min(sum(dtype in kernel.faulty for kernel in FAULTY) for dtype in BOTH) >= 20
    assert sum(kernel.numpy for kernel in RIGHT) >= 4


@pytest.mark.parametrize("name", HANDFUL)
def test_a_handful(name: str, tmp_path: Path) -> None:
    judge(KERNELS[name], "bf16", tmp_path)


@pytest.mark.parametrize("name", thinned(EVERY, 2))
def test_every_kernel(name: str, tmp_path: Path) -> None:
    judge(KERNELS[name], "bf16", tmp_path)


@pytest.mark.parametrize("name", thinned(EVERY, 4))
def test_every_kernel_in_float32(name: str, tmp_path: Path) -> None:
    judge(KERNELS[name], "fp32", tmp_path)


@pytest.mark.slow
def test_a_wider_dtype_is_said(tmp_path: Path) -> None:
    code, rows = checked("returns_float32", "bf16", tmp_path)
    assert code == 1
    assert {row["check"] for row in rows if row["status"] == "fail"} == {"dtype"}
    assert "float32" in next(row["detail"] for row in rows if row["check"] == "dtype")
