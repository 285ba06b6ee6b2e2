"""Write trust.json anew: python -m tests.net.record_trust. Exact numbers are computed apart."""

import json
import sys
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import ropeaudit

from . import trust

sys.path.insert(0, str(Path(__file__).parents[1] / "reference"))
RECIPES = Path(ropeaudit.__file__).parent / "data" / "recipes.toml"
SEQ_LEN = 6


def exact_drift(row: dict[str, Any]) -> float:
    """Return the largest drift of a recipe, by fractions and mpmath, from the text of the recipe alone."""
    import oracle

    rope = oracle.Rope(*(row[name] for name in ("head_dim", "rotary_dim", "base", "layout", "scale")))
    recipe = tomllib.loads(RECIPES.read_text(encoding="utf-8"))[row["recipe"]] | row["changes"]
    q, k = (trust.drawn(row["seed"] + more, row["heads"], SEQ_LEN, row["head_dim"]) for more in (0, 1000))
    found = oracle.audit(oracle.Model(recipe, row["dtype"], rope), q, k, row["offset"], causal=True)
    return float(found.columns["drift_max"])


def limits() -> list[dict[str, Any]]:
    """Return tolerances in the widest gaps between record highs, and the first offset that fails each."""
    rows = []
    for recipe, dtype in trust.LIMITS:
        records = list(ropeaudit.shift(range(trust.UP_TO), dtype, recipe, **trust.LIMIT))
        for column in trust.COLUMNS:
            values = [abs(getattr(record, column)) for record in records]
            highs = sorted({max(values[: i + 1]) for i in range(len(values))})
            gaps = [(low, high) for low, high in pairwise(highs) if low]
            late = [gap for gap in gaps if values.index(gap[1]) > trust.UP_TO // 10] or gaps
            low, high = max(late, key=lambda gap: gap[1] / gap[0])
            tolerance = float(f"{(low + high) / 2:.6g}")
            first = next(i for i, value in enumerate(values) if value > tolerance)
            rows.append(
                {"recipe": recipe, "dtype": dtype, "column": column, "tolerance": tolerance, "first": first}
            )
    return rows


def main() -> None:
    """Write scores, bounds and limits."""
    table = {
        "scores": [trust.exact_scores(row) for row in trust.scores()],
        "bounds": [exact_drift(row) for row in trust.bounds()],
        "limits": limits(),
    }
    trust.TABLE.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
