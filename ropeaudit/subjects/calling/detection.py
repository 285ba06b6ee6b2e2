"""Detection of how code rotates: signature, order of axes, layout, torch or NumPy.

Code is called in every possible way; the way nearest to the exact rotation at small positions is chosen.
Letters: b batch, h heads, s positions, d head_dim, p pairs.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ropeaudit.arithmetic.formats import FP32, FloatArray, Format, parse
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.errors import Ended, ForeignError, Late, MissingPackage, UnknownName, UsageError, one_line
from ropeaudit.rope.axes import LAYOUTS, Layout
from ropeaudit.rope.scaling import DEFAULT
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions
from ropeaudit.subjects.calling import arrays, proposals, shapes
from ropeaudit.subjects.calling.arrays import Engine
from ropeaudit.subjects.calling.conventions import ARRAYS, TUPLES, Answer, Convention
from ropeaudit.subjects.calling.environments import Device, device_advice
from ropeaudit.subjects.calling.shapes import ORDERS
from ropeaudit.subjects.calling.signatures import AXES, FACTORY, GRID, NotUnderstood
from ropeaudit.subjects.exact_rotation import complex_pairs, half_split, rotated

_BATCH, _HEADS, _START, _LENGTH = 5, 3, 3, 7  # of the trial: positions 3 ... 9
_MOST_ENDS = 3  # calls that end their process: then all may
_SURE = 1e-3  # relative RMS error of a right call
_DTYPES = (FP32, parse("bf16"), parse("fp16"))  # tried in turn until code fits
NEAR = 0.1  # relative RMS error of a call that is right but coarse
_STRAY = 0.03  # relative: what float32 code may leave that is wrong, but rotates


class NoFit(NotUnderstood):
    """No way of calling fits code in this dtype. nearest: one that may be wrong, if any."""

    nearest: Fit | None = None


@dataclass(frozen=True, slots=True)
class Fit:
    """The way of calling code that fits best. permuted: interleaved pairs are returned half-split.

    error: relative RMS distance of the best (batch, head) from the exact rotation; odd: those further off.
    misfit: why the call does not fit at all; empty where it does. rows: whether it takes a row of positions
    for each batch element. dtype: of the detection. unfit: why no call fits in float32, or empty. unrotated:
    whether some heads are not rotated. backward: q and k rotate by the negative angle. keys: whether a
    returned k is rotated like q.
    """

    convention: Convention
    layout: Layout
    permuted: bool
    error: float
    odd: tuple[tuple[int, int], ...]
    misfit: str = ""
    rows: bool = False
    dtype: Format = FP32
    unfit: str = ""
    unrotated: bool = False
    backward: bool = False
    keys: bool = True

    @property
    def joined_wrongly(self) -> bool:
        """Whether joined heads are rotated differently: the code may take them for one head."""
        return "(" in self.convention.order and (self.unrotated or (self.sure and bool(self.odd)))

    @property
    def doubtful(self) -> bool:
        """Whether the convention is doubtful and the result wrong."""
        return self.convention.doubtful and not self.sure

    @property
    def rank(self) -> tuple[bool, bool, bool, bool, bool, float]:
        """The sort key of fits, best first: whether they fit, doubt, error.

        For code that is always wrong, tables in the layout of its pairs come first, and heads with an axis of
        their own, unless the first argument is positions, as in vLLM. Misfits are equal.
        """
        joined = "(" in self.convention.order and self.convention.roles[0] != "positions"
        width = TUPLES.get(self.convention.width, self.convention.width)
        usual = self.sure or (not joined and width in ("pairs", "stacked", self.layout))
        unusual = not usual or self.joined_wrongly
        error = 0.0 if self.misfit else self.error
        spare = self.convention.keywords == "left out"
        return bool(self.misfit), spare, self.doubtful, unusual, self.backward, error

    @property
    def sure(self) -> bool:
        """Whether the result is the exact rotation, up to coarse arithmetic."""
        return self.error <= NEAR


@dataclass(frozen=True, slots=True)
class Trial:
    """Code whose way of calling is to be found, on a setting.

    call: calls a new instance with x (b, h, s, d) at positions in a dtype, by a convention. likely:
    conventions, likeliest first. engines: what may make its arrays, likeliest first. order: of axes, if
    requested. dtype: of the vectors. several: what to type for several position axes.
    """

    call: Callable[[Convention, FloatArray, Positions, Format], Answer]
    name: str
    setting: RopeSetting
    likely: Sequence[Convention]
    engines: Sequence[Engine]
    device: Device
    order: str | None
    dtype: Format = FP32
    several: str = ""


def fit(trial: Trial) -> Fit:
    """Return how to call code: detected in float32, or in 16 bits where no call fits in float32.

    Raises: UsageError, UnknownName, where no call works; Ended where each ends its process, Late.
    """
    if trial.order is not None:
        known = {one.lower(): one for one in (*shapes.PACKED, *shapes.TOKENS, *ORDERS)}
        if trial.order.lower() not in known:
            letters = "(b batch, h heads, s positions, d head_dim)"
            raise UnknownName("--order", trial.order, ORDERS, letters)
        trial = replace(trial, order=known[trial.order.lower()])
    unfit: list[NoFit] = []
    for dtype in _DTYPES:
        try:
            found = _best_fit(replace(trial, dtype=dtype))
        except NoFit as error:
            unfit.append(error)
        else:
            return replace(found, dtype=dtype, unfit=unfit[0].in_line if unfit else "")
    nearest = unfit[0].nearest
    if nearest is not None and all(name for name, _ in nearest.convention.arguments):
        return nearest  # what it does is wrong, not how it is called
    raise unfit[0]


def _best_fit(trial: Trial) -> Fit:
    """Return the best fit in a dtype, with the first engine that has one."""
    sure = _SURE + trial.dtype.unit_roundoff  # error of a right call
    failed: list[tuple[Convention, Exception]] = []
    best: Fit | None = None
    for engine in trial.engines:
        likely = [replace(one, engine=engine, device=trial.device) for one in trial.likely]
        two = set[tuple[tuple[str | None, str], ...]]()  # arguments for which two things came back
        ends = 0
        for form in proposals.in_order(likely, trial.order, trial.setting.grid is not None):
            if form.composed and not form.vectorless and form.arguments not in two:
                continue
            if form.heads and best is not None and not best.convention.heads:
                break  # k has heads
            tried = _better_fit(form, trial, best)
            if isinstance(tried, Exception):
                failed.append((form, tried))
                two |= {form.arguments} if isinstance(tried, arrays.TwoTables) else set()
                ends += isinstance(tried, Ended)
                if ends > _MOST_ENDS:
                    raise tried
                continue
            best = tried
            if best.error < sure and not (best.joined_wrongly or best.backward):
                break
        if best is not None and not best.misfit:
            return _refined(best, trial)
    if best is None and trial.setting.grid is not None and not failed:
        raise NotUnderstood.with_lines(
            f"{trial.name} takes no argument named as positions or sizes of a grid are"
        )
    if best is None:
        raise _no_call_error(trial, failed)
    refused = NoFit.with_lines(
        f"nothing was checked: what to give {trial.name} is not known",
        f"called as {best.convention}, it {best.misfit}",
        *filter(None, [trial.several]),
        f"name a factory: {FACTORY}",
    )
    refused.nearest = best
    raise refused


def _better_fit(form: Convention, trial: Trial, best: Fit | None = None) -> Fit | Exception:
    """Try a convention; return the better of it and the best fit so far, or the exception."""
    try:
        fit = _nearest_layout(form, trial)
        alone = form.unplaced or form.takes("totals")
        rotates = alone and not fit.misfit and np.isfinite(fit.error)
        if fit.doubtful and not rotates:
            raise shapes.WrongShape(fit.misfit or "does not rotate as it would, called so")
        if form.takes_lengths and fit.odd:
            raise shapes.WrongShape("rotates some heads otherwise, given a length for each token")
        if best is not None and fit.rank >= best.rank:
            return best
        # three heads may pass for q, k and v
        x = np.ones((2, _HEADS + 1, _LENGTH, trial.setting.head_dim), trial.dtype.carrier)
        trial.call(form, x, np.arange(_START, _START + _LENGTH, dtype=np.int64), trial.dtype)
    except Late:
        raise
    except (ForeignError, MissingPackage) as error:
        return error.with_traceback(None)
    return fit


def _no_call_error(trial: Trial, failed: Sequence[tuple[Convention, Exception]]) -> Exception:
    """Return the exception that says why no call worked, with the attempts.

    Code that ends its process in one call is reported as doing so.
    """
    for kind in (Ended, MissingPackage):
        if told := next((error for _, error in failed if isinstance(error, kind)), None):
            return told

    def place(error: Any) -> str:
        return f" ({Path(error.file).name}:{error.line})" if getattr(error, "line", 0) else ""

    first: dict[str, str] = {}  # what became of what was tried
    for form, error in failed:
        first.setdefault(form.called, one_line(error) + place(error))
    reasons: dict[str, list[str]] = {}
    for called, reason in first.items():
        reasons.setdefault(reason, []).append(called)
    attempts = [f"tried {', '.join(alike[:4])}: {reason}" for reason, alike in list(reasons.items())[:3]]
    name, device = trial.name, trial.device
    unknown = f"nothing was checked: {name} could not be called in any way that is known{device.words}"
    likely = [error for form, error in failed if form.engine == trial.engines[0]]
    came: list[Any] = [error for error in likely if getattr(error, "line", 1)]  # others: of no call
    where, raised = NoFit.place, Counter((one.file, one.line, one.type) for one in came if place(one))
    for (file, line, kind), count in raised.most_common(1):
        if 2 * count > len(came):
            how = "every call" if count == len(came) else f"{count} of {len(came)} calls"
            called = f"{name}{device.words} with {ARRAYS[trial.engines[0]]}"
            unknown = f"nothing was checked: {how} of {called} raised {kind} ({Path(file).name}:{line})"
            where = file, line
    if places := next(filter(None, (device_advice(one_line(error), device) for _, error in failed)), ""):
        return UsageError("\n   = ".join((unknown, *attempts, places)))
    refused = NoFit.with_lines(unknown, *attempts, *filter(None, [trial.several]))
    refused.place = where
    return refused


def _refined(best: Fit, trial: Trial) -> Fit:
    """Return a fit, refined by rows of positions and other heads that the code also takes.

    Raises: NotUnderstood for positions of several axes.
    """
    known = best.convention
    if known.tables and not known.full_tables:  # what is beside them, even if wrong
        whole = [one for one in trial.likely if one.full_tables]
        beside = (replace(one, engine=known.engine, device=known.device) for one in whole)
        orders = (known.order,) if trial.order else None
        forms = (form for one in beside for form in proposals.of_form(one, orders))
        fits = (_better_fit(form, trial) for form in forms if form.width == known.width)
        best = next((fit for fit in fits if isinstance(fit, Fit) and not fit.misfit), best)
    if axes := _position_axis_count(best, trial):
        raise NotUnderstood(
            f"{trial.name} takes positions of {axes} axes, ({axes}, s), as images and videos have them; "
            f"they are not judged without {AXES}"
        )
    if _takes_rows(best, trial):
        return replace(best, rows=True)
    form = best.convention
    if not {"q", "k"} <= set(form.roles):
        return best
    if form.order in proposals.HEADLESS:  # k without heads, if rows fit
        fit = _better_fit(replace(form, heads="k without h"), trial)
        if isinstance(fit, Fit) and fit.sure and not fit.misfit and _takes_rows(fit, trial):
            return replace(fit, rows=True)
    for order in () if best.keys else proposals.HEADLESS[:3]:  # q in groups, if k fits
        fit = _better_fit(replace(form, order=order, heads="q in groups"), trial)
        if isinstance(fit, Fit) and fit.sure and fit.keys and not fit.misfit:
            return replace(fit, rows=_takes_rows(fit, trial))
    return best


def _position_axis_count(best: Fit, trial: Trial) -> int:
    """Return the number of position axes: rows that the code takes where one row fails; else 0."""
    form = replace(best.convention, rank=2)
    if not form.takes("positions") or form.axes or not form.by_batch:
        return 0
    if best.sure and best.convention.rank == 1:
        return 0
    for count in (1, 2, 3):
        with contextlib.suppress(ForeignError):
            if _nearest_layout(form, trial, count).sure:
                return count if count > 1 else 0
    return 0


def _takes_rows(best: Fit, trial: Trial) -> bool:
    """Return whether code takes a row of positions for each batch element.

    It does where equal rows, or tables (b, s, d), give the result of (s,), or tables (1, s, d).
    Whether it rotates by such positions rightly is left to checks.
    """
    form = best.convention
    if form.by_batch and form.takes("positions"):
        return True
    if best.sure and form.for_rows.by_batch:
        with contextlib.suppress(ForeignError):  # it takes no such positions
            error = _nearest_layout(form.for_rows, trial, _BATCH).error
            return form.takes("positions") or error <= 2 * best.error + _SURE
    return False


def _nearest_layout(convention: Convention, trial: Trial, rows: int = 0) -> Fit:
    """Call once, compare with both layouts, and return the nearest fit.

    Frequencies may depend on the setting's length, or on that of this call.
    rows: the number of equal rows of positions; 0 for one row that batch elements share.
    """
    setting, dtype = trial.setting, trial.dtype
    shape = (_BATCH, _HEADS, _LENGTH, setting.head_dim)
    x = round_to(np.random.default_rng(0).standard_normal(shape).astype(np.float32), dtype)
    x = x.astype(dtype.carrier)
    positions = np.arange(_START, _START + _LENGTH, dtype=np.int64)
    if setting.grid is not None:  # tokens that differ on all axes
        positions = np.linspace(_START, setting.grid.count - 1, _LENGTH).astype(np.int64)
    answer = trial.call(convention, x, np.tile(positions, (rows, 1)) if rows else positions, dtype)
    values = answer.values.astype(np.float64)
    norm, fits = float(np.sqrt(np.mean(x**2))), list[Fit]()
    changed = (values != x).any(axis=(0, 2, 3))  # (h,)
    left = bool(changed.any() and not changed.all())
    held_to = dict.fromkeys((setting, setting.for_positions(_START + _LENGTH)))
    for layout, one, sign in itertools.product(LAYOUTS, held_to, (1, -1) if setting.grid is None else (1,)):
        exact = rotated(x, sign * positions, replace(one, layout=layout))
        keys = answer.keys is None or bool(np.sqrt(np.mean((answer.keys - exact) ** 2)) <= NEAR * norm)
        if sign < 0 and not keys:
            continue  # k does not turn the same way
        for permuted in (False, True)[: 2 if layout == "interleaved" and sign > 0 else 1]:
            expected = exact[..., half_split(setting.rotary_dim, setting.head_dim)] if permuted else exact
            distances = np.sqrt(np.mean((values - expected) ** 2, axis=(2, 3))) / norm  # (b, h)
            error = float(distances.min()) if np.isfinite(distances).all() else np.inf
            odd = np.argwhere(distances > max(2 * error, NEAR)) if np.isfinite(error) else ()
            where = tuple((int(batch), int(head)) for batch, head in odd)
            fit = Fit(
                convention, layout, permuted, error, where, unrotated=left, backward=sign < 0, keys=keys
            )
            if sign > 0 or fit.sure:
                fits.append(fit)
    best = min(fits, key=lambda candidate: candidate.error)
    if best.sure or not np.isfinite(best.error) or setting.grid is not None:
        return best
    for number, fit in enumerate(fits):
        of, placed = replace(setting, layout=fit.layout), not convention.unplaced
        why = misfit(x.astype(np.float64), values, of, fit.permuted, placed=placed)
        fits[number] = replace(fit, misfit=why)
    return min(fits, key=lambda candidate: candidate.rank)


def sureness(fit: Fit) -> str:
    """Return in words how certain the detection is."""
    inside = f" in {fit.dtype}, for in float32 no call fits" if fit.unfit else ""
    if fit.sure:
        return f" (detected{inside})"
    if not np.isfinite(fit.error):
        return f" (a guess{inside}: it returns nan or inf)"
    on_grid = fit.convention.axes or fit.convention.takes(*GRID)
    where = "at 7 tokens of the grid" if on_grid else "at positions 3 to 9"
    if fit.misfit:
        return f" (it works{inside}, and {fit.misfit} {where}; if it wants others, wrap it)"
    off = float(f"{100 * fit.error:.2g}")
    return f" (best match{inside}; {off:,g} % error {where})"


def misfit(
    x: FloatArray, values: FloatArray, setting: RopeSetting, permuted: bool, *, placed: bool = True
) -> str:
    """Return why a result is no rotation, not even a wrong one; empty if it may be one.

    Wrong code has a wrong angle, base, direction or position, other dims, a lost sign or pair: still each
    pair is mapped to itself by one matrix for all heads, each row of it a sinusoid of the position. Code that
    was called wrongly breaks this, except in one head, row or the last token.
    placed: whether an argument places tokens; without one, a call that turns nothing does not fit.
    Shapes: x, values (b, h, s, d).
    """
    changed = int(np.flatnonzero(np.r_[True, (values != x).any(axis=(0, 1, 2))])[-1])
    dims = dict.fromkeys((setting.rotary_dim, changed + changed % 2))
    plain = replace(setting, scaling=DEFAULT)  # a scaling may have numbers for each pair
    strays = [_stray(x, values, replace(plain, rotary_dim=some), permuted) for some in dims if some]
    if min(strays) <= _STRAY:
        widest = replace(plain, rotary_dim=max(dims))
        if placed:
            return ""
        z, w = complex_pairs(x, widest), complex_pairs(values, widest)
        each = [_matrices(z[:, head], w[:, head])[0] for head in range(z.shape[1])]
        turns = np.median([np.abs(one[1:] - one[:-1]).max() for one in each]) > _STRAY  # of most
        return "" if turns else "turns no pair of dims from one position to the next"
    neither = f"{100 * min(strays):.0f} % of what it returns is neither"
    return f"does not rotate pairs of dims by angles that grow evenly with the position ({neither})"


def _stray(x: FloatArray, values: FloatArray, setting: RopeSetting, permuted: bool) -> float:
    """Return the share of the values that no rotation of the rotary dims explains."""
    if permuted:
        values = values[..., np.argsort(half_split(setting.rotary_dim, setting.head_dim))]
    rest = values[..., setting.rotary_dim :] - x[..., setting.rotary_dim :]
    if rest.size and np.sqrt(np.mean(rest**2)) > NEAR:
        return 1.0
    z, w = complex_pairs(x, setting), complex_pairs(values, setting)
    left = [(-1, 2), *((index, axis) for axis in (0, 1) for index in range(z.shape[axis]))]
    strays = [_sinusoid_residual(np.delete(z, *one), np.delete(w, *one)) for one in left]
    stray = min(_sinusoid_residual(z, w), *strays)
    alone = (_sinusoid_residual(z[:, head], w[:, head]) for head in range(z.shape[1]))
    if z.shape[1] == 1 or stray <= _STRAY or max(alone) > _STRAY:
        return stray
    # heads may have angles of their own; where axes are mixed up those of a head stand still
    rotations = (w * z.conj()).sum(axis=0) / (np.abs(z) ** 2).sum(axis=0)  # (h, s, p)
    grow = np.abs(rotations[:, 1:] - rotations[:, :-1]).mean(axis=(1, 2)) > _STRAY
    return 0.0 if grow.all() else stray


def _matrices(z: Any, w: Any) -> tuple[Any, Any]:
    """Fit w = a z + b conj(z) by least squares; return a, b (s, p, 2), relative RMS left."""
    z, w = (one.reshape(-1, *one.shape[-2:]) for one in (z, w))
    size = np.sqrt(np.mean(np.abs(w) ** 2)) + 1e-30
    basis = np.stack([z, z.conj()])
    left = np.einsum("insp,jnsp->spij", basis.conj(), basis)
    right = np.einsum("insp,nsp->spi", basis.conj(), w)
    matrices = np.linalg.solve(left, right[..., None])[..., 0]
    return matrices, np.sqrt(np.mean(np.abs(w - np.einsum("spi,insp->nsp", matrices, basis)) ** 2)) / size


def _sinusoid_residual(z: Any, w: Any) -> float:
    """Return the relative RMS of w that sinusoidal matrices, one on each pair, do not explain.

    w = a z + b conj(z), by least squares. Its rows are a + conj(b), for the real part, and a - conj(b);
    then row(m+1) + row(m-1) = 2 cos(t) row(m) for each row of each pair.
    Shapes: (..., s, p) twice.
    """
    matrices, residual = _matrices(z, w)
    conj = matrices[..., 1].conj()
    rows = np.stack([matrices[..., 0] + conj, matrices[..., 0] - conj])  # (2, s, p)
    middle, around = rows[:, 1:-1], rows[:, 2:] + rows[:, :-2]
    share = (middle.conj() * around).real.sum(axis=1) / ((np.abs(middle) ** 2).sum(axis=1) + 1e-30)
    bent = np.sqrt(np.mean(np.abs(around - share[:, None] * middle) ** 2))
    scale = np.sqrt(np.mean(np.abs(rows) ** 2)) + 1e-30
    return float(max(residual, bent / scale))
