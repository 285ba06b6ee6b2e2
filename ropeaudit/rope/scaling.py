"""Scaling: how a model changes its frequencies to reach beyond its training length, as data.

The keys are those of a Hugging Face config under shorter names (`HF_NAMES`). `KINDS` lists the keys of each
kind; a key that a kind does not take is refused, never ignored.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ropeaudit import data
from ropeaudit.errors import UnknownName, UsageError
from ropeaudit.rope.scaling_names import parts_of


@dataclass(frozen=True, slots=True)
class Kind:
    """A row of data/scalings.toml: the keys of a kind, and its behaviour."""

    example: str
    needs: Sequence[str] = ()
    takes: Sequence[str] = ()
    rescales: bool = True
    blends: bool = False
    by_length: bool = False
    in_config: bool = True
    original_outside: bool = False
    original: str = ""
    declares_stretched: bool = False


KINDS = {name: Kind(**row) for name, row in data.table("scalings.toml").items()}
HF_NAMES = {
    "factor": "factor",
    "original_max_position_embeddings": "original",
    "max_position_embeddings": "maximum",
    "low_freq_factor": "low",
    "high_freq_factor": "high",
    "partial_rotary_factor": "fraction",
    "short_factor": "short",
    "long_factor": "long",
    **{name: name for name in ("beta_fast", "beta_slow", "truncate", "mscale", "mscale_all_dim")},
    "attention_factor": "attention_factor",
}
_LISTS = ("short", "long", "frequencies")


@dataclass(frozen=True, slots=True)
class Scaling:
    """A kind and its parameters; a parameter that the kind does not use is None.

    factor: how much longer. original, maximum: positions before and after the extension. fraction: of the
    pairs that are rotated at all (p-RoPE). low, high: llama3's wavelength factors. short, long: longrope's
    divisors, one per pair. frequencies: an explicit list, radians per token. attention_factor: multiplies cos
    and sin.
    Raises: UsageError, UnknownName.
    """

    kind: str = "default"
    factor: float | None = None
    original: float | None = None
    maximum: float | None = None
    fraction: float | None = None
    low: float | None = None
    high: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    truncate: bool | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    attention_factor: float | None = None
    short: tuple[float, ...] | None = None
    long: tuple[float, ...] | None = None
    frequencies: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UnknownName("scaling", self.kind, KINDS)
        check(self.kind, self.parameters(), f"scaling {self.kind}", {}, f"try {self.rules.example}")

    @property
    def rules(self) -> Kind:
        """The rules of its kind."""
        return KINDS[self.kind]

    @property
    def depends_on_length(self) -> bool:
        """Return whether the frequencies change with the number of positions."""
        return self.rules.by_length

    @property
    def stretch(self) -> float:
        """The factor, or maximum / original if it is not given, or 1."""
        if self.factor is not None:
            return self.factor
        if self.maximum is not None and self.original is not None:
            return self.maximum / self.original
        return 1.0

    @property
    def length_before(self) -> int | None:
        """The number of positions before the extension, or None."""
        length = getattr(self, self.rules.original) if self.rules.original else None
        return None if length is None else int(length)

    @property
    def reach(self) -> int | None:
        """The factor times the positions before the extension, or None."""
        before = self.length_before
        return None if before is None else min(round(self.stretch * before), 2**53)

    def length_for(self, positions: int) -> int:
        """Return a length that stands for all numbers of positions with the same frequencies.

        0 if frequencies do not depend on it; for longrope one length for each list of divisors.
        """
        if self.kind == "dynamic":
            return max(positions, int(self.maximum or 0))
        if self.kind == "longrope":
            original = int(self.original or 0)
            return original if positions <= original else original + 1
        return 0

    def parameters(self) -> dict[str, Any]:
        """Return the parameters that are given, by name."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "kind"}
        return {name: value for name, value in values.items() if value is not None}

    def __str__(self) -> str:
        """Return the text that `parse` reads: yarn(factor=4 original=32768)."""
        inner = " ".join(f"{name}={_text(value)}" for name, value in self.parameters().items())
        return f"{self.kind}({inner})" if inner else self.kind


def parse(text: str) -> Scaling:
    """Read "kind", "kind:key=value,..." or "kind(key=value ...)", lists separated by semicolons.

    Raises: UsageError, UnknownName. >>> parse("linear:factor=4").factor  ->  4.0
    """
    kind, inner = parts_of(text)
    if kind not in KINDS:
        raise UnknownName("scaling", kind, KINDS)
    values: dict[str, Any] = {}
    for item in inner:
        key, equals, value = item.partition("=")
        key = HF_NAMES.get(key.strip(), key.strip())
        if not equals or key not in {f.name for f in fields(Scaling)} - {"kind"}:
            keys = ", ".join((*KINDS[kind].needs, *KINDS[kind].takes)) or "nothing"
            raise UsageError(f"scaling {kind}: {item!r} is not KEY=VALUE with one of {keys}")
        if key == "truncate":
            if value not in ("true", "false"):
                raise UsageError(f"scaling {kind}: truncate is true or false")
            values[key] = value == "true"
            continue
        try:
            values[key] = tuple(map(float, value.split(";"))) if key in _LISTS else float(value)
        except ValueError:
            raise UsageError(f"scaling {kind}: {key}={value!r} is not a number") from None
    return Scaling(kind, **values)


def from_mapping(kind: str, values: Mapping[str, Any]) -> Scaling:
    """Return a scaling from JSON values. Raises: UsageError."""
    parameters = dict(values)
    for name, value in values.items():
        if isinstance(value, (list, tuple)):
            parameters[name] = tuple(float(one) if type(one) is int else one for one in value)
    return Scaling(kind, **parameters)


def check(
    kind: str,
    values: Mapping[str, Any],
    called: str,
    keys: Mapping[str, str],
    remedy: str,
) -> None:
    """Raise UsageError for parameters that are missing or not taken, and senseless values.

    called, keys: the scaling, and its parameters where they have other names, as messages call them. remedy:
    what to do where one is missing.
    """

    def listed(names: Iterable[str]) -> str:
        return ", ".join(keys.get(name, name) for name in names)

    rules = KINDS[kind]
    missing = [name for name in rules.needs if name not in values]
    if kind == "yarn" and "factor" not in values and "maximum" not in values:
        missing.append("factor")
    if foreign := [name for name in values if name not in (*rules.needs, *rules.takes)]:
        taken = listed((*rules.needs, *rules.takes)) or "nothing"
        raise UsageError(f"{called} takes no {listed(foreign)}; it takes {taken}")
    if missing:
        raise UsageError(f"{called} needs {listed(missing)}; {remedy}")
    for name, value in values.items():
        _check_value(f"{called}: {keys.get(name, name)}", kind, name, value)


def _check_value(called: str, kind: str, name: str, value: Any) -> None:
    """Raise UsageError for a value of a wrong type or without meaning in formulas."""
    where = f"{called} = {str(value)[:40]}"
    if name == "truncate":
        if not isinstance(value, bool):
            raise UsageError(f"{where} is not true or false")
        return
    values = value if name in _LISTS else (value,)
    if name in _LISTS and (not isinstance(value, tuple) or not value):
        raise UsageError(f"{where} is not a list of numbers")
    for place, number in enumerate(values):
        if name in _LISTS:
            where = f"{called}[{place}] = {str(number)[:40]}"
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not math.isfinite(number):
            raise UsageError(f"{where} is not a finite number")
        zero_allowed = name in ("fraction", "frequencies", "mscale", "mscale_all_dim")
        if number < 0 or (number < 1e-9 and not zero_allowed) or number > 1e18:
            raise UsageError(f"{where} is not a number above 0 that a model could have")
    if name == "fraction" and value > 1:
        raise UsageError(f"{where} is not between 0 and 1")
    if name == "factor" and kind != "proportional" and value < 1:
        raise UsageError(f"{where} is below 1, which would shorten the context")
    if name in ("original", "maximum") and (value < 2 or value != int(value)):
        raise UsageError(f"{where} is not a number of positions from 2 up")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ";".join(_text(item) for item in value)
    return repr(float(value)) if value != int(value) or abs(value) >= 1e15 else str(int(value))


DEFAULT = Scaling()
DECLARED = "max_position_embeddings"


@dataclass(frozen=True, slots=True)
class Served:
    """The number of positions that a setting serves, and its derivation.

    declared: max_position_embeddings, None if not given. scaling: of the model's layers the one that reaches
    furthest.
    Source: servers multiply alike, but never for llama3 and longrope (vLLM, ModelConfig, read 2025); a
    longrope model declares no less than its factor times its original length.
    """

    declared: int | None
    scaling: Scaling = DEFAULT

    @classmethod
    def of(cls, declared: int | None, scalings: Iterable[Scaling]) -> Served:
        """Return the range of a model whose layers have these scalings."""
        return cls(declared, max(scalings, key=lambda one: one.reach or 0, default=DEFAULT))

    @property
    def positions(self) -> int | None:
        """The number of positions; None if not given.

        The larger of declared length and factor x original. llama3's declared one counts alone if
        it is the stretched one: above the original length. Its factor divides frequencies, and is 32 in
        Llama 3.2, which serves 16 times its original length.
        """
        reach = self.scaling.reach
        if reach is None or self.declared is None:
            return self.declared if reach is None else reach
        before = self.scaling.length_before
        stretched = self.scaling.rules.declares_stretched and before is not None and self.declared > before
        return self.declared if stretched else max(self.declared, reach)

    @property
    def words(self) -> str:
        """The number of positions, with both candidates where there are two."""
        scaling = self.scaling
        declared = self.declared
        positions = self.positions
        reach = self.scaling.reach
        if positions is None:
            return "nothing says for how many positions"
        if not scaling.rules.original:
            return f"{positions:,} positions"
        factor = f"factor {scaling.stretch:g}"
        if reach is None:
            reason = f"{scaling.kind}'s {factor} is not multiplied, for no original length is given"
            return f"{positions:,} positions ({DECLARED}; {reason})"
        if scaling.rules.original == "maximum" and declared in (None, scaling.length_before):
            return f"{positions:,} positions ({factor} × {DECLARED} {scaling.length_before:,})"
        product = f"{factor} × original {scaling.length_before:,}"
        if declared is None:
            return f"{positions:,} positions ({product}; no {DECLARED})"
        if declared == reach:
            return f"{positions:,} positions ({DECLARED}, and {product})"
        if positions != declared:
            return f"{positions:,} positions ({product}; {DECLARED} {declared:,})"
        why = f", but {scaling.kind} declares the stretched length" if reach > positions else ""
        return f"{positions:,} positions ({DECLARED}; {product} = {reach:,}{why})"

    @property
    def disputed(self) -> bool:
        """Whether factor x original is known and differs from the declared length."""
        return self.scaling.reach is not None and self.scaling.reach != self.declared
