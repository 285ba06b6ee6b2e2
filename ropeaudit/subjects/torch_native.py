"""A recipe executed stage by stage by torch's own kernels on a device.

Each stage is torch's operation in its own dtype, or in a wider one of its operands, and cast: pow casts a
Python base to the dtype of its exponent, say. Of tf32 and float8 torch has no arithmetic on a CPU: they are
rounded by `rounding.round_to` and carried in float32.

Letters: s positions, d head_dim, p pairs. Units: tokens, radians.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ropeaudit.arithmetic.formats import FP32, FP64, FloatArray, Format, parse
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.errors import OutOfMemory, UsageError
from ropeaudit.recipes import Resolved
from ropeaudit.rope.axes import Axes
from ropeaudit.rope.frequencies import FrequencyForm, effect, frequencies
from ropeaudit.rope.rotation import split_pairs
from ropeaudit.rope.scaled import attention_factor, effective_base
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions, torch_arrays
from ropeaudit.subjects.emulated import OfRecipe

NATIVE = ("float64", "float32", "float16", "bfloat16")
_CPU = torch.device("cpu")
_WITHOUT_FLOAT64 = ("mps",)
# operations that cuBLAS computes in TF32 where that is allowed -> the first of their two factors
_FACTORS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}
_TF32 = parse("tf32")
_FULL = ("out of memory", "can't allocate memory", "not enough memory")
Table = tuple[torch.Tensor, torch.Tensor]


class TorchNative(OfRecipe):
    """A recipe in torch arithmetic; implements `ropeaudit.subjects.Subject`."""

    backend = "torch"
    version = str(torch.__version__)

    def __init__(
        self,
        recipe: Resolved,
        setting: RopeSetting,
        axes: Axes | None,
        device: torch.device,
    ) -> None:
        super().__init__(recipe, setting, axes)
        self.numbers = Numbers(device)
        self.device = self.numbers.label
        wide = FP64.name in " ".join(recipe.stages().values()) or self._once is FP64
        if self.numbers.lacks_float64 and wide:
            self.device += " (float64 on cpu)"

    @property
    def _once(self) -> Format | None:
        """The format of a rotation that is rounded once; None if each step is rounded."""
        if self.recipe.recipe.rotation_rounding == "each":
            return None
        return FP32 if self.recipe.rotation.precision < FP32.precision else FP64

    def distinct_positions(self, positions: Positions) -> int:
        """Return how many positions are finite and distinct after the position stage."""
        rounded = torch_arrays.to_numpy(self._position(positions))
        return int(np.unique(rounded[np.isfinite(rounded)]).size)

    def table(self, positions: Positions, offset: int) -> Table:
        """Return cos and sin as stored, times the attention factor. Shapes: (s,) -> two of (s, p)."""
        apply, keep = self.numbers.apply, self.numbers.keep
        trig, factor = self.recipe.trig, attention_factor(self.setting.scaling)
        with memory():
            angles = self.angles(positions + offset)
            if self.axes is not None:
                moved = torch.from_numpy(self.axes.moved()).to(angles.device)
                angles = torch.where(moved, angles, self.angles(positions))
            cos, sin = apply(torch.cos, trig, angles), apply(torch.sin, trig, angles)
            if factor != 1.0:
                cos, sin = (apply(lambda x: x * factor, trig, part) for part in (cos, sin))
            fmt = self.recipe.table or trig
            return keep(cos, fmt), keep(sin, fmt)

    def angles(self, positions: Positions) -> torch.Tensor:
        """Return the angles as stored. Shapes: positions (s,) -> (s, p). Units: radians."""
        recipe, form, apply = self.recipe, self.recipe.recipe.frequency_form, self.numbers.apply
        product, angle = recipe.angle
        computed, fmt = self.recipe.frequency
        if not self.setting.scaling.rules.rescales or form == "recurrence":
            base, dims = effective_base(self.setting), self.setting.rotary_dim
            cached = plain(base, dims, form, computed, self.numbers)
        else:
            cached = self.numbers.of(frequencies(self.setting, form, computed), computed)
        cached = self.numbers.keep(cached, fmt)
        position = self._position(positions)[:, None]
        if form == "recurrence":  # theta_0 = position, theta_{i+1} = theta_i * step
            columns = [self.numbers.keep(position, product)]
            for i in range(1, len(cached)):
                columns.append(apply(torch.mul, product, columns[-1], cached[i]))
            angle_values = torch.cat(columns, dim=1) if len(cached) else position[:, :0]
            if self.setting.scaling.rules.rescales:
                change = self.numbers.of(effect(self.setting, fmt).astype(fmt.carrier), fmt)
                angle_values = apply(torch.mul, product, angle_values, change)
        else:
            turn = torch.div if form == "divide" else torch.mul
            angle_values = apply(turn, product, position, cached)
        angle_values = self.numbers.keep(angle_values, angle)
        clip = self.setting.clip
        return torch.clamp(angle_values, -clip, clip) if self.setting.clipped else angle_values

    def _position(self, positions: Positions) -> torch.Tensor:
        integers = positions.astype(np.int64)
        if self.recipe.position.name in NATIVE:
            return self.numbers.moved(torch.from_numpy(integers), dtype(self.recipe.position))
        return self.numbers.keep(torch.from_numpy(integers.astype(np.float64)), self.recipe.position)

    def rotate(self, x: FloatArray, table: Table) -> FloatArray:
        """Return x, in the input format, rotated. Shapes: x (s, d), table (s, p) -> (s, d)."""
        numbers, fmt, (cos, sin) = self.numbers, self.recipe.rotation, table
        wide = self._once or fmt
        with memory():
            given = numbers.of(x, self.input)
            rotated = numbers.moved(given, torch.promote_types(given.dtype, dtype(fmt))).clone()
            a, b = split_pairs(given, self.setting)
            first, second = split_pairs(rotated, self.setting)
            for part, left, right, combine in ((first, a, b, torch.sub), (second, b, a, torch.add)):
                products = [numbers.apply(torch.mul, wide, *one) for one in ((left, cos), (right, sin))]
                part.copy_(numbers.keep(numbers.apply(combine, wide, *products), fmt))
            values = torch_arrays.to_numpy(numbers.keep(rotated, self.output))
        return values.astype(self.output.carrier, copy=False)


def plain(
    base: float,
    rotary_dim: int,
    form: FrequencyForm,
    fmt: Format,
    on: Numbers,
) -> torch.Tensor:
    """Return the numbers that `form` keeps of base^(-2i/rotary_dim), as torch computes them."""

    def each(operation: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return on.apply(operation, fmt, x)

    def number(value: float) -> torch.Tensor:
        return on.keep(torch.tensor(value, dtype=torch.float64), fmt)

    pairs = rotary_dim // 2
    i = on.keep(torch.arange(pairs, dtype=torch.int64).to(torch.float64), fmt)
    x = each(lambda n: n / max(rotary_dim, 1), on.keep(2.0 * torch.arange(pairs, dtype=torch.float64), fmt))
    if form in ("inverse_power", "divide"):
        powers = each(lambda e: torch.pow(base, e), x)
        return powers if form == "divide" else each(lambda power: 1.0 / power, powers)
    if form == "power":
        return each(lambda e: torch.pow(base, -e), x)
    if form == "exp":
        slope = each(lambda log: log / max(pairs, 1), number(math.log(base)))
        return each(lambda e: torch.exp(-e), on.apply(torch.mul, fmt, i, slope))
    if form == "exp2":
        return each(lambda e: torch.exp2(-e), on.apply(torch.mul, fmt, x, number(math.log2(base))))
    step = each(lambda e: torch.pow(base, e), number(-2.0 / max(rotary_dim, 1)))
    return step.expand(pairs) if form == "recurrence" else on.apply(torch.pow, fmt, step, i)


def device(name: str) -> torch.device:
    """Return the device `name`: cpu, cuda, cuda:N or mps. Raises: UsageError without one.

    >>> device("cpu").type
    'cpu'
    """
    try:
        chosen = torch.device(name.strip().lower())
    except RuntimeError:
        chosen = None
    numbered = chosen is not None and chosen.type != "cuda" and chosen.index
    if chosen is None or numbered or chosen.type not in ("cpu", "cuda", "mps"):
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
    """Tensors of any format on a device. float64 is computed on the CPU if the device has none."""

    device: torch.device

    @property
    def label(self) -> str:
        """The device's label in records: a GPU with its name."""
        if self.device.type == "cuda":
            return f"{self.device} ({torch.cuda.get_device_name(self.device)})"
        return str(self.device)

    @property
    def lacks_float64(self) -> bool:
        """Whether float64 has to be computed on the CPU instead."""
        return self.device.type in _WITHOUT_FLOAT64

    def of(self, x: FloatArray, fmt: Format) -> torch.Tensor:
        """Return x, whose values are exact in `fmt`, on the device."""
        return self.moved(torch.from_numpy(np.ascontiguousarray(x)), dtype(fmt))

    def moved(self, x: torch.Tensor, to: torch.dtype) -> torch.Tensor:
        """Cast a tensor, as torch casts, and put it where its dtype is computed."""
        place = _CPU if to == torch.float64 and self.lacks_float64 else self.device
        return x.to(place).to(to) if place.type == "cpu" else x.to(to).to(place)

    def keep(self, x: torch.Tensor, fmt: Format) -> torch.Tensor:
        """Return x in `fmt`: by torch's cast, or rounded by us if torch has no such dtype."""
        if fmt.name in NATIVE:
            return self.moved(x, dtype(fmt))
        return self.of(round_to(torch_arrays.to_numpy(x), fmt), fmt)

    def apply(
        self, operation: Callable[..., torch.Tensor], fmt: Format, *operands: torch.Tensor
    ) -> torch.Tensor:
        """Operate in the widest dtype of the operands and `fmt`, then cast to `fmt`."""
        wide = functools.reduce(torch.promote_types, (x.dtype for x in operands), dtype(fmt))
        return self.keep(operation(*(self.moved(x, wide) for x in operands)), fmt)


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that does not make torch load its compiler, which takes long."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class Tf32Products(DispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered, rounds the factors of float32 matrix products to 11 bits.

    TF32 in software: factors are rounded to nearest, ties to even, as in the recipe `hf-tf32-matmul`.
    """

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        """Run an operation, a product of rounded factors."""
        first = _FACTORS.get(str(func.overloadpacket).rpartition(".")[2])
        if first is not None:
            args = [
                Numbers(one.device).keep(one, _TF32)
                if number in (first, first + 1) and one.dtype == torch.float32
                else one
                for number, one in enumerate(args)
            ]
        return func(*args, **(kwargs or {}))


def dtype(fmt: Format) -> torch.dtype:
    """Return a format's own dtype if it has arithmetic, else float32, to carry it."""
    return torch_arrays.dtype(fmt) if fmt.name in NATIVE else torch.float32


@contextlib.contextmanager
def memory() -> Iterator[None]:
    """Report in one sentence that a device's memory is full. Raises: OutOfMemory."""
    try:
        yield
    except RuntimeError as error:  # torch.cuda.OutOfMemoryError is one
        text = " ".join(str(error).split())
        if not (isinstance(error, torch.OutOfMemoryError) or any(full in text.lower() for full in _FULL)):
            raise
        raise OutOfMemory(
            f"out of memory on the device: {text[:120]}; free some of its memory, or give --device cpu"
        ) from None
