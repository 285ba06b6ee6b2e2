"""Tables that were damaged are named, and those beside them that are right stay so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from command_line import ran
from safetensors.numpy import save_file

import ropeaudit
from ropeaudit.recognition.diagnosis import codes

Array = np.ndarray[Any, Any]
BASE, PAIRS, ROWS = 500000.0, 32, 512
ROW, COLUMN = 217, 5
THETA = BASE ** (-np.arange(PAIRS) / PAIRS)
BOTH, COS, SIN = ("cos", "sin"), ("cos",), ("sin",)


@dataclass(frozen=True)
class Damage:
    """What was done to tables: the codes of which one must be named, and the sides that are off.

    entries: those that the finding must name. guessed: the codes where no base is given, if others.
    """

    change: Callable[[Array, Array], tuple[Array, Array]]
    codes: tuple[str, ...]
    sides: tuple[str, ...] = BOTH
    entries: tuple[int, ...] = ()
    guessed: tuple[str, ...] = ()


def tables(positions: Array | None = None, theta: Array = THETA) -> tuple[Array, Array]:
    """Return cos and sin in float32, of positions from 0. Shapes: -> (n, d), (n, d)."""
    at = np.arange(ROWS) if positions is None else positions
    angles = np.tile(at[:, None] * theta, 2)
    return np.cos(angles).astype("f4"), np.sin(angles).astype("f4")


def _set(part: Array, where: Any, values: Any) -> Array:
    changed = part.copy()
    changed[where] = values
    return changed


def _pair(column: int) -> list[int]:
    return [column, column + PAIRS]


def _narrow(part: Array, fmt: Any) -> Array:
    return part.astype(fmt).astype("f4")


_ALL = slice(None)
_PAIR = (_ALL, _pair(COLUMN))
_OTHER = (_ALL, _pair(COLUMN + 1))
_NOISE = np.random.default_rng(1).uniform(-1, 1, 2 * PAIRS).astype("f4")
_CODES = ("entries-off",)
DAMAGES = {
    "row of cos": Damage(lambda c, s: (_set(c, ROW, c[12]), s), _CODES, COS, (ROW,)),
    "row of sin": Damage(lambda c, s: (c, _set(s, ROW, _NOISE)), _CODES, SIN, (ROW,)),
    "row of both": Damage(lambda c, s: (_set(c, ROW, c[12]), _set(s, ROW, s[12])), _CODES, BOTH, (ROW,)),
    "column of cos": Damage(lambda c, s: (_set(c, _PAIR, c[_OTHER]), s), _CODES, COS, (COLUMN,)),
    "column of both": Damage(
        lambda c, s: (_set(c, _PAIR, c[_OTHER]), _set(s, _PAIR, s[_OTHER])), _CODES, BOTH, (COLUMN,)
    ),
    "sign": Damage(lambda c, s: (c, -s), ("wrong-direction",), SIN),
    "sign of a column": Damage(lambda c, s: (c, _set(s, _PAIR, -s[_PAIR])), _CODES, SIN, (COLUMN,)),
    "swapped": Damage(lambda c, s: (s, c), ("cos-sin-swapped",)),
    "shifted by one": Damage(lambda c, s: tables(np.arange(ROWS) + 1), ("positions-off",)),
    "sin rolled by one": Damage(lambda c, s: (c, np.roll(s, -1, 0)), ("positions-off",), SIN),
    "half of cos": Damage(
        lambda c, s: (_narrow(c, ml_dtypes.bfloat16), s), ("narrow-table", "buffer-cast"), COS
    ),
    "half of sin": Damage(lambda c, s: (c, _narrow(s, "f2")), ("narrow-table", "buffer-cast"), SIN),
    "transposed": Damage(lambda c, s: (c.T.copy(), s.T.copy()), ("axes-order",)),
    "another base, and cast": Damage(
        lambda c, s: tuple(
            _narrow(one, ml_dtypes.bfloat16) for one in tables(theta=10000.0 ** (-np.arange(PAIRS) / PAIRS))
        ),
        ("wrong-base",),
        guessed=("narrow-table",),
    ),
    "two rows exchanged": Damage(
        lambda c, s: (_set(c, [40, 300], c[[300, 40]]), _set(s, [40, 300], s[[300, 40]])),
        _CODES,
        BOTH,
        (40, 300),
    ),
}


def written(folder: Path, cos: Array, sin: Array) -> tuple[str, dict[str, str]]:
    """Write tables to a checkpoint; return its path, and what each of its buffers should be."""
    names = {f"model.layers.0.rotary_emb.{side}_cached": side for side in BOTH}
    held = dict(zip(names, (np.ascontiguousarray(cos), np.ascontiguousarray(sin)), strict=True))
    save_file({**held, "w": np.ones((8, 8), "f4")}, folder / "model.safetensors")
    return str(folder / "model.safetensors"), names


@pytest.mark.parametrize("name", DAMAGES)
def test_what_was_damaged_is_named_and_nothing_else_blamed(name, tmp_path) -> None:
    """What is that of a base at other positions is named, and without a base it is not judged."""
    damage = DAMAGES[name]
    spec, names = written(tmp_path, *damage.change(*tables()))
    for base in (BASE, None):
        audit = ropeaudit.module(spec, base=base)
        assert audit.wrong or not (base or audit.judged)
        assert {one.stored.name: one.what for one in audit.buffers} == names
        for one in audit.buffers:
            side = names[one.stored.name]
            if side not in damage.sides:
                assert (codes(one.diagnosis), one.agrees is False) == ("", False), one.finding
                continue
            found = one.diagnosis if one.wrong else one.table and one.table.diagnosis
            expected = damage.codes if base else damage.guessed or damage.codes
            assert set(codes(found).split("+")) & set(expected), one.finding
            assert not damage.entries or tuple(found.values["entries"]) == damage.entries


@pytest.mark.parametrize("base", [BASE, None])
def test_right_tables_stay_right(base, tmp_path) -> None:
    spec, names = written(tmp_path, *tables())
    audit = ropeaudit.module(spec, base=base)
    assert {one.stored.name: one.what for one in audit.buffers} == names
    assert (audit.wrong, audit.judged) == (False, True)
    assert {one.agrees for one in audit.buffers} == {True if base else None}


def test_a_table_of_other_positions_is_not_judged_without_a_base(tmp_path, capsys) -> None:
    spec, _ = written(tmp_path, *DAMAGES["shifted by one"].change(*tables()))
    said = ran(capsys, ["module", spec], 1).out
    assert "nothing was judged" in said
    assert "assumed         base 500000, positions +1, from the values" in said
    assert "--config, --model or --base says what is right" in said
