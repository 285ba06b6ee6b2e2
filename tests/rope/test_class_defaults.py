"""What a configuration class takes where a config.json gives nothing is what that of transformers takes.

python tests/rope/test_class_defaults.py     writes ropeaudit/data/class_defaults.toml anew
"""

import dataclasses
import importlib.metadata
import tomllib
import warnings
from pathlib import Path
from typing import Any

import pytest

from ropeaudit import data
from ropeaudit.rope import class_defaults, hf_models
from ropeaudit.rope.class_defaults import SIZES
from ropeaudit.rope.hf_config import from_config

VERSION = "5.23.0"
FILE = Path(data.__file__).parent / "class_defaults.toml"
HEADER = f"""\
# What a configuration class of transformers {VERSION} takes where a config.json gives none.
# Model type, without the ending "_text" -> the class; its base (rope_theta), or one by layer type where these
# differ, none where a scaling goes with it; its length and sizes of heads. A size that is not here is
# computed from others, or is none of the class. Written by tests/rope/test_class_defaults.py

"""
_MAPPINGS = ("CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM")


def of_transformers() -> dict[str, dict[str, Any]]:
    """Return what the classes of the installed transformers say, type by type."""
    import transformers
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    transformers.logging.set_verbosity(50)
    types = {name for kind in _MAPPINGS for name in getattr(modeling_auto, f"MODEL_FOR_{kind}_MAPPING_NAMES")}
    found: dict[str, dict[str, Any]] = {}
    for name in sorted(types):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                part = CONFIG_MAPPING[name]().get_text_config(decoder=True)
                part = type(part)()  # its own defaults, not those of the model that it stands in
            except Exception as error:  # of whatever kind; the file is compared with what remains
                print(f"{name}: {error!r}"[:150])
                continue
        if parameters := getattr(part, "rope_parameters", None):
            values = {"class": type(part).__name__, **_bases(parameters), **_sizes(type(part))}
            found[part.model_type.removesuffix("_text")] = values
    return found


def _sizes(kind: Any) -> dict[str, int]:
    """Return the sizes that a class declares; those that it computes of others are no default of its own."""
    declared = {field.name: field.default for field in dataclasses.fields(kind)}
    sizes = {key: declared.get(key, declared.get(kind.attribute_map.get(key))) for key in SIZES}
    return {key: value for key, value in sizes.items() if isinstance(value, int)}


def _bases(parameters: dict[str, Any]) -> dict[str, float]:
    """Return the base, or the bases by layer type; none where a scaling goes with them."""
    nested = {key: value for key, value in parameters.items() if isinstance(value, dict)}
    parts = list(nested.values()) or [parameters]
    if any(one.get("rope_type", "default") != "default" for one in parts):
        return {}
    bases = {key: float(one["rope_theta"]) for key, one in sorted(nested.items())}
    if len(set(bases.values())) > 1:
        return bases
    theta = next(iter(bases.values()), parameters.get("rope_theta"))
    return {} if theta is None else {"rope_theta": float(theta)}


def written(found: dict[str, dict[str, Any]]) -> str:
    """Return the file's text."""
    lines = []
    for name, values in sorted(found.items()):
        inner = ", ".join(f"{key} = {value!r}".replace("'", '"') for key, value in values.items())
        lines.append(f"{name} = {{ {inner} }}\n")
    return HEADER + "".join(lines)


def test_the_file_is_what_the_classes_say() -> None:
    pytest.importorskip("transformers")
    if importlib.metadata.version("transformers") != VERSION:
        pytest.skip(f"the file is of transformers {VERSION}")
    text = FILE.read_text(encoding="utf-8")
    assert text == written(of_transformers())
    assert len(tomllib.loads(text)) > 100


# blt: heads and widths are those of its parts
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model", sorted(set(tomllib.loads(FILE.read_text(encoding="utf-8"))) - {"blt"}))
def test_sizes_that_a_config_leaves_out_are_those_that_the_class_takes(model: str) -> None:
    transformers = pytest.importorskip("transformers")
    if importlib.metadata.version("transformers") != VERSION:
        pytest.skip(f"the file is of transformers {VERSION}")
    name = next(one for one in (f"{model}_text", model) if one in transformers.CONFIG_MAPPING)
    heads = class_defaults.of(model).sizes.get("num_attention_heads", 32)
    theirs = transformers.CONFIG_MAPPING[name](hidden_size=192 * heads)
    theirs.allow_global_per_layer_attribute_access = True
    given = {"model_type": name, "hidden_size": theirs.hidden_size, "rope_theta": 1e4}
    given |= {"partial_rotary_factor": 0.5, **dict([hf_models.ROTATES_IF.get(model, ("use_cache", True))])}
    if model.startswith(("gemma4", "diffusion_gemma")):
        given["global_head_dim"] = theirs.head_dim
    if model == "jetmoe":  # computes it of the heads of k
        given["num_attention_heads"] = theirs.num_attention_heads
    read = from_config(given, "name", "config.json")
    latent = getattr(theirs, "qk_nope_head_dim", None)
    head_dim = getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads
    kv_heads = getattr(theirs, "num_key_value_heads", None) or theirs.num_attention_heads
    assert read.heads == theirs.num_attention_heads
    assert read.kv_heads == (kv_heads if model != "dbrx" else read.heads)  # it stands in its attn_config
    assert {one.head_dim for one in read.layers.values()} == {
        latent + theirs.qk_rope_head_dim if latent else head_dim
    }


if __name__ == "__main__":
    FILE.write_text(written(of_transformers()), encoding="utf-8")
