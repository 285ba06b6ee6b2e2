"""The bytes of a case of vectors: they follow from its parameters alone.

Letters: b batch elements, h heads of q, g of k, s positions, d head_dim, p pairs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.formats import FP64, FloatArray
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.conformance import case_manifest, raw_arrays
from ropeaudit.conformance.case_manifest import FLAT, MANIFEST, TENSORS
from ropeaudit.conformance.case_spec import CaseSpec
from ropeaudit.recognition import allowance
from ropeaudit.subjects import exact_rotation


def files(spec: CaseSpec) -> dict[str, bytes]:
    """Return file name -> bytes of a case, the manifest last."""
    import safetensors.numpy as safetensors

    arrays = _arrays(spec)
    contents = {f"{name}.bin": raw_arrays.to_bytes(array) for name, array in arrays.items()}
    contents[TENSORS] = safetensors.save(arrays)
    manifest = case_manifest.manifest(spec, {name: case_manifest.sha256(c) for name, c in contents.items()})
    return contents | {FLAT: case_manifest.flat(manifest), MANIFEST: case_manifest.as_json(manifest)}


def _arrays(spec: CaseSpec) -> dict[str, NDArray[Any]]:
    """Return name -> array of all files, in the dtype of the file."""
    arrays = {
        name: raw_arrays.array(_drawn(spec, number, shape), spec.dtype)
        for number, (name, shape) in enumerate(spec.shapes().items())
    }
    for offset in spec.offsets:
        at = np.arange(spec.seq_len, dtype=np.int64) + offset
        arrays[f"positions.{offset}"] = at.astype(spec.positions)
        if spec.tables:
            cos, sin = exact_rotation.exact(spec.setting).table(at, 0)  # the attention factor is in them
            for name, table in (("cos", cos), ("sin", sin)):
                rounded = round_to(table, spec.table_dtype)
                arrays[f"{name}.{offset}"] = raw_arrays.array(rounded, spec.table_dtype)
    if spec.tables:
        arrays["frequencies"] = raw_arrays.array(allowance.frequencies(spec.setting), FP64)
    return arrays


def _drawn(spec: CaseSpec, number: int, shape: tuple[int, ...]) -> FloatArray:
    """Return normal numbers of a stream of their own, with all the bits of the dtype.

    A kernel that holds them in a narrower format then shows.
    """
    return round_to(np.random.default_rng([spec.seed, number]).standard_normal(shape), spec.dtype)
