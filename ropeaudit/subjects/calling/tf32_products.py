"""TF32 where no hardware has it: the operands of float32 matrix products, rounded to 11 bits.

Products and sums are float32, as on tensor cores. Operands are rounded to nearest, ties to even, as in the
recipe `hf-tf32-matmul`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ropeaudit.arithmetic.formats import parse
from ropeaudit.subjects.torch_native import Numbers

# operations that cuBLAS computes in TF32 where that is allowed -> the first of their two factors
_FACTORS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}
_TF32 = parse("tf32")


class Tf32Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered, rounds what float32 matrix products are formed of."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep torch from loading its compiler, which takes longer than all checks together."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation, a product of rounded factors."""
        first = _FACTORS.get(str(func.overloadpacket).rpartition(".")[2])
        if first is not None:
            args = [_rounded(one) if number in (first, first + 1) else one for number, one in enumerate(args)]
        return func(*args, **(kwargs or {}))


def _rounded(factor: torch.Tensor) -> torch.Tensor:
    if factor.dtype != torch.float32:
        return factor
    return Numbers(factor.device).keep(factor, _TF32)
