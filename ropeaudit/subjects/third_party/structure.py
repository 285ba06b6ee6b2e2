"""Which dims a rotation pairs, how fast each pair rotates, and where it returns them: measured, not assumed.

A rotation is linear, so that unit vectors at a few positions show all of it.
Letters: d head_dim, p pairs, n positions; theta in radians per token.
"""

from __future__ import annotations

import copy
import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.formats import FloatArray
from ropeaudit.rope.setting import Layout
from ropeaudit.subjects import Positions
from ropeaudit.subjects.calling import building, signatures

PROBE: Positions = np.array([0, 1, 2, 3, 5, 7, 11])
_ZERO = 1e-7  # smaller components are 0; real ones are at least a frequency times 11
_UNIT = 0.05  # by which lengths may be off 1
_NEAR = 0.02  # relative error of frequencies: rounding passes, another base does not
_BELOW = 1e-6  # radians by which small frequencies may be off, whatever their size


class NoRotation(ValueError):
    """A function does not rotate pairs of unit vectors; the text says why."""


@dataclass(frozen=True, slots=True)
class Structure:
    """Pairs of dims that rotate: the first and the second of each, (p,), frequencies (p,), of how many dims.

    output: for each dim (d,), the one in which it is returned.
    """

    first: NDArray[np.int64]
    second: NDArray[np.int64]
    theta: FloatArray
    output: NDArray[np.int64]

    @property
    def dims(self) -> int:
        """How many dims the function takes."""
        return int(self.output.size)

    def chosen(self, expected: FloatArray) -> Structure:
        """Return the pairs that rotate with these frequencies, in their order, each once.

        Raises: NoRotation where one has no pair.
        """
        allowed = _NEAR * expected + _BELOW
        if (np.abs(self.theta[:, None] - expected) > allowed).all(axis=1).any():
            raise NoRotation(self._misfit(expected))
        free = np.ones(self.theta.size, dtype=bool)
        picked = []
        for theta, most in zip(expected, allowed, strict=True):
            off = np.where(free, np.abs(self.theta - theta), np.inf)
            best = int(off.argmin()) if off.size else -1
            if best < 0 or not off[best] <= most:
                raise NoRotation(self._misfit(expected))
            free[best] = False
            picked.append(best)
        return Structure(self.first[picked], self.second[picked], self.theta[picked], self.output)

    def _misfit(self, expected: FloatArray) -> str:
        if not self.theta.size:
            return "it leaves every vector as it is"
        shown = np.sort(self.theta)[::-1]
        return (
            f"it rotates {shown.size} pairs by {shown[0]:.4g} to {shown[-1]:.4g} radians a token, and "
            f"{expected.size} by {expected[0]:.4g} to {expected[-1]:.4g} are requested"
        )

    @property
    def layout(self) -> Layout:
        """Whether the dims of a pair stand beside each other."""
        return "interleaved" if (self.second == self.first + 1).all() else "half"

    @property
    def plain(self) -> bool:
        """Whether all of the dims rotate, in the layout's usual order."""
        p = self.first.size
        usual = np.arange(p) if self.layout == "half" else 2 * np.arange(p)
        step = p if self.layout == "half" else 1
        return bool(
            2 * p == self.dims and (self.first == usual).all() and (self.second == self.first + step).all()
        )


def measured(rotate: Callable[[FloatArray, Positions], FloatArray], dims: int) -> Structure:
    """Return what a function rotates. Raises: NoRotation; whatever the function raises.

    rotate: x (d, n, d) of d heads, positions (n,) -> (d, n, d).
    """
    units = np.repeat(np.eye(dims)[:, None], PROBE.size, axis=1)
    returned = np.asarray(rotate(units, PROBE), dtype=np.float64)
    if returned.shape != units.shape:
        raise NoRotation(f"it returns the shape {returned.shape} for {units.shape}")
    if not np.isfinite(returned).all():
        raise NoRotation("what it returns is not finite")
    output = np.abs(returned[:, 0]).argmax(axis=1)
    lengths = np.linalg.norm(returned, axis=2)
    if np.unique(output).size != dims or np.abs(lengths - 1).max() > _UNIT:
        raise NoRotation(f"it does not keep lengths: they are {lengths.min():.3g} to {lengths.max():.3g}")
    by_input = returned[:, :, output]  # of unit vector i, in the dim to which j goes
    there = np.abs(by_input).max(axis=1) > _ZERO
    np.fill_diagonal(there, False)
    if there.sum(axis=1).max() > 1:
        raise NoRotation(f"it mixes up to {there.sum(axis=1).max() + 1} dims")
    pairs: list[tuple[int, int, float]] = []
    for i in np.flatnonzero(there.any(axis=1)):
        j = int(there[i].argmax())
        angle = float(np.arctan2(by_input[i, 1, j], by_input[i, 1, i]))
        if angle > 0:
            pairs.append((int(i), j, angle))
    first, second = (np.array([pair[n] for pair in pairs], dtype=np.int64) for n in (0, 1))
    return Structure(first, second, np.array([theta for _, _, theta in pairs]), output)


_LENGTH = 2**12  # positions of a class that wants to know how many
_HIDDEN = ("hidden_size", "embed_dim", "d_model", "n_embd")
_HEADS = ("num_attention_heads", "num_heads", "n_head", "n_heads", "encoder_num_attention_heads")
_DIMS = re.compile(r"(^|_)head_dim$|^kv_channels$|^rotary_dim$|^rotary_ndims$|^rope_dim$")
_BASES = re.compile(r"(theta|rope.*base|rotary.*base|base_freq)$")
_SHARES = ("partial_rotary_factor", "rotary_pct")
_KEPT_TYPES = ("axial", "axial_2d")  # what a scaling is not
_PATCHES = {"patch_size": 2, "patch_size_t": 1}  # one in a frame of 2x2
_SECTIONS = 3  # axes of time, height and width


@functools.lru_cache(maxsize=32)
def variants_of_arguments(cls: Any, dims: int, axes: int, base: float) -> tuple[dict[str, Any], ...]:
    """Return lists of arguments that a class may be built with for heads of `dims` dims.

    One class may be built from several configs. axes: over which dims are shared out where it takes dims of
    axes.
    """
    given: dict[str, Any] = {}
    for name, parameter in inspect.signature(cls).parameters.items():
        if name in signatures.ROLES["dim"] or name == "attention_head_dim":
            given[name] = dims
        elif name in signatures.ROLES["base"]:
            given[name] = base
        elif name in building.AXIS_NAMES:
            given[name] = (dims // axes,) * axes
        elif name in _PATCHES and parameter.annotation in (int, "int"):
            given[name] = _PATCHES[name]
    results: list[dict[str, Any]] = []
    sections = "mrope_section" in inspect.getsource(cls)
    for arguments in building.possible_arguments(cls, given, _LENGTH):
        configs = [name for name in arguments if name == "config" or name.endswith("_config")]
        results.extend(_changed(arguments, configs, dims, base, sections))
    return tuple(results)


def _changed(
    arguments: Mapping[str, Any], configs: list[str], dims: int, base: float, sections: bool
) -> Iterator[dict[str, Any]]:
    """Yield arguments whose config was changed: built with the changes, then set."""
    if not configs:
        yield dict(arguments)
        return
    config = arguments[configs[0]]
    heads = next((one for name in _HEADS if isinstance(one := _read(config, name), int)), 1)
    changes: dict[str, Any] = {}
    for name in vars(config):
        if name.startswith("_"):
            continue
        value = _read(config, name)
        if name in _HIDDEN and isinstance(value, int):
            changes[name] = dims * heads
        elif _DIMS.search(name) and (value is None or isinstance(value, int)):
            changes[name] = dims
        elif _BASES.search(name) and isinstance(value, int | float):
            changes[name] = base
        elif name in _SHARES and isinstance(value, int | float):
            changes[name] = 1.0
        elif name == "rope_parameters" and isinstance(value, Mapping):
            changes[name] = _parameters(value, dims, base, sections)
    for change in (_built, _set):
        try:
            yield {**arguments, configs[0]: change(config, changes)}
        except Exception:  # noqa: S112  # of configs that check what they are given
            continue


def _built(config: Any, changes: Mapping[str, Any]) -> Any:
    return type(config)(**changes)


def _set(config: Any, changes: Mapping[str, Any]) -> Any:
    other = copy.deepcopy(config)
    for name, value in changes.items():
        setattr(other, name, value)
    return other


def _read(config: Any, name: str) -> Any:
    """Return an attribute; None for one that there is not, or that raises."""
    try:
        return getattr(config, name, None)
    except Exception:  # of configs whose layers differ
        return None


def _parameters(given: Mapping[str, Any], dims: int, base: float, sections: bool) -> dict[str, Any]:
    """Return rope_parameters unscaled, of the whole head, also of layer types."""
    if any(isinstance(value, Mapping) for value in given.values()):
        return {
            key: _parameters(value, dims, base, sections) if isinstance(value, Mapping) else value
            for key, value in given.items()
        }
    kind = given.get("rope_type", "default")
    results = {**given, "rope_type": kind if kind in _KEPT_TYPES else "default", "rope_theta": base}
    if "partial_rotary_factor" in results:
        results["partial_rotary_factor"] = 1.0
    if sections or "mrope_section" in results:
        count = len(results.get("mrope_section") or range(_SECTIONS))
        each = dims // 2 // count
        results["mrope_section"] = [dims // 2 - each * (count - 1), *[each] * (count - 1)]
    return results
