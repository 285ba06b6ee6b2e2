"""Run a command as another processor would: `python tests/other_machine.py prescott python -m pytest -q`.

haswell has no AVX-512; prescott has neither AVX2 nor FMA, in the C library too. `tests/test_other_machine.py`
sees that each switch takes effect. Beside the command's output nothing is printed.
"""

import os
import subprocess
import sys

MACHINES = {
    "haswell": {"OPENBLAS_CORETYPE": "Haswell", "ATEN_CPU_CAPABILITY": "avx2"},
    "prescott": {
        "OPENBLAS_CORETYPE": "Prescott",
        "ATEN_CPU_CAPABILITY": "default",
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-AVX2_Usable,-FMA_Usable",
    },
}
NUMPY = "NPY_DISABLE_CPU_FEATURES"
SWITCHES = {NUMPY}.union(*MACHINES.values())
# Run as on another processor, most tests of these measured other figures (compared at nine digits).
FIGURES_MOVE = {
    *("audits/test_acceptance.py", "audits/test_grids.py"),
    *("bounds/test_bounds.py", "bounds/test_tightness.py"),
    *("engine/test_attention.py", "engine/test_measure.py", "engine/test_sample.py"),
    "reports/test_round_trip.py",
    *("subjects/test_axial_classes.py", "subjects/test_torch_native.py"),
}


def environment(machine: str) -> dict[str, str]:
    """Return the environment variables that make a process run as a machine, where none of them is set."""
    import numpy as np

    found = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])  # of other names NumPy warns
    return MACHINES[machine] | {NUMPY: " ".join(name for name in found if lacks(machine, name))}


def lacks(machine: str, feature: str) -> bool:
    """Return whether a machine lacks a feature of NumPy that this one has."""
    return machine == "prescott" or feature.startswith(("AVX512", "X86_V4"))


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in MACHINES:
        sys.exit(f"usage: python tests/other_machine.py {'|'.join(MACHINES)} COMMAND ...")
    sys.exit(subprocess.call(sys.argv[2:], env=os.environ | environment(sys.argv[1])))
