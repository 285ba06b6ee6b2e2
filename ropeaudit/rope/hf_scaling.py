"""Read the scaling out of the RoPE parameters of a config.json; what is wrong is said in its own keys.

The rules are those of `ropeaudit.rope.scaling`, whose errors speak of what is typed after --scaling.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ropeaudit.errors import BadInput, UsageError
from ropeaudit.rope import hf_json, hf_models, scaling
from ropeaudit.rope.hf_json import Config, count, flag, number, shown
from ropeaudit.rope.scaling import HF_NAMES, KINDS, Scaling

_KINDS = tuple(name for name, rules in KINDS.items() if rules.in_config)
_LEGACY = {"su": "longrope", "mrope": "default"}
_KEYS = {name: key for key, name in HF_NAMES.items()}  # of parameters, as the file calls them
_OUTSIDE = ("maximum", "fraction")  # not read in the RoPE parameters, or not as one of the scaling's own


def kind_of(rope: Config) -> str:
    """Return the kind of scaling that RoPE parameters name, "default" where none. Raises: BadInput."""
    names = [rope[key] for key in ("rope_type", "type") if rope.get(key) is not None]
    named = next((key for key in ("rope_type", "type") if key in rope), "")
    if named and rope[named] is None:  # transformers asks for "type" where there is no "rope_type"
        raise BadInput(f"{named} = null names no scaling; leave it out, or give one of {', '.join(_KINDS)}")
    kinds = [_LEGACY.get(name, name) if isinstance(name, str) else name for name in names]
    for kind in kinds:
        if kind not in _KINDS:
            known = ", ".join((*_KINDS, *_LEGACY))
            raise BadInput(f"rope_type = {shown(kind)} is not understood; known: {known}")
    if len(set(kinds)) > 1:
        raise BadInput(f"rope_type = {shown(names[0])} and type = {shown(names[1])} differ; keep one")
    return str(kinds[0]) if kinds else "default"


def check_runs(kind: str, model: str) -> None:
    """Raise BadInput for a scaling that the code of a model type does not load with."""
    taken = hf_models.SCALINGS.get(model)
    if taken is not None and kind not in ("default", *taken):
        others = "no scaling that is known here" if not taken else f"no scaling but {', '.join(taken)}"
        raise BadInput(
            f"rope_type = {shown(kind)} is refused by the code of {model}, which loads with {others}"
        )


def scaling_of(config: Config, rope: Config, fraction: float | None, pairs: int) -> Scaling:
    """Return the scaling that RoPE parameters say, some of it outside them. Raises: BadInput.

    fraction: of the dims that are rotated, None where it is not given. pairs: of those.
    """
    kind = kind_of(rope)
    rules, values = KINDS[kind], dict[str, Any]()
    for key, name in HF_NAMES.items():
        if rope.get(key) is not None and name not in _OUTSIDE:
            values[name] = flag(rope, key) if name == "truncate" else hf_json.numbers(key, rope[key])
    if kind == "yarn" and "truncate" in rope:
        values["truncate"] = bool(rope["truncate"])  # null is taken for false
    if kind == "proportional":
        values["fraction"] = 1.0 if fraction is None else fraction
    outside, maximum = config.get(_KEYS["original"]), count(config, hf_json.POSITIONS, 2**53)
    last = config if _KEYS["original"] in config else rope
    if rules.original_outside and last.get(_KEYS["original"], outside) is None and _KEYS["original"] in last:
        raise BadInput(f"{_KEYS['original']} = null is not a number; give the length before the extension")
    if rules.original_outside and outside is not None:  # Phi-3; it has the last word there
        values["original"] = number(_KEYS["original"], outside)
    if kind == "linear" and outside is not None:  # no frequency is of it, but the range
        values.setdefault("original", number(_KEYS["original"], outside))
    if kind == "yarn" and maximum is not None:
        values.setdefault("original", maximum)
    if maximum is not None and (
        "maximum" in rules.needs or ("maximum" in rules.takes and "factor" not in values)
    ):
        values["maximum"] = maximum
    _check_names(config, rope, kind, values)
    _check_values(kind, values, pairs)
    return scaling.from_mapping(kind, values)


def _check_names(config: Config, rope: Config, kind: str, values: Mapping[str, Any]) -> None:
    """Raise BadInput for parameters that the kind does not have, and for those that it needs and lacks."""
    rules = KINDS[kind]
    named = next((rope[key] for key in ("rope_type", "type") if rope.get(key) is not None), None)
    inside = next((key for key in hf_json.DICTS if config.get(key)), hf_json.DICTS[-1])
    foreign = [name for name in values if name not in (*rules.needs, *rules.takes)]
    if foreign and named is None:
        fitting = [f'"rope_type": "{one}"' for one in _fitting(config, values)]
        remedy = f"add {' or '.join(fitting)}, whichever is meant" if len(fitting) > 1 else ""
        remedy = remedy or (f"add {fitting[0]}" if fitting else "no type takes all of them")
        raise BadInput(
            f"rope_type is missing, so {inside} is read as default, which takes no {_listed(foreign)}; "
            f"{remedy}"
        )
    if foreign:
        taken = _listed(name for name in (*rules.needs, *rules.takes) if name not in _OUTSIDE)
        raise BadInput(f"rope_type {named} takes no {_listed(foreign)}; it takes {taken or 'nothing'}")
    missing = [name for name in rules.needs if name not in values]
    if kind == "yarn" and "factor" not in values and ("factor" not in rope or "maximum" not in values):
        missing.append("factor")  # of null transformers makes the ratio of the lengths
    if missing:
        where = "the config" if set(missing) <= {"maximum"} else inside
        it = "it" if len(missing) == 1 else "them"
        raise BadInput(f"rope_type {named} needs {_listed(missing)}; add {it} to {where}")


def _fitting(config: Config, values: Mapping[str, Any]) -> list[str]:
    """Return the types that take all of some parameters; of those the ones that need no more, if any do."""
    taking = [kind for kind in _KINDS if values.keys() <= {*KINDS[kind].needs, *KINDS[kind].takes}]
    given = {*values, *_OUTSIDE, *(["original"] if config.get(_KEYS["original"]) is not None else [])}

    def complete(kind: str) -> bool:
        return set(KINDS[kind].needs) <= given | ({"original"} if kind == "yarn" else set())

    return [kind for kind in taking if complete(kind)] or taking


def _check_values(kind: str, values: Mapping[str, Any], pairs: int) -> None:
    """Raise BadInput for values for which the formulas mean nothing."""
    for name, value in values.items():
        try:
            scaling.check_value(_KEYS[name], kind, name, value)
        except UsageError as error:
            raise BadInput(error.typed) from None
        if name in ("short", "long") and len(value) != pairs:
            raise BadInput(
                f"{_KEYS[name]} has {len(value)} elements and there are {pairs} pairs; give one per pair"
            )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(_KEYS[name] for name in names)
