"""A recipe at many offsets on torch tensors, a batch of offsets at a time.

`measure` goes offset by offset and tile by tile: where scores are few, a device waits for Python between two
operations. Here the scores of a head at all offsets of a batch are one array. The reference, which no offset
changes, and the tables of a batch's positions come from the host; rotations, products, differences and
statistics are the device's, and one small copy a batch brings the statistics back. Products are those of
`measure`, an offset at a time: sums run in its order. NumPy judges batches 0, 1, 2, 4, 8, ..., an offset of
each: rotated vectors, products and scores as it judges tiles, and the statistics that came of them.

Letters: b offsets of a batch, h heads, s positions, d head_dim, p pairs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ropeaudit.arithmetic.formats import FP64
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.engine import agreement, kernel, scores
from ropeaudit.engine.array_library import NUMPY, ArrayLibrary, NumPyArray
from ropeaudit.engine.kernel import Side, Workspace
from ropeaudit.engine.plan import Plan
from ropeaudit.engine.statistics import Block, Moments, Statistics
from ropeaudit.inputs.masks import Mask
from ropeaudit.inputs.qk import Inputs
from ropeaudit.reference import exact_scores
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import StoresKeys, Subject
from ropeaudit.subjects.emulated import Emulated

Columns: TypeAlias = dict[str, NDArray[Any]]  # of records: name -> a value for each offset

MEASURED = (  # columns
    "nonfinite",
    "distinct_positions",
    "drift_max",
    "drift_rms",
    "drift_mean_abs",
    "drift_bias",
    "drift_relative",
    "change_max",
    "change_rms",
)
_MOST = 2**22  # scores of all heads at one offset: of more, offsets are worth a measurement each
_AT_ONCE = 2**25  # scores of a head in a batch, on a device: an array of them takes 256 MiB
_AT_ONCE_ON_CPU = 2**18  # they stay in a cache
_LARGEST = (2, 7)  # which of the eight numbers are largest sizes, of drift and of change from offset 0
_quiet = np.errstate(invalid="ignore", over="ignore", under="ignore")  # q and k may have overflowed


def possible(subject: Subject, inputs: Inputs) -> bool:
    """Return whether a subject can be measured so: a recipe without scales, whose scores are few enough."""
    if not isinstance(subject, Emulated) or isinstance(subject, StoresKeys):
        return False
    setting, count = subject.setting, inputs.q.shape[0] * inputs.seq_len**2
    return not setting.clipped and setting.grid is None and count <= _MOST


class OffsetBatches:
    """One recipe, its q and k, and its scores at offset 0. mask: which scores count.

    Everything is formed within a context of `library.running`.
    """

    @_quiet
    def __init__(
        self, subject: Emulated, inputs: Inputs, setting: RopeSetting, mask: Mask, library: ArrayLibrary[Any]
    ) -> None:
        self.subject, self.library = subject, library
        self.plan = Plan([subject], [[0]], inputs, setting, mask)
        self.heads, self.seq_len = inputs.q.shape[:2]
        whole = slice(0, self.seq_len)
        self.blocks = [Block.tile(mask, head, whole, whole, library) for head in range(self.heads)]
        self.workspace: Workspace[Tensor] = Workspace(library)
        self.q, self.k = (library.taken(round_to(x, subject.input)) for x in (inputs.q, inputs.k))
        self.exact = self._exact()
        self.at_zero: dict[int, Tensor] = {}
        self.batches = 0
        for head, formed, factors in self._formed(np.zeros(1, np.int64)):
            self.at_zero[head] = formed[0].clone()
            if head == 0:
                self._judge_scores(head, 0, (factors[0][0], factors[1][0]), formed[0])

    def _exact(self) -> list[tuple[Tensor, Tensor | None]]:
        """Return the exact scores of each head, as NumPy forms them, and note their RMS."""
        exact, gathered, whole = list[Any](), Statistics(Moments.SQUARES), slice(0, self.seq_len)
        for head in range(self.heads):
            high, low = self._exactly(head)
            parts = self.library.taken((high,) if low is None else (high, low))
            exact.append((parts[0], parts[1] if len(parts) > 1 else None))
            kernel.gather_exact(gathered, (high, low), Block.tile(self.plan.mask, head, whole, whole))
        self.reference_rms = gathered.rms
        return exact

    @property
    def size(self) -> int:
        """b: how many offsets are measured at once."""
        most = _AT_ONCE_ON_CPU if self.q.device.type == "cpu" else _AT_ONCE
        return max(1, most // int(self.seq_len) ** 2)

    def measure(self, offsets: Sequence[int]) -> Iterator[Columns]:
        """Yield what records of these offsets hold in the columns of `MEASURED`, a batch at a time, in order.

        While a batch is fetched, the device is at work on the next one.
        Raises: EnginesDiffer where the device does not agree with NumPy.
        """
        waiting: tuple[NDArray[np.int64], Tensor] | None = None
        for start in range(0, len(offsets), self.size):
            batch = np.array(offsets[start : start + self.size], dtype=np.int64)
            numbers = self._numbers(batch)
            if waiting is not None:
                yield self._columns(*waiting)
            waiting = batch, numbers
        if waiting is not None:
            yield self._columns(*waiting)

    @_quiet
    def _numbers(self, offsets: NDArray[np.int64]) -> Tensor:
        """Return the statistics over all heads, of drift and of change. Shapes: (b,) -> (8, b)."""
        judged = self.batches & (self.batches - 1) == 0
        judge, which = (
            (self.batches % self.heads if judged else -1),
            (-1, 0, len(offsets) // 2)[self.batches % 3],
        )
        self.batches += 1
        parts: list[Tensor] = []
        for head, formed, factors in self._formed(offsets):
            hidden = self.blocks[head].hidden
            own = self.library.subtract(formed, self.at_zero[head])
            self.library.hide(own, hidden)
            wide, scored = self.workspace.array(1, FP64, tuple(formed.shape)), formed
            if formed.dtype != torch.float64:
                formed = self.library.copy(formed, wide)
            drift = kernel.minus_exact(self.library, formed, self.exact[head], hidden, wide)
            parts.append(torch.cat([_gathered(drift, means=True), _gathered(own, means=False)]))
            if head == judge:
                one = factors[0][which], factors[1][which]
                self._judge_scores(head, int(offsets[which]), one, scored[which])
                self._judge_numbers(head, int(offsets[which]), scored[which], parts[-1][:, which])
        merged = _merged(torch.stack(parts))
        if judged:
            self._judge_sums(
                [part[:, which].cpu().tolist() for part in parts], merged[:, which].cpu().tolist()
            )
        return merged

    def _formed(self, offsets: NDArray[np.int64]) -> Iterator[tuple[int, Tensor, tuple[Tensor, Tensor]]]:
        """Yield each head, its scores at all offsets, overwritten by the next, and its rotated q and k.

        Shapes: (b,) -> head, (b, s, s), two of (b, s, d) and (b, d, s).
        """
        table, group = self._tables(offsets), self.plan.inputs.group
        fmt = scores.tile_format(self.subject)
        out = self.workspace.array(0, fmt, (len(offsets), self.seq_len, self.seq_len))
        for head in range(self.heads):
            if head % group == 0:
                rotated = self._rotated("k", self.k[head // group], table, len(offsets))
                k = self.library.contiguous(rotated.transpose(1, 2))
            q = self._rotated("q", self.q[head], table, len(offsets))
            if scores.native(self.library, q, self.subject):
                for one, left, right in zip(out, q, k, strict=True):  # the products of `measure`, bit for bit
                    self.library.matmul(left, right, one)
            else:
                scores.accumulate(self.library, q, k, self.subject, out)
            scores.store(self.library, out, self.subject, self.plan.setting.scale)
            yield head, out, (q, k)

    def _rotated(self, side: Side, x: Tensor, table: tuple[Tensor, Tensor], count: int) -> Tensor:
        """Return q or k of a head, rotated at all offsets. Shapes: x (s, d) -> (b, s, d)."""
        repeated: Any = x.repeat(count, 1)
        rotated: Any = scores.operand(kernel.rotate(self.subject, side, repeated, table), self.subject)
        each: Tensor = self.library.contiguous(rotated).view(count, self.seq_len, -1)
        return each

    def _tables(self, offsets: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Return cos and sin at the positions of all offsets, of a run of offsets each position once.

        Shapes: (b,) -> two of (b s, p).
        """
        steps = np.arange(self.seq_len, dtype=np.int64)
        first, last = int(offsets.min()), int(offsets.max())
        where = offsets[:, None] + steps
        positions = where.reshape(-1)
        dense = 0 <= last - first + self.seq_len <= where.size
        if dense:
            positions = np.arange(first, last + self.seq_len, dtype=np.int64)
        cos, sin = self.library.taken(self.subject.table(positions, 0))
        if dense:
            index = self.library.taken((where - first).reshape(-1))
            cos, sin = cos[index], sin[index]
        axes = self.subject.axes
        if axes is None:
            return cos, sin
        moved = self.library.taken(axes.moved())
        fixed = (part.repeat(len(offsets), 1) for part in self.library.taken(self.subject.table(steps, 0)))
        cos, sin = (torch.where(moved, *parts) for parts in zip((cos, sin), fixed, strict=True))
        return cos, sin

    def _judge_scores(self, head: int, offset: int, factors: tuple[Tensor, Tensor], formed: Tensor) -> None:
        """Form the scores of a head at an offset anew, some of them as NumPy does. Raises: EnginesDiffer.

        factors: rotated q and k. formed: the scores of a batch. Shapes: (s, d), (d, s), (s, s).
        """
        rows = slice(max(0, self.seq_len - agreement.CORNER), self.seq_len)
        high, low = self._exactly(head)
        part = high[rows, rows], None if low is None else low[rows, rows]
        corner = agreement.Corner(self.plan, self.library, head, rows, rows)
        corner.check_cell((0, offset), (factors[0][rows], factors[1][:, rows]), part)
        again = self.library.empty(tuple(formed.shape), scores.tile_format(self.subject))
        scores.form(self.library, *factors, self.subject, self.plan.setting.scale, again)
        what = f"stored scores of a batch with {self._what(offset)}"
        corner.same(what, self.library.given_back(again), self.library.given_back(formed))

    def _judge_numbers(self, head: int, offset: int, formed: Tensor, numbers: Tensor) -> None:
        """Compare statistics of the scores of a head at an offset with NumPy's. Raises: EnginesDiffer."""
        whole = slice(0, self.seq_len)
        block: Block[Any] = Block.tile(self.plan.mask, head, whole, whole)
        mine, base = self.library.given_back(formed), self.library.given_back(self.at_zero[head])
        own = np.where(False if block.hidden is None else block.hidden, 0, mine - base)
        drift = kernel.minus_exact(NUMPY, mine.astype(np.float64), self._exactly(head), block.hidden)
        seen = numbers.cpu().tolist()
        for values, some, name in ((drift, seen[:5], "drift"), (own, seen[5:], "change from offset 0")):
            ours = Statistics(Moments.MEANS if len(some) == 5 else Moments.LARGEST)
            ours.add(values, block)
            nonfinite = values.size - int(some[0])
            theirs = Statistics(ours.moments, count=ours.count, nonfinite=nonfinite, place=ours.place)
            if not nonfinite:
                theirs.squares, theirs.largest = some[1:3]
                theirs.total, theirs.absolute = some[3:] or (0.0, 0.0)
            agreement.compare(ours, theirs, f"the {name} of {self._what(offset)}")

    def _judge_sums(self, heads: Sequence[Sequence[float]], merged: Sequence[float]) -> None:
        """Merge the numbers of all heads at an offset as Python does. Raises: EnginesDiffer."""
        for number, values in enumerate(zip(*heads, strict=True)):
            own = max(values) if number in _LARGEST else math.fsum(values)
            size = math.fsum(map(abs, values))
            if math.isfinite(size) and not abs(own - merged[number]) <= len(values) * 2.0**-52 * size:
                raise agreement.differ(f"statistics of all heads of {self.subject.name}", own, merged[number])

    def _exactly(self, head: int) -> tuple[NumPyArray, NumPyArray | None]:
        """Return the exact scores of a head, as NumPy forms them. Shapes: -> (s, s) each."""
        inputs, ((key, _),) = self.plan.inputs, self.plan.keys().items()
        sides = inputs.q[head], inputs.k[head // inputs.group]
        table = exact_scores.distance_table(np.arange(self.seq_len, dtype=np.float64), self.plan.setting)
        return exact_scores.product(
            *kernel.exact_factors(sides, key.input, (table, table), self.plan.setting, key.precision)
        )

    def _what(self, offset: int) -> str:
        return f"{self.subject.name} in {self.subject.dtype} at offset {offset}"

    def _columns(self, offsets: NDArray[np.int64], numbers: Tensor) -> Columns:
        """Return the columns of records. Shapes: (b,), (8, b) -> (b,) each."""
        seen = numbers.cpu().numpy()
        (finite, squares, largest, total, absolute), own = seen[:5], seen[5:]
        every = self.heads * self.seq_len**2
        count = sum(block.visible for block in self.blocks)
        undefined, own_undefined = (np.where(x == every, 1.0, math.nan) for x in (finite, own[0]))
        with np.errstate(invalid="ignore", divide="ignore"):
            rms = np.sqrt(squares / count) * undefined
            return {
                "offset": offsets,
                "nonfinite": every - finite,
                "distinct_positions": self._distinct(offsets),
                "drift_max": largest * undefined,
                "drift_rms": rms,
                "drift_mean_abs": absolute / count * undefined,
                "drift_bias": total / count * undefined,
                "drift_relative": rms / (self.reference_rms or math.nan),
                "change_max": own[2] * own_undefined,
                "change_rms": np.sqrt(own[1] / count) * own_undefined,
            }

    def _distinct(self, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many positions of each offset are different finite numbers. Shapes: (b,) -> (b,)."""
        positions = (offsets[:, None] + np.arange(self.seq_len)).astype(np.float64)
        with np.errstate(over="ignore"):
            held = round_to(positions, self.subject.recipe.position)
        new = np.isfinite(held)
        new[:, 1:] &= held[:, 1:] != held[:, :-1]  # rounding keeps the order
        distinct: NDArray[np.int64] = np.count_nonzero(new, axis=1)
        return distinct


def _gathered(values: Tensor, means: bool) -> Tensor:
    """Return how many values are finite, the sum of squares and the largest size; the sum and that of sizes.

    Each is a reduction of its own, without an array between. Shapes: (b, ...) -> (3, b), with `means` (5, b).
    """
    flat = values.flatten(1)

    def norm(order: float) -> Tensor:
        seen: Tensor = torch.linalg.vector_norm(flat, order, dim=1, dtype=torch.float64)
        return seen

    finite = torch.count_nonzero(torch.abs(flat) <= torch.finfo(flat.dtype).max, dim=1)
    numbers = [finite.to(torch.float64), norm(2).square(), norm(math.inf)]
    if means:
        numbers += [flat.sum(1, dtype=torch.float64), norm(1)]
    return torch.stack(numbers)


def _merged(parts: Tensor) -> Tensor:
    """Return the statistics of all heads together. Shapes: (h, 8, b) -> (8, b)."""
    merged = parts.sum(0)
    for largest in _LARGEST:
        merged[largest] = parts[:, largest].amax(0)
    return merged
