"""What the trust net asks for, drawn here, and the exact scores that are stored of it, by mpmath alone.

Nothing of ropeaudit is imported. q and k are whole numbers over 2^16, so that no file of theirs is needed.
Sources of the scalings: linear: arXiv 2306.15595; yarn: arXiv 2309.00071; longrope: arXiv 2402.13753;
llama3: Llama 3.1's reference code; dynamic: transformers; proportional: arXiv 2410.06205.
"""

from __future__ import annotations

import json
import math
import random
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from mpmath import mp, mpf

TABLE = Path(__file__).parent / "trust.json"
DIGITS = 60
Matrix: TypeAlias = list[list[list[float]]]  # heads x positions x dims

LISTS = {"short": [1 + i / 8 for i in range(8)], "long": [2 + i / 2 for i in range(8)]}
SCALINGS: list[dict[str, Any]] = [
    {"kind": "default"},
    {"kind": "linear", "factor": 3.7},
    {"kind": "dynamic", "factor": 4.0, "maximum": 2048},
    {"kind": "yarn", "factor": 40.0, "original": 4096},
    {"kind": "yarn", "factor": 40.0, "original": 4096, "mscale": 0.707, "mscale_all_dim": 1.0},
    {"kind": "yarn", "factor": 4.0, "original": 64, "truncate": False, "attention_factor": 1.25},
    {"kind": "llama3", "factor": 8.0, "low": 1.0, "high": 4.0, "original": 64},
    {"kind": "longrope", "factor": 4.0, "original": 1024, **LISTS},
    {"kind": "proportional", "fraction": 0.25, "factor": 2.0},
    {"kind": "explicit", "frequencies": [2.0**-i + 2.0**-50 for i in range(8)]},
]
DISTANCES = (1, -77, 4095, -(2**24 + 1), 2**33 + 12345, 2**40)


def scores() -> list[dict[str, Any]]:
    """Return the 60 settings of which one exact score is stored: every scaling at every distance."""
    rows = []
    for which, scaling in enumerate(SCALINGS):
        for place, distance in enumerate(DISTANCES):
            number = which * len(DISTANCES) + place
            head_dim, rotary_dim = ((16, 16), (20, 16), (32, 16))[number % 3]
            rows.append(
                {
                    "scaling": scaling,
                    "distance": distance,
                    "head_dim": head_dim,
                    "rotary_dim": rotary_dim,
                    "base": (1e4, 5e5, 12345.5)[place % 3],
                    "layout": ("half", "interleaved")[(which + place) % 2],
                    "scale": (0.25, 1 / math.sqrt(head_dim))[place % 2],
                    "length": (16, 5000)[place // 3],
                    "heads": 1 + number % 4,
                    "seed": number,
                }
            )
    return rows


def drawn(seed: int, heads: int, count: int, dims: int) -> Matrix:
    """Return vectors of numbers below 4 with 18 bits."""
    draw = random.Random(seed)
    return [
        [[draw.randrange(-(2**18), 2**18) / 2**16 for _ in range(dims)] for _ in range(count)]
        for _ in range(heads)
    ]


def text_of(scaling: Mapping[str, Any]) -> str:
    """Return a scaling as options spell it."""
    given = {key: value for key, value in scaling.items() if key != "kind"}
    for key, value in given.items():
        if isinstance(value, list):
            given[key] = ";".join(map(repr, value))
        elif isinstance(value, bool):
            given[key] = str(value).lower()
    words = ",".join(f"{key}={value}" for key, value in given.items())
    return scaling["kind"] + (f":{words}" if words else "")


def exact_scores(row: Mapping[str, Any]) -> list[str]:
    """Return the score of q at a distance from k, head by head, in 60 digits."""
    with mp.workdps(DIGITS + 40):
        theta, factor = _frequencies(row), _attention_factor(row["scaling"])
        pairs, results = row["rotary_dim"] // 2, []
        vectors = drawn(row["seed"], row["heads"], 2, row["head_dim"])
        for q, k in vectors:
            total = mp.fsum(mpf(q[j]) * mpf(k[j]) for j in range(row["rotary_dim"], row["head_dim"]))
            for i in range(pairs):
                at = (2 * i, 2 * i + 1) if row["layout"] == "interleaved" else (i, i + pairs)
                turned = mp.mpc(*(q[j] for j in at)) * mp.conj(mp.mpc(*(k[j] for j in at)))
                total += factor**2 * (turned * mp.expj(row["distance"] * theta[i])).real
            results.append(mp.nstr(total * mpf(row["scale"]), DIGITS))
        return results


def _frequencies(row: Mapping[str, Any]) -> list[Any]:
    """Return radians per token of every pair."""
    scaling, d, base = row["scaling"], row["rotary_dim"], mpf(row["base"])
    kind, factor = scaling["kind"], mpf(scaling.get("factor", 1))
    if kind == "explicit":
        return [mpf(value) for value in scaling["frequencies"]]
    if kind == "dynamic":
        maximum = mpf(scaling["maximum"])
        length = max(mpf(row["length"]), maximum)
        base *= (factor * length / maximum - (factor - 1)) ** (mpf(d) / (d - 2))
    theta = [base ** (-mpf(2 * i) / d) for i in range(d // 2)]
    if kind == "linear":
        return [one / factor for one in theta]
    if kind == "proportional":
        kept = int(scaling["fraction"] * d // 2)
        return [one / factor if i < kept else mpf(0) for i, one in enumerate(theta)]
    if kind == "longrope":
        divisors = scaling["long"] if row["length"] > scaling["original"] else scaling["short"]
        return [one / mpf(divisor) for one, divisor in zip(theta, divisors, strict=True)]
    if kind == "yarn":
        low, high = (d * mp.log(scaling["original"] / (2 * mp.pi * n)) / (2 * mp.log(base)) for n in (32, 1))
        if scaling.get("truncate", True):
            low, high = mp.floor(low), mp.ceil(high)
        low, high = max(low, mpf(0)), min(high, mpf(d - 1))
        ramp = [min(max((i - low) / (high - low), mpf(0)), mpf(1)) for i in range(d // 2)]
        return [one * (1 - weight) + one / factor * weight for one, weight in zip(theta, ramp, strict=True)]
    if kind == "llama3":
        turns = [scaling["original"] * one / (2 * mp.pi) for one in theta]
        low, high = scaling["low"], scaling["high"]
        kept = [min(max((one - low) / mpf(high - low), mpf(0)), mpf(1)) for one in turns]
        return [one * weight + one / factor * (1 - weight) for one, weight in zip(theta, kept, strict=True)]
    return theta


def _attention_factor(scaling: Mapping[str, Any]) -> Any:
    """Return what multiplies cos and sin."""
    if "attention_factor" in scaling:
        return mpf(scaling["attention_factor"])
    log = mp.log(mpf(scaling.get("factor", 1)))
    if scaling["kind"] == "longrope":
        return mp.sqrt(1 + log / mp.log(scaling["original"]))
    if scaling["kind"] == "yarn":
        over, under = scaling.get("mscale", 1.0), scaling.get("mscale_all_dim", 0.0)
        return (1 + mpf(over) * log / 10) / (1 + mpf(under) * log / 10)
    return mpf(1)


def bounds() -> list[dict[str, Any]]:
    """Return the 40 audits of which a bound and the exact drift are stored."""
    rows = []
    given = TABLE.with_suffix(".toml").read_text(encoding="utf-8")
    for recipe, dtypes, changes in tomllib.loads(given)["bounds"]:
        for dtype in dtypes:
            for offset in (0, 1000):
                number = len(rows)
                rows.append(
                    {
                        "recipe": recipe,
                        "dtype": dtype,
                        "changes": changes,
                        "offset": offset if number % 4 else 131072 * (dtype != "fp16"),
                        "head_dim": (8, 12)[number // 2 % 2],
                        "rotary_dim": 8,
                        "base": (1e4, 5e5)[number // 4 % 2],
                        "layout": ("half", "interleaved")[number // 8 % 2],
                        "scale": 0.3,
                        "heads": 1 + number % 2,
                        "seed": 100 + number,
                    }
                )
    return rows


LIMIT = {"heads": 1, "seq_len": 8, "head_dim": 32}
UP_TO = 400  # offsets that brute force measures
LIMITS = (("uniform", "fp16"), ("hf", "fp16"), ("hf", "bf16"))
COLUMNS = ("drift_rms", "drift_max", "drift_relative", "change_max")


def stored() -> dict[str, Any]:
    """Return the table: scores, bounds and limits."""
    found: dict[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))
    return found
