"""A small config of every type that transformers builds as a causal language model.

A type's own default config is made small by the names of its keys; what that cannot do stands in `OWN`.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

VOCABULARY, POSITIONS = 64, 4096
_WINDOW = 8


def _keys(names: str, value: int) -> dict[str, int]:
    return dict.fromkeys(names.split(), value)


# Key -> its small value; of the text part and of those for images and sound alike.
SMALL: dict[str, int] = {
    **_keys("hidden_size n_embd d_model dim embedding_size emb_dim embedding_dim input_embedding_size", 64),
    **_keys("output_embedding_size word_embed_proj_dim attention_hidden_size mamba_d_ssm lru_width", 64),
    **_keys("num_attention_heads n_head n_heads num_heads attention_heads encoder_attention_heads", 4),
    **_keys("decoder_attention_heads num_decoder_attention_heads num_encoder_attention_heads", 4),
    **_keys("swa_num_attention_heads index_n_heads", 4),
    **_keys("num_key_value_heads num_kv_heads swa_num_key_value_heads num_query_groups", 2),
    **_keys("num_global_key_value_heads attention_kv_heads", 2),
    **_keys("num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers", 4),
    **_keys("num_decoder_layers num_encoder_layers depth", 4),
    **_keys("intermediate_size ffn_dim moe_intermediate_size d_ff dim_ff dff decoder_ffn_dim", 64),
    **_keys("encoder_ffn_dim shared_expert_intermediate_size shared_experts_intermediate_size", 64),
    **_keys("shared_intermediate_size ffn_hidden_size expert_ffn_hidden_size feed_forward_size", 64),
    **_keys("dense_intermediate_size intermediate_size_mlp moe_shared_expert_intermediate_size", 64),
    **_keys("d_inner mlp_dim router_hidden_size", 64),
    **_keys(
        "vocab_size n_vocab vocab_size_per_layer_input decoder_vocab_size unpadded_vocab_size", VOCABULARY
    ),
    **_keys("max_position_embeddings n_positions max_seq_len n_ctx max_target_positions", POSITIONS),
    **_keys("model_max_length max_source_positions", POSITIONS),
    **_keys("sliding_window attention_window sliding_window_size attention_chunk_size", _WINDOW),
    **_keys("attention_window_size local_attention", _WINDOW),
    **_keys("num_experts num_local_experts n_routed_experts moe_num_experts", 4),
    **_keys("num_experts_per_tok moe_topk top_k_experts num_experts_per_token", 2),
    **_keys("head_dim d_head dim_head attention_head_size kv_channels swa_head_dim attention_head_dim", 16),
    **_keys("global_head_dim v_head_dim kv_lora_rank q_lora_rank qk_nope_head_dim index_head_dim", 16),
    **_keys("o_lora_rank linear_key_head_dim linear_value_head_dim linear_head_dim d_kv", 16),
    **_keys("swa_v_head_dim", 16),
    **_keys("qk_rope_head_dim rotary_dim", 8),
    **_keys("qk_head_dim", 24),
    **_keys("linear_num_key_heads linear_num_value_heads linear_num_heads", 4),
    **_keys("mamba_d_state state_size ssm_state_size", 16),
    **_keys("mamba_n_heads mamba_num_heads", 8),
    **_keys("mamba_d_head mamba_head_dim mamba_headdim", 16),
    **_keys("mamba_chunk_size chunk_size", 8),
    **_keys("mamba_dt_rank time_step_rank", 4),
    **_keys("hidden_size_per_layer_input ple_embed_dim laurel_rank", 8),
    **_keys("num_kv_shared_layers", 0),
    **_keys("n_group topk_group num_expert_group", 1),
    **_keys("first_k_dense_replace", 1),
}
_IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}

# What a type needs beside: keys of its config, those of its text part after a point.
_HEAD = {"head_dim": 16}
_WIDE = {layer: {"head_dim": 32} for layer in (1, 3)}
_INDEXER = {"indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 16}
_INDEXER |= {"indexer_budget": 64, "indexer_compress_ratio": 4}
_DOTS3 = {"num_key_value_heads": 4, "head_dim": 24}
_NO_PER_LAYER = {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
_THREE_AXES = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
_ZAMBA = {"attention_hidden_size": 128, "attention_head_dim": 32, "num_key_value_heads": 4}
OWN: dict[str, dict[str, Any]] = {
    "bailing_hybrid": {"partial_rotary_factor": 1.0},
    "bamba": {"attn_layer_indices": [1, 3]},
    "blt": {"encoder_hash_byte_group_vocab": 64, "encoder_config.hidden_size_global": 64}
    | {"decoder_config.hidden_size_global": 64},
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": _THREE_AXES, "sliding_attention": _THREE_AXES}
    },
    "dbrx": {"attn_config.rope_theta": 1e4, "attn_config.clip_qkv": 8.0, "ffn_config.hidden_size": 64},
    "deepseek_v2": {"topk_group": 1, "n_group": 1, "num_experts_per_tok": 2, "topk_method": "greedy"},
    "ernie4_5_moe": {"moe_k": 2, "moe_num_experts": 4},
    "mimo_v2_flash": {"head_dim": 24, "swa_head_dim": 24},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "dots3_note": {"vision_config.adapter_in_dim": 64, "vision_config.adapter_out_dim": 64}
    | {"audio_config.adapter_input_size": 64, "audio_config.adapter_out_dim": 64}
    | {"vision_config.per_layer_config": None}
    | {f"text_config.{key}": value for key, value in _DOTS3.items()},
    "dots3_note_text": _DOTS3,
    "falcon_h1": {"mamba_d_ssm": 128},
    "gemma3n_text": {"intermediate_size": 64},
    **{name: {"per_layer_config": _WIDE} for name in ("gemma4_text", "gemma4_unified_text")},
    **{name: {"text_config.per_layer_config": _WIDE} for name in ("gemma4", "gemma4_unified")},
    "gemma4_assistant": {"first": {"text_config": _NO_PER_LAYER}}
    | {f"text_config.{key}": 0 for key in _NO_PER_LAYER},
    "hrm_text": {"num_layers_per_stack": 1, "num_hidden_layers": 8},  # two cycles of four
    "hunyuan_v1_dense": _HEAD,
    "hunyuan_v1_moe": _HEAD,
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv", "full_attention"]},
    "longcat_flash": {"zero_expert_num": 2, "head_dim": 8},
    "mamba2": {"expand": 1, "num_heads": 4, "n_groups": 1},
    "ministral": _HEAD,
    "nemotron": {"num_key_value_heads": 2},
    "phi4_multimodal": {"audio_config.nemo_conv_channels": 16, "audio_config.ext_pw_out_channel": 64}
    | {"audio_config.depthwise_separable_out_channel": 64},
    "qwen4_exp": {f"text_config.{key}": value for key, value in _INDEXER.items()},
    "qwen4_exp_text": _INDEXER,
    "reformer": {"is_decoder": True, "axial_pos_embds_dim": [16, 48]},
    "roc_bert": {"shape_vocab_size": 64, "pronunciation_vocab_size": 64},
    "xmod": {"default_language": "en_XX"},
    "zamba": _ZAMBA,
    "zamba2": _ZAMBA
    | {"use_mem_rope": True, "num_query_groups": 4, "hybrid_layer_ids": [1, 3]}
    | {"layers_block_type": ["linear_attention", "hybrid"] * 2, "num_hidden_layers": 4},
    "zaya": {"num_experts_per_tok": 1},
}
_SHORT = {"max_position_embeddings": 256}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024, "rope_theta": 1e4}
_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LLAMA3 |= {"original_max_position_embeddings": 512, "rope_theta": 5e5}
_LONG = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 128}
_LONG |= {"short_factor": [1.0] * 8, "long_factor": [1.0 + i for i in range(8)]}
# Settings of a type that its defaults do not show: name -> type and what is changed.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama, dynamic": (
        "llama",
        _SHORT | {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
    ),
    "llama, llama3": ("llama", {"rope_parameters": _LLAMA3}),
    "llama, linear": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}},
    ),
    "llama, yarn": ("llama", {"rope_parameters": _YARN}),
    "phi3, longrope": ("phi3", _SHORT | {"original_max_position_embeddings": 128, "rope_parameters": _LONG}),
    "deepseek_v3, yarn": (
        "deepseek_v3",
        {"rope_parameters": {**_YARN, "mscale": 1.0, "mscale_all_dim": 1.0}},
    ),
    "falcon, alibi": ("falcon", {"alibi": True}),
    "falcon, new decoder": ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "granitemoehybrid, rope": (
        "granitemoehybrid",
        {"position_embedding_type": "rope", "layer_types": ["mamba", "attention", "mamba", "attention"]},
    ),
    "cohere2, full alone": ("cohere2", {"layer_types": ["full_attention"] * 4}),
    "exaone4, no window": ("exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 4}),
    "zamba2, no rope": ("zamba2", {"use_mem_rope": False}),
}


def small(name: str) -> Any:
    """Return the config of a type, or of a variant, made small."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    model_type, more = VARIANTS.get(name, (name, {}))
    own = OWN.get(model_type, {}) | more
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        known = CONFIG_MAPPING[model_type]
        first = own.get("first", {})
        values = json.loads(known(**first).to_json_string(use_diff=False))
        changed = made_small(values)
        for path, value in own.items():
            if path == "first":
                continue
            inner = changed
            *folders, name = path.split(".")
            for folder in folders:
                inner = inner[folder]
            inner[name] = value
        return known(**{k: v for k, v in changed.items() if k != "model_type"})


def made_small(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config's values with the sizes of `SMALL`, and as few layers as hold one of each kind."""
    count = next((values[k] for k in ("num_hidden_layers", "n_layer", "num_layers") if values.get(k)), 0)
    lists = {k: v for k, v in values.items() if isinstance(v, list) and count > 1 and len(v) == count}
    chosen = _chosen(list(lists.values()), count)
    of_layers = values.get("per_layer_config") or {}
    if of_layers and not lists:
        raise ValueError("per_layer_config without a list of layers")
    result: dict[str, Any] = {}
    for key, value in values.items():
        if key == "per_layer_config" and value:
            own = {int(layer): made_small(inner) for layer, inner in value.items()}
            result[key] = {new: own[old] for new, old in enumerate(chosen) if old in own}
        elif isinstance(value, Mapping) and (key.endswith("_config") or key in ("encoder", "decoder")):
            result[key] = made_small(value)
        elif isinstance(value, list) and {"__float__": "Infinity"} in value:
            result[key] = [math.inf if isinstance(item, dict) else item for item in value]
        elif key in lists:
            result[key] = [value[i] for i in chosen]
        elif key.endswith(("_token_id", "_token_index")) and value is not None:
            result[key] = _IDS.get(key, 3)
        elif key in SMALL and isinstance(value, int) and not isinstance(value, bool):
            result[key] = SMALL[key]
        else:
            result[key] = value
    if "qk_rope_head_dim" in values and "head_dim" in values:  # there it is that of the rotated part
        result["head_dim"] = SMALL["qk_rope_head_dim"]
    if "kv_lora_rank" in values and values.get("num_key_value_heads"):
        result["num_key_value_heads"] = result["num_attention_heads"]
    for key in ("num_hidden_layers", "n_layer", "num_layers"):
        if key in result and isinstance(values[key], int):
            result[key] = len(chosen) if lists else min(4, values[key])
    return result


def _chosen(lists: Sequence[list[Any]], count: int) -> list[int]:
    """Return which layers to keep: the first and the last of each kind, four at least."""
    kinds = [repr([each[i] for each in lists]) for i in range(count)]
    ends = {
        i for kind in dict.fromkeys(kinds) for i in (kinds.index(kind), count - 1 - kinds[::-1].index(kind))
    }
    for i in range(count):
        if len(ends) >= 4:
            break
        ends.add(i)
    return sorted(ends)


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Keep the library's advice off the terminal."""
    import transformers

    transformers.logging.set_verbosity(50)  # type: ignore[no-untyped-call]
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def types() -> list[str]:
    """Return the model types of transformers' mapping of causal language models."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def build(model_type: str, folder: Path) -> str | None:
    """Write a small random model; return why it cannot be built, if it cannot."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    try:
        with silent():
            config = small(model_type)
            model = AutoModelForCausalLM.from_config(config)
            for name, values in model.named_parameters():
                if "bias" not in name and not values.any():  # a temperature of 0 would leave nothing to see
                    torch.nn.init.constant_(values, 0.5)
            model.save_pretrained(folder)
            if model.config.model_type not in types():  # a part of the model's; checkpoints have the whole
                config.save_pretrained(folder)
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:150]}"
    return None
