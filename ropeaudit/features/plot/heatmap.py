"""Drift of every score of one case, by query and key. Letters: h heads, s positions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import FP32
from ropeaudit.audits.cases import Case, fits, positions_fit
from ropeaudit.audits.variants import Bench, Sample, Scene
from ropeaudit.errors import UsageError
from ropeaudit.inputs import masks
from ropeaudit.recipes import Resolved
from ropeaudit.reference.exact_scores import Precision
from ropeaudit.reports.charts import style
from ropeaudit.reports.charts.style import Picture
from ropeaudit.reports.numbers import short

MOST_POSITIONS = 2048


@dataclass(frozen=True, slots=True)
class Heatmap:
    """drift: root mean square over heads by query and key, (s, s), nan where some head's score is not finite.

    hidden: scores that the mask hides, (s, s). largest: the largest |drift| of one head, with its head,
    query and key; None where some score is not finite.
    """

    case: Case
    recipe: Resolved
    offset: int
    heads: int
    drift: Array
    hidden: NDArray[np.bool_]
    largest: tuple[float, int, int, int] | None


def measure(
    case: Case, recipe: Resolved, offset: int, progress: Callable[[float], None] = lambda share: None
) -> Heatmap:
    """Measure the drift of every visible score of a case. offset: tokens.

    Raises: UsageError, UnknownName, BadShape, BadInput, NotEmulated.
    """
    fits(case.check([offset]))
    inputs, setting = case.load()
    heads, size, _ = inputs.q.shape
    positions_fit([offset], size)
    if size > MOST_POSITIONS:
        raise UsageError(
            f"a picture of {size} x {size} scores is too fine; at most {MOST_POSITIONS} positions are drawn: "
            "try --seq-len 256"
        )
    squares = np.zeros((size, size))
    largest, finite = (0.0, 0, 0, 0), True
    axes = case.position_axes(setting)
    for head in range(heads):
        sample = Sample(np.arange(size, dtype=np.int64), (head,))
        precision: Precision = "extended" if recipe.narrowest > FP32.precision else "double"
        bench = Bench(Scene(inputs, setting, case.mask, axes, offset, sample, precision), recipe)
        table = bench.table(recipe)
        q, k = bench.rotated("q", head, table, recipe), bench.rotated("k", head, table, recipe)
        drift = bench.drift(head, bench.formed(q, k, recipe))
        with np.errstate(invalid="ignore", over="ignore"):
            squares += drift * drift
        finite = finite and bool(np.isfinite(drift).all())
        if finite:
            query, key = np.unravel_index(np.abs(drift).argmax(), drift.shape)
            largest = max(largest, (float(abs(drift[query, key])), head, int(query), int(key)))
        progress((head + 1) / heads)
    masked = masks.hidden(case.mask, slice(0, size), slice(0, size))
    hidden = np.broadcast_to(False if masked is None else np.asarray(masked, bool), squares.shape)
    rms = np.sqrt(squares / heads)
    rms[~np.isfinite(rms)] = np.nan
    return Heatmap(
        case=case,
        recipe=recipe,
        offset=offset,
        heads=heads,
        drift=rms,
        hidden=hidden,
        largest=largest if finite else None,
    )


def draw(heatmap: Heatmap) -> Picture:
    """Return the picture; hidden scores are white, those that are not finite red."""
    from matplotlib.colors import ListedColormap, LogNorm

    title = _title(heatmap)
    figure, (axes,) = style.figure(title)
    shown = heatmap.drift[~heatmap.hidden & (heatmap.drift > 0)]
    low, high = (float(shown.min()), float(shown.max())) if shown.size else (1.0, 1.0)
    low = max(low, high * 1e-4, float(np.percentile(shown, 2)) if shown.size else 0.0)
    visible = np.where(heatmap.hidden | (heatmap.drift <= low), low, heatmap.drift)
    image = axes.imshow(
        np.ma.masked_array(visible, heatmap.hidden | np.isnan(heatmap.drift)),
        norm=LogNorm(low, max(high, low * 1.001)),
        cmap="cividis",
        interpolation="nearest",
    )
    nonfinite = ~heatmap.hidden & np.isnan(heatmap.drift)
    if nonfinite.any():
        axes.imshow(
            np.ma.masked_array(nonfinite, ~nonfinite),
            cmap=ListedColormap([style.RED]),
            interpolation="nearest",
        )
        axes.plot([], [], "s", color=style.RED, label="nan or infinite scores")
        style.legend(figure, axes)
    axes.grid(False)
    axes.set_xlabel("key n (index before the shift)")
    axes.set_ylabel("query m (index before the shift)")
    if shown.size:
        over = "|drift|" if heatmap.heads == 1 else f"RMS drift of {heatmap.heads} heads"
        figure.colorbar(image, ax=axes, label=f"{over} (score units)", extend="min")
    return Picture(figure, title, height=6.4)


def _title(heatmap: Heatmap) -> str:
    who = f"{heatmap.recipe.recipe.name} {heatmap.recipe.dtype} at offset {heatmap.offset:,}"
    if heatmap.largest is None:
        seen = ~heatmap.hidden
        nonfinite, scores = int((seen & np.isnan(heatmap.drift)).sum()), int(seen.sum())
        return f"{who}: {nonfinite} of {scores} scores by query and key are nan or infinite in some head"
    value, head, query, key = heatmap.largest
    return f"{who}: the largest |drift| is {short(value)}, of query {query} and key {key} in head {head}"
