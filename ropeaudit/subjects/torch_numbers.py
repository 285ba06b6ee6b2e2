"""Number formats on a torch device: what is native there, and what has to be rounded by hand.

Native are float64, float32, float16 and bfloat16, in which torch does arithmetic: an operation is torch's
own, and so is each cast. tf32 and the float8 formats have no torch arithmetic on a CPU: their values
are carried in float32, operations are float32's, and each result is rounded by `rounding.round_to`.
Values cross between NumPy and torch exactly.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.errors import OutOfMemory, UsageError
from ropeaudit.subjects import torch_arrays

NATIVE = ("float64", "float32", "float16", "bfloat16")
_CPU = torch.device("cpu")
_WITHOUT_FLOAT64 = ("mps",)
_FULL = ("out of memory", "can't allocate memory", "not enough memory")


def device(name: str) -> torch.device:
    """Return the device called `name`: cpu, cuda, cuda:N or mps. Raises: UsageError where there is none.

    >>> device("cpu").type
    'cpu'
    """
    try:
        chosen = torch.device(name.strip().lower())
    except RuntimeError:
        chosen = None
    if (
        chosen is None
        or chosen.type not in ("cpu", "cuda", "mps")
        or (chosen.type != "cuda" and chosen.index)
    ):
        raise UsageError(f"--device {name!r} is not cpu, cuda, cuda:N or mps; try --device cpu")
    if chosen.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (chosen.index or 0) >= count:
            cuda = f", built for CUDA {torch.version.cuda}" if torch.version.cuda else ", built without CUDA"
            seen = f"torch {torch.__version__}{cuda}, sees {count or 'no'} CUDA device{'s' * (count > 1)}"
            first = "cuda:0" if count else "cpu"
            raise UsageError(f"--device {name}: {seen}; give --device {first}")
        chosen = torch.device("cuda", chosen.index or 0)
    if chosen.type == "mps" and not torch.backends.mps.is_available():
        how = "sees no Apple GPU" if torch.backends.mps.is_built() else "was built without MPS"
        raise UsageError(f"--device {name}: torch {torch.__version__} {how}; give --device cpu")
    return chosen


@dataclass(frozen=True, slots=True)
class Numbers:
    """The number formats of one device. float64 is computed on the CPU where the device has none."""

    device: torch.device

    @property
    def label(self) -> str:
        """What to call the device in a record: a GPU with its name."""
        if self.device.type == "cuda":
            return f"{self.device} ({torch.cuda.get_device_name(self.device)})"
        return str(self.device)

    @property
    def lacks_float64(self) -> bool:
        """Whether float64 has to be computed on the CPU instead."""
        return self.device.type in _WITHOUT_FLOAT64

    def of(self, x: FloatArray, fmt: Format) -> torch.Tensor:
        """Return x, whose values are numbers of `fmt`, on the device; nothing is rounded."""
        return self.moved(torch.from_numpy(np.ascontiguousarray(x)), dtype(fmt))

    def moved(self, x: torch.Tensor, to: torch.dtype) -> torch.Tensor:
        """Cast a tensor, as torch casts, and put it where its dtype is computed."""
        place = _CPU if to == torch.float64 and self.lacks_float64 else self.device
        return x.to(place).to(to) if place.type == "cpu" else x.to(to).to(place)

    def keep(self, x: torch.Tensor, fmt: Format) -> torch.Tensor:
        """Return x as numbers of `fmt`: a cast of torch's, or one rounding where torch has no such dtype."""
        if fmt.name in NATIVE:
            return self.moved(x, dtype(fmt))
        return self.of(round_to(torch_arrays.to_numpy(x), fmt), fmt)

    def apply(
        self, operation: Callable[..., torch.Tensor], fmt: Format, *operands: torch.Tensor
    ) -> torch.Tensor:
        """Do an operation in the widest dtype of its operands and of `fmt`, then cast to `fmt`."""
        wide = functools.reduce(torch.promote_types, (x.dtype for x in operands), dtype(fmt))
        return self.keep(operation(*(self.moved(x, wide) for x in operands)), fmt)


def dtype(fmt: Format) -> torch.dtype:
    """Return the dtype that carries a format: its own where that has arithmetic, else float32."""
    return torch_arrays.dtype(fmt) if fmt.name in NATIVE else torch.float32


@contextlib.contextmanager
def memory() -> Iterator[None]:
    """Say in a sentence that the memory of a device is full. Raises: OutOfMemory."""
    try:
        yield
    except RuntimeError as error:  # torch.cuda.OutOfMemoryError is one
        text = " ".join(str(error).split())
        if not (isinstance(error, torch.OutOfMemoryError) or any(full in text.lower() for full in _FULL)):
            raise
        raise OutOfMemory(
            f"out of memory on the device: {text[:120]}; free some of its memory, or give --device cpu"
        ) from None
