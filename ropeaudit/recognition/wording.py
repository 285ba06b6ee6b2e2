"""The wording of diagnoses in English: the fault, its place, and what to change.

No other file writes these sentences, and none reads them: code reads a diagnosis's code and values.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ropeaudit.arithmetic.formats import FP32, FP64, Format, parse
from ropeaudit.recognition.diagnosis import STAGE_CODES, Diagnosis, Value, Where, kinds

if TYPE_CHECKING:
    from ropeaudit.recognition.check import TableFinding

_MOST = 3  # equals that are listed
_FORMS = {"recurrence": "angles by recurrence", "divide": "positions divided"}
_KEPT = {*STAGE_CODES.values(), "known-recipe"}  # of stages to be widened
_PAIRED = {"half": "2i and 2i + 1", "interleaved": "i and i + d/2"}  # layout -> the dims of the other one
_RAMPS = {"inverted": "inverted", "short": "ended at the last pair"}  # what was made of YaRN's
_BUFFER = " (inv_freq; casting a module casts its buffers)"


def sentence(diagnosis: Diagnosis | None) -> str:
    """Return a diagnosis as a sentence, with its alternatives; empty for None."""
    if diagnosis is None:
        return ""
    texts = list(dict.fromkeys(map(_with_parts, (diagnosis, *diagnosis.alternatives))))
    more = len(texts) - _MOST
    named = texts[:_MOST] if more <= 0 else [*texts[:_MOST], f"{more} fault{'s' * (more > 1)} more"]
    alone = not any(one.where.sides for one in diagnosis.also)
    where = _where(diagnosis.where, alone=alone, explains=diagnosis.explains)
    what = " or ".join(named)
    if diagnosis.where.since is not None:
        first, since = diagnosis.where.until, diagnosis.where.since
        what = f"positions {first} to {since - 1} are right, from {since} on {what}"
    begin = ": ".join(filter(None, [where, what]))
    at = diagnosis.where.offset
    return begin if at is None else f"{begin} (at offset {at})"


def remedy(diagnosis: Diagnosis | None, dtype: Format, up_to: int) -> str:
    """Return the change that mends a fault; empty if unknown, or if alternatives need others.

    up_to: the number of positions that the code must serve.
    """
    if diagnosis is None:
        return ""
    if diagnosis.where.since is not None:
        return "see what changes at that position: another table, another branch, a limit"
    wide = FP64 if up_to > FP32.first_inexact_integer else FP32
    texts = set[str]()
    for whole in (diagnosis, *diagnosis.alternatives):
        told = (_remedy_text(one, dtype, wide) for one in whole.parts())
        texts.add("; ".join(dict.fromkeys(filter(None, told))))
    return texts.pop() if len(texts) == 1 else ""


def option(diagnosis: Diagnosis | None) -> str:
    """Return the option that makes the result right; empty if there is none."""
    if diagnosis is None or diagnosis.where.since is not None:
        return ""
    texts = set[str]()  # of equals
    for one in (diagnosis, *diagnosis.alternatives):
        parts = list(one.parts())
        told = [kinds()[part.code].option.format_map(_text_values(part)) for part in parts]
        whole = all(told) and all(part.where == Where(gradient=part.where.gradient) for part in parts)
        texts.add(" ".join(told) if whole else "")
    return texts.pop() if len(texts) == 1 else ""


def template(text: str) -> str:
    """Return a text of diagnoses.toml with <name> for each of its values.

    >>> template("nan or inf{more}"), template("base {base:.8g} instead of {asked:.8g}")
    ('nan or inf', 'base <base> instead of <asked>')
    """
    named = ((before, name) for before, name, _, _ in string.Formatter().parse(text))
    words = {None: "", "more": "", "narrow": "what is narrow", "wide": "a wider format"}
    return "".join(before + words.get(name, f"<{name}>") for before, name in named)


def arithmetic(values: Mapping[str, Any]) -> str:
    """Describe a recipe's arithmetic: the stages that round before and after cos and sin, and its names.

    values: those of `known_recipes.RecipeGroup`.
    """
    parts = []
    wide = _format_of_stage(values, "angle") is FP64  # made of numbers as wide
    computed = _format_of_stage(values, "computed")
    for stage in ("position", "frequency", "angle"):
        if stage == "frequency" and computed.precision < FP32.precision:
            parts.append(f"frequencies computed in {computed}")
            continue
        if wide and stage != "angle" and _format_of_stage(values, stage) is FP64:
            continue
        if _format_of_stage(values, stage).precision != FP32.precision:
            parts.append(f"{values[stage]} {_stage_words(stage)}")
    if _format_of_stage(values, "frequency") is FP32 and computed.precision > FP32.precision:
        parts.append(f"frequencies computed in {computed}")
    form = str(values.get("form", "inverse_power"))
    if form != "inverse_power":
        parts.append(_FORMS.get(form, f"frequencies by {form}"))
    table, rotation = _format_of_stage(values, "table"), _format_of_stage(values, "rotation")
    if table.precision < FP32.precision:
        parts.append("rounded table" if values["table"] == values.get("dtype") else f"{table} table")
    elif table is FP32 and rotation.precision > FP32.precision:
        parts.append("float32 table")
    if "rotation" in values:  # a table alone is not rotated with
        parts.append(f"{rotation} rotation" + (" rounded once" if values["rounding"] == "once" else ""))
    words = ", ".join(parts)
    return f"{words} ({', '.join(recipes)})" if (recipes := values["recipes"]) else words


def _with_parts(diagnosis: Diagnosis) -> str:
    """Return a diagnosis and its further faults in words."""
    texts = [_clause(diagnosis)]
    for one in diagnosis.also:
        if where := _where(one.where, alone=False):
            texts.append(f"{where}: {_with_parts(one)}")
        else:
            texts[-1] += f" and {_with_parts(one)}"
    return "; ".join(texts)


def _clause(one: Diagnosis) -> str:
    kind, gradient = kinds()[one.code], one.where.gradient
    template = kind.gradient if gradient and kind.gradient else kind.sentence
    template = kind.metadata if kind.metadata and "asked" in one.values else template
    stages = arithmetic(one.values) if "{stages" in template else ""
    text = template.format_map(_text_values(one) | {"stages": stages})
    if gradient and not kind.gradient and kind.group in ("setting", "positions", "precision"):
        text = f"the gradient is that of {text}"
    return f"{text}, which does not explain every call" if one.certainty == "in this call" else text


def _text_values(one: Diagnosis) -> dict[str, Any]:
    named: dict[str, Any] = {
        name: _short_list(value) if isinstance(value, tuple) and value else value
        for name, value in one.values.items()
    }
    if "layout" in named:
        named["pairing"] = _PAIRED[named["layout"]]
    if one.code in ("missing-scaling", "other-scaling"):
        named |= {side: _scaling_words(one.values, side) for side in ("seen", "asked") if side in named}
    return named | {"more": _addition(one)}


def _scaling_words(values: Mapping[str, Value], side: str) -> str:
    """Return the words for the expected ("asked") or the found ("seen") scaling."""
    if f"{side}_divisors" in values:
        return f"the {values[f'{side}_divisors']} divisors"
    name = "no scaling" if values[side] == "default" else str(values[side])
    ramp = _RAMPS.get(str(values.get(f"{side}_ramp")))
    return f"{name} with its ramp {ramp}" if ramp else name


def _addition(one: Diagnosis) -> str:
    """Return a clause that some sentences add: the likely cause, a format or recipes."""
    values: Mapping[str, Any] = one.values
    if "held" in values:
        return f", and every number of it is a {values['held']} number"
    if one.code == "nonfinite" and "recipes" in values:
        return f", as {', '.join(values['recipes'])}"
    if one.code == "attention-factor":
        if values["seen"] == 1:
            return ", as where it is left out"
        if f"{values['seen']:.6g}" == f"{values['asked'] ** 2:.6g}":
            return ", as where it is applied twice"
    return ""


def _short_list(values: tuple[Any, ...]) -> str:
    """Return numbers, or names, in a few words."""
    if isinstance(values[0], int):
        return runs(values)
    return (" and " if len(values) == 2 else ", ").join(values)


def _where(where: Where, *, alone: bool, explains: bool = True) -> str:
    """Return the place of a diagnosis in words; empty if it is about all of q and k.

    alone: whether to say "alone" of a single side. explains: whether to say it of other parts.
    """
    parts, only = [], " alone" if explains else ""
    if where.layers:
        parts.append(f"layer{'s' * (len(where.layers) > 1)} {runs(where.layers)}")
    if where.sides:
        parts.append(" and ".join(where.sides) + (only if alone and len(where.sides) == 1 else ""))
    if where.batch:
        parts.append(f"batch element {runs(where.batch)}{only}")
    if where.heads:
        parts.append(f"head {runs(where.heads)} of {where.of_heads}{only}")
    if where.position is not None:
        parts.append(f"position {where.position}{only}")
    if where.pair is not None:
        parts.append(f"pair {where.pair}{only}")
    if where.unrotated:
        parts.append("dims that are not rotated")
    return ", ".join(parts)


def runs(numbers: Sequence[int]) -> str:
    """Return numbers in a few words, such as "0, 2 to 5"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def _remedy_text(one: Diagnosis, dtype: Format, wide: Format) -> str:
    """Return the remedy. wide: the format of positions, frequencies and angles."""
    values = _text_values(one)
    if one.code in _KEPT:
        if dtype is FP64:
            return "compute positions, frequencies, angles, cos and sin and the rotation in float64"
        values |= {"narrow": _narrow_stages(one.values, dtype, wide), "wide": str(wide)}
        if not values["narrow"]:
            return ""
    kind = kinds()[one.code]
    told = kind.gradient_remedy if one.where.gradient and kind.gradient_remedy else kind.remedy
    return told.format_map(values)


def _narrow_stages(values: Mapping[str, Value], dtype: Format, wide: Format) -> str:
    names = []
    for stage in [one for one in STAGE_CODES if one != "computed"]:
        most = dtype if stage in ("table", "rotation") else wide
        seen = _format_of_stage(values, stage)
        if stage == "frequency":
            seen = min(seen, _format_of_stage(values, "computed"), key=lambda fmt: fmt.precision)
        if seen.precision < min(most.precision, FP32.precision):
            names.append(_stage_words(stage) + (_BUFFER if stage == "frequency" else ""))
    return " and ".join([*([", ".join(names[:-1])] if len(names) > 1 else []), *names[-1:]])


def _stage_words(stage: str) -> str:
    """Return the name of a stage's numbers, in the plural."""
    return STAGE_CODES[stage].removeprefix("narrow-")


def _format_of_stage(values: Mapping[str, Value], stage: str) -> Format:
    """Return the format of a stage, by default float32."""
    return parse(str(values.get(stage, "float32")))


_WITHIN = "within float32 rounding"


def of_table(table: TableFinding) -> str:
    """Describe in a sentence how a table differs from the exact one, and why."""
    name, diagnosis = table.name, table.diagnosis
    if table.nonfinite:
        return f"{name} holds {table.nonfinite} nan or infinite values of {table.values}."
    size = _size(table)
    if table.agrees:
        return f"{name} agrees {_WITHIN} (worst: pair {table.worst['pair']}, {size})."
    much = off_by(table)
    if diagnosis is None:
        return f"{much} (pair {table.worst['pair']}); nothing that was tried explains it, nor comes near."
    if diagnosis.code == "entries-off":
        values: Mapping[str, Any] = diagnosis.values
        rows = values["things"] == "rows"
        few = table.off if rows else [table.rows[pair] for pair in values["entries"]]
        largest = max(few, key=lambda row: abs(row[table.size]))
        first, told = largest.get("first_position_off"), diagnosis.where.position is not None
        begin = "" if first is None or told or rows else f", first at position {first}"
        rest = f"the rest agrees {_WITHIN}"
        if diagnosis.also:
            rest = f"of the rest: {sentence(diagnosis.also[0])}"
        return (
            f"{sentence(replace(diagnosis, also=()))}; by up to {abs(largest[table.size]):.2g} "
            f"{table.unit}{begin}, which nothing that was tried explains; {rest}."
        )
    if diagnosis.certainty == "resembles":
        share = f"{100 * table.left:.2g} % of the error"
        return (
            f"{much} (pair {table.worst['pair']}); nothing that was tried explains it; the nearest, which "
            f"leaves {share}: {sentence(diagnosis)}."
        )
    return f"{sentence(diagnosis)} ({much})."


def off_by(table: TableFinding) -> str:
    """Return how many pairs of a table are off, and by how much."""
    off = len(table.off)
    if table.other_dims:
        return f"{table.name} has {len(table.rows)} pairs"
    return f"{off} of {len(table.rows)} pairs {'is' if off == 1 else 'are'} off, by up to {_size(table)}"


def _size(table: TableFinding) -> str:
    return f"{abs(table.worst[table.size]):.2g} {table.unit}"
