"""The case: a RoPE setting or a model, q and k, and a mask; neither subject nor offset."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import numpy as np

from ropeaudit.engine import plan
from ropeaudit.errors import BadInput, BadShape, UnknownName, UsageError
from ropeaudit.inputs import masks, sampled_rows
from ropeaudit.inputs import qk as inputs
from ropeaudit.inputs.masks import Mask
from ropeaudit.inputs.qk import Inputs
from ropeaudit.inputs.sampled_rows import SampledInputs
from ropeaudit.rope import axes as sequence_axes
from ropeaudit.rope import scaling as scalings
from ropeaudit.rope.axes import Axes, Layout
from ropeaudit.rope.scaling import Served
from ropeaudit.rope.setting import RopeSetting, is_whole
from ropeaudit.runtime import run_metadata
from ropeaudit.subjects import emulated
from ropeaudit.subjects.emulated import Turns

if TYPE_CHECKING:
    from ropeaudit.rope.grids import Grid
    from ropeaudit.rope.hf_config import ModelRope

SMALLEST_SCALE, LARGEST_SCALE = 1e-30, 1e30  # squares of scores neither overflow nor vanish
LIMIT = 2**53  # positions are exact in float64 below it
USUAL_MAXIMUM = 2**17  # positions, where no model says how many it serves
SMALLEST_SCORE = 1e-25  # float32 still has a part in 1e12 of it
FULL = "full_attention"

T = TypeVar("T")
Length: TypeAlias = Literal["unshifted", "shifted"]
LENGTHS = ("unshifted", "shifted")
Sizes: TypeAlias = tuple[int, int, int]  # heads, kv_heads and seq_len
# fields that the axes of a grid set, and fields that only a sequence has
_SET_BY_AXES = ("head_dim", "rotary_dim", "base", "layout")
_SEQUENCE_ONLY = ("seq_len", "scaling", "clip", "mrope", "model", "config")
_ON_GRIDS = ("gaussian", "randn", "ones", "arange")  # q and k that do not depend on distances


@dataclass(frozen=True, slots=True)
class Outline:
    """Sizes and source of q and k, without their values."""

    heads: int
    kv_heads: int
    seq_len: int
    source: str
    seed: int | None
    digest: str = ""


@dataclass(frozen=True)
class Case:
    """A RoPE setting and its q and k; None means what the model says, else the usual default.

    heads, kv_heads, seq_len, head_dim and seed are those of synthetic q and k; a file has its own.
    rotary_dim defaults to head_dim, scale to 1/sqrt(head_dim), kv_heads to heads.
    model: a preset. config: a Hugging Face config.json or its folder. layer: its layer type.
    scaling: as `rope.scaling.parse` reads it. clip: cap of the angles, radians. mrope: pairs per
    position axis; axis: which of them are shifted. length: whether frequencies that depend on the number of
    positions are those of the unshifted sequence (frozen) or of the shifted one. sample: how many scores are
    drawn at random, by `seed`, instead of forming all of them.
    grid: tokens along each axis, such as "32x32". axes: the preset of `ropeaudit list axes` that says where
    they stand and how each axis rotates. step: by how much an offset of 1 moves a position, in its unit.
    rerotate: how many times stored keys are rotated again, on their way to the offset; None: stored once.
    turn: tokens of one such turn, -16 by default.
    """

    qk: str = "gaussian"
    heads: int | None = None
    kv_heads: int | None = None
    seq_len: int | None = None
    head_dim: int | None = None
    seed: int | None = None
    rotary_dim: int | None = None
    base: float | None = None
    layout: Layout | None = None
    scale: float | None = None
    mask: Mask = "causal"
    model: str | None = None
    config: str | None = None
    layer: str = FULL
    scaling: str | None = None
    clip: float | None = None
    mrope: str | None = None
    axis: str = "all"
    length: Length = "unshifted"
    sample: int | None = None
    grid: str | None = None
    axes: str | None = None
    step: float | None = None
    rerotate: int | None = None
    turn: int | None = None

    def __post_init__(self) -> None:
        sizes = ("heads", "kv_heads", "seq_len", "head_dim", "rotary_dim")
        whole = dict.fromkeys((*sizes, "seed", "sample", "rerotate", "turn"), (int, np.integer))
        for name, kinds in (whole | dict.fromkeys(("base", "scale", "clip", "step"), (int, float))).items():
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, kinds)):
                raise UsageError(f"{name} {value!r} is not a {'whole ' * (name in whole)}number")

    def load(self) -> tuple[Inputs, RopeSetting]:
        """Return q and k and the RoPE setting. Raises: BadInput, BadShape, UnknownName, UsageError."""
        if self.sample is not None:
            raise UsageError("--sample goes with shift alone; leave it out")
        sizes, setting, loaded = self._checked_inputs(in_memory=True)
        return loaded or inputs.make(self.qk, *sizes, setting, self.seed or 0), setting

    def load_sample(self) -> tuple[SampledInputs, RopeSetting]:
        """Return the rows of q and k for `sample` scores, and the setting; report progress."""
        count, seed = self.sample or 0, self.seed or 0
        sizes, setting, loaded = self._checked_inputs(in_memory=True)
        if loaded is not None:
            chosen = sampled_rows.draw_by_norms(loaded, self.mask, count, seed)
            return sampled_rows.take_rows(loaded, chosen, seed), setting
        chosen = sampled_rows.choose(self.qk, sizes, setting.head_dim, self.mask, count, seed)
        return sampled_rows.synthetic(self.qk, sizes, setting, chosen, seed), setting

    def outline(self) -> tuple[Outline, RopeSetting]:
        """Return sizes and setting, without q and k. Raises: what `load` and `load_sample` raise."""
        sizes, setting, loaded = self._checked_inputs()
        source, seed = self.qk, self.seed or 0
        if loaded is not None:
            source = loaded.source
        elif self.sample is not None:
            source = sampled_rows.source(self.qk, sizes, setting.head_dim)
        seeded = self.sample is not None or inputs.seeded(self.qk)
        return Outline(*sizes, source, seed if seeded else None, loaded.digest if loaded else ""), setting

    def _checked_inputs(self, in_memory: bool = False) -> tuple[Sizes, RopeSetting, Inputs | None]:
        """Check everything; return sizes, setting and captured q and k.

        in_memory: whether synthetic q and k will be made, which needs memory.
        """
        needed = self.check(())
        if not inputs.is_file(self.qk):
            if in_memory:
                check_memory(needed)
            return *self._synthetic(), None
        loaded = inputs.from_file(self.qk)
        _, seq_len, head_dim = loaded.q.shape
        on_grid = self._grid()
        own = self.setting(seq_len).head_dim if on_grid or self.declared() else head_dim
        if own != head_dim:
            raise BadShape(f"{self.qk!r} has head_dim {head_dim} and the model {own}; they must agree")
        if on_grid is not None and on_grid.count != seq_len:
            raise BadShape(f"{self.qk!r} has {seq_len} tokens and the grid {on_grid.count}; they must agree")
        setting = (self if on_grid else replace(self, head_dim=head_dim)).setting(seq_len)
        largest = float(np.abs(loaded.q).max() * np.abs(loaded.k).max() * setting.scale)
        if 0.0 < largest < SMALLEST_SCORE:
            raise BadInput(f"{self.qk!r}: scores of at most {largest:.1g} would vanish in float32")
        return (loaded.heads, loaded.kv_heads, loaded.seq_len), setting, loaded

    def check(self, offsets: Iterable[int]) -> int:
        """Raise an error for anything wrong; return the bytes that synthetic q and k need."""
        masks.check(self.mask)
        if self.length not in LENGTHS:
            raise UnknownName("length", self.length, LENGTHS)
        offsets, on_grid, is_file = self.rotated_offsets(offsets), self._grid(), inputs.is_file(self.qk)
        if on_grid is not None:
            for offset in offsets:
                on_grid.check(offset)
            if not is_file and self.qk not in _ON_GRIDS:
                fault = f"--qk {self.qk} looks at a distance in a sequence"
                raise UsageError(f"{fault}; on a grid give one of: {', '.join(_ON_GRIDS)}")
        sample = None if self.sample is None else _positive("sample", self.sample)
        if is_file:
            own = ("heads", "kv_heads", "seq_len", "head_dim", *(("seed",) if sample is None else ()))
            if given := next((name for name in own if getattr(self, name) is not None), None):
                raise UsageError(f"{_flag(given)} is given by the file {self.qk!r}; leave it out")
            return 0
        inputs.check_kind(self.qk, inputs.WHOLE if sample is None else inputs.SYNTHETIC)
        sizes, setting = self._synthetic()
        check_positions(offsets, sizes[2])
        self.position_axes(setting)
        inputs.check_head(self.qk, sizes[2], setting)
        if sample is None:
            return plan.bytes_needed(setting, *sizes)
        sampled_rows.check_sample(self.mask, sizes[0], sizes[2], sample)
        return sampled_rows.bytes_needed(sample, sizes, setting.head_dim)

    @property
    def turns(self) -> Turns | None:
        """How stored keys are rotated again; None if they are not. Raises: UsageError."""
        turns, problem = emulated.turns(self.rerotate, self.turn), ""
        if self.clip is not None:
            problem = "clipped angles do not add up, so keys cannot be rotated again; leave out --clip"
        elif self.grid is not None or self.axes is not None:
            problem = "--rerotate moves keys of a sequence; leave out --grid"
        elif self.length == "shifted":
            problem = "stored keys keep their frequencies at every turn; leave out --length shifted"
        if turns and problem:
            raise UsageError(problem)
        return turns

    def rotated_offsets(self, offsets: Iterable[int]) -> list[int]:
        """Return the offsets at which q or k is rotated, also those where keys are first stored."""
        offsets, turns = list(offsets), self.turns
        return offsets + [turns.start(offset) for offset in offsets] if turns else offsets

    def setting(self, seq_len: int) -> RopeSetting:
        """Return the RoPE setting for `seq_len` positions; fields of the case override the model.

        A changed head_dim changes a rotary_dim of the whole head too, and a scale of 1/sqrt(head_dim); a
        changed scaling changes a scale that includes the old one's mscale. Raises: UsageError, BadShape.
        """
        on_grid = self._grid()
        if on_grid is not None:
            rope = on_grid.rope
            rotary_dim = 2 * len(rope.pairs())
            axial = RopeSetting.of(rope.head_dim, rotary_dim, rope.base[0], rope.layout, self.scale)
            return replace(axial, grid=on_grid)
        model, default = self.declared(), RopeSetting()
        if model is None and self.layer != FULL:
            raise UsageError(f"--layer {self.layer}: there are no layer types without --model or --config")
        if model is not None:
            if self.layer_type not in model.layers:
                raise UnknownName("layer type", self.layer, model.layers, "(or all)")
            default = model.layers[self.layer_type]
        if self.scale is not None and not SMALLEST_SCALE <= self.scale <= LARGEST_SCALE:
            raise UsageError(
                f"--scale {self.scale!r} is not a number from {SMALLEST_SCALE:g} to {LARGEST_SCALE:g}; "
                "try --scale 0.125"
            )
        chosen = default.scaling if self.scaling is None else _scaling(self.scaling)
        follows = math.isclose(default.scale, 1 / math.sqrt(default.head_dim), rel_tol=1e-12)
        follows = follows or bool(self.scaling is not None and default.scaling.mscale_all_dim)
        return RopeSetting.of(
            _first(self.head_dim, default.head_dim),
            _first(self.rotary_dim, None if default.rotary_dim == default.head_dim else default.rotary_dim),
            _first(self.base, default.base),
            self.layout or default.layout,
            _first(self.scale, None if follows else default.scale),
            chosen,
            chosen.length_for(seq_len),
            _first(self.clip, default.clip),
        )

    def setting_at(self, setting: RopeSetting, seq_len: int, offset: int) -> RopeSetting:
        """Return the setting at an offset, whose frequencies may depend on the length."""
        if self.length == "unshifted":
            return setting
        return replace(setting, length=setting.scaling.length_for(max(1, seq_len + offset)))

    def position_axes(self, setting: RopeSetting) -> Axes | None:
        """Return the position axes of M-RoPE, None on a grid and without. Raises: UsageError."""
        if setting.grid is not None:
            return None
        model, result = self.declared(), None
        if self.mrope is not None:
            result = sequence_axes.parse(self.mrope, self.axis)
        elif model is not None and model.axes is not None:
            shifted = sequence_axes.AXES if self.axis == "all" else tuple(self.axis)
            result = replace(model.axes, shifted=shifted)
        elif self.axis != "all":
            raise UsageError(f"--axis {self.axis} needs position axes; give --mrope 16,24,24 or a model")
        if result is None:
            return None
        if sum(result.sections) != setting.pairs:
            raise UsageError(
                f"the position axes have {sum(result.sections)} pairs and the setting {setting.pairs}"
            )
        if setting.clipped and set(result.shifted) != set(sequence_axes.AXES):
            raise UsageError("--clip goes with --axis all: exact scores of one shifted axis are not defined")
        return result

    def _grid(self) -> Grid | None:
        if self.grid is None and self.axes is None:
            if self.step is not None:
                unit = f"--step {self.step:g} is the unit of --offset on a grid"
                raise UsageError(f"{unit}; add --grid and --axes")
            return None
        from ropeaudit.rope import config_axes, grids  # in-function: seldom needed

        if self.axes is None:
            needs = f"--grid {self.grid} needs the axes of a model"
            raise UsageError(f"{needs}; add --axes flux (`ropeaudit list axes`)")
        rope = config_axes.axial_rope_named(self.axes)
        if self.grid is None:
            example = "x".join({"t": "16", "h": "32", "w": "32"}[name] for name in rope.axes)
            raise UsageError(f"--axes {self.axes} needs the size of a grid; add --grid {example}")
        for name in (*_SET_BY_AXES, *_SEQUENCE_ONLY):
            if getattr(self, name) is not None:
                by_axes = f"is said by --axes {self.axes}; leave it out, or give a .toml file of your own"
                alone = "does not go with --grid; leave one of them out"
                raise UsageError(f"{_flag(name)} {alone if name in _SEQUENCE_ONLY else by_axes}")
        return grids.parse(rope, self.grid, self.axis, 1.0 if self.step is None else self.step)

    @property
    def model_name(self) -> str:
        """The model with its layer type, or the preset of a grid; "none" without either."""
        model, on_grid = self.declared(), self._grid()
        if model is None:
            return on_grid.rope.name if on_grid else "none"
        return model.name if len(model.layers) == 1 else f"{model.name}/{self.layer_type}"

    @property
    def maximum(self) -> int | None:
        """The number of positions that the setting serves; None where that is unknown."""
        return self.served.positions

    @property
    def served(self) -> Served:
        """How many positions the setting serves, as the model declares and the scaling extends."""
        model = self.declared()
        if self.scaling is not None:
            return Served(model.declared if model else None, _scaling(self.scaling))
        return model.served if model else Served(None)

    @property
    def layer_type(self) -> str:
        """The audited layer type: by default full_attention, else the first that rotates."""
        return self.layers()[0] if self.layer == FULL and FULL not in self.layers() else self.layer

    def layers(self) -> tuple[str, ...]:
        """Return the layer types of the model."""
        model = self.declared()
        return tuple(model.layers) if model else (FULL,)

    def declared(self) -> ModelRope | None:
        """Return the RoPE of its model; None without a model. Raises: UsageError, BadInput."""
        return self._declared

    @functools.cached_property
    def _declared(self) -> ModelRope | None:
        if self.model is not None and self.config is not None:
            raise UsageError("--model and --config both name a model; give one of them")
        if self.model is not None:
            from ropeaudit.rope import presets  # in-function: seldom needed

            return presets.named(self.model)
        if self.config is None:
            return None
        from ropeaudit.rope import hf_config

        return hf_config.read(self.config, base=self.base)

    def _synthetic(self) -> tuple[Sizes, RopeSetting]:
        """Check and return the sizes of synthetic q and k, and the RoPE setting."""
        on_grid = self._grid()
        model = on_grid.rope if on_grid else self.declared()
        usual = model.heads if model else 8
        heads = _positive("heads", usual if self.heads is None else self.heads)
        usual = model.kv_heads if model and self.heads is None else heads
        kv_heads = _positive("kv_heads", usual if self.kv_heads is None else self.kv_heads)
        usual = on_grid.count if on_grid else 256
        seq_len = _positive("seq_len", usual if self.seq_len is None else self.seq_len)
        setting = self.setting(seq_len)
        if heads % kv_heads:
            raise BadShape(f"--kv-heads {kv_heads} does not divide --heads {heads}; give one of its divisors")
        if self.seed is not None and self.seed < 0:
            raise UsageError(f"--seed {self.seed} is negative; try --seed 0")
        return (heads, kv_heads, seq_len), setting


def with_default_mask(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a case; on a grid the default mask is full."""
    usual = {"mask": "full"} if fields.get("grid") is not None else {}
    return usual | {name: value for name, value in fields.items() if name != "mask" or value is not None}


def distinct(cases: Iterable[Case]) -> list[Case]:
    """Return each case once; seeds that nothing is drawn by do not count."""

    def uses_seed(case: Case) -> bool:
        return case.sample is not None or inputs.is_file(case.qk) or inputs.seeded(case.qk)

    return list(dict.fromkeys(case if uses_seed(case) else replace(case, seed=None) for case in cases))


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _first(value: T | None, default: T) -> T:
    return default if value is None else value


_scaling = functools.lru_cache(maxsize=64)(scalings.parse)


def _positive(name: str, value: int) -> int:
    if value < 1:
        raise BadShape(f"{_flag(name)} {value} is not a whole number from 1 up")
    return value


def check_positions(offsets: Iterable[int], seq_len: int) -> None:
    """Raise UsageError unless offsets are whole, and all positions exact in float64."""
    for offset in offsets:
        if not is_whole(offset):
            raise UsageError(f"offset {offset!r} is not a whole number of tokens")
        if abs(offset) + seq_len > LIMIT:
            raise UsageError(f"offset {offset} takes some of {seq_len} positions past 2^53")


def check_memory(needed: int, jobs: int = 1) -> None:
    """Raise BadShape unless about `needed` bytes are free for each of `jobs`."""
    total, free = jobs * needed, run_metadata.free_bytes()
    if total > free:
        remedy = "fewer --jobs" if needed <= free else "a smaller --seq-len, --heads or --head-dim"
        gib = f"{total / 2**30:,.1f} GiB of memory and {free / 2**30:,.1f} GiB are free"
        raise BadShape(f"this needs about {gib}", f"give {remedy}")


def straddling(maximum: int, seq_len: int) -> list[int]:
    """Return offsets for code, whose positions straddle the largest integers of number formats."""
    ends = [2**7, 2**8, 2**11, 2**12, 2**13, 2**14, 2**15, 65504, 2**16, 2**17]
    half = seq_len // 2 + 1
    last = max(0, maximum - seq_len)
    results = [0, *(max(1, end - half) for end in ends if end < maximum), 1000, 40503, 98765, last]
    return sorted({offset for offset in results if offset <= last})
