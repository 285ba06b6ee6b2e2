"""What is read of real configs, whose list was fixed before the first run, against what models' code does.

python tests/rope/test_fresh_configs.py     writes docs/fresh-configs.md anew
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import inspect
import io
import json
import math
import re
import tempfile
import textwrap
import tomllib
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from net import settings

from ropeaudit import parse
from ropeaudit.main import main
from ropeaudit.rope import scaled
from ropeaudit.rope.frequencies import frequencies

FOLDER = Path(__file__).parent
PAGE = FOLDER.parents[1] / "docs" / "fresh-configs.md"
BAD = ("WRONG", "REFUSED WRONGLY", "ADVISES A BASE", "SAYS NOTHING TO TYPE")
TO_TYPE = re.compile(r"\b(give|add|leave|keep|did you mean|put|set|check its code|known|takes)\b")
FIRST = "7 refused, 76 right, 4 warned, 1 wrong, 13 refused wrongly, 22 told to give a base that is none"
NOT_TOKENS = ("Vision", "Audio", "Image", "CrossAttention")
INTERLEAVED = ("rotate_every_two", "repeat_interleave(2", "view_as_complex")


class Reading(NamedTuple):
    """What is read of a config by ropeaudit, or done by the code of its model."""

    layers: Mapping[str, Mapping[str, Any]] = {}
    none: str = ""  # why there is no RoPE, or why it was refused
    refused: bool = False
    warns: bool = False
    parts: Mapping[str, Mapping[str, Mapping[str, Any]]] = {}  # of a model of several

    @property
    def words(self) -> str:
        """Return it on one line."""
        said = [f"{kind}: {_words(layer)}" for kind, layer in self.layers.items()]
        if len(set(map(_words, self.layers.values()))) == 1:
            said = [_words(next(iter(self.layers.values())))]
        return "; ".join(said) or self.none


def _words(layer: Mapping[str, Any]) -> str:
    names = [f"base {layer['base']:g}" if layer.get("base") else ""]
    names += [
        f"{layer['rotary_dim']} of {layer['head_dim']}" if "head_dim" in layer else f"{layer['rotary_dim']}"
    ]
    names += [str(layer.get("layout", "")), f"scale {layer['scale']:.6g}"]
    kind = str(layer.get("scaling") or "none")
    return ", ".join(filter(None, [*names, kind if kind not in ("none", "default") else ""]))


def rows() -> list[dict[str, Any]]:
    """Return the configs: repository, commit, path and config."""
    text = (FOLDER / "fresh_configs.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def ours(config: Mapping[str, Any]) -> Reading:
    """Return what ropeaudit reads of a config, or says in place of that."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.json"
        file.write_text(json.dumps(config))
        printed, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
            main(["check", str(file), "--dtype", "bf16", "--up-to", "512", "-v"])
        text = (printed.getvalue() + errors.getvalue()).replace(str(file), "FILE").replace(folder, "FOLDER")
        read = settings.read(file)
        layers = dict(_settings(file)) if read["layers"] else {}
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if layers:
        return Reading(layers, warns="warning[" in text or lines[0].startswith("WARN"))
    said = next((line for line in lines if "note: FILE" in line), "") or next(
        (line for line in lines if "error[" in line or "nothing to check" in line), lines[0]
    )
    for word in ("note: ", "OK  FILE", "FILE, config: ", "error[config]: "):
        said = said.replace(word, "")
    return Reading(none=said.strip(), refused=read["status"] == "refused")


def _settings(file: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield what is read by layer type, the frequencies with it."""
    import ropeaudit

    for one in ropeaudit.check(str(file), up_to=256):
        if one.setting is not None and one.finding.check != settings.LAST:
            parts = ("head_dim", "rotary_dim", "layout", "base", "scale")
            layer = {name: getattr(one.setting, name) for name in parts}
            scaling = one.setting.scaling
            layer |= {"scaling": scaling.kind, "factor": scaled.attention_factor(scaling)}
            yield one.layer, layer | {"inv_freq": frequencies(one.setting, "inverse_power", parse("fp32"))}


def theirs(config: Mapping[str, Any]) -> Reading | None:
    """Return what the code of transformers does with the text of a config; None where it has no such type."""
    transformers = pytest.importorskip("transformers")
    if config.get("model_type") not in transformers.CONFIG_MAPPING:
        return None
    transformers.logging.set_verbosity(50)
    known = transformers.CONFIG_MAPPING[config["model_type"]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = known.from_dict(copy.deepcopy(dict(config)))
        text = _done_by(whole.get_text_config(decoder=True))
        return text._replace(parts={path: _done_by(part).layers for path, part in _parts(whole)})


def _parts(config: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the parts of a config of transformers, each with its path."""
    for name in getattr(config, "sub_configs", {}):
        part = getattr(config, name, None)
        if hasattr(part, "to_dict"):
            yield f"{path}{name}", part
            yield from _parts(part, f"{path}{name}.")


def _done_by(part: Any) -> Reading:
    """Return what the rotary embedding and the attention of a config's module do with it."""
    transformers = importlib.import_module("transformers")
    name = type(part).__module__.replace("configuration", "modeling")
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError:  # its code is another type's
        module = importlib.import_module(transformers.MODEL_MAPPING[type(part)].__module__)
    source = inspect.getsource(module)
    if not any(word in source for word in ("rotary", "Rotary", "rotate_")):
        return Reading(none="no rotary code")
    layers: dict[str, dict[str, Any]] = {}
    scales, raised = set[float](), ""
    kinds: dict[str, Any] = {n: one for n, one in sorted(vars(module).items()) if inspect.isclass(one)}
    own = type(part).__name__.removesuffix("Config").removesuffix("Text")
    kinds = {n: one for n, one in kinds.items() if not any(word in n for word in NOT_TOKENS)}
    rotary = {n: one for n, one in kinds.items() if n.endswith("RotaryEmbedding")}
    fitting = {n: one for n, one in rotary.items() if n.startswith(own)} or rotary
    for kind in fitting.values():
        try:
            built = kind(config=part)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raised = repr(error)
            continue
        for key, held in built.named_buffers():
            if key.endswith("inv_freq") and "original" not in key:
                layer = key.removesuffix("inv_freq").strip("_") or "full_attention"
                usual = getattr(built, "attention_scaling", 1.0)
                factor = getattr(built, f"{layer}_attention_scaling", usual)
                layers[layer] = {"inv_freq": held.double().numpy(), "factor": factor}
    for name, kind in kinds.items():
        if name.endswith("Attention") and kind.__module__ == module.__name__:
            with contextlib.suppress(KeyError, TypeError, AttributeError, ValueError), torch.device("meta"):
                attention = kind(part, layer_idx=0)
                names = ("scaling", "inv_norm_factor", "norm_factor")
                scale = next((one for n in names if (one := getattr(attention, n, None)) is not None), None)
                scales |= set() if scale is None else {float(scale)}
    neighbours = _interleaved(module, source) and getattr(part, "rope_interleave", True)
    for held in layers.values():
        held |= {"rotary_dim": 2 * len(held["inv_freq"]), "scale": max(scales, default=math.nan)}
        held |= {"layout": "interleaved" if neighbours else "half"}
    return Reading(layers, none=f"raises {raised}" if raised else "" if layers else "no rotary class")


def _interleaved(module: Any, source: str) -> bool:
    """Return whether code pairs neighbours: by its rotate_half, or by what it does in place of that."""
    if hasattr(module, "apply_rotary_pos_emb_interleave"):
        return True
    if hasattr(module, "rotate_half"):
        return bool(module.rotate_half(torch.arange(8.0)).tolist()[0] == -1.0)
    return any(word in source for word in INTERLEAVED)


def right(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what is written by hand of what a config's code does, empty where transformers is asked."""
    table = tomllib.loads((FOLDER / "fresh_right.toml").read_text(encoding="utf-8"))
    found: Mapping[str, Any] = table.get(f"{row['repo']} {row['path']}", {})
    return found


def compared(read: Reading, code: Reading) -> str:
    """Return where a reading differs from what transformers computes, "" where nowhere."""
    wrong = []
    for kind, layer in read.layers.items():
        path, _, named = kind.rpartition(" ")
        layers = code.parts.get(path) or code.parts.get(kind) or code.layers
        other = layers.get(named) or layers.get("full_attention") or next(iter(layers.values()))
        mine, yours = layer["inv_freq"].astype(float), other["inv_freq"]
        if mine.shape != yours.shape or mine != pytest.approx(yours, rel=60 * 2.0**-24, abs=0):
            wrong.append(f"frequencies of {kind}")
        for name in ("factor", "scale"):
            if not math.isnan(other[name]) and layer[name] != pytest.approx(other[name], rel=1e-6):
                wrong.append(f"{name} of {kind}: {layer[name]:.6g}, not {other[name]:.6g}")
        if layer["layout"] != other["layout"]:
            wrong.append(f"layout of {kind}")
    return "; ".join(wrong)


def judged(row: Mapping[str, Any], read: Reading, code: Reading | None) -> tuple[str, str]:
    """Return the verdict on a reading, and what the model's code does in words."""
    facts = right(row)
    if not facts and code is not None:
        rotates, words = bool(code.layers), code.words
        differs = compared(read, code) if rotates and read.layers else ""
        own = code.none.startswith("raises")
    else:
        rotates, own = "base" in facts, "own" in facts or "none" in facts
        words = facts.get("positions") or facts.get("none") or ", ".join(f"{k} {v}" for k, v in facts.items())
        differs = _by_hand(read, facts) if rotates else ""
    if read.refused:
        if rotates and not own:
            return "REFUSED WRONGLY", words
        if not rotates and "--base" in read.none:
            return "ADVISES A BASE", words
        return ("refused" if TO_TYPE.search(read.none) else "SAYS NOTHING TO TYPE"), words
    if read.layers and rotates:
        verdict = "right" if not differs else "warned" if read.warns else "WRONG"
        return ": ".join(filter(None, [verdict, differs])), words
    if bool(read.layers) == rotates:
        return "right", words
    return ("warned" if read.warns else "WRONG"), words


def _by_hand(read: Reading, facts: Mapping[str, Any]) -> str:
    """Return where a reading differs from facts by hand."""
    wrong = []
    for kind, layer in read.layers.items():
        seen = {"base": layer["base"], "dims": layer["rotary_dim"], "scale": layer["scale"]}
        seen |= {"layout": layer["layout"], "scaling": layer["scaling"]}
        wanted = {"layout": "half", "scaling": "default"} | dict(facts)
        for name, value in ((name, seen[name]) for name in seen if name in wanted):
            same = (
                math.isclose(value, wanted[name], rel_tol=1e-9) if isinstance(value, (int, float)) else None
            )
            if not (value == wanted[name] if same is None else same):
                wrong.append(f"{name} of {kind}: {value}, not {wanted[name]}")
    return "; ".join(wrong)


def results() -> list[tuple[dict[str, Any], Reading, str, str]]:
    """Return each config with what is read of it, what its code does and the verdict."""
    found = []
    for row in rows():
        read, code = ours(row["config"]), theirs(row["config"])
        verdict, words = judged(row, read, code)
        found.append((row, read, words, verdict))
    return found


def page(found: list[tuple[dict[str, Any], Reading, str, str]]) -> str:
    """Return the page of results: how many are right by type, and a row for each of the others."""
    counts = Counter(verdict.partition(":")[0] for *_, verdict in found)
    said = ", ".join(f"{n} {verdict}" for verdict, n in sorted(counts.items()))
    rotating = [row for row, read, _, verdict in found if verdict == "right" and read.layers]
    others = [row for row, read, _, verdict in found if verdict == "right" and not read.layers]
    lines = [
        "# Fresh configs",
        "",
        f"{len(found)} config files of public repositories were listed in `tests/rope/fresh_configs.jsonl`",
        "before `ropeaudit` read any of them; none was struck off. What it reads of each is compared with",
        "the code of the model. `tests/rope/test_fresh_configs.py` writes this page.",
        "",
        f"- Now: {said}.",
        f"- The first run: {FIRST}.",
        "",
        "A reading is right if the code of the model does the same. It is warned if it does not, or if that",
        "code raises, and the answer says so. It is refused if the answer says what to type instead.",
        "",
        "## Right",
        "",
        *textwrap.wrap(f"With RoPE, {len(rotating)} files: {_types(rotating)}.", 118),
        "",
        *textwrap.wrap(f"Without RoPE, {len(others)} files: {_types(others)}.", 118),
        "",
        "## Warned and refused",
        "",
        "| file | answer | the file is, or its code does |",
        "|---|---|---|",
    ]
    for row, read, words, verdict in found:
        if verdict != "right":
            reason = read.words.removeprefix("ropeaudit: error: 'FILE': ")
            said = f"refused: {reason}" if read.refused else verdict
            cells = (f"{row['repo']} {row['path']}", said, words)
            lines.append(
                "| " + " | ".join(cell.replace("|", "/").replace("\n", " ")[:300] for cell in cells) + " |"
            )
    return "\n".join(lines) + "\n"


def _types(some: list[dict[str, Any]]) -> str:
    """Return the model types of configs, each with how many there are of it."""
    counts = Counter(str(row["config"].get("model_type", "no type")) for row in some)
    return ", ".join(name if n == 1 else f"{name} ({n})" for name, n in sorted(counts.items()))


@pytest.mark.slow
def test_none_is_read_or_refused_wrongly() -> None:
    found = results()
    wrong = [
        f"{row['repo']} {row['path']}: {verdict}" for row, _, _, verdict in found if verdict.startswith(BAD)
    ]
    assert wrong == []
    assert PAGE.read_text(encoding="utf-8") == page(found)


if __name__ == "__main__":
    PAGE.write_text(page(results()), encoding="utf-8")
