"""What code sets at its import holds for its own calls, and for nothing else."""

import os

import pytest

from ropeaudit import shift
from ropeaudit.main import main

torch = pytest.importorskip("torch")

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
