"""Cases of vectors in a folder, and kernels that rotate them, right and wrong, as programs elsewhere do."""

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ropeaudit import recipes
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.conformance import vector_case
from ropeaudit.conformance.returned import Arrays
from ropeaudit.conformance.vector_case import VectorCase
from ropeaudit.features.vectors.analysis import vectors
from ropeaudit.subjects.emulated import Emulated

SMALL: dict[str, Any] = {"heads": 2, "kv_heads": 1, "seq_len": 48, "head_dim": 32}


def case(folder: Path, dtype: str = "bf16", offsets=(1000, 65536), **more: Any) -> VectorCase:
    """Write a small case and read it."""
    list(vectors(folder, dtype, offsets, **(SMALL | more)))
    return vector_case.read(folder)


def write(path: Path, x: np.ndarray, dtype) -> None:
    path.write_bytes(vector_case.to_bytes(vector_case.array(round_to(x, dtype), dtype)))


def rotated(
    given: VectorCase,
    recipe: str = "hf",
    seen: Callable[[np.ndarray], np.ndarray] = lambda at: at,
    **setting: Any,
) -> Arrays:
    """Rotate q and k of a case by a recipe, at positions, (s,) or (b, s), that a fault may mistake."""
    spec, vectors_of = given.spec, given.vectors()
    changed = dataclasses.replace(spec.setting, **setting)
    subject = Emulated(recipes.load(recipe).resolve(spec.dtype), changed)
    gradient = spec.want == "gradient"
    results: Arrays = {}
    for call in spec.calls:
        rows = np.broadcast_to(seen(call.positions()), (call.batch, call.seq_len))
        tables = [subject.table(-row if gradient else row, 0) for row in rows]
        results[call.key] = {
            side: np.stack(
                [
                    [subject.rotate(head, table) for head in element]
                    for element, table in zip(
                        call.part(vectors_of[f"grad_rotated_{side}" if gradient else side], side == "k"),
                        tables,
                        strict=True,
                    )
                ]
            )
            for side in "qk"
        }
    return results


def written(given: VectorCase, out: Path, arrays: Arrays, named: bool = True) -> Path:
    """Write arrays back as a kernel does."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    prefix = "grad_" if given.spec.want == "gradient" else ""
    for key, sides in arrays.items():
        for side, x in sides.items():
            write(out / f"{prefix}{side}.{key}.bin", x, given.spec.dtype)
    if named:
        (out / "case.txt").write_text(given.digest + "\n")
    return out
