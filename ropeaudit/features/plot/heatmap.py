"""Drift of every score of one case, by query and key."""

from __future__ import annotations

import numpy as np

from ropeaudit.features.plot import style
from ropeaudit.features.plot.heatmap_analysis import Heatmap
from ropeaudit.features.plot.style import Picture
from ropeaudit.reports.numbers import short


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
