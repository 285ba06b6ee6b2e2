"""Drift of every score of one case, by query and key."""

from __future__ import annotations

import numpy as np

from ropeaudit.features.plot import style
from ropeaudit.features.plot.heatmap_analysis import Heatmap
from ropeaudit.features.plot.style import Picture
from ropeaudit.reports.numbers import short


def draw(found: Heatmap) -> Picture:
    """Return the picture; hidden scores are white, those that are not finite red."""
    from matplotlib.colors import ListedColormap, LogNorm
    from matplotlib.patches import Patch

    title = _title(found)
    made, (axes,) = style.figure(title, height=6.4)
    shown = found.drift[~found.hidden & (found.drift > 0)]
    low, high = (float(shown.min()), float(shown.max())) if shown.size else (1.0, 1.0)
    low = max(low, high * 1e-4, float(np.percentile(shown, 2)) if shown.size else 0.0)
    visible = np.where(found.hidden | (found.drift <= low), low, found.drift)
    image = axes.imshow(
        np.ma.masked_array(visible, found.hidden | np.isnan(found.drift)),
        norm=LogNorm(low, max(high, low * 1.001)),
        cmap="cividis",
        interpolation="nearest",
    )
    lost = ~found.hidden & np.isnan(found.drift)
    if lost.any():
        axes.imshow(
            np.ma.masked_array(lost, ~lost), cmap=ListedColormap([style.RED]), interpolation="nearest"
        )
        axes.legend(
            handles=[Patch(color=style.RED, label="nan or infinite scores")], loc="upper right", fontsize=8
        )
    axes.grid(False)
    axes.set_xlabel("key n (index before the shift)")
    axes.set_ylabel("query m (index before the shift)")
    if shown.size:
        over = "|drift|" if found.heads == 1 else f"RMS drift over {found.heads} heads"
        made.colorbar(image, ax=axes, label=f"{over} (score units)", extend="min", shrink=0.85)
    return Picture(made, title)


def _title(found: Heatmap) -> str:
    who = f"{found.recipe.recipe.name} {found.recipe.dtype} at offset {found.offset:,}"
    if found.largest is None:
        seen = ~found.hidden
        lost = int((seen & np.isnan(found.drift)).sum())
        return f"{who}: {lost} of {int(seen.sum())} scores by query and key are nan or infinite in some head"
    value, head, query, key = found.largest
    return f"{who}: the largest |drift| is {short(value)}, of query {query} and key {key} in head {head}"
