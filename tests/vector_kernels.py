"""Cases of vectors in a folder, and kernels that rotate them, right and wrong, as programs elsewhere do."""

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ropeaudit import recipes
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.conformance import raw_arrays, vector_case
from ropeaudit.conformance.vector_case import VectorCase
from ropeaudit.features.vectors.analysis import vectors
from ropeaudit.subjects.emulated import Emulated

SMALL: dict[str, Any] = {"heads": 2, "kv_heads": 1, "seq_len": 48, "head_dim": 32}


def case(folder: Path, dtype: str = "bf16", offsets=(1000, 65536), **more: Any) -> VectorCase:
    """Write a small case and read it."""
    list(vectors(folder, dtype, offsets, **(SMALL | more)))
    return vector_case.read(folder)


def write(path: Path, x: np.ndarray, dtype) -> None:
    path.write_bytes(raw_arrays.to_bytes(raw_arrays.array(round_to(x, dtype), dtype)))


def rotated(
    given: VectorCase,
    recipe: str = "hf",
    seen: Callable[[np.ndarray], np.ndarray] = lambda at: at,
    **setting: Any,
) -> dict[int, dict[str, np.ndarray]]:
    """Rotate q and k of a case by a recipe, at positions that a fault may mistake."""
    spec, vectors_of = given.spec, given.vectors()
    changed = dataclasses.replace(spec.setting, **setting)
    subject = Emulated(recipes.load(recipe).resolve(spec.dtype), changed)
    sign = -1 if spec.want == "gradient" else 1
    names = (
        {"q": "grad_rotated_q", "k": "grad_rotated_k"} if spec.want == "gradient" else {"q": "q", "k": "k"}
    )
    results: dict[int, dict[str, np.ndarray]] = {}
    for offset in spec.offsets:
        table = subject.table(sign * seen(np.arange(spec.seq_len) + offset), 0)
        results[offset] = {
            side: np.stack(
                [[subject.rotate(head, table) for head in element] for element in vectors_of[name]]
            )
            for side, name in names.items()
        }
    return results


def written(
    given: VectorCase, out: Path, arrays: dict[int, dict[str, np.ndarray]], named: bool = True
) -> Path:
    """Write arrays back as a kernel does."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    prefix = "grad_" if given.spec.want == "gradient" else ""
    for offset, sides in arrays.items():
        for side, x in sides.items():
            write(out / f"{prefix}{side}.{offset}.bin", x, given.spec.dtype)
    if named:
        (out / "case.txt").write_text(given.digest + "\n")
    return out
