"""Finding out how code rotates: its signature, the order of its axes, its layout, torch or NumPy.

It is called with a batch, heads and positions of different sizes in every way that its arguments allow, and
what it returns is compared with the exact rotation at small positions; the nearest way is kept.
Letters: b batch, h heads, s positions, d head_dim, p pairs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np

from ropeaudit.arithmetic.formats import FP32, FloatArray
from ropeaudit.errors import RopeAuditError, UnknownName, UsageError
from ropeaudit.rope.rotation import split_pairs
from ropeaudit.rope.setting import Layout, RopeSetting
from ropeaudit.subjects.calling import arrays, signatures
from ropeaudit.subjects.calling.arrays import Engine
from ropeaudit.subjects.calling.implementation import error_line
from ropeaudit.subjects.calling.signatures import Form
from ropeaudit.subjects.calling.ways import ORDERS, Way
from ropeaudit.subjects.placement.exact_rotation import half_split, rotated

_BATCH, _HEADS, _START, _LENGTH = 5, 3, 3, 7  # of the trial: positions 3 ... 9
_WHOLE = "changes dims of the head that --rotary-dim leaves out"
_SHORT = "leaves dims {} to {} as they are"
_STRAY = 0.03  # relative: what float32 code may leave that is wrong, but rotates
_SURE, _NEAR = 1e-3, 0.1  # relative RMS errors of a way that is right, and of one that is right but coarse


@dataclass(frozen=True, slots=True)
class Fit:
    """How code is called and what it does. permuted: it takes interleaved pairs and returns them half-split.

    error: relative RMS distance of the best (batch, head) from the exact rotation: wrong code may do right by
    one of them. odd: those that it turns otherwise.
    misfit: why the call does not fit at all, which says nothing of the code; empty where it does.
    rows: the way to give it a row of positions for each batch element; None where it takes none.
    """

    way: Way
    layout: Layout
    permuted: bool
    error: float
    odd: tuple[tuple[int, int], ...]
    misfit: str = ""
    rows: Way | None = None

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
    best: Fit | None = None
    for engine in engines:
        for way in _ways(signatures.forms(function, name), orders, engine):
            try:
                result = _tried(way, make(), setting)
            except RopeAuditError:
                raise
            except Exception as error:  # whatever other people's code raises is a finding
                tried.append(
                    (way.form, str(error) if isinstance(error, arrays.WrongShape) else error_line(error))
                )
                continue
            if best is None or (bool(result.misfit), result.error) < (bool(best.misfit), best.error):
                best = result
            if best.error < _SURE:
                break
        if best is not None and not best.misfit:
            return replace(best, rows=_rows(best, make, setting))
    if best is None:
        known = signatures.described(iter(tried))
        raise UsageError(f"{name} could not be called in any way that is known. Tried {known}")
    if best.misfit.startswith(_SHORT.partition("{")[0]):
        part = best.misfit.split()[2]
        raise UsageError(
            f"{name}, called as {best.way}, {best.misfit}, so it is not audited with --rotary-dim "
            f"{setting.rotary_dim}; if only the first {part} dims are to be rotated, try --rotary-dim {part}"
        )
    raise UsageError(
        f"{name}, called as {best.way}, {best.misfit}; what to give it is not known, so it is not audited. "
        f"{_wrapper(name, setting, best)}"
    )


def _rows(best: Fit, make: Callable[[], Any], setting: RopeSetting) -> Way | None:
    """Return the way to give a row of positions for each batch element; None where code takes none.

    Code that takes positions (s,) may take (b, s) too: it does where equal rows give what (s,) gives.
    """
    if best.way.by_batch or not best.sure:
        return best.way if best.way.by_batch else None
    way = replace(best.way, rank=2)
    try:
        return way if way.by_batch and _tried(way, make(), setting).error <= 2 * best.error + _SURE else None
    except Exception:  # whatever other people's code raises: it takes no such positions
        return None


def _wrapper(name: str, setting: RopeSetting, best: Fit) -> str:
    """Return a wrapper to edit."""
    function = name.rpartition(":")[2]
    begin = "Wrap it and audit the wrapper: def rotate(x, positions): return"
    if setting.rotary_dim < setting.head_dim and best.misfit == _WHOLE:
        n = setting.rotary_dim
        return f"{begin} torch.cat([{function}(x[..., :{n}], positions), x[..., {n}:]], -1)"
    inverse = f"{setting.base:g} ** (-torch.arange(0, {setting.rotary_dim}, 2) / {setting.rotary_dim})"
    return f"{begin} {function}(x, positions[:, None] * {inverse})"


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
    x64 = x.astype(np.float64)
    values = way(_silent(function), x, positions, setting, FP32).values.astype(np.float64)
    norm, results = float(np.sqrt(np.mean(x**2))), []
    layouts: tuple[Layout, ...] = get_args(Layout)
    for layout in layouts:
        right = rotated(x, positions, replace(setting, layout=layout))
        for permuted in (False, True)[: 2 if layout == "interleaved" else 1]:
            there = right[..., half_split(setting.rotary_dim, setting.head_dim)] if permuted else right
            apart = np.sqrt(np.mean((values - there) ** 2, axis=(2, 3))) / norm
            error = float(apart.min()) if np.isfinite(apart).all() else np.inf
            odd = np.argwhere(apart > max(2 * error, _NEAR)) if np.isfinite(error) else ()
            where = tuple((int(batch), int(head)) for batch, head in odd)
            results.append(Fit(way, layout, permuted, error, where))
    best = min(results, key=lambda one: one.error)
    if best.sure or not np.isfinite(best.error):
        return best
    reasons = [
        (misfit(x64, values, replace(setting, layout=one.layout), one.permuted), one) for one in results
    ]
    reason, best = min(reasons, key=lambda pair: (bool(pair[0]), pair[1].error))
    return replace(best, misfit=reason)


def _silent(function: Any) -> Callable[..., Any]:
    """Return what calls a function without its warnings: what it is given here may make no sense to it."""

    def called(*plain: Any, **named: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return function(*plain, **named)

    return called


def misfit(x: FloatArray, values: FloatArray, setting: RopeSetting, permuted: bool) -> str:
    """Say why a call cannot be one of code that rotates, however wrong; empty where it may be.

    Wrong code rotates by a wrong angle, base, direction or position, by none, forgets a sign or a pair: still
    each pair of dims goes into itself alone, by a matrix that is the same for all heads, and whose elements
    are sinusoids of the position, for angles grow evenly. What was given arguments that it does not expect
    does otherwise. A head or a batch element may be left out of the comparison.
    Shapes: x, values (b, h, s, d).
    """
    if permuted:
        values = values[..., np.argsort(half_split(setting.rotary_dim, setting.head_dim))]
    rest = values[..., setting.rotary_dim :] - x[..., setting.rotary_dim :]
    if rest.size and np.sqrt(np.mean(rest**2)) > _NEAR:
        return _WHOLE
    whole = int(np.flatnonzero(np.r_[True, (values != x).any(axis=(0, 1, 2))])[-1])
    if 0 < whole < setting.rotary_dim and whole % 2 == 0:
        return _SHORT.format(whole, setting.rotary_dim - 1)
    z, w = (a + 1j * b for a, b in (split_pairs(x, setting), split_pairs(values, setting)))
    (batch, heads), every = z.shape[:2], np.ones(z.shape[:2], bool)
    without = [every]
    for index in range(heads):
        without.append(every & (np.arange(heads) != index))
    for index in range(batch):
        without.append(every & (np.arange(batch)[:, None] != index))
    residual = min(_even(z[some], w[some]) for some in without)
    if residual <= _STRAY or (heads > 1 and _apart(z, w)):
        return ""
    neither = f"{100 * residual:.0f} % is neither"
    return f"does not rotate pairs of dims by angles that grow with the position ({neither})"


def _apart(z: Any, w: Any) -> bool:
    """Whether each head is rotated by angles of its own, which grow with the position. Shapes: (b, h, s, p).

    Where axes are mixed up they do not: then a head counts as a position, and its angles stand still.
    """
    if max(_even(z[:, head], w[:, head]) for head in range(z.shape[1])) > _STRAY:
        return False
    rotated = (w * z.conj()).sum(axis=0) / (np.abs(z) ** 2).sum(axis=0)  # (h, s, p)
    return bool((np.abs(rotated[:, 1:] - rotated[:, :-1]).mean(axis=(1, 2)) > _STRAY).all())


def _even(z: Any, w: Any) -> float:
    """Return what is left of w after a matrix on each pair that is a sinusoid of the position, relative.

    w = a z + b conj(z); a and b by least squares over the vectors; then a(m+1) + a(m-1) = 2 cos(t) a(m) for
    each pair. Shapes: (n, s, p) twice.
    """
    size = np.sqrt(np.mean(np.abs(w) ** 2)) + 1e-30
    basis = np.stack([z, z.conj()])
    left = np.einsum("insp,jnsp->spij", basis.conj(), basis)
    right = np.einsum("insp,nsp->spi", basis.conj(), w)
    both = np.linalg.solve(left, right[..., None])[..., 0]  # (s, p, 2)
    residual = np.sqrt(np.mean(np.abs(w - np.einsum("spi,insp->nsp", both, basis)) ** 2)) / size
    middle, around = both[1:-1], both[2:] + both[:-2]
    share = (middle.conj() * around).real.sum(axis=(0, 2)) / ((np.abs(middle) ** 2).sum(axis=(0, 2)) + 1e-30)
    bent = np.sqrt(np.mean(np.abs(around - share[:, None] * middle) ** 2))
    scale = np.sqrt(np.mean(np.abs(both) ** 2)) + 1e-30
    return float(max(residual, bent / scale))
