"""Whether code wants cos and sin in the dtype of its vectors, as callers give them that compute in 16 bits.

Float32 tables make the result of a plain product float32, which says nothing of the code's own dtype.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ropeaudit.arithmetic.formats import FP32, Format
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime import process_state
from ropeaudit.runtime.process_state import State
from ropeaudit.subjects import torch_arrays
from ropeaudit.subjects.calling.conventions import Convention

_MOST_BITS = 16  # of a dtype whose tables are otherwise wider


def wanted(
    convention: Convention,
    make: Callable[[], Any],
    setting: RopeSetting,
    dtype: Format,
    home: State | None,
) -> bool:
    """Return whether float32 tables alone make what is returned float32.

    make: an instance to call. home: the state in which calls begin.
    """
    if "cos" not in convention.signature.roles or dtype.storage_bits > _MOST_BITS:
        return False
    x, at = np.ones((1, 1, 2, setting.head_dim), dtype.carrier), np.arange(2, dtype=np.int64)

    def returned(narrow: bool) -> set[str]:
        with process_state.at_home(home):
            answer = replace(convention, narrow=narrow)(make(), x, at, setting, dtype)
        return {answer.dtype, answer.keys_dtype}

    with contextlib.suppress(Exception):  # whatever other people's code raises: the calls will show it
        return returned(False) == {FP32.name} and returned(True) == {torch_arrays.spelled(dtype)}
    return False
