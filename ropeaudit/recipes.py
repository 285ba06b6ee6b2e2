"""Recipe: one number format per stage of the computation, as data.

Stages, in the order of the computation:
position, frequency, angle, trig, table, input, rotation, output, accumulate, score, softmax.
The named recipes stand in data/recipes.toml with their sources. A recipe is resolved against the
dtype under audit, which gives every stage its `Format`.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from ropeaudit import data
from ropeaudit.arithmetic import rounding
from ropeaudit.arithmetic.formats import FP32, FP64, Format, parse
from ropeaudit.arithmetic.rounding import ScaledFormat
from ropeaudit.errors import BadInput, NotEmulated, RopeAuditError, UnknownName, UsageError, parser_reason
from ropeaudit.rope.frequencies import FrequencyForm, check_form

STAGES = (
    "position",
    "frequency",
    "angle",
    "trig",
    "table",
    "input",
    "rotation",
    "output",
    "accumulate",
    "score",
    "softmax",
)
DEFAULT = ("hf", "uniform")  # what most deployed code does; and what putting every stage into the dtype does
KEYS = ("input", "output")  # stages at which keys may be stored with scales: before and after the rotation
_CHAINED = ("frequency", "angle")  # stages that may be computed in one format and stored in another
_OPTIONAL = ("table",)  # stages that an implementation may not have
_LEFT_OUT = {"softmax": "fp32"}  # stage -> what it is where a recipe does not say it
RotationRounding: TypeAlias = Literal["each", "once"]
# switch -> what it is where nothing is said of it
PLAIN: Mapping[str, str | bool] = {
    "frequency_form": "inverse_power",
    "rotation_rounding": "each",
    "scale_after_store": False,
}
_SWITCHES = tuple(PLAIN)
_LARGEST_FILE = 2**16  # bytes of a recipe file
_TEXTS = ("summary", "source", "note", "verified", "refused")


@dataclass(frozen=True, slots=True)
class Recipe:
    """A format name per stage (see data/recipes.toml for the words) and how it is computed.

    stages: stage -> format name, "computed/stored", or one of the words "model", "model32", "auto", "none",
    "accumulate".
    rotation_rounding: "each" rounds after every multiplication and addition of the rotation, "once" only at
    its end.
    scale_after_store: see data/recipes.toml.
    keys: the stage at which k is stored with scales, and how; None where it is not.
    refused: why NumPy arithmetic cannot reproduce the recipe; empty where it can.
    """

    name: str
    stages: Mapping[str, str] = field(hash=False)
    frequency_form: FrequencyForm = "inverse_power"
    rotation_rounding: RotationRounding = "each"
    scale_after_store: bool = False
    keys: tuple[str, ScaledFormat] | None = None
    summary: str = ""
    source: str = ""
    note: str = ""
    verified: str = ""
    refused: str = ""

    def changed(self, changes: Mapping[str, str]) -> Recipe:
        """Return this recipe with some stages or switches changed; the name says which.

        Raises: UnknownName, UsageError.

        >>> named("hf").changed({"angle": "fp64"}).name
        'hf[angle=fp64]'
        """
        if not changes:
            return self
        for key in changes:
            if key not in (*STAGES, *_SWITCHES):
                raise UnknownName("stage", key, (*STAGES, *_SWITCHES))
        table: dict[str, Any] = dict(changes)
        if "scale_after_store" in changes:
            said = changes["scale_after_store"]
            table["scale_after_store"] = {"true": True, "false": False}.get(said, said)
        label = " ".join(f"{key}={value}" for key, value in changes.items())
        return _from_table(f"{self.name}[{label}]", table, self)

    def resolve(self, dtype: Format, stores_keys: bool = False) -> Resolved:
        """Give every stage its format for a model in `dtype`. stores_keys: whether the caller does.

        Raises: NotEmulated if the recipe is one that NumPy cannot reproduce, UsageError.
        """
        if self.keys and not stores_keys:
            stage, how = self.keys
            raise UsageError(
                f"{stage}={how}: what keys with scales do is measured by `ropeaudit shift` and `parity`, in "
                f"NumPy; give {stage} a format without a scale here"
            )
        if self.refused:
            raise NotEmulated(
                f"recipe {self.name!r} cannot be emulated: {self.refused}; "
                f"`ropeaudit list recipes` shows those that can"
            )
        chains = {stage: _chain(stage, self.stages[stage], dtype) for stage in STAGES}
        formats: dict[str, Any] = {stage: chain[-1] if chain else None for stage, chain in chains.items()}
        formats |= {stage: (chains[stage][0], chains[stage][-1]) for stage in _CHAINED}
        wide = FP64 if formats["output"].precision > FP32.precision else FP32
        formats["accumulate"] = formats["accumulate"] or wide
        formats["score"] = formats["score"] or formats["accumulate"]
        return Resolved(recipe=self, dtype=dtype, **formats)


@dataclass(frozen=True, slots=True)
class Resolved:
    """A recipe in which every stage has its format: what an engine executes.

    frequency and angle are (computed, stored); table is None where there is none.
    """

    recipe: Recipe = field(repr=False, hash=False)
    dtype: Format
    position: Format
    frequency: tuple[Format, Format]
    angle: tuple[Format, Format]
    trig: Format
    table: Format | None
    input: Format
    rotation: Format
    output: Format
    accumulate: Format
    score: Format
    softmax: Format

    @property
    def narrowest(self) -> int:
        """The bits of the least precise stage that rounds at any position."""
        return min(fmt.precision for fmt in (self.rotation, self.output, self.accumulate, self.score))

    def stages(self) -> dict[str, str]:
        """Return stage -> format name, for people and for files."""
        formats = {stage: getattr(self, stage) for stage in STAGES}
        chains = {stage: one if isinstance(one, tuple) else (one,) for stage, one in formats.items()}
        names = {stage: [fmt.name if fmt else "none" for fmt in chain] for stage, chain in chains.items()}
        return {stage: "/".join(dict.fromkeys(each)) for stage, each in names.items()}

    def switches(self) -> dict[str, str]:
        """Return switch -> how it is set, of those that are not as in `PLAIN`."""
        results = {name: getattr(self.recipe, name) for name in _SWITCHES}
        keys = {"keys": ":".join(map(str, self.recipe.keys))} if self.recipe.keys else {}
        return {name: str(on).lower() for name, on in results.items() if on != PLAIN[name]} | keys


@functools.cache
def named(name: str) -> Recipe:
    """Return the recipe called `name`. Raises: UnknownName."""
    if name not in _texts():
        raise UnknownName("recipe", name, _texts(), "(or a path that ends in .toml)")
    return _from_table(name, tomllib.loads(_texts()[name])[name])


def all_recipes() -> list[Recipe]:
    """Return every named recipe, those that are refused included."""
    return [named(name) for name in _texts()]


def load(spec: str) -> Recipe:
    """Return a named recipe, or the one in a file whose name ends in .toml.

    A file has the keys of data/recipes.toml at its top level, and may name another recipe
    that it `extends`; what it leaves out is taken from there (by default from `hf`).
    Raises: UnknownName, BadInput.
    """
    if not spec.endswith(".toml"):
        return named(spec)
    path = Path(spec)
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST_FILE + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadInput(f"recipe file {spec!r}: {reason}; give a file that can be read") from None
    if len(text) > _LARGEST_FILE:
        raise BadInput(f"recipe file {spec!r} is larger than 64 KiB; a recipe is a few lines of TOML")
    try:
        table = tomllib.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"recipe file {spec!r} is not TOML: {parser_reason(error)}") from None
    try:
        parent = named(_string("extends", table.pop("extends", "hf")))
        name = _string("name", table.pop("name", path.stem))
        name = name if name.isprintable() else repr(name)[1:-1]
        return _from_table(name, table, replace(parent, source=spec, verified="", refused=""))
    except RopeAuditError as error:
        raise BadInput(f"recipe file {spec!r}: {error.typed}") from None


def parse_changes(items: Iterable[str]) -> dict[str, str]:
    """Read "stage=format" items, several to an item if separated by commas or spaces.

    Raises: UsageError.
    """
    changes = {}
    for item in [part for text in items for part in re.split(r"[,\s]+(?=\w+=)", text.strip())]:
        key, equals, value = item.partition("=")
        if not (equals and key.strip() and value.strip()):
            raise UsageError(f"--set {item!r} is not STAGE=FORMAT; try --set angle=fp64")
        changes[key.strip()] = value.strip()
    return changes


@functools.cache
def _texts() -> dict[str, str]:
    """Return name -> table of the library, unparsed, since parsing all of them is slow."""
    tables = re.split(r"^(?=\[)", data.text("recipes.toml"), flags=re.MULTILINE)[1:]
    return {text[1 : text.index("]")].strip('"'): text for text in tables}


def _from_table(name: str, table: Mapping[str, Any], parent: Recipe | None = None) -> Recipe:
    allowed = (*STAGES, *_SWITCHES, *_TEXTS)
    for key in table:
        if key not in allowed:
            raise UnknownName("stage", key, (*STAGES, *_SWITCHES))
    scaled = {stage: text for stage, text in table.items() if stage in KEYS and ":" in str(text)}
    table = {key: text for key, text in table.items() if key not in scaled}
    stages = dict(parent.stages if parent else _LEFT_OUT)
    stages |= {stage: _string(stage, table[stage]) for stage in STAGES if stage in table}
    for stage, text in stages.items():
        _chain(stage, text, FP32)
    rest = {key: table[key] for key in (*_SWITCHES, *_TEXTS) if key in table}
    check_form(_string("frequency_form", rest.get("frequency_form", "inverse_power")))
    how = rest.get("rotation_rounding", "each")
    if how not in get_args(RotationRounding):
        raise UnknownName("rotation_rounding", str(how), get_args(RotationRounding))
    if not isinstance(rest.get("scale_after_store", False), bool):
        raise UsageError(f"scale_after_store = {rest['scale_after_store']!r}: give true or false")
    for key in _TEXTS:
        _string(key, rest.get(key, ""))
    if len(scaled) > 1:
        raise UsageError("keys are stored with scales at one stage: give input or output, not both")
    for stage, text in scaled.items():
        rest["keys"] = stage, rounding.parse_scaled(_string(stage, text))
    if parent:
        return replace(parent, name=name, stages=stages, **rest)
    return Recipe(name, stages, **rest)


def _chain(stage: str, text: str, dtype: Format) -> tuple[Format, ...]:
    """Return the formats of one stage; empty for a stage that is absent or follows another."""
    follows = (text, stage) in (("auto", "accumulate"), ("accumulate", "score"))
    if follows or (text == "none" and stage in _OPTIONAL):
        return ()
    if ":" in text:
        raise UsageError(
            f"{stage} = {text!r}: k is stored with scales at {' or '.join(KEYS)}; try --set output={text}"
        )
    if text.strip().lower() in rounding.SCALED_ALONE:
        raise UsageError(
            f"{stage} = {text!r}: its codes are stored with scales alone, at {' or '.join(KEYS)}; "
            f"try --set output={text.strip()}:head"
        )
    parts = text.split("/")
    if len(parts) > (2 if stage in _CHAINED else 1):
        raise UsageError(f"{stage} = {text!r}: this stage takes one format, such as fp32")
    words = {"model": dtype, "model32": dtype if dtype.precision > FP32.precision else FP32}
    return tuple(words[part] if part in words else parse(part) for part in parts)


def _string(key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise UsageError(f'{key} = {value!r} is not text; put text in quotes, as in angle = "fp32"')
    return value
