"""Whatever own code sets, all is as it was after it; what its module set at import holds for its calls."""

import builtins
import locale
import math
import os
import random
import sys
import warnings
from concurrent import futures

import numpy as np
import pytest

from ropeaudit import shift
from ropeaudit.main import main
from ropeaudit.runtime import process_state, threads
from ropeaudit.subjects.calling.timeout import patiently

torch = pytest.importorskip("torch")

SETS = {
    "dtype": "torch.set_default_dtype(torch.float64)",
    "device": "torch.set_default_device('meta')",
    "threads": "torch.set_num_threads(torch.get_num_threads() + 1)",
    "grad": "torch.set_grad_enabled(not torch.is_grad_enabled())",
    "deterministic": "torch.use_deterministic_algorithms(True, warn_only=True)",
    "precision": "torch.set_float32_matmul_precision('medium')",
    "tf32": "torch.backends.cuda.matmul.allow_tf32 = True",
    "seed": "torch.manual_seed(torch.initial_seed() + 1)",
    "drawn": "torch.rand(3)",
    "autocast": "torch.set_autocast_enabled('cpu', True)",
    "autocast dtype": "torch.set_autocast_dtype('cpu', torch.float16)",
    "denormal": "torch.set_flush_denormal(True)",
    "cudnn": "torch.backends.cudnn.benchmark = True",
    "numpy errors": "np.seterr(all='raise')",
    "numpy seed": "np.random.seed(1)",
    "numpy drawn": "np.random.standard_normal(3)",
    "random": "random.random()",
    "environment": "os.environ['ROPEAUDIT_X'] = '1'; os.environ.pop('PATH')",
    "folder": "os.chdir('/')",
    "path": "sys.path.insert(0, '/x')",
    "filters": "warnings.simplefilter('ignore')",
    "recursion": "sys.setrecursionlimit(5000)",
    "locale": "locale.setlocale(locale.LC_ALL, 'C.UTF-8')",
    "builtins": "builtins.print = None",
    "import": "builtins.__import__ = lambda *given, **named: builtins_import(*given, **named)",
    "numpy function": "np.sqrt = lambda x: x",
    "torch function": "torch.cos = torch.sin",
    "functional": "torch.nn.functional.pad = None",
    "tensor method": "torch.Tensor.to = lambda self, *more: self",
    "tensor method of torch's base class": "torch.Tensor.cos = torch.Tensor.sin",
    "library function": "del math.sin",
}
NAMES = {one.__name__: one for one in (torch, random, os, sys, warnings, locale, builtins, math)}
NAMES |= {"np": np, "builtins_import": builtins.__import__}


@pytest.fixture(autouse=True)
def _threads_for_later_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_alone", False)


def differing(one: process_state.State, other: process_state.State) -> list[str]:
    return [name for name in one if name != "decimal" and not process_state.same(one[name], other[name])]


def test_all_is_as_it_was() -> None:
    def run(what: str) -> tuple[process_state.State, process_state.State]:
        """In the thread of the calls: what torch sets is often a thread's own."""
        before = process_state.now()
        with process_state.foreign():
            exec(SETS[what], dict(NAMES))  # noqa: S102
            changed = differing(before, process_state.now())
        assert changed or what == "locale", what
        return before, process_state.now()

    for what in SETS:
        before, after = patiently(lambda what=what: run(what), "a test")
        assert differing(before, after) == [], what


def test_a_warning_that_other_code_was_given_is_given_here_too() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        here = {"warnings": warnings, "__name__": "somewhere"}
        with process_state.foreign():
            warnings.showwarning = lambda *_, **__: None
            warnings.simplefilter("default")
            exec("warnings.warn('once')", here)  # noqa: S102
        with pytest.raises(UserWarning, match="once"):
            exec("warnings.warn('once')", here)  # noqa: S102


MODULE = """
import torch
{}
def f(x, positions):
    {}
    d = x.shape[-1]
    a = positions[:, None] / 10000 ** (torch.arange(0, d, 2) / d)
    c, s, x1, x2 = a.cos(), a.sin(), x[..., : d // 2], x[..., d // 2 :]
    y = torch.cat([x1 * c - x2 * s, x2 * c + x1 * s], -1)
    return (y + 1e-6 * torch.rand(y.shape)).to(x.dtype)
"""
SIZES = {"heads": 2, "seq_len": 4, "head_dim": 8}


def code(folder, name: str, at_import: str = "", in_call: str = "pass") -> str:
    """Write a module that sets something; return what names its function."""
    (folder / f"{name}.py").write_text(MODULE.format(at_import, in_call))
    return f"{folder / name}.py:f"


DOUBLE = "torch.set_default_dtype(torch.float64)"


def rows(specs: list[str]) -> dict[str, float]:
    results = shift(100_000, "fp32", implementations=specs, **SIZES)
    return {os.path.basename(row.implementation): row.drift_rms for row in results}


def test_no_code_changes_the_rows_of_another(tmp_path) -> None:
    calls = code(tmp_path, "calls", "", DOUBLE + "; torch.manual_seed(7)")
    specs = [code(tmp_path, "imports", DOUBLE), calls, code(tmp_path, "plain")]
    alone = {name: drift for one in specs for name, drift in rows([one]).items()}
    assert rows(specs) == rows(specs[::-1]) == alone
    assert alone["imports.py:f"] < alone["plain.py:f"] / 10  # its own state holds for its own calls
    assert torch.get_default_dtype() == torch.float32


def test_rows_do_not_depend_on_what_the_process_measured_before(tmp_path) -> None:
    """Else another share of the work in a process, as --jobs 2 gives it, would give other rows."""
    late = MODULE.format("", f"if positions.max() > 50_000: {DOUBLE}").replace("1e-6 *", "0 *")
    (tmp_path / "late.py").write_text(late)
    spec = f"{tmp_path / 'late.py'}:f"
    first, again = (
        [row.drift_rms for row in shift([7, 100_000], "fp32", implementations=spec, **SIZES)]
        for _ in range(2)
    )
    assert first == again
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.slow  # processes
def test_processes_give_the_bytes_of_one_whatever_code_sets(tmp_path) -> None:
    calls = DOUBLE + "; torch.manual_seed(7); torch.set_num_threads(1)"
    imports = code(tmp_path, "imports", DOUBLE, "torch.use_deterministic_algorithms(True)")
    called = ",".join([imports, code(tmp_path, "calls", "", calls), code(tmp_path, "plain")])
    results = []
    for jobs in "12":
        out = tmp_path / f"{jobs}.csv"
        small = ["--heads", "1", "--seq-len", "4", "--head-dim", "8", "--dtype", "fp32,bf16"]
        line = ["shift", "--impl", called, "--recipe", "hf", *small, "--offset", "0,7,100000"]
        assert main([*line, "-q", "--jobs", jobs, "-o", str(out)]) == 0
        results.append(out.read_bytes())
    assert results[0] == results[1]
    assert len(results[0].splitlines()) == 1 + 4 * 2 * 3


def test_functions_that_code_replaces_are_so_for_itself_alone(tmp_path) -> None:
    """At its import or in a call; recipes and other code compute with those that were loaded."""
    replace = (
        "import numpy; numpy.cos = numpy.sin = lambda x, *_, **__: x; torch.Tensor.cos = torch.Tensor.sin"
    )
    calls = code(tmp_path, "calls", "", replace)
    specs = [code(tmp_path, "imports", replace), calls, code(tmp_path, "plain")]

    def rows_of(*specs: str) -> dict[str, float]:
        results = shift(100, "fp32", recipes=["hf"], implementations=specs, **SIZES)
        return {row.implementation: row.drift_rms for row in results}

    together = rows_of(*specs)
    alone = rows_of(specs[2])
    assert {name: together[name] for name in alone} == alone
    assert min(together[specs[0]], together[specs[1]]) > 100 * alone[specs[2]]


def test_no_thread_works_beside_code_that_replaces_functions(tmp_path, monkeypatch) -> None:
    """Another thread would compute a recipe with them meanwhile."""
    monkeypatch.setattr(threads, "_alone", False)
    started: list[int] = []
    pool = futures.ThreadPoolExecutor
    monkeypatch.setattr(
        futures, "ThreadPoolExecutor", lambda size, **rest: started.append(size) or pool(size, **rest)
    )
    for name, in_call in (("plain", "pass"), ("calls", "import numpy; numpy.cos = numpy.sin")):
        spec = code(tmp_path, name, "", in_call)
        started.clear()
        sizes = {"heads": 2, "seq_len": 1024, "head_dim": 8, "threads": 2}
        list(shift(0, "fp32", implementations=spec, **sizes))
        assert bool(started) == (name == "plain")
