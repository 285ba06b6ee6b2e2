"""Finding out how code rotates: its signature, the order of its axes, its layout, torch or NumPy.

It is called with a batch, heads and positions of different sizes in every way that its arguments allow,
and what it returns is compared with the exact rotation at small positions; the nearest way is kept.
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
from ropeaudit.subjects.calling.conventions import ORDERS, Convention
from ropeaudit.subjects.calling.implementation import one_line
from ropeaudit.subjects.calling.signatures import Signature
from ropeaudit.subjects.placement.exact_rotation import half_split, rotated

_BATCH, _HEADS, _START, _LENGTH = 5, 3, 3, 7  # of the trial: positions 3 ... 9
_CHANGES_OTHER_DIMS = "changes dims of the head that --rotary-dim leaves out"
_LEAVES_DIMS = "leaves dims {} to {} as they are"
_STRAY = 0.03  # relative: what float32 code may leave that is wrong, but rotates
_SURE, _NEAR = 1e-3, 0.1  # relative RMS errors of a call that is right, and of a coarse one


@dataclass(frozen=True, slots=True)
class Fit:
    """How code is called and what it does. permuted: it takes interleaved pairs and returns them half-split.

    error: relative RMS distance of the best (batch, head) from the exact rotation: wrong code may do right by
    one of them. odd: those that it turns otherwise.
    misfit: why the call does not fit at all, which says nothing of the code; empty where it does.
    rows: how to give it a row of positions for each batch element; None where it takes none.
    """

    convention: Convention
    layout: Layout
    permuted: bool
    error: float
    odd: tuple[tuple[int, int], ...]
    misfit: str = ""
    rows: Convention | None = None

    @property
    def rank(self) -> tuple[bool, float]:
        """The order of fits, best first: what does not fit at all comes last, then by error."""
        return bool(self.misfit), self.error

    @property
    def sure(self) -> bool:
        """Whether it is this rotation, up to coarse arithmetic."""
        return self.error <= _NEAR


def fit(make: Callable[[], Any], name: str, setting: RopeSetting, order: str | None) -> Fit:
    """Return how to call what `make` makes. Raises: UsageError, UnknownName, where no call works."""
    if order is not None and order.lower() not in ORDERS:
        raise UnknownName("--order", order, ORDERS, "(b batch, h heads, s positions, d head_dim)")
    function = make()
    orders = (order.lower(),) if order else ORDERS
    engines: tuple[Engine, Engine] = ("torch", "numpy")
    engines = engines[::-1] if signatures.wants_numpy(function) else engines
    failed: list[tuple[Signature, str]] = []
    best: Fit | None = None
    for engine in engines:
        for convention in _conventions(signatures.possible_signatures(function, name), orders, engine):
            try:
                candidate = _try(convention, make(), setting)
            except RopeAuditError:
                raise
            except Exception as error:  # whatever other people's code raises is a finding
                reason = str(error) if isinstance(error, arrays.WrongShape) else one_line(error)
                failed.append((convention.signature, reason))
                continue
            if best is None or candidate.rank < best.rank:
                best = candidate
            if best.error < _SURE:
                break
        if best is not None and not best.misfit:
            return replace(best, rows=_by_row(best, make, setting))
    if best is None:
        attempts = signatures.described(iter(failed))
        raise UsageError(f"{name} could not be called in any way that is known. Tried {attempts}")
    if best.misfit.startswith(_LEAVES_DIMS.partition("{")[0]):
        part = best.misfit.split()[2]
        raise UsageError(
            f"{name}, called as {best.convention}, {best.misfit}, so it is not audited with --rotary-dim "
            f"{setting.rotary_dim}; if only the first {part} dims are to be rotated, try --rotary-dim {part}"
        )
    raise UsageError(
        f"{name}, called as {best.convention}, {best.misfit}; what to give it is not known, so it is not "
        f"audited. {_suggested_wrapper(name, setting, best)}"
    )


def _by_row(best: Fit, make: Callable[[], Any], setting: RopeSetting) -> Convention | None:
    """Return how to give a row of positions for each batch element; None where code takes none.

    Code that takes positions (s,) may take (b, s) too: it does where equal rows give what (s,) gives.
    """
    if best.convention.by_batch or not best.sure:
        return best.convention if best.convention.by_batch else None
    convention = replace(best.convention, rank=2)
    try:
        takes_rows = convention.by_batch and _try(convention, make(), setting).error <= 2 * best.error + _SURE
    except Exception:  # whatever other people's code raises: it takes no such positions
        return None
    return convention if takes_rows else None


def _suggested_wrapper(name: str, setting: RopeSetting, best: Fit) -> str:
    """Return a wrapper to edit."""
    function = name.rpartition(":")[2]
    begin = "Wrap it and audit the wrapper: def rotate(x, positions): return"
    if setting.rotary_dim < setting.head_dim and best.misfit == _CHANGES_OTHER_DIMS:
        n = setting.rotary_dim
        return f"{begin} torch.cat([{function}(x[..., :{n}], positions), x[..., {n}:]], -1)"
    inverse = f"{setting.base:g} ** (-torch.arange(0, {setting.rotary_dim}, 2) / {setting.rotary_dim})"
    return f"{begin} {function}(x, positions[:, None] * {inverse})"


def _conventions(
    signatures: list[Signature], orders: tuple[str, ...], engine: Engine
) -> Iterator[Convention]:
    """Yield every order of axes, rank and width of tables that the signatures leave open."""
    for signature in signatures:
        tables = {"cos", "freqs"} & set(signature.roles)
        widths = ("half", "interleaved", "pairs") if "cos" in signature.roles else ("pairs",)
        ranks = (1, 2, 3) if tables else (1, 2) if "positions" in signature.roles else (1,)
        for order in orders:
            for rank in ranks:
                yield from (Convention(signature, order, engine, rank, width) for width in widths)


def _try(convention: Convention, function: Any, setting: RopeSetting) -> Fit:
    """Call once, compare with both layouts, and return the nearest fit.

    Raises: whatever the code raises.
    """
    shape = (_BATCH, _HEADS, _LENGTH, setting.head_dim)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    positions = np.arange(_START, _START + _LENGTH, dtype=np.int64)
    x64 = x.astype(np.float64)
    values = convention(_silent(function), x, positions, setting, FP32).values.astype(np.float64)
    norm, fits = float(np.sqrt(np.mean(x**2))), []
    layouts: tuple[Layout, ...] = get_args(Layout)
    for layout in layouts:
        exact = rotated(x, positions, replace(setting, layout=layout))
        for permuted in (False, True)[: 2 if layout == "interleaved" else 1]:
            expected = exact[..., half_split(setting.rotary_dim, setting.head_dim)] if permuted else exact
            distances = np.sqrt(np.mean((values - expected) ** 2, axis=(2, 3))) / norm  # (b, h)
            error = float(distances.min()) if np.isfinite(distances).all() else np.inf
            odd = np.argwhere(distances > max(2 * error, _NEAR)) if np.isfinite(error) else ()
            where = tuple((int(batch), int(head)) for batch, head in odd)
            fits.append(Fit(convention, layout, permuted, error, where))
    best = min(fits, key=lambda candidate: candidate.error)
    if best.sure or not np.isfinite(best.error):
        return best
    with_reasons = (
        replace(
            candidate,
            misfit=misfit(x64, values, replace(setting, layout=candidate.layout), candidate.permuted),
        )
        for candidate in fits
    )
    return min(with_reasons, key=lambda candidate: candidate.rank)


def _silent(function: Any) -> Callable[..., Any]:
    """Return what calls a function without its warnings: what it is given here may make no sense to it."""

    def called(*plain: Any, **named: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return function(*plain, **named)

    return called


def misfit(x: FloatArray, values: FloatArray, setting: RopeSetting, permuted: bool) -> str:
    """Return why a call cannot be one of code that rotates, however wrong; empty where it may be.

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
        return _CHANGES_OTHER_DIMS
    rotated_dims = int(np.flatnonzero(np.r_[True, (values != x).any(axis=(0, 1, 2))])[-1])
    if 0 < rotated_dims < setting.rotary_dim and rotated_dims % 2 == 0:
        return _LEAVES_DIMS.format(rotated_dims, setting.rotary_dim - 1)
    z, w = (a + 1j * b for a, b in (split_pairs(x, setting), split_pairs(values, setting)))
    (batch, heads), everything = z.shape[:2], np.ones(z.shape[:2], bool)
    subsets = [everything]
    for index in range(heads):
        subsets.append(everything & (np.arange(heads) != index))
    for index in range(batch):
        subsets.append(everything & (np.arange(batch)[:, None] != index))
    residual = min(_sinusoid_residual(z[subset], w[subset]) for subset in subsets)
    if residual <= _STRAY or (heads > 1 and _heads_differ(z, w)):
        return ""
    neither = f"{100 * residual:.0f} % is neither"
    return f"does not rotate pairs of dims by angles that grow with the position ({neither})"


def _heads_differ(z: Any, w: Any) -> bool:
    """Return whether each head has angles of its own, which grow with the position. Shapes: (b, h, s, p).

    Where axes are mixed up they do not: then a head counts as a position, and its angles stand still.
    """
    if max(_sinusoid_residual(z[:, head], w[:, head]) for head in range(z.shape[1])) > _STRAY:
        return False
    rotations = (w * z.conj()).sum(axis=0) / (np.abs(z) ** 2).sum(axis=0)  # (h, s, p)
    return bool((np.abs(rotations[:, 1:] - rotations[:, :-1]).mean(axis=(1, 2)) > _STRAY).all())


def _sinusoid_residual(z: Any, w: Any) -> float:
    """Return what a matrix on each pair that is a sinusoid of the position leaves of w: a relative RMS.

    w = a z + b conj(z); a and b by least squares over the vectors; then a(m+1) + a(m-1) = 2 cos(t) a(m) for
    each pair. Shapes: (n, s, p) twice.
    """
    size = np.sqrt(np.mean(np.abs(w) ** 2)) + 1e-30
    basis = np.stack([z, z.conj()])
    left = np.einsum("insp,jnsp->spij", basis.conj(), basis)
    right = np.einsum("insp,nsp->spi", basis.conj(), w)
    matrices = np.linalg.solve(left, right[..., None])[..., 0]  # (s, p, 2)
    residual = np.sqrt(np.mean(np.abs(w - np.einsum("spi,insp->nsp", matrices, basis)) ** 2)) / size
    middle, around = matrices[1:-1], matrices[2:] + matrices[:-2]
    share = (middle.conj() * around).real.sum(axis=(0, 2)) / ((np.abs(middle) ** 2).sum(axis=(0, 2)) + 1e-30)
    bent = np.sqrt(np.mean(np.abs(around - share[:, None] * middle) ** 2))
    scale = np.sqrt(np.mean(np.abs(matrices) ** 2)) + 1e-30
    return float(max(residual, bent / scale))
