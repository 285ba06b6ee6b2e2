"""A recipe executed stage by stage in torch's own arithmetic, on a device: what its kernels really do.

Each stage is torch's operation in the stage's own dtype; where its operands are wider it is done in the wider
dtype, as torch promotes, and cast. What differs from `subjects.emulated` is torch's: pow, cos and sin may be
an ulp off, pow casts a Python base to the dtype of its exponent (10000 is 9984 in bfloat16), and a cast of
float64 to 16 bits rounds twice. Rotated q and k come back to the host, where NumPy forms the scores.
tf32 and float8 have no torch arithmetic on a CPU: their values are rounded by `rounding.round_to` and carried
in float32. rotation_rounding "once": products and sum in float32 for a rotation of 16 bits or less,
in float64 above, then one cast.

Letters: s positions, d head_dim, p pairs. Units: tokens, radians.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch

from ropeaudit.arithmetic.formats import FP32, FP64, FloatArray, Format
from ropeaudit.recipes import Resolved
from ropeaudit.rope.axes import Axes
from ropeaudit.rope.frequencies import FrequencyForm, effect, frequencies
from ropeaudit.rope.rotation import split_pairs
from ropeaudit.rope.scaled import attention_factor, effective_base
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions, torch_arrays
from ropeaudit.subjects.emulated import OfRecipe
from ropeaudit.subjects.torch_numbers import NATIVE, Numbers, dtype, memory

Table = tuple[torch.Tensor, torch.Tensor]


class TorchNative(OfRecipe):
    """A recipe in torch arithmetic; implements `ropeaudit.subjects.Subject`."""

    backend = "torch"
    version = str(torch.__version__)

    def __init__(
        self, recipe: Resolved, setting: RopeSetting, axes: Axes | None, device: torch.device
    ) -> None:
        super().__init__(recipe, setting, axes)
        self.numbers = Numbers(device)
        self.device = self.numbers.label
        wide = FP64.name in " ".join(recipe.stages().values()) or self._once is FP64
        if self.numbers.lacks_float64 and wide:
            self.device += " (float64 on cpu)"

    @property
    def _once(self) -> Format | None:
        """The format in which a rotation that is rounded once is computed; None if each step is rounded."""
        if self.recipe.recipe.rotation_rounding == "each":
            return None
        return FP32 if self.recipe.rotation.precision < FP32.precision else FP64

    def distinct_positions(self, positions: Positions) -> int:
        """Return how many positions are still different finite numbers after the position stage."""
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
        cached = self._frequencies(form)
        position = self._position(positions)[:, None]
        if form == "recurrence":
            angle_values = self._recurrence(position, cached, product)
        elif form == "divide":
            angle_values = apply(torch.div, product, position, cached)
        else:
            angle_values = apply(torch.mul, product, position, cached)
        angle_values = self.numbers.keep(angle_values, angle)
        clip = self.setting.clip
        return torch.clamp(angle_values, -clip, clip) if self.setting.clipped else angle_values

    def _position(self, positions: Positions) -> torch.Tensor:
        integers = positions.astype(np.int64)
        if self.recipe.position.name in NATIVE:
            return self.numbers.moved(torch.from_numpy(integers), dtype(self.recipe.position))
        return self.numbers.keep(torch.from_numpy(integers.astype(np.float64)), self.recipe.position)

    def _frequencies(self, form: FrequencyForm) -> torch.Tensor:
        """Return the numbers that the form stores, scaled as the setting is. Shapes: -> (p,)."""
        computed, fmt = self.recipe.frequency
        if not self.setting.scaling.rules.rescales or form == "recurrence":
            cached = plain(
                effective_base(self.setting), self.setting.rotary_dim, form, computed, self.numbers
            )
        else:  # the scalings are those of `rope.scaled`, whose operations are elementary
            cached = self.numbers.of(frequencies(self.setting, form, computed), computed)
        return self.numbers.keep(cached, fmt)

    def _recurrence(self, position: torch.Tensor, step: torch.Tensor, fmt: Format) -> torch.Tensor:
        """Return theta_0 = position, theta_{i+1} = theta_i * step. Shapes: (s, 1), (p,) -> (s, p)."""
        columns, apply = [self.numbers.keep(position, fmt)], self.numbers.apply
        for i in range(1, len(step)):
            columns.append(apply(torch.mul, fmt, columns[-1], step[i]))
        angles = torch.cat(columns[: len(step)], dim=1) if len(step) else position[:, :0]
        if not self.setting.scaling.rules.rescales:
            return angles
        held_in = self.recipe.frequency[1]
        change = self.numbers.of(effect(self.setting, held_in).astype(held_in.carrier), held_in)
        return apply(torch.mul, fmt, angles, change)

    def rotate(self, x: FloatArray, table: Table) -> FloatArray:
        """Return x rotated; it is in the input format already. Shapes: x (s, d), table (s, p) -> (s, d)."""
        with memory():
            rotated = torch_arrays.to_numpy(self._rotated(self.numbers.of(x, self.input), *table))
        return rotated.astype(self.output.carrier, copy=False)

    def _rotated(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        numbers, fmt = self.numbers, self.recipe.rotation
        rotated = numbers.moved(x, torch.promote_types(x.dtype, dtype(fmt))).clone()
        a, b = split_pairs(x, self.setting)
        first, second = split_pairs(rotated, self.setting)
        wide = self._once or fmt
        for part, left, right, combine in ((first, a, b, torch.sub), (second, b, a, torch.add)):
            products = numbers.apply(torch.mul, wide, left, cos), numbers.apply(torch.mul, wide, right, sin)
            part.copy_(numbers.keep(numbers.apply(combine, wide, *products), fmt))
        return numbers.keep(rotated, self.output)


def plain(base: float, rotary_dim: int, form: FrequencyForm, fmt: Format, on: Numbers) -> torch.Tensor:
    """Return the numbers that `form` keeps of base^(-2i/rotary_dim), as torch computes them in `fmt`.

    Shapes: -> (p,). See `rope.frequencies.unscaled`, whose forms and units these are.
    """

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
