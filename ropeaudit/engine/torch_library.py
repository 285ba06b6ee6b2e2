"""The array library of the kernel on torch tensors, on one device: the second engine.

Tables come from the host, once a panel; rotations, products, differences and statistics are the device's, and
one small copy a strip brings the statistics back. What rounds element by element has the bits of NumPy's;
sums of products run in the order of the device's kernels, on a CPU in NumPy's. `agreement` compares some
tiles of every run with NumPy's.
Letters: r and c rows and columns, d head_dim, n pairs.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ropeaudit.arithmetic import doubledouble as dd
from ropeaudit.arithmetic import tensors
from ropeaudit.arithmetic.formats import FP32, FP64, Format
from ropeaudit.engine.array_library import ArrayLibrary, NumPyArray
from ropeaudit.engine.summary import Summary, Wanted
from ropeaudit.errors import OutOfMemory
from ropeaudit.runtime.threads import Map, mapping
from ropeaudit.subjects import StoresKeys, Subject
from ropeaudit.subjects.emulated import Emulated
from ropeaudit.subjects.exact import Exact

DEVICE_TILE = 2048, 2048  # scores: a few arrays of 32 MiB, and an operation takes longer than its launch
DEVICE_PANEL = 65536  # positions: the fewer panels, the fewer tables come from the host


def on(device: torch.device) -> ArrayLibrary[Tensor]:
    """Return the library of a device, which has float64."""
    return _Torch(device)


class _Torch:
    """Implement `ArrayLibrary` on the tensors of a device that has float64."""

    name = "torch"

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.tile: tuple[int, int] | None = None if device.type == "cpu" else DEVICE_TILE
        self.panel: int | None = None if device.type == "cpu" else DEVICE_PANEL
        self._local = threading.local()

    @contextlib.contextmanager
    def running(self, threads: int) -> Iterator[Map]:
        """Yield a `map`: on a CPU strips have a thread each, a device has one thread that calls it.

        Meanwhile products of float32 are float32's, whatever the process allows.
        """
        count, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
        on_cpu = self.device.type == "cpu"
        torch.set_float32_matmul_precision("highest")
        if on_cpu:
            torch.set_num_threads(1)
        try:
            with mapping(threads if on_cpu else 1) as mapped:
                yield mapped
        except torch.OutOfMemoryError as error:
            text = " ".join(str(error).split())
            raise OutOfMemory(
                f"{self.device} is out of memory: {text[:120]}; free some of it, or give --engine numpy"
            ) from None
        finally:
            torch.set_float32_matmul_precision(precision)
            torch.set_num_threads(count)

    def taken(self, arrays: Any) -> Any:
        if isinstance(arrays, tuple):
            return tuple(self.taken(one) for one in arrays)
        writable = arrays if arrays.flags.writeable else arrays.copy()
        return torch.from_numpy(writable).to(self.device)

    def given_back(self, x: Tensor) -> NumPyArray:
        return np.array(x.cpu().numpy())

    def arange(self, start: int, stop: int) -> Tensor:
        return torch.arange(start, stop, device=self.device)

    def rotates(self, subject: Subject) -> bool:
        return isinstance(subject, (Emulated, Exact)) and not isinstance(subject, StoresKeys)

    def known_nan(self, rotated: Tensor) -> bool:
        return False  # to look would cost a copy from the device

    def empty(self, shape: tuple[int, ...], fmt: Format) -> Tensor:
        return torch.empty(shape, dtype=tensors.DTYPES[fmt.precision], device=self.device)

    def precision(self, x: Tensor) -> int:
        return FP32.precision if x.dtype == torch.float32 else FP64.precision

    def converted(self, x: Tensor, fmt: Format) -> Tensor:
        return x.to(torch.float64 if fmt is FP64 else torch.float32)

    def contiguous(self, x: Tensor) -> Tensor:
        return x.contiguous()

    def copy(self, x: Tensor, out: Tensor) -> Tensor:
        return out.copy_(x)

    def fill(self, x: Tensor, value: float) -> None:
        x.fill_(value)

    def add(self, a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
        return torch.add(a, b, out=out)

    def subtract(self, a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
        return torch.sub(a, b, out=out)

    def multiply(self, a: Tensor, b: Tensor | float, out: Tensor | None = None) -> Tensor:
        if out is a:
            return a.mul_(b)  # a number stays one: as a tensor it would have to come from the host
        return torch.mul(a, b, out=out)

    def matmul(self, a: Tensor, b: Tensor, out: Tensor) -> Tensor:
        if a.dtype == out.dtype:
            return tensors.product(a, b, out)
        return out.copy_(tensors.product(a, b))

    def row_products(self, a: Tensor, b: Tensor) -> Tensor:
        return (a * b).sum(dim=1)

    def add_product(self, total: Tensor | float, a: Tensor, b: Tensor, fmt: Format) -> Tensor:
        product, error = dd.two_product(a, b)
        high, low = dd.two_sum(total, product)
        return tensors.rounded(tensors.to_odd(high, low + error), fmt).to(torch.float64)  # type: ignore[arg-type]

    def round(self, x: Tensor, fmt: Format, scratch: Tensor | None = None) -> None:
        tensors.round_in_place(x, fmt)

    def hide(self, x: Tensor, hidden: Tensor | None, value: float = 0.0) -> None:
        if hidden is not None:
            x.masked_fill_(hidden, value)

    def summarize(self, values: Tensor, wanted: Wanted, then: Callable[[Summary], None]) -> None:
        """Compute the numbers on the device, where they wait for `settle`."""
        sizes = torch.abs(values) if values.dtype != torch.float64 else torch.abs(values, out=wanted.scratch)
        flat, wide = sizes.reshape(-1), values.to(torch.float64).reshape(-1)
        finite = torch.count_nonzero(flat <= torch.finfo(flat.dtype).max)
        weighted = wide if wanted.weights is None else wanted.weights * wide
        zero = torch.zeros((), dtype=torch.float64, device=self.device)
        numbers = [finite, torch.dot(weighted, wide), zero, zero, zero, zero, zero]
        if wanted.weights is not None:
            each = weighted * wide
            numbers[1:3] = each.sum(), torch.dot(each, each)
        if wanted.largest:
            number = flat.argmax()  # the first of them; that of a nan if there is one
            numbers[3:5] = torch.take(flat, number), number
        if wanted.means:
            wide_sizes = flat.to(torch.float64)
            absolute = wide_sizes.sum() if wanted.weights is None else torch.dot(wanted.weights, wide_sizes)
            numbers[5:7] = weighted.sum(), absolute
        row, size = torch.stack([number.to(torch.float64) for number in numbers]), values.numel()

        def arrived(seen: list[float]) -> None:
            nonfinite = size - int(seen[0])
            largest, number = (seen[3], int(seen[4])) if wanted.largest else (0.0, -1)
            summary = Summary(nonfinite, seen[1], seen[2], largest, number, seen[5], seen[6])
            unfit = wanted.largest and nonfinite > 0  # sums of what is not finite say nothing
            then(Summary(nonfinite) if unfit else summary)

        self._waiting().append((row, arrived))

    def afterwards(self, then: Callable[[], None]) -> None:
        self._waiting().append((None, lambda seen: then()))

    def settle(self) -> None:
        """Copy the numbers of this thread's calls to the host, all at once, and hand them on in order."""
        waiting, self._local.waiting = self._waiting(), []
        rows = [row for row, _ in waiting if row is not None]
        seen = iter(torch.stack(rows).cpu().tolist() if rows else ())
        for row, arrived in waiting:
            arrived([] if row is None else next(seen))

    def _waiting(self) -> list[tuple[Tensor | None, Callable[[list[float]], None]]]:
        if not hasattr(self._local, "waiting"):
            self._local.waiting = []
        waiting: list[tuple[Tensor | None, Callable[[list[float]], None]]] = self._local.waiting
        return waiting
