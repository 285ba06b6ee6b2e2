"""Finding out how code rotates: its signature, the order of its axes, its layout, torch or NumPy.

It is called with a batch, heads and positions of different sizes in every way that its arguments allow, and
what it returns is compared with the exact rotation at small positions; the nearest way is kept.
Letters: b batch, h heads, s positions, d head_dim, p pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from ropeaudit import recipes
from ropeaudit.errors import RopeAuditError, UnknownName, UsageError
from ropeaudit.formats import FP32, FP64, FloatArray, Format
from ropeaudit.rope.setting import Layout, RopeSetting
from ropeaudit.subjects import Positions, exchange, signatures
from ropeaudit.subjects.called import said
from ropeaudit.subjects.emulated import Emulated
from ropeaudit.subjects.exchange import Engine
from ropeaudit.subjects.patience import patiently
from ropeaudit.subjects.signatures import Form

ORDERS = ("bhsd", "bshd", "sbhd", "hsd", "shd", "sd")

_BATCH, _HEADS, _START, _LENGTH = 2, 3, 3, 5  # of the trial: positions 3 ... 7
_SURE, _NEAR = 1e-3, 0.1  # relative RMS errors of a way that is right, and of one that is right but coarse


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call gave: values (b, h, s, d), those of k where it turns both; whether it changed its input."""

    values: FloatArray
    keys: FloatArray | None
    dtype: str
    changed: bool


@dataclass(frozen=True, slots=True)
class Way:
    """One way to call. rank: axes of positions or tables. width: of tables, p pairs or d dims in a layout."""

    form: Form
    order: str
    engine: Engine
    rank: int = 1
    width: str = "pairs"

    def __str__(self) -> str:
        return (
            f"{self.form} with {'NumPy arrays' if self.engine == 'numpy' else 'torch tensors'} {self.order}"
        )

    def __call__(
        self, function: Any, x: FloatArray, positions: Positions, setting: RopeSetting, dtype: Format
    ) -> Answer:
        """Return x turned by the function, called as often as its axes need. Shapes: x (b, h, s, d)."""
        letters = "".join(axis for axis in "bhsd" if axis in self.order)
        cut = 4 - len(letters)  # leading axes that the function does not have
        pieces = x.reshape(-1, *x.shape[cut:]) if cut else x[None]
        answers = [self._one(function, piece, letters, positions, setting, dtype) for piece in pieces]

        def joined(some: list[FloatArray]) -> FloatArray:
            return np.stack(some).reshape(x.shape)

        keys = [one.keys for one in answers if one.keys is not None]
        return Answer(
            joined([one.values for one in answers]),
            joined(keys) if len(keys) == len(answers) else None,
            answers[0].dtype,
            any(one.changed for one in answers),
        )

    def _one(
        self, function: Any, x: FloatArray, letters: str, at: Positions, setting: RopeSetting, dtype: Format
    ) -> Answer:
        axes = [letters.index(axis) for axis in self.order]
        given = np.ascontiguousarray(x.transpose(axes))
        made = {role: self._argument(role, given, at, setting, dtype) for role in self.form.roles}
        plain = [made[role] for name, role in self.form.arguments if name is None]
        named = {name: made[role] for name, role in self.form.arguments if name is not None}
        before = exchange.values(made["q" if "q" in made else "x"])[0]
        found = patiently(lambda: exchange.quietly(function, plain, named), "a call")
        vector = made["q" if "q" in made else "x"]
        after, name = exchange.values(vector)
        changed = not np.array_equal(before, after, equal_nan=True)
        if found is None:  # it turned its input where it lay; at position 0 nothing shows
            found = (vector, made["k"]) if "k" in made else vector
        first, second = exchange.parts(found, "k" in made)
        values, name = exchange.values(first)
        others = None if second is None else exchange.values(second)[0]
        if values.shape != given.shape:
            raise exchange.WrongShape(f"returns the shape {values.shape} for {given.shape}")
        back = np.argsort(axes)
        keys = others.transpose(back) if others is not None and others.shape == given.shape else None
        return Answer(values.transpose(back), keys, name, changed)

    def _argument(self, role: str, x: FloatArray, at: Positions, setting: RopeSetting, dtype: Format) -> Any:
        """What a role is filled with."""
        if role in ("q", "k", "x"):
            return exchange.made(x, dtype, self.engine)
        if role == "positions":
            batch = x.shape[self.order.index("b")] if "b" in self.order else 1
            rows = at.copy() if self.rank == 1 else np.repeat(at[None], batch, axis=0)
            return rows if self.engine == "numpy" else exchange.torch().from_numpy(rows)
        if role in ("cos", "sin", "freqs"):
            return self._table(role, at, setting, dtype)
        numbers: dict[str, Any] = {
            "offset": int(at[0]),
            "seq_dim": self.order.index("s"),
            "head_axis": self.order.index("h") if "h" in self.order else 0,
        }
        return numbers[role] if role in numbers else built(role, setting)

    def _table(self, role: str, at: Positions, setting: RopeSetting, dtype: Format) -> Any:
        """cos, sin or cos + i sin, made in float64, rounded once to float32 (not at all for float64)."""
        cos, sin = exact(setting).table(at, 0)
        wide = np.float64 if dtype is FP64 else np.float32
        if role == "freqs":
            table: Any = np.empty(cos.shape, np.result_type(wide, np.complex64))
            table.real, table.imag = cos, sin
        else:
            table = (cos if role == "cos" else sin).astype(wide)
            if self.width != "pairs":
                table = np.tile(table, 2) if self.width == "half" else np.repeat(table, 2, axis=1)
        if self.rank == 2:
            table = table[None]
        if self.rank == 3:
            table = table.reshape([*(len(at) if axis == "s" else 1 for axis in self.order[:-1]), -1])
        return table if self.engine == "numpy" else exchange.torch().from_numpy(np.ascontiguousarray(table))


@dataclass(frozen=True, slots=True)
class Fit:
    """How code is called and what it does. permuted: it takes interleaved pairs and returns them half-split.

    error: its relative RMS distance from the exact rotation. odd: (batch, head) that it turns otherwise.
    """

    way: Way
    layout: Layout
    permuted: bool
    error: float
    odd: tuple[tuple[int, int], ...]

    @property
    def sure(self) -> bool:
        """Whether it is this rotation, up to coarse arithmetic."""
        return self.error <= _NEAR


def fit(make: Callable[[], Any], name: str, setting: RopeSetting, order: str | None) -> Fit:
    """Return how to call what `make` makes. Raises: UsageError, UnknownName, where no way works."""
    if order is not None and order.lower() not in ORDERS:
        raise UnknownName("--order", order, ORDERS, "(b batch, h heads, s positions, d head_dim)")
    function = make()
    orders = (order.lower(),) if order else ORDERS
    engines: tuple[Engine, Engine] = ("torch", "numpy")
    engines = engines[::-1] if signatures.wants_numpy(function) else engines
    tried: list[tuple[Form, str]] = []
    for engine in engines:
        best: Fit | None = None
        for way in _ways(signatures.forms(function, name), orders, engine):
            try:
                found = _tried(way, make(), setting)
            except RopeAuditError:
                raise
            except Exception as error:  # whatever other people's code raises is a finding
                tried.append(
                    (way.form, str(error) if isinstance(error, exchange.WrongShape) else said(error))
                )
                continue
            if best is None or found.error < best.error:
                best = found
            if best.error < _SURE:
                return best
        if best is not None:
            return best
    known = signatures.described(iter(tried))
    raise UsageError(f"{name} could not be called in any way that is known. Tried {known}")


def scored(
    function: Any,
    q: FloatArray,
    k: FloatArray,
    at: Positions,
    dtype: Format,
    order: str,
    engine: Engine,
) -> FloatArray:
    """Return what f(q, k, positions) gives for all heads at once. Shapes: q, k (h, s, d), at (s,)."""
    letters = order[-3:] if len(order) == 3 else order
    if sorted(letters) not in (sorted("bhsd"), sorted("hsd")):
        raise UnknownName("order", order, [one for one in ORDERS if "h" in one])
    axes = ["bhsd".index(axis) - (4 - len(letters)) for axis in letters]
    x = [(one[None] if len(letters) == 4 else one).transpose(axes) for one in (q, k)]
    plain = [*(exchange.made(np.ascontiguousarray(one), dtype, engine) for one in x), at.copy()]
    if engine == "torch":
        plain[2] = exchange.torch().from_numpy(plain[2])
    return exchange.values(patiently(lambda: exchange.quietly(function, plain, {}), "a call"))[0]


def exact(setting: RopeSetting) -> Emulated:
    """Return the rotation in float64."""
    return Emulated(recipes.named("fp64-angles").resolve(FP64), setting)


def rotated(x: FloatArray, positions: Positions, setting: RopeSetting) -> FloatArray:
    """Return x turned in float64. Shapes: (..., s, d) -> (..., s, d)."""
    subject, flat = exact(setting), x.astype(np.float64).reshape(-1, *x.shape[-2:])
    table = subject.table(positions, 0)
    return np.stack([subject.rotate(one, table) for one in flat]).reshape(x.shape)


def half_split(rotary_dim: int, head_dim: int) -> NDArray[np.int64]:
    """Return the dims of interleaved pairs in the order of half-split ones."""
    first = np.arange(rotary_dim).reshape(-1, 2).T.reshape(-1)
    return np.concatenate([first, np.arange(rotary_dim, head_dim)])


def built(role: str, setting: RopeSetting) -> Any:
    """Return what a module or a factory is built from."""
    return {"base": setting.base, "dim": setting.rotary_dim, "length": signatures.LENGTH}[role]


def _ways(forms: list[Form], orders: tuple[str, ...], engine: Engine) -> Iterator[Way]:
    for form in forms:
        tables = {"cos", "freqs"} & set(form.roles)
        widths = ("half", "interleaved", "pairs") if "cos" in form.roles else ("pairs",)
        ranks = (1, 2, 3) if tables else (1, 2) if "positions" in form.roles else (1,)
        for order in orders:
            for rank in ranks:
                yield from (Way(form, order, engine, rank, width) for width in widths)


def _tried(way: Way, function: Any, setting: RopeSetting) -> Fit:
    """Call once and compare with both layouts."""
    shape = (_BATCH, _HEADS, _LENGTH, setting.head_dim)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    positions = np.arange(_START, _START + _LENGTH, dtype=np.int64)
    values = way(function, x, positions, setting, FP32).values.astype(np.float64)
    norm, found = float(np.sqrt(np.mean(x**2))), []
    layouts: tuple[Layout, ...] = get_args(Layout)
    for layout in layouts:
        right = rotated(x, positions, replace(setting, layout=layout))
        for permuted in (False, True)[: 2 if layout == "interleaved" else 1]:
            there = right[..., half_split(setting.rotary_dim, setting.head_dim)] if permuted else right
            apart = np.sqrt(np.mean((values - there) ** 2, axis=(2, 3))) / norm
            error = float(np.median(apart)) if np.isfinite(apart).all() else np.inf
            odd = np.argwhere(apart > max(2 * error, _NEAR)) if np.isfinite(error) else ()
            where = tuple((int(batch), int(head)) for batch, head in odd)
            found.append(Fit(way, layout, permuted, error, where))
    return min(found, key=lambda one: one.error)
