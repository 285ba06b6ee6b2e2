"""What a model does with positions: whether it reads them, and what it looks up by them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ropeaudit.errors import UsageError

_SELECTS = ("index_select", "__getitem__", "embedding")
UNNAMED = "a table that is no parameter"


@dataclass(frozen=True, slots=True)
class Lookup:
    """Rows of a table that were looked up. learned: whether the table is a parameter."""

    indices: Any
    rows: int
    learned: bool


class Lookups(TorchFunctionMode):
    """Listens to every torch function. reads: whether one got the positions. rows: by table."""

    def __init__(self, model: Any, positions: Any) -> None:
        """Begin with nothing."""
        super().__init__()
        self.positions, self.reads = positions.untyped_storage().data_ptr(), False
        self.rows: dict[str, Lookup] = {}
        self.learned = {value.data_ptr(): name for name, value in model.named_parameters()}
        self.stored = {value.data_ptr(): name for name, value in model.named_buffers()}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name != "__get__":
            self.reads = self.reads or any(
                tensor.untyped_storage().data_ptr() == self.positions
                for tensor in _tensors((args, kwargs or {}))
            )
        if name in _SELECTS:
            self._note(list(_tensors(args)))
        return func(*args, **(kwargs or {}))

    def _note(self, tensors: list[Any]) -> None:
        """Note which rows of a table are looked up: an integer tensor beside one of numbers."""
        table = next((one for one in tensors if one.is_floating_point() and one.ndim == 2), None)
        indices = next((one for one in tensors if one.dtype in (torch.int64, torch.int32)), None)
        if table is None or indices is None:
            return
        pointer, by_position = table.data_ptr(), indices.untyped_storage().data_ptr() == self.positions
        if not (by_position or pointer in self.learned or pointer in self.stored):
            return  # rows of an intermediate result, such as the tokens of an expert
        name = (self.learned.get(pointer) or self.stored.get(pointer, UNNAMED)).removesuffix(".weight")
        self.rows[name] = Lookup(indices.detach().cpu().clone(), table.shape[0], pointer in self.learned)


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def check_reach(rows: dict[str, Lookup], ids: list[int], offsets: list[int]) -> None:
    """Raise UsageError for an offset that positions in a table do not reach. rows: of the run at offset 0."""
    count = len(ids)
    for name, one in rows.items():
        if name == UNNAMED:  # it may be built as long as the positions need
            continue
        positions = one.indices.reshape(-1)
        steps = positions - torch.arange(positions.numel())
        if positions.numel() == count > 2 and bool((steps == steps[0]).all()) and positions.tolist() != ids:
            most = one.rows - count - int(steps[0])
            beyond = [offset for offset in offsets if offset > most]
            if beyond:
                what = "are learned" if one.learned else "stand in a table"
                raise UsageError(
                    f"--offset {beyond[0]}: positions {what} ({name}) and end before; for {count} tokens "
                    f"offsets go up to {most}"
                )


def changed(first: dict[str, Lookup], other: dict[str, Lookup]) -> list[Lookup]:
    """Return the tables of which two runs looked up different rows."""
    return [
        one
        for name, one in first.items()
        if name in other and not torch.equal(one.indices, other[name].indices)
    ]
