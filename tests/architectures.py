"""Audit every type that transformers builds as a causal language model, and write docs/architectures.md.

    python tests/architectures.py [TYPE ...]   audit all types, or some; the data and the page
    python tests/architectures.py --page       the page anew from the data

Each type is built small and random (`small_configs`), written to disk and audited as a user would. What is
audited is then compared with what plain hooks see: q and k that go into the model's own rotation, the scores
that its attention computes, the frequencies that its modules hold, the logits of a plain run at other
positions.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent))

import architecture_page
import plain_hooks
import small_configs
from architecture_page import DATA, PAGE

TOKENS, OFFSET = 24, 1000


def types() -> list[str]:
    """Return the model types of transformers' mapping of causal language models."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Keep the library's advice off the terminal."""
    import transformers

    transformers.logging.set_verbosity(50)  # type: ignore[no-untyped-call]
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def build(model_type: str, folder: Path) -> str | None:
    """Write a small random model; return why it cannot be built, if it cannot."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    try:
        with silent():
            config = small_configs.small(model_type)
            model = AutoModelForCausalLM.from_config(config)
            for name, values in model.named_parameters():
                if "bias" not in name and not values.any():  # a temperature of 0 would leave nothing to see
                    torch.nn.init.constant_(values, 0.5)
            model.save_pretrained(folder)
            if (
                model.config.model_type not in types()
            ):  # a part of the model's; its checkpoints have the whole
                config.save_pretrained(folder)
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:150]}"
    return None


def audit(model_type: str, folder: Path) -> dict[str, Any]:
    """Return what ropeaudit says of a small model of a type, beside what plain hooks say."""
    if reason := build(model_type, folder):
        return {"built": reason}
    result: dict[str, Any] = {"built": ""}
    result |= ran(folder)
    result["plain"] = plain_hooks.plain_change(folder, TOKENS, OFFSET)
    result |= configured(folder)
    result |= compared(folder)
    if result["types"]:
        with silent():
            result["frequencies"] = plain_hooks.frequency_error(folder)
    return result


def ran(folder: Path) -> dict[str, Any]:
    """Return the verdict of `ropeaudit model`, or its refusal; q and k of all layers are saved beside."""
    from ropeaudit.errors import RopeAuditError
    from ropeaudit.features.model import analysis

    try:
        given = analysis.model(str(folder), OFFSET, "fp32", tokens=str(TOKENS))
        [shifted] = list(given)
    except RopeAuditError as error:
        return {"refusal": error.typed.replace(str(folder), "FOLDER")}
    except Exception as error:  # a fault of ropeaudit: it stands in the data
        traceback.print_exc(limit=-3, file=sys.stdout)
        return {"refusal": f"CRASH {error!r}"}
    result = {
        "verdict": shifted.verdict,
        "cause": shifted.cause,
        "layers": len({h.layer for h in shifted.heads}),
    }
    change = shifted.change
    result["structural"] = change.structural_largest / max(change.reference_largest, 1e-300)
    result["narrow"] = sorted(given.narrow)[:4]
    result["rotating"] = rotating(given)
    result["notes"] = list(given.folder.notes)
    try:
        [_] = list(
            analysis.model(str(folder), 1, "fp64", tokens=str(TOKENS), save_qk=str(folder / "qk.safetensors"))
        )
        result["saved"] = ""
    except RopeAuditError as error:
        result["saved"] = error.typed.replace(str(folder), "FOLDER")
    return result


def rotating(given: Any) -> dict[str, list[int]]:
    """Return layer type -> how many of its layers rotate, of how many, as far as that was seen."""
    kinds = given.folder.text.get("layer_types") or []
    results: dict[str, list[int]] = {}
    for layer, pairs in given.pairs.items():
        kind = kinds[layer] if layer < len(kinds) else "layers"
        rotated, count = results.setdefault(kind, [0, 0])
        results[kind] = [rotated + bool(pairs.frequencies.size), count + 1]
    return results


def configured(folder: Path) -> dict[str, Any]:
    """Return what --config and check read, or their refusal."""
    from ropeaudit.errors import RopeAuditError
    from ropeaudit.features.check import analysis as check_analysis
    from ropeaudit.rope import hf_config

    try:
        model = hf_config.read(str(folder / "config.json"))
        result: dict[str, Any] = {"config": "", "types": list(model.layers)}
    except RopeAuditError as error:
        result = {"config": error.typed.partition(": ")[2], "types": []}
        result["rotates"] = not isinstance(error, hf_config.NotRotated)
    results = list(check_analysis.check(str(folder / "config.json"), "fp32", up_to=64))
    result["check"] = [f"{one.layer}: {one.finding.check}: {one.finding.status}" for one in results]
    return result


def compared(folder: Path) -> dict[str, Any]:
    try:
        with silent():
            return plain_hooks.compare(folder, TOKENS)
    except Exception as error:
        traceback.print_exc(limit=-3, file=sys.stdout)
        return {"hooks": f"{type(error).__name__}: {error}"[:300]}


def main(arguments: list[str]) -> None:
    """Audit all types, or some, and write the data and the page."""
    import torch
    import transformers

    torch.set_num_threads(1)
    versions = f"transformers {transformers.__version__}, torch {torch.__version__.partition('+')[0]}"
    results = architecture_page.load()["models"] if DATA.exists() else {}
    chosen = arguments or sorted([*types(), *small_configs.VARIANTS])
    for number, name in enumerate([] if arguments == ["--page"] else chosen):
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            results[name] = audit(name, Path(folder))
        said = architecture_page.wrong(name, results[name]) or "as expected"
        print(f"{number + 1}/{len(chosen)} {name} {time.monotonic() - started:.1f} s: {said}", flush=True)
    lines = ",\n".join(
        f"{json.dumps(k)}: {json.dumps(v, sort_keys=True)}" for k, v in sorted(results.items())
    )
    DATA.write_text(f'{{"versions": {json.dumps(versions)}, "models": {{\n{lines}\n}}}}\n', encoding="utf-8")
    PAGE.write_text(architecture_page.page(results, versions), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
