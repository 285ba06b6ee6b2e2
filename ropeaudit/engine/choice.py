"""Which engine measures, and on which device: NumPy, or the same kernel on torch tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ropeaudit.engine import array_library
from ropeaudit.engine.array_library import ArrayLibrary
from ropeaudit.errors import UnknownName, UsageError

if TYPE_CHECKING:
    import torch

ENGINES = ("numpy", "torch")


@dataclass(frozen=True, slots=True)
class Engine:
    """What measures. device: of tensors, None for NumPy. label: the device in a record. note: on a choice."""

    name: str = "numpy"
    device: torch.device | None = None
    label: str = "cpu"
    note: str = ""

    @property
    def on_device(self) -> bool:
        """Whether tensors lie elsewhere than on the CPU."""
        return self.device is not None and self.device.type != "cpu"

    def library(self) -> ArrayLibrary[Any]:
        """Return the library of its arrays."""
        if self.device is None:
            return array_library.NUMPY
        from ropeaudit.engine import torch_library  # in-function: importing torch takes seconds

        return torch_library.on(self.device)


NUMPY = Engine()


def chosen(name: str | None, device: str | None, backend: str = "numpy", called: bool = False) -> Engine:
    """Return the engine of a name, by default torch where `device` is another than the CPU, else NumPy.

    backend: what executes recipes. called: whether code is called, which `device` is for then.
    Raises: UnknownName, UsageError.
    """
    if name is not None and name not in ENGINES:
        raise UnknownName("engine", str(name), ENGINES)
    elsewhere = device is not None and str(device).strip().lower().partition(":")[0] != "cpu"
    free = backend == "numpy" and not called  # nothing else is there that the device could be for
    if name == "torch" and backend != "numpy":
        raise UsageError(
            f"--backend {backend} forms its scores itself; leave it out, or leave out --engine torch"
        )
    if name == "numpy" and elsewhere and free:
        raise UsageError(
            f"--device {device} is where torch computes; leave it out, or leave out --engine numpy"
        )
    if name == "numpy" or (name is None and not (elsewhere and free)):
        return NUMPY
    from ropeaudit.subjects import torch_numbers  # in-function: importing torch takes seconds

    numbers = torch_numbers.Numbers(torch_numbers.device("cpu" if device is None else str(device)))
    if numbers.lacks_float64:
        return Engine(
            note=f"{numbers.label} has no float64, which the reference needs: NumPy measured, on the CPU"
        )
    return Engine("torch", numbers.device, numbers.label)
