"""Of every model type of transformers, what is read of its config is what its code computes.

Models are built on the meta device, from the defaults of their classes; their rotary modules with numbers.
"""

import contextlib
import importlib
import json
import re
from typing import Any

import pytest
from test_model_types import of_version
from their_code import built, differences

from ropeaudit import data
from ropeaudit.errors import BadInput
from ropeaudit.rope.hf_config import from_config
from ropeaudit.rope.hf_json import NotRotated

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

ROTARY = {"position_embeddings_type": "rotary"}
WITHOUT_HEAD_DIM = (
    *("glm4_moe", "glm4v_moe_text", "hunyuan_v1_dense", "hunyuan_v1_moe", "hunyuan_vl_text"),
    *("ministral", "qwen3_omni_moe_text"),
)
HEAD_DIM = {"head_dim": 128}
LAYERS = {"num_hidden_layers": 2}
# What a class needs beside its defaults, to be built or to rotate.
GIVEN: dict[str, dict[str, Any]] = {
    **dict.fromkeys(WITHOUT_HEAD_DIM, HEAD_DIM),
    **dict.fromkeys(("seamless_m4t", "wav2vec2-bert", "wav2vec2-conformer"), ROTARY),
    "bamba": {"attn_layer_indices": [0]},
    "chameleon": {"vocabulary_map": {"<image>": 0}},
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense"] * 2, **LAYERS},
    "diffusion_gemma_text": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 8},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "moe_intermediate_size": 8},
    "esm": {"vocab_size": 33, "pad_token_id": 1, "position_embedding_type": "rotary"},
    "granitemoehybrid": {"position_embedding_type": "rope", "layer_types": ["attention"] * 2, **LAYERS},
    "lfm2_moe": {"layer_types": ["full_attention"] * 2, **LAYERS},
    "minimax_m3_vl_text": {"rotary_dim": 128},
    "moonshine_streaming": {"num_key_value_heads": 8},
    "nemotron": {"num_key_value_heads": 8},
    "qwen3_omni_moe_talker_text": {"shared_expert_intermediate_size": 64},
    "qwen4_exp_text": {
        "indexer_n_heads": 4,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 256,
        "indexer_budget": 64,
        "indexer_compress_ratio": 4,
    },
    "recurrent_gemma": {"num_hidden_layers": 3},
    "zamba2": {"use_mem_rope": True},
}
# Types that no model is of: the type whose model has them as a part.
WITHIN = {"t5_gemma_module": "t5gemma", "t5gemma2_text": "t5gemma2", "t5gemma2_decoder": "t5gemma2"}
# Types that are not compared, and why.
UNSEEN = {
    **dict.fromkeys(("codegen", "gptj", "roformer"), "a table of sines in place of a rotary module"),
    **dict.fromkeys(("pe_audio_video_encoder", "pe_video_encoder"), "built with timm alone"),
    "blt": "its parts rotate, by their own configs",
    "timesfm2_5": "its softmax scale is learned, of each dim",
    **dict.fromkeys(("cohere_compass_text", "dbrx"), "its class builds no model by its defaults"),
}
# What cannot be compared of a type, by how the difference begins.
OTHERWISE = {
    **dict.fromkeys(("seamless_m4t", "wav2vec2-bert", "wav2vec2-conformer"), ("layout",)),  # in a method
    "esm": ("full_attention: softmax",),  # q is scaled before
    "openai_privacy_filter": ("full_attention: softmax", "sliding_attention: softmax"),  # q and k each
}
# Types that rotate without a module of that name, by a method of their attention or by functions; or that
# have one that rotates nothing.
MODULES = {
    *("codegen", "gptj", "roformer"),
    *("bros", "nemotron_asr_streaming_encoder", "parakeet_encoder"),
}
# What is read in another way than the code has it, or is refused.
KNOWN = {
    "dots3_note_text": "sliding_attention: softmax scale",  # per_layer_config's qk_nope_head_dim
    "ernie4_5_vl_moe_text": "full_attention: 64 frequencies",  # in the order of its axes
}


def of_rows() -> dict[str, dict[str, Any]]:
    """Return the rows of the table that have a configuration in transformers."""
    known = importlib.import_module("transformers").CONFIG_MAPPING
    return {name: row for name, row in data.table("model_types.toml").items() if name in known}


def config(name: str) -> Any:
    return importlib.import_module("transformers").CONFIG_MAPPING[name](**GIVEN.get(name, {}))


def differs(name: str, row: dict[str, Any]) -> list[str]:
    """Return what is read of a type's config, whole or without its default sizes, and is not its code's."""
    its, outer = config(name), WITHIN.get(name, name)
    given = json.loads(its.to_json_string(use_diff=False))
    read = from_config(given, name, "here")
    wrong = list(differences(read, built(outer, its if outer == name else config(outer)), its))
    left_out = {key: value for key, value in given.items() if key in row and row[key] == value}
    short = from_config({k: v for k, v in given.items() if k not in left_out}, name, "here")
    if (short.layers, short.heads, short.kv_heads) != (read.layers, read.heads, read.kv_heads):
        wrong.append(f"without {', '.join(left_out)} it is {short.layers}, not {read.layers}")
    return [one for one in wrong if not one.startswith(tuple(OTHERWISE.get(name, ())))]


def test_what_is_read_of_every_type_is_what_its_code_computes() -> None:
    of_version().logging.set_verbosity(50)
    found: dict[str, list[str]] = {}
    for name, row in of_rows().items():
        alone = "parts" not in row or "rope_theta" in row
        if alone and "positions" not in row and not row.get("axial") and name not in UNSEEN:
            try:
                found[name] = differs(name, row)
            except Exception as error:  # of whatever kind: it is told with the rest
                found[name] = [repr(error)[:300]]
    wrong = {name: told for name, told in found.items() if told and KNOWN.get(name, "\n") not in told[0]}
    assert wrong == {}
    assert [name for name in KNOWN if not found[name]] == []
    assert len(found) > 190


def test_models_have_rotary_modules_where_the_table_says_that_they_rotate() -> None:
    of_version().logging.set_verbosity(50)
    known = importlib.import_module("transformers").CONFIG_MAPPING
    wrong, seen = [], 0
    for name, row in of_rows().items():
        if "parts" in row or name in MODULES:
            continue
        with contextlib.suppress(Exception):  # without a package, or of defaults that fit no model
            model = built(name, config(name) if name in GIVEN else known[name](**LAYERS))
            kinds = {type(one).__name__ for one in model.modules()}
            rotary = any(re.search("Rotary|Rope|RoPE", kind) for kind in kinds)
            rotary = rotary or any("inv_freq" in key for key, _ in model.named_buffers())
            wrong += [name] if rotary == ("positions" in row) else []
            seen += 1
    assert wrong == []
    assert seen > 500


def test_types_without_rotary_code_are_refused() -> None:
    of_version()
    taken = []
    for name, row in of_rows().items():
        if "positions" in row:
            try:
                from_config({"model_type": name}, name, "here")
            except NotRotated:
                continue
            except BadInput as error:
                taken.append(f"{name}: {error}")
            taken.append(name)
    assert taken == []
