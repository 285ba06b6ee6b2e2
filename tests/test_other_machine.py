"""The switches of `other_machine.py` take effect, or this machine is said to lack them."""

import functools
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import other_machine
import pytest
from cases import first_fast

PROBE = """
import hashlib, json, numpy, threadpoolctl, torch
sines = numpy.sin(numpy.random.default_rng(0).uniform(0.0, 1e5, 1_000_000))
pools = threadpoolctl.threadpool_info()
print(json.dumps({
    "kernels": [pool["architecture"] for pool in pools if pool["internal_api"] == "openblas"],
    "features": numpy.show_config(mode="dicts")["SIMD Extensions"].get("found", []),
    "torch": torch.backends.cpu.get_cpu_capability(),
    "sines": hashlib.sha256(sines.tobytes()).hexdigest(),
}))
"""
SCRIPT = Path(other_machine.__file__)


@functools.cache
def probed(*machine: str) -> dict[str, object]:
    """What NumPy, torch and the C library of a fresh process are: of this machine, or as another one."""
    start = [sys.executable, "-W", "error", "-c", PROBE]
    command = [sys.executable, str(SCRIPT), *machine, *start] if machine else start
    plain = {name: value for name, value in os.environ.items() if name not in other_machine.SWITCHES}
    done = subprocess.run(command, env=plain, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


@pytest.mark.skipif(
    platform.machine().lower() not in {"x86_64", "amd64"}, reason="other processors: x86 only"
)
@pytest.mark.parametrize(
    ("machine", "kernels"), first_fast([("prescott", ["Katmai", "Prescott"]), ("haswell", ["Haswell"])])
)
def test_every_switch_takes_effect(machine: str, kernels: list[str]) -> None:
    here, there = probed(), probed(machine)
    assert there["features"] == [name for name in here["features"] if not other_machine.lacks(machine, name)]
    lacking = []
    if here["kernels"]:
        assert set(there["kernels"]) <= set(kernels)
    else:
        lacking.append("NumPy's BLAS is not OpenBLAS")
    if here["torch"] in {"AVX2", "AVX512"}:
        assert there["torch"] == {"haswell": "AVX2", "prescott": "DEFAULT"}[machine]
    else:
        lacking.append(f"torch has {here['torch']} alone")
    if platform.libc_ver()[0] == "glibc" and here["torch"] in {"AVX2", "AVX512"}:
        assert there["sines"] != here["sines"] or machine != "prescott"
    else:
        lacking.append("no C library with two ways to a sine")
    if lacking:
        pytest.skip(f"this machine cannot be {machine} in all: {'; '.join(lacking)}")


def test_no_entry_of_the_list_is_stale() -> None:
    assert all((SCRIPT.parent / name).is_file() for name in other_machine.FIGURES_MOVE)
