"""config.json of public models: fragments of the real files, what is about heads and positions."""

import json
from typing import Any

FACTORS = dict(
    zip(("short", "long"), ([1.0 + i / 48 for i in range(48)], [2.0 + i for i in range(48)]), strict=True)
)

# Fragments of real files: keys that have nothing to do with heads and positions are left out.
TEXTS = {
    "llama-3.1-8b": """
        {"architectures": ["LlamaForCausalLM"], "attention_bias": false, "hidden_size": 4096,
        "max_position_embeddings": 131072, "model_type": "llama", "num_attention_heads": 32,
        "num_key_value_heads": 8, "rope_theta": 500000.0, "torch_dtype": "bfloat16", "rope_scaling":
        {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3"}}
    """,
    "qwen2.5-7b": """
        {"hidden_size": 3584, "max_position_embeddings": 131072, "max_window_layers": 28, "model_type":
        "qwen2", "num_attention_heads": 28, "num_key_value_heads": 4, "rope_theta": 1000000.0,
        "sliding_window": 131072, "use_mrope": false, "use_sliding_window": false}
    """,
    "gemma-2-27b": """
        {"model_type": "gemma2", "head_dim": 128, "hidden_size": 4608, "num_attention_heads": 32,
        "num_key_value_heads": 16, "max_position_embeddings": 8192, "query_pre_attn_scalar": 144,
        "rope_theta": 10000.0, "sliding_window": 4096}
    """,
    "gemma-3-27b": """
        {"model_type": "gemma3", "vision_config": {"num_attention_heads": 16, "hidden_size": 1152},
        "text_config": {"head_dim": 128, "hidden_size": 5376, "max_position_embeddings": 131072,
        "model_type": "gemma3_text", "num_attention_heads": 32, "num_key_value_heads": 16,
        "query_pre_attn_scalar": 168, "rope_local_base_freq": 10000.0, "rope_theta": 1000000.0,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window_pattern": 6}}
    """,
    "deepseek-v3": """
        {"hidden_size": 7168, "kv_lora_rank": 512, "max_position_embeddings": 163840, "model_type":
        "deepseek_v3", "num_attention_heads": 128, "num_key_value_heads": 128, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale":
        1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096, "type": "yarn"},
        "rope_theta": 10000}
    """,
    "deepseek-v2-lite": """
        {"hidden_size": 2048, "max_position_embeddings": 163840, "model_type": "deepseek_v2",
        "num_attention_heads": 16, "num_key_value_heads": 16, "qk_nope_head_dim": 128, "qk_rope_head_dim":
        64, "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707,
        "mscale_all_dim": 0.707, "original_max_position_embeddings": 4096, "type": "yarn"}, "rope_theta":
        10000}
    """,
    "kimi-k2": """
        {"hidden_size": 7168, "max_position_embeddings": 131072, "model_type": "kimi_k2",
        "num_attention_heads": 64, "num_key_value_heads": 64, "qk_nope_head_dim": 128, "qk_rope_head_dim":
        64, "rope_scaling": {"beta_fast": 1.0, "beta_slow": 1.0, "factor": 32.0, "mscale": 1.0,
        "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096, "type": "yarn"}, "rope_theta":
        50000.0}
    """,
    "gpt-neox-20b": """
        {"hidden_size": 6144, "max_position_embeddings": 2048, "model_type": "gpt_neox",
        "num_attention_heads": 64, "rotary_emb_base": 10000, "rotary_pct": 0.25, "use_parallel_residual":
        true}
    """,
    "gpt-j-6b": """
        {"model_type": "gptj", "n_ctx": 2048, "n_embd": 4096, "n_head": 16, "n_positions": 2048, "rotary":
        true, "rotary_dim": 64, "scale_attn_weights": true}
    """,
    "gpt-oss-20b": """
        {"head_dim": 64, "hidden_size": 2880, "initial_context_length": 4096, "layer_types":
        ["sliding_attention", "full_attention"], "max_position_embeddings": 131072, "model_type":
        "gpt_oss", "num_attention_heads": 64, "num_key_value_heads": 8, "rope_scaling": { "beta_fast":
        32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096, "rope_type":
        "yarn", "truncate": false}, "rope_theta": 150000, "sliding_window": 128}
    """,
    "olmo-3-7b": """
        {"hidden_size": 4096, "max_position_embeddings": 65536, "model_type": "olmo3",
        "num_attention_heads": 32, "num_key_value_heads": 32, "rope_scaling": {"attention_factor":
        1.2079441541679836, "beta_fast": 32.0, "beta_slow": 1.0, "factor": 8.0,
        "original_max_position_embeddings": 8192, "rope_type": "yarn"}, "rope_theta": 500000,
        "sliding_window": 4096}
    """,
    "command-r-v01": """
        {"hidden_size": 8192, "logit_scale": 0.0625, "max_position_embeddings": 8192, "model_type":
        "cohere", "num_attention_heads": 64, "num_key_value_heads": 64, "rope_theta": 8000000.0}
    """,
    "falcon-7b": """
        {"alibi": false, "hidden_size": 4544, "max_position_embeddings": 2048, "model_type": "falcon",
        "multi_query": true, "new_decoder_architecture": false, "num_attention_heads": 71, "rope_theta":
        10000.0}
    """,
    "stablelm-3b-4e1t": """
        {"hidden_size": 2560, "max_position_embeddings": 4096, "model_type": "stablelm_epoch",
        "num_attention_heads": 32, "num_key_value_heads": 32, "rope_pct": 0.25, "rope_theta": 10000}
    """,
    "minimax-text-01": """
        {"head_dim": 128, "hidden_size": 6144, "max_position_embeddings": 10240000, "model_type":
        "minimax_text_01", "num_attention_heads": 64, "num_key_value_heads": 8, "rope_theta": 10000000,
        "rotary_dim": 64}
    """,
}
OTHERS = {
    "phi-3.5": """
        {"hidden_size": 3072, "max_position_embeddings": 131072, "model_type": "phi3",
        "num_attention_heads": 32, "num_key_value_heads": 32, "original_max_position_embeddings": 4096,
        "rope_theta": 10000.0, "sliding_window": 262144, "rope_scaling": {"long_factor": LONG,
        "short_factor": SHORT, "type": "longrope"}}
    """,
    "qwen2-vl": """
        {"hidden_size": 3584, "max_position_embeddings": 32768, "model_type": "qwen2_vl",
        "num_attention_heads": 28, "num_key_value_heads": 4, "rope_theta": 1000000.0, "vision_config":
        {"depth": 32}, "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}
    """,
    "qwen3-vl": """
        {"model_type": "qwen3_vl", "text_config": {"head_dim": 128, "hidden_size": 4096,
        "max_position_embeddings": 262144, "model_type": "qwen3_vl_text", "num_attention_heads": 32,
        "num_key_value_heads": 8, "rope_scaling": {"mrope_interleaved": true, "mrope_section": [24, 20,
        20], "rope_type": "default"}, "rope_theta": 5000000}, "vision_config": {"hidden_size": 1152}}
    """,
    "new-gemma-3": """
        {"model_type": "gemma3_text", "head_dim": 256, "hidden_size": 640, "num_attention_heads": 4,
        "num_key_value_heads": 1, "max_position_embeddings": 32768, "query_pre_attn_scalar": 256,
        "layer_types": ["sliding_attention", "full_attention"], "rope_parameters": { "full_attention":
        {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0}, "sliding_attention":
        {"rope_type": "default", "rope_theta": 10000.0}}}
    """,
    "gemma-4": """
        {"model_type": "gemma4_text", "head_dim": 256, "global_head_dim": 512, "hidden_size": 2304,
        "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 131072,
        "rope_parameters": { "full_attention": {"rope_type": "proportional", "partial_rotary_factor":
        0.25, "rope_theta": 1000000.0}, "sliding_attention": {"rope_type": "default", "rope_theta":
        10000.0}}}
    """,
    "granite": """
        {"model_type": "granite", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads":
        8, "max_position_embeddings": 131072, "rope_theta": 10000000.0, "rope_scaling": null,
        "attention_multiplier": 0.0078125, "time_step_limit": [0.0, Infinity]}
    """,
}


def config(name: str) -> dict[str, Any]:
    text = {**TEXTS, **OTHERS}[name]
    for word, values in FACTORS.items():
        text = text.replace(word.upper(), json.dumps(values))
    return json.loads(text)
