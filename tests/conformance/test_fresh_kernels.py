"""`ropeaudit check` judges kernels right that were written without a look at how it calls and judges code.

Each file of `fresh` says its settings and its function on its first lines. All are run in three dtypes: in
one as a slow test, in the others as exhaustive ones.
"""

from __future__ import annotations

import csv
import re
import shlex
from pathlib import Path

import pytest

from ropeaudit.main import main

FRESH = Path(__file__).parent / "fresh"
KERNELS = sorted(path.stem for path in FRESH.glob("*_*.py"))
DTYPES = ("bf16", "fp16", "fp32")

pytestmark = pytest.mark.filterwarnings("default")  # such as torch.jit.script, in code of others
HANDFUL = (("right_palm_angles_first", "bf16"), ("wrong_int16_positions", "fp32"))

# wrong kernel -> the codes of which one has to be named, and those that may be named beside it
CODES: dict[str, tuple[str, str]] = {
    "wrong_backward_sign": ("wrong-direction", ""),
    "wrong_base_default": ("wrong-base", ""),
    "wrong_chunk_restarts": ("positions-from-0", "right-so"),
    "wrong_contiguous_assumed": ("not-a-rotation", "unexplained"),
    "wrong_decode_plus_one": ("positions-off", "unexplained"),
    "wrong_dynamic_chunk_length": ("missing-scaling", "other-scaling wrong-base"),
    "wrong_first_dtype_cache": ("state-left", ""),
    "wrong_inplace_alias": ("not-a-rotation", "unexplained"),
    "wrong_int16_positions": ("integer-width", ""),
    "wrong_last_kv_head": ("no-rotation", "rotated-by-head"),
    "wrong_mixed_tables": ("mixed-layout", ""),
    "wrong_module_half": ("narrow-frequencies", ""),
    "wrong_packed_runs_on": ("unexplained", ""),
    "wrong_partial_exponent": ("exponent-denominator", ""),
    "wrong_positions_half": ("narrow-positions", "another-position unexplained"),
    "wrong_qwen_pairing": ("wrong-layout", ""),
    "wrong_scaling_by_type_key": ("missing-scaling", ""),
    "wrong_shared_output": ("output-shared", "threads-meet"),
    "wrong_table_clamped": ("table-ends", ""),
    "wrong_torchtune_row0": ("positions-of-another-row", ""),
    "wrong_wraps_at_table": ("wrap", ""),
    "wrong_yarn_mscale_twice": ("attention-factor", ""),
}
# wrong kernel -> dtypes in which its bug cannot show
HARMLESS = {
    "wrong_first_dtype_cache": ("bf16",),  # tables of other dtypes are only finer
    "wrong_positions_half": ("fp32",),  # which holds all these positions
}


def line(name: str, what: str) -> str:
    """Return what a file says of itself."""
    found = re.search(rf"^# {what}: (.*)$", (FRESH / f"{name}.py").read_text("utf-8"), re.MULTILINE)
    assert found, f"{name} does not say its {what}"
    return found[1]


def judge(name: str, dtype: str, folder: Path) -> None:
    report = folder / "check.csv"
    options = [
        str(FRESH / word) if word.endswith(".json") else word for word in shlex.split(line(name, "settings"))
    ]
    target = f"{FRESH / name}.py:{line(name, 'name')}"
    code = main(["check", target, *options, "--dtype", dtype, "-q", "-o", str(report)])
    with report.open(encoding="utf-8", newline="") as lines:
        failed = [row for row in csv.DictReader(lines) if row["status"] == "fail"]
    codes = {one for row in failed for one in re.split(r"[+|;]", row["diagnosis"]) if one}
    if name.startswith("right_") or dtype in HARMLESS.get(name, ()):
        assert (code, failed) == (0, [])
        return
    named, beside = CODES[name]
    assert code == 1
    assert named in codes
    assert codes <= {named, *beside.split()}


def test_there_are_as_many_of_each() -> None:
    right = [name for name in KERNELS if name.startswith("right_")]
    assert (len(right), len(KERNELS)) == (22, 44)
    assert set(CODES) == set(KERNELS) - set(right)


@pytest.mark.parametrize(("name", "dtype"), HANDFUL)
def test_a_handful(name: str, dtype: str, tmp_path: Path) -> None:
    judge(name, dtype, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype"), [(one, DTYPES[n % 3]) for n, one in enumerate(KERNELS)])
def test_each_in_one_dtype(name: str, dtype: str, tmp_path: Path) -> None:
    judge(name, dtype, tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "dtype"), [(one, DTYPES[(n + more) % 3]) for n, one in enumerate(KERNELS) for more in (1, 2)]
)
def test_each_in_the_others(name: str, dtype: str, tmp_path: Path) -> None:
    judge(name, dtype, tmp_path)
