"""The checks of a named model or a config.json: setting, keys, and range."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from ropeaudit import data, recipes
from ropeaudit.arithmetic.formats import FP32, Format, parse
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.audits import judging
from ropeaudit.audits.cases import FULL, Case
from ropeaudit.audits.sweep import Audit
from ropeaudit.conformance.finding import MARGIN, Finding, Status, judged, not_applicable, noted
from ropeaudit.errors import BadInput, RopeAuditError
from ropeaudit.features.check.checked import NONE, Checked, Target
from ropeaudit.features.limit import analysis as limit_analysis
from ropeaudit.features.limit.analysis import TOLERANCE, Limit, tolerance
from ropeaudit.features.limit.report import ratio_words, sentence
from ropeaudit.recognition.stored_values import NEAR, drifts
from ropeaudit.reports.model_notes import setting_words
from ropeaudit.reports.numbers import counted, percent
from ropeaudit.rope import config_axes, config_parts, hf_json
from ropeaudit.rope.config_parts import Part, path_and_part
from ropeaudit.rope.frequencies import frequencies
from ropeaudit.rope.hf_config import ModelRope
from ropeaudit.rope.hf_json import NotRotated, Unjudged
from ropeaudit.rope.scaling import DECLARED, Scaling
from ropeaudit.rope.scaling_names import short_name
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.rope.unused_keys import idle_scalings, unused_keys
from ropeaudit.runtime import digests, doing
from ropeaudit.subjects.factories import SubjectFactory, of_recipe
from ropeaudit.tensor_files.rope_values import Dump

Config: TypeAlias = Mapping[str, Any] | None
LIMIT = "limit"
READING, RANGE = "reading", "range"  # checks: doubts about keys; positions past the maximum
PARTS, PATCHES = "parts", "patches"  # checks: parts that are not judged; scores of vision parts
_STATUS: dict[str, Status] = {
    "holds": "pass",
    "unseen": "pass",
    "fails": "fail",
    "partly": "info",
    "unjudged": "info",
}
DTYPES = ("bf16", "fp16", "fp32")
RECIPE = "hf"  # that of most code
_ORIGINAL = "original_max_position_embeddings"


def checks(target: Target) -> Iterator[Checked]:
    """Yield the checks of a model or config by part and layer type. Raises: see `analysis.check`."""
    case = replace(target.case, seed=target.options.seed, model=None, config=target.name)
    if target.kind == "model":
        yield from _part_checks(target, None, replace(case, model=target.name, config=None), "")
        return
    file, path = path_and_part(target.name)
    config = hf_json.load(file)
    if not isinstance(config, Mapping):
        raise BadInput(f"{target.name!r}: holds {hf_json.shown(config)}; give the config.json of a model")
    target = replace(target, version=digests.of_bytes(json.dumps(config, sort_keys=True).encode()))
    try:
        every = [part for part in config_parts.parts(config) if not part.instead and path in ("", part.name)]
    except BadInput as error:
        raise BadInput(error.typed, where=repr(target.name)) from None
    rotating = [part for part in every if not part.unjudged]
    by_index = [part for part in rotating if not part.axial]
    if not rotating or (by_index and (path or len(by_index) < 2)):
        yield from _part_checks(target, config, case, path)
    else:
        for part in by_index:
            yield from _part_checks(target, config, replace(case, config=f"{file}#{part.name}"), part.name)
    for part in (part for part in rotating if part.axial):
        yield from _axes_checks(target, f"{file}#{part.name}", part)
    if rotating and not path:
        for part in (part for part in every if part.unjudged):
            yield target.checked(not_applicable(PARTS, f"{part.name} ({part.unjudged})"))


def _part_checks(target: Target, config: Config, case: Case, path: str) -> Iterator[Checked]:
    """Yield checks by layer type. config: None for a named model."""
    try:
        model = case.declared()
    except Unjudged:
        raise
    except BadInput as error:
        status: Status = "nothing to check" if isinstance(error, NotRotated) else "fail"
        yield target.checked(Finding("config", status, error.fault))
        return
    assert model is not None  # noqa: S101
    layers = model.layers if case.layer == FULL else [case.layer]
    cases = [replace(case, layer=layer) for layer in layers]

    def named(results: Iterable[Checked]) -> Iterator[Checked]:
        """Add the part to the layer type of checks, if several parts are checked."""
        several = path and not target.name.endswith(f"#{path}")
        for check in results:
            layer = path if check.layer in (NONE, FULL) else f"{path}.{check.layer}"
            yield replace(check, layer=layer) if several else check

    yield from named(
        target.checked(_config_finding(config, model, layer_case, path), case=layer_case)
        for layer_case in cases
    )
    doubts = [noted(READING, doubt.seen, remedy=doubt.remedy) for doubt in model.doubts]
    if (asked := target.options.up_to) and (maximum := model.maximum) and not case.scaling:
        if asked > maximum:
            served = f"the {maximum:,} positions that it serves ({DECLARED} and scaling)"
            doubts.append(noted(RANGE, f"--up-to {asked:,} is past {served}"))
        elif asked < maximum:
            doubts.append(not_applicable(PARTS, f"positions {asked:,} to {maximum - 1:,} (--up-to)"))
    yield from named(target.checked(doubt, case=cases[0]) for doubt in doubts)
    yield from named([target.checked(_config_keys_finding(config, model, case, path))])
    yield from doing.in_parts([named(_layer_checks(target, layer_case)) for layer_case in cases])


def _axes_checks(target: Target, path: str, part: Part) -> Iterator[Checked]:
    """Yield the setting of a vision part, and drift on its patches. path: FILE#PART."""
    layer, options = part.name or part.model, target.options
    try:
        rope, size = config_axes.of_part(part, path), config_axes.patches(part)
    except RopeAuditError as error:
        yield target.checked(Finding("config", "fail", f"{layer}: {error.fault}"), layer=layer)
        return
    pairs, half = len(rope.pairs()), rope.dims[0] // 2
    axes = f"rows turn pairs 0 to {half - 1}, columns pairs {half} to {pairs - 1}"
    said = f"base {rope.base[0]:g}, head_dim {rope.head_dim}, {axes} (dims i and i + {pairs} a pair)"
    read = f"{layer}: {said}, {size} x {size} patches"
    yield target.checked(judged("config", True, read), layer=layer)
    names = tuple(part.name for part in options.dtypes) or DTYPES
    case = Case(axes=path, grid=f"{size}x{size}", heads=min(2, rope.heads), seed=options.seed, mask="full")
    recipe = options.recipe or RECIPE
    for record in Audit((case,), (recipe,), names, (0,), bounded=False).run():
        off = math.nan if record.drift_relative is None else record.drift_relative
        words = f"{layer}: scores of {size} x {size} patches {percent(off)} off ({recipe})"
        sizes = {"measured": off, "allowed": judging.TOLERANCE, "unit": "of the scores' RMS"}
        finding = judged(PATCHES, off <= judging.TOLERANCE, words, **sizes)
        yield target.checked(finding, record.dtype, layer=layer)


def _config_finding(config: Config, model: ModelRope, case: Case, path: str) -> Finding:
    text = setting_words(case.setting(case.maximum or 1), model.axes, case.served)
    if config is None:
        return judged("config", True, "; ".join([text, *model.notes, f"source: {model.source}"]))
    _, dtype = hf_json.first(config_parts.named(config, path).given, ("dtype", "torch_dtype"))
    said = [model.layer_words, f"the config's dtype is {dtype}" if isinstance(dtype, str) else ""]
    part = f"{path}: " if path else ""
    return judged("config", True, part + "; ".join(filter(None, [text, *said, *model.defaults])))


def _config_keys_finding(config: Config, model: ModelRope, case: Case, path: str) -> Finding:
    """Return whether all RoPE keys are used, without contradictions."""
    if config is None:
        return not_applicable("config keys", "a named model has no config.json")
    unused = unused_keys(config, case.base, path)
    listed = "; ".join(map(str, unused))
    if any(key.contradicts for key in unused):
        return judged("config keys", False, f"it contradicts itself: {listed}; keep one value")
    short, lengths, remedy = _contradicting_lengths(config_parts.named(config, path).given, model)
    said = [lengths] * bool(lengths)
    said += [f"not used, for it changes no frequency, scale or length: {listed}"] * bool(unused)
    said += dict.fromkeys(text for one in model.layers.values() for text in _scaling_doubts(one.scaling))
    if idle := idle_scalings(model):
        several = len(model.layers) > 1
        names = [f"{short_name(str(one))}{f' of {layer}' * several}" for layer, one in idle.items()]
        by_length = any(one.depends_on_length for one in idle.values())
        within = f"; compared up to the {model.maximum:,} positions served" * by_length
        said.append(
            f"the scaling changes nothing ({', '.join(names)}): frequencies, attention factor, softmax scale "
            f"and positions served are those without it{within}"
        )
    said += [f"not judged: {key} ({why})" for key, why in model.unjudged.items()]
    if said:
        return noted("config keys", "; ".join(said), where=short, remedy=remedy)
    return judged("config keys", True, "every key about RoPE is used")


def _scaling_doubts(scaling: Scaling) -> Iterator[str]:
    """Yield the faults of a scaling of which transformers 5.23.0 only warns."""
    low, high = scaling.low or 1.0, scaling.high or 1.0
    fast, slow = scaling.beta_fast or 32, scaling.beta_slow or 1
    seen = {
        "low above high": scaling.kind == "llama3" and low > high,
        "low is high": scaling.kind == "llama3" and low == high,
        "fast below slow": scaling.kind == "yarn" and fast < slow,
        "no factor": scaling.kind == "yarn" and scaling.factor is None,
    }
    words = {"low": low, "high": high, "fast": fast, "slow": slow, "stretch": scaling.stretch}
    told = data.table("checks.toml")["doubtful"]
    yield from (told[name].format(**words) for name, holds in seen.items() if holds)


def _contradicting_lengths(part: Mapping[str, Any], model: ModelRope) -> tuple[str, str, str]:
    """Return, of two lengths that contradict each other, a short text, a long one and the remedy.

    The length before scaling must not be above the declared one, for llama3 below it, and for yarn the factor
    must be their ratio (transformers 5.23.0 warns of the last two).
    """
    served, declared = model.served, model.declared
    original, reach = served.scaling.length_before, served.scaling.reach
    rope = hf_json.rope_dict(part)
    inner = (one for one in rope.values() if isinstance(one, Mapping))
    if (
        original is None
        or declared is None
        or all(one.get(_ORIGINAL) is None for one in (part, rope, *inner))
    ):
        return "", "", ""  # the declared length stands for it
    if served.scaling.kind == "longrope" and original > declared:
        above = f"{_ORIGINAL} {original:,} is above {DECLARED} {declared:,}"
        said = f"{above}; up to the former it divides by short_factor alone"
        return above, said, f"give {DECLARED} above {original}, or {_ORIGINAL} below {declared}"
    extends = served.scaling.rules.original != "original"  # dynamic, which extends the declared length
    if not served.disputed or extends or (original < declared and served.scaling.kind != "yarn"):
        return "", "", ""
    why = f"; {_ORIGINAL} is not below {DECLARED}" if original >= declared else ""
    factor = f"{served.scaling.stretch:g}"
    seen = f"factor {factor} × original {original:,} = {reach:,}, but {DECLARED} says {declared:,}{why}"
    remedy = f"give factor {declared / original:.9g}, or {DECLARED} {reach}"
    if original >= declared:
        remedy = f"give {DECLARED} {reach} (the length after scaling), or leave the scaling out"
    short = f"{DECLARED} is {declared:,}, factor {factor} × original {original:,} is {reach:,}"
    return short, seen, remedy


def _layer_checks(target: Target, case: Case) -> Iterator[Checked]:
    options, setting = target.options, case.setting(case.maximum or 1)
    if setting.scaling.depends_on_length:  # at every offset, those of its own length
        case = replace(case, length="shifted")
    dtypes, recipe = options.dtypes or tuple(map(parse, DTYPES)), recipes.load(options.recipe or RECIPE)
    found = limits(case, [of_recipe(recipe.resolve(dtype)) for dtype in dtypes], options.up_to)
    for dtype, finding in zip(dtypes, found, strict=True):
        yield target.checked(finding, dtype.name, case)
    for dtype in dtypes:
        if dtype.storage_bits <= 16:
            yield target.checked(_cast_module_finding(setting, dtype, case.maximum), dtype.name, case)
    yield target.checked(_frequency_switch_finding(setting), case=case)


def limits(case: Case, subjects: Sequence[SubjectFactory], up_to: int | None) -> Iterator[Finding]:
    """Yield the limit of each recipe. up_to: None for the default of `limit`."""
    seq_len = case.outline()[0].seq_len
    largest = limit_analysis.UP_TO if up_to is None else max(0, up_to - seq_len)
    accepted = [tolerance(TOLERANCE)]
    for limit in limit_analysis.run([case], subjects, accepted, largest, None, doing.listener()):
        measured = math.nan if limit.margin is None else limit.margin
        sizes = (measured, 1.0, MARGIN) if limit.within is not None else (measured, math.nan, "")
        where = f"{limit.at_zero.implementation}: {_range_words(limit)}"
        yield Finding(LIMIT, _STATUS[limit.standing], sentence(limit), *sizes, where)


def _range_words(limit: Limit) -> str:
    """Return the first failure, else the last good position and its ratio to the maximum."""
    failing, apart = limit.last_position(limit.first_failure_seen), limit.failing_distance
    if limit.standing == "fails":
        at_distance = apart is not None and (failing is None or apart < failing)
        return f"fails at distance {apart:,}" if at_distance else f"fails at position {failing:,}"
    seen, maximum = limit.boundary, limit.case.maximum
    last = limit.last_position(max(seen.proved, seen.held_up_to))
    text = f"no failure in {counted(seen.held, 'offset')} to position {last:,}"
    if limit.standing == "holds":
        text = f"proved to position {limit.last_position(seen.proved):,}"
        if seen.held_up_to > seen.proved:
            text += f" ({_times(limit.proved_margin)}), tested to {last:,}"
    if limit.margin is None or maximum is None:
        return text
    share = "of" if limit.margin < 1 else _times(limit.margin)
    return f"{text}, {share} its {maximum:,} positions"


def _times(ratio: float | None) -> str:
    return f"{ratio_words(ratio) or f'{ratio:#.2g}'} times"


def _cast_module_finding(setting: RopeSetting, dtype: Format, maximum: int | None) -> Finding:
    """Return the effect of a cast of the frequencies, which is no fault of the config."""
    far = (maximum or NEAR) - 1

    def cast(setting: RopeSetting) -> Dump:
        rounded = round_to(frequencies(setting, "inverse_power", FP32), dtype).astype("float64")
        return Dump("", "inv_freq", frequencies=rounded)

    distant = drifts(cast(setting), setting, far)[1]
    first = replace(setting, length=setting.scaling.length_for(NEAR))
    near = drifts(cast(first), first)[0]
    effect = f"{percent(near or 0.0)} of the scores' RMS within {NEAR} tokens"
    if distant is not None and far >= NEAR:
        effect += f" and {percent(distant)} at a distance of {far:,}"
    detail = data.table("checks.toml")["config"]["cast"].format(dtype=dtype.name, effect=effect)
    sizes = math.nan if distant is None else distant, math.nan, "of the scores' RMS"
    return Finding("cast module", "info", detail, *sizes, f"distance {far:,}")


def _frequency_switch_finding(setting: RopeSetting) -> Finding:
    """Return at how many positions the frequencies change."""
    scaling = setting.scaling
    if not scaling.depends_on_length:
        return not_applicable("frequency-switch", "its frequencies do not depend on the number of positions")
    border = int((scaling.original if scaling.kind == "longrope" else scaling.maximum) or 0)
    before, after = (
        frequencies(replace(setting, length=scaling.length_for(n)), "inverse_power", FP32).tolist()
        for n in (border, border + 1)
    )
    largest = max(abs(b - a) / a for a, b in zip(before, after, strict=True) if a)
    then = "the long divisors" if scaling.kind == "longrope" else "others with each further position"
    words = {"border": border, "behind": border + 1, "then": then, "most": percent(largest)}
    detail = data.table("checks.toml")["config"]["switch"].format(**words)
    where = f"from {border + 1:,} positions on"
    return noted("frequency-switch", detail, measured=float(border), unit="positions", where=where)
