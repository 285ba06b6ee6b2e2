"""The effect of an environment on code: which operation it narrows, and the error of the rotation.

The cause is read from logs of torch's operations, clean and in the environment; the error is measured.
Letters: s positions, d head_dim, p pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ropeaudit.arithmetic.formats import Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.errors import ForeignError
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import exact_rotation
from ropeaudit.subjects.calling.code import Code
from ropeaudit.subjects.calling.stages import StageLog

_LOGGED = 48  # positions of the call whose operations are looked at
_MOST = 4096  # positions at which the consequence is measured
# in the order of the computation, and how a sentence speaks of them
_STAGES = {
    "position": "positions are",
    "frequency": "frequencies are",
    "angle": "angles are",
    "trig": "cos and sin are",
    "table": "the table is",
    "rotation": "the rotation is",
    "output": "what comes back is",
}
TF32_PRODUCTS = ("mm", "bmm", "addmm", "baddbmm")  # by cuBLAS in TF32 where allowed


def narrowest(dtypes: Sequence[str]) -> str:
    """Return the narrowest of some dtypes, by their names.

    >>> narrowest(["float32", "bfloat16"])
    'bfloat16'
    """
    real = {"complex64": "float32", "complex128": "float64", "complex32": "float16"}
    names = [real.get(name, name) for name in dtypes]
    return min(names, key=_width)


def _width(name: str) -> int:
    widths = ("bfloat16", "float16", "float32", "float64")
    return widths.index(name) if name in widths else -1


def cause(code: Code, setting: RopeSetting, dtype: Format) -> str:
    """Describe the stage that an environment narrows, with its operation; empty if none."""
    if code.clean is None or code.environment.kind == "compile":
        return ""
    clean = stages(code.clean, setting, dtype)
    if code.environment.kind == "tf32":
        product, dtype_of_it = angle_product(clean)
        exposed = product in TF32_PRODUCTS and dtype_of_it == "float32"
        return f"the angle is a matrix product ({product}), of factors rounded to 11 bits" if exposed else ""
    own = stages(code, setting, dtype)
    product, here = angle_product(own)
    there = angle_product(clean)[1]
    if product and there and _width(here) < _width(there):
        return f"the angle is a matrix product ({product}), computed in {here} (clean: {there})"
    for stage, what in _STAGES.items():
        if stage in own and stage in clean:
            here, there = narrowest(own[stage].dtypes), narrowest(clean[stage].dtypes)
            if _width(here) < _width(there):
                return f"{what} computed in {here} (clean: {there})"
    return ""


def angle_product(stages: Mapping[str, StageLog]) -> tuple[str, str]:
    """Return the matrix product of positions and frequencies, and its dtype.

    Both are empty where none does.
    """
    products = stages["angle"].products if "angle" in stages else {}
    return next(iter(products.items()), ("", ""))


def stages(code: Code, setting: RopeSetting, dtype: Format) -> Mapping[str, StageLog]:
    """Return the logs of a call by stage; empty if the call fails."""
    if code.engine != "torch":
        return {}
    x = np.random.default_rng(0).standard_normal((1, _LOGGED, setting.head_dim))
    try:
        given = round_to(x, dtype).astype(dtype.carrier)
        return code.logged(setting, dtype, given, _LOGGED)
    except ForeignError:  # a log that cannot be had is no reason to stop
        return {}


def consequence(
    code: Code, setting: RopeSetting, dtype: Format, offset: int, length: int
) -> tuple[str, bool]:
    """Describe a rotation in an environment at up to 4096 positions; return also whether it is worse.

    It is worse if fewer positions are distinct or cos is further off. Empty where the code raises.
    """
    if code.clean is None:
        return "", False
    at = np.arange(min(length, _MOST), dtype=np.int64) + offset
    try:
        own, clean = (_measured(one, setting, dtype, at) for one in (code, code.clean))
    except ForeignError:
        return "", False
    (distinct, error), (clean_distinct, clean_error) = own, clean
    some = f"{distinct} of {at.size}" if distinct < at.size else f"all {at.size}"
    before = "" if clean_distinct == at.size else f" (clean: {clean_distinct})"
    cos = f"cos is off by up to {error:.2g} (clean: {clean_error:.2g})"
    clause = f"at offset {offset} {some} positions are distinct{before}, {cos}"
    return clause, distinct < clean_distinct or error > 1.5 * clean_error


def _measured(code: Code, setting: RopeSetting, dtype: Format, at: np.ndarray) -> tuple[int, float]:
    """Return how many rotations of (1, 0) are distinct, and cos's largest error."""
    x = np.zeros((1, 1, at.size, setting.head_dim), dtype.carrier)
    pairs = setting.pairs
    x[..., slice(0, pairs) if setting.layout == "half" else slice(0, 2 * pairs, 2)] = 1.0
    rotated, _ = code.rotator(setting, dtype).rotate_both(x, x, at)
    rows = rotated[0, 0].astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        seen = exact_rotation.complex_pairs(rows, setting).real
        error = np.abs(seen - exact_rotation.rotations(setting, at, dtype).real)
    finite = rows[np.isfinite(rows).all(axis=1)]
    worst = float(np.where(np.isnan(error), np.inf, error).max(initial=0.0))
    return int(np.unique(finite, axis=0).shape[0]), worst
