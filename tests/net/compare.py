"""Compare rows as they were stored with rows as they are: names by `renamed.toml`, numbers as numbers.

Words, whole numbers and names of columns must be the same. A float may move by what another processor
changes: BLAS adds in an order of its own, so that sums in float32 and float64 move, and of narrower scores
those that lie beside a midpoint. What a search found may move by a fifth, what called code computed as well.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
Row = Mapping[str, Any]

# Columns that are not held: sentences; what a run, a file or an installed package is; digests of requests.
SENTENCES = {"detail", "headline", "meaning", "message", "notes", "reason", "remedy", "resembles", "unit"}
SENTENCES |= {"another_processor", "operations", "when", "where", "words"}
OF_A_RUN = {"case", "digest", "engine", "runs", "schema", "time", "torch", "used_by", "version"}
UNHELD = SENTENCES | OF_A_RUN
# Where the largest of several equals stands: a last digit decides. Held is whether there is one.
ANYWHERE = re.compile(r"worst_(head|query|key)|top1_flips|rotation_(side|batch|head|position|pair)|nearer")
SEARCHED = re.compile(
    r"(proved_|failure_|measured_)?margin|(proved|measured|bound)_up_to|first_failure(_seen)?|measured_offsets"
    r"|(proved|measured|failure)_position|evaluated|value_at_\w+"
)
OF_CODE = re.compile(r"rotation_excess|measured|allowed|differing|distance|equal|profile|max_error|rms_error")
SUMS = re.compile(
    r"(\w+_)?(drift|change|floor|parity|attention|entropy|weight|logit|part|alone|without|left|score|subject)"
    r"(_\w+)?|right_token|key_norm_growth|perplexity\w*|loss\w*"
    r"|worst|median"  # of a report: of drift
)
RATIOS = re.compile(r"excess|share|removed|[ab]_nearer|ratio|times_\w+|agree\w*|before|after|new|old")
OF_FLOAT64 = re.compile(r"(decode|structural)_\w+")  # sums that cancel
ORDERS = {"float64": 2.0**-50, "float32": 2.0**-20, "float16": 2.0**-20, "bfloat16": 2.0**-20}
SPACINGS = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
RELATIVE, EXACT, FIFTH, CANCELLED = 1e-5, 1e-9, 0.2, 1e-12


@dataclass(frozen=True)
class Renamed:
    """What `renamed.toml` says; `added` and `withdrawn` by command."""

    options: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)
    checks: Mapping[str, str] = field(default_factory=dict)
    codes: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, str] = field(default_factory=dict)
    api: Mapping[str, str] = field(default_factory=dict)
    added: Mapping[str, Sequence[str]] = field(default_factory=dict)
    withdrawn: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path = HERE / "renamed.toml") -> Renamed:
        """Read the file."""
        return cls(**tomllib.loads(path.read_text(encoding="utf-8")))

    def line(self, line: str) -> str:
        """Return a command line with the options that there are now."""
        for old, new in self.options.items():
            line = re.sub(rf"(?<!\S){re.escape(old)}(?!\S)", new, line)
        return line

    def row(self, row: Row) -> dict[str, Any]:
        return {self.columns.get(name, name): self.value(name, value) for name, value in row.items()}

    def value(self, column: str, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if column in ("check", "rule"):
            value = self.checks.get(value, value)
        if column in ("diagnosis", "code", "rule"):
            value = "".join(self.codes.get(part, part) for part in re.split(r"([+|])", value))
        return self.values.get(value, value)


def held(value: Any) -> Any:
    """Return a value as it is stored: text that is a number as one, nothing for an empty or undefined one."""
    if isinstance(value, str):
        value = value.strip()
        if value in ("True", "False"):
            return value == "True"
        if re.fullmatch(r"[-+]?\d+", value):
            return int(value)
        if re.fullmatch(r"[-+]?(\d+\.\d*|\d+(?=e)|\.\d+|inf|nan)(e[-+]?\d+)?", value, re.IGNORECASE):
            value = float(value)
    if value is None or value == "" or value != value:
        return None
    if isinstance(value, float):
        return float(f"{value:.10g}") if math.isfinite(value) else str(value)
    if isinstance(value, list | tuple):
        return held(" ".join(str(one) for one in value))
    return value


def differences(
    stored: Sequence[Row],
    seen: Sequence[Row],
    command: str,
    renamed: Renamed,
    key: str = "",
    dtype: str = "",
    unheld: Iterable[str] = (),
) -> list[str]:
    """Say what in rows is not as stored, by more than another processor explains.

    Values are `held` on both sides. key: the column that names a row, where rows may be added and withdrawn.
    dtype: of rows that name none. unheld: further columns that are not compared.
    """
    left_out = UNHELD | {renamed.columns.get(name, name) for name in unheld}
    old = [{n: v for n, v in renamed.row(row).items() if n not in left_out} for row in stored]
    new = [{n: v for n, v in row.items() if n not in left_out} for row in seen]
    added, withdrawn = renamed.added.get(command, ()), renamed.withdrawn.get(command, ())
    if key:
        old = [row for row in old if row[key] not in withdrawn]
        new = [row for row in new if row[key] not in added]
    if len(old) != len(new):
        return [f"{len(new)} rows instead of {len(old)}"]
    found = []
    for number, (before, after) in enumerate(zip(old, new, strict=True)):
        found += [f"row {number}: {text}" for text in unlike(before, after, added, withdrawn, dtype)]
    return found


def unlike(
    before: Row, after: Row, added: Sequence[str], withdrawn: Sequence[str], dtype: str = ""
) -> list[str]:
    """Say what differs between two rows."""
    found = [f"there is no {name}" for name in before if name not in after and name not in withdrawn]
    found += [f"{name} is new" for name in after if name not in before and name not in added]
    for name in before:
        if name not in after or name in withdrawn:
            continue
        old, new = before[name], after[name]
        if not alike(name, old, new, before, dtype):
            found.append(f"{name}: {new!r} instead of {old!r}")
    return found


def alike(name: str, old: Any, new: Any, row: Row, dtype: str = "") -> bool:
    """Return whether a value is as it was."""
    if old == new:
        return True
    if old is None or new is None:
        return False
    if ANYWHERE.fullmatch(name):
        return True
    if isinstance(old, bool | str) or isinstance(new, bool | str):
        return False
    return abs(float(new) - float(old)) <= allowance(name, old, new, row, dtype)


def allowance(name: str, old: float, new: float, row: Row, dtype: str = "") -> float:
    """Return by how much a number may move, from its column, and from the dtype and the scores of its row."""
    size = max(abs(old), abs(new))
    if SEARCHED.fullmatch(name) or OF_CODE.fullmatch(name):
        return FIFTH * size
    if isinstance(old, int) and isinstance(new, int):
        return 0.0
    if OF_FLOAT64.fullmatch(name):
        return EXACT * size + CANCELLED
    dtype = str(row.get("dtype") or dtype)
    if RATIOS.fullmatch(name):
        return (0.35 if dtype in ("float32", "float64") else 0.02) * size + 1e-3
    if SUMS.fullmatch(name) and dtype in ORDERS:
        scores = row.get("scores") or 136
        return RELATIVE * size + ORDERS[dtype] + 4 * SPACINGS.get(dtype, 0.0) / scores
    return (RELATIVE if SUMS.fullmatch(name) and dtype else EXACT) * size
