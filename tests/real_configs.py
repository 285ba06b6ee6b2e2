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
    "gemma-3-4b": """
        {"model_type": "gemma3", "vision_config": {"hidden_size": 1152}, "text_config": {"hidden_size": 2560,
        "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34, "rope_scaling":
        {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024}}
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
# Other families, from memory of the public files; classes of transformers compute most of them.
MORE = {
    "llama-2-7b-hf": """
        {"architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "max_position_embeddings": 4096,
        "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
        "pretraining_tp": 1, "rope_scaling": null, "tie_word_embeddings": false}
    """,
    "llama-3.2-3b": """
        {"head_dim": 128, "hidden_size": 3072, "max_position_embeddings": 131072, "model_type": "llama",
        "num_attention_heads": 24, "num_hidden_layers": 28, "num_key_value_heads": 8, "rope_scaling":
        {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0}
    """,
    "vicuna-7b-v1.5-16k": """
        {"hidden_size": 4096, "max_position_embeddings": 4096, "max_sequence_length": 16384, "model_type":
        "llama", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
        "rope_scaling": {"factor": 4.0, "type": "linear"}}
    """,
    "deepseek-coder-6.7b": """
        {"hidden_size": 4096, "max_position_embeddings": 16384, "model_type": "llama",
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32, "rope_scaling":
        {"factor": 4.0, "type": "linear"}, "rope_theta": 100000}
    """,
    "yi-34b-200k": """
        {"hidden_size": 7168, "max_position_embeddings": 200000, "model_type": "llama",
        "num_attention_heads": 56, "num_hidden_layers": 60, "num_key_value_heads": 8, "rope_scaling": null,
        "rope_theta": 10000000.0}
    """,
    "llama-4-scout": """
        {"model_type": "llama4", "text_config": {"attention_chunk_size": 8192, "attn_scale": 0.1,
        "attn_temperature_tuning": true, "floor_scale": 8192, "for_llm_compressor": false, "head_dim": 128,
        "hidden_size": 5120, "max_position_embeddings": 10485760, "model_type": "llama4_text",
        "no_rope_layers": [], "num_attention_heads": 40, "num_hidden_layers": 48, "num_key_value_heads": 8,
        "rope_scaling": {"factor": 16.0, "high_freq_factor": 1.0, "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0,
        "use_qk_norm": true}, "vision_config": {"hidden_size": 1408, "rope_theta": 10000}}
    """,
    "mistral-nemo": """
        {"head_dim": 128, "hidden_size": 5120, "max_position_embeddings": 131072, "model_type": "mistral",
        "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8, "rope_theta":
        1000000.0, "sliding_window": null}
    """,
    "yarn-mistral-7b-128k": """
        {"hidden_size": 4096, "max_position_embeddings": 32768, "max_sequence_length": 131072, "model_type":
        "mistral", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "rope_scaling": {"factor": 16.0, "finetuned": true, "original_max_position_embeddings": 8192,
        "type": "yarn"}, "rope_theta": 10000.0, "sliding_window": 131072}
    """,
    "ministral-3-8b": """
        {"model_type": "mistral3", "text_config": {"head_dim": 128, "hidden_size": 4096,
        "max_position_embeddings": 262144, "model_type": "ministral3", "num_attention_heads": 32,
        "num_hidden_layers": 34, "num_key_value_heads": 8, "rope_parameters": {"beta_fast": 32.0,
        "beta_slow": 1.0, "factor": 16.0, "llama_4_scaling_beta": 0.1, "mscale": 1.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 16384, "rope_theta": 1000000.0, "rope_type": "yarn", "type":
        "yarn"}, "sliding_window": null}, "vision_config": {"head_dim": 64, "hidden_size": 1024,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}}}
    """,
    "mixtral-8x7b": """
        {"hidden_size": 4096, "max_position_embeddings": 32768, "model_type": "mixtral",
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8,
        "rope_theta": 1000000.0, "sliding_window": null}
    """,
    "qwen2.5-7b-yarn": """
        {"hidden_size": 3584, "max_position_embeddings": 32768, "max_window_layers": 28, "model_type":
        "qwen2", "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4,
        "rope_theta": 1000000.0, "rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 32768,
        "type": "yarn"}, "sliding_window": 131072, "use_sliding_window": false}
    """,
    "qwen2.5-7b-1m": """
        {"dual_chunk_attention_config": {"chunk_size": 262144, "local_size": 8192,
        "original_max_position_embeddings": 262144}, "hidden_size": 3584, "max_position_embeddings": 1010000,
        "model_type": "qwen2", "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4,
        "rope_theta": 10000000.0, "sliding_window": 32768, "use_sliding_window": false}
    """,
    "qwen3-8b-yarn": """
        {"head_dim": 128, "hidden_size": 4096, "max_position_embeddings": 40960, "model_type": "qwen3",
        "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8, "rope_theta": 1000000,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}
    """,
    "qwen3-next-80b": """
        {"head_dim": 256, "hidden_size": 2048, "full_attention_interval": 4, "max_position_embeddings":
        262144, "model_type": "qwen3_next", "num_attention_heads": 16, "num_hidden_layers": 48,
        "num_key_value_heads": 2, "partial_rotary_factor": 0.25, "rope_scaling": null, "rope_theta":
        10000000}
    """,
    "qwen2.5-vl-7b": """
        {"hidden_size": 3584, "max_position_embeddings": 128000, "model_type": "qwen2_5_vl",
        "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4, "rope_theta":
        1000000.0, "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}, "vision_config":
        {"hidden_size": 1280, "tokens_per_second": 2}}
    """,
    "smollm3-3b": """
        {"hidden_size": 2048, "layer_types": FULL36, "max_position_embeddings": 65536, "model_type":
        "smollm3", "no_rope_layer_interval": 4, "no_rope_layers": MARKS36, "num_attention_heads": 16,
        "num_hidden_layers": 36, "num_key_value_heads": 4, "rope_scaling": null, "rope_theta": 5000000.0,
        "sliding_window": null, "use_sliding_window": false}
    """,
    "command-r7b": """
        {"head_dim": 128, "hidden_size": 4096, "layer_switch": 4, "logit_scale": 0.25,
        "max_position_embeddings": 8192, "model_type": "cohere2", "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "order_of_interleaved_layers":
        "local_attn_first", "position_embedding_type": "rope_gptj", "rope_scaling": null, "rope_theta":
        50000, "rotary_pct": 1.0, "sliding_window": 4096, "sliding_window_pattern": 4}
    """,
    "exaone-4-32b": """
        {"head_dim": 128, "hidden_size": 5120, "layer_types": HYBRID64, "max_position_embeddings": 131072,
        "model_type": "exaone4", "num_attention_heads": 40, "num_hidden_layers": 64, "num_key_value_heads":
        8, "rope_scaling": {"factor": 16.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 1000000,
        "sliding_window": 4096, "sliding_window_pattern": "LLLG"}
    """,
    "falcon-7b-hf": """
        {"alibi": false, "hidden_size": 4544, "model_type": "falcon", "multi_query": true,
        "new_decoder_architecture": false, "num_attention_heads": 71, "num_hidden_layers": 32, "num_kv_heads":
        71, "parallel_attn": true}
    """,
    "falcon-h1-7b": """
        {"head_dim": 128, "hidden_size": 3072, "max_position_embeddings": 262144, "model_type": "falcon_h1",
        "num_attention_heads": 12, "num_hidden_layers": 44, "num_key_value_heads": 2, "rope_scaling": null,
        "rope_theta": 100000000000.0}
    """,
    "phi-2": """
        {"hidden_size": 2560, "max_position_embeddings": 2048, "model_type": "phi", "num_attention_heads":
        32, "num_hidden_layers": 32, "num_key_value_heads": 32, "partial_rotary_factor": 0.4,
        "qk_layernorm": false, "rope_scaling": null, "rope_theta": 10000.0}
    """,
    "phi-4-mini": """
        {"hidden_size": 3072, "max_position_embeddings": 131072, "model_type": "phi3",
        "num_attention_heads": 24, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "original_max_position_embeddings": 4096, "partial_rotary_factor": 0.75, "rope_theta": 10000.0,
        "sliding_window": 262144, "rope_scaling": {"long_factor": LONG, "short_factor": SHORT, "type":
        "longrope"}}
    """,
    "persimmon-8b": """
        {"hidden_size": 4096, "max_position_embeddings": 16384, "model_type": "persimmon",
        "num_attention_heads": 64, "num_hidden_layers": 36, "partial_rotary_factor": 0.5, "qk_layernorm":
        true, "rope_scaling": null, "rope_theta": 25000.0}
    """,
    "stablelm-2-1.6b": """
        {"hidden_size": 2048, "max_position_embeddings": 4096, "model_type": "stablelm",
        "num_attention_heads": 32, "num_hidden_layers": 24, "num_key_value_heads": 32,
        "partial_rotary_factor": 0.25, "rope_scaling": null, "rope_theta": 10000, "use_qkv_bias": true}
    """,
    "pythia-2.8b": """
        {"hidden_size": 2560, "max_position_embeddings": 2048, "model_type": "gpt_neox",
        "num_attention_heads": 32, "num_hidden_layers": 32, "rotary_emb_base": 10000, "rotary_pct": 0.25}
    """,
    "starcoder2-7b": """
        {"hidden_size": 4608, "max_position_embeddings": 16384, "model_type": "starcoder2",
        "num_attention_heads": 36, "num_hidden_layers": 32, "num_key_value_heads": 4, "rope_theta": 1000000,
        "sliding_window": 4096}
    """,
    "gemma-7b": """
        {"head_dim": 256, "hidden_size": 3072, "max_position_embeddings": 8192, "model_type": "gemma",
        "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 16, "rope_scaling": null,
        "rope_theta": 10000.0}
    """,
    "glm-4-9b-0414": """
        {"head_dim": 128, "hidden_size": 4096, "max_position_embeddings": 32768, "model_type": "glm4",
        "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 2,
        "partial_rotary_factor": 0.5, "rope_theta": 10000.0}
    """,
    "glm-4.5-air": """
        {"head_dim": 128, "hidden_size": 4096, "max_position_embeddings": 131072, "model_type": "glm4_moe",
        "num_attention_heads": 96, "num_hidden_layers": 46, "num_key_value_heads": 8,
        "partial_rotary_factor": 0.5, "rope_scaling": null, "rope_theta": 1000000, "use_qk_norm": false}
    """,
    "olmo-2-13b": """
        {"hidden_size": 5120, "max_position_embeddings": 4096, "model_type": "olmo2", "num_attention_heads":
        40, "num_hidden_layers": 40, "num_key_value_heads": 40, "rope_scaling": null, "rope_theta": 500000}
    """,
    "olmoe-1b-7b": """
        {"hidden_size": 2048, "max_position_embeddings": 4096, "model_type": "olmoe", "num_attention_heads":
        16, "num_hidden_layers": 16, "num_key_value_heads": 16, "rope_scaling": null, "rope_theta": 10000.0}
    """,
    "internlm3-8b": """
        {"head_dim": 128, "hidden_size": 4096, "max_position_embeddings": 32768, "model_type": "internlm3",
        "num_attention_heads": 32, "num_hidden_layers": 48, "num_key_value_heads": 2, "rope_scaling":
        {"factor": 6.0, "rope_type": "dynamic"}, "rope_theta": 50000000}
    """,
    "minitron-4b": """
        {"head_dim": 128, "hidden_size": 3072, "max_position_embeddings": 4096, "model_type": "nemotron",
        "num_attention_heads": 24, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "partial_rotary_factor": 0.5, "rope_theta": 10000}
    """,
    "minimax-m2": """
        {"head_dim": 128, "hidden_size": 3072, "max_position_embeddings": 196608, "model_type":
        "minimax_m2", "num_attention_heads": 48, "num_hidden_layers": 62, "num_key_value_heads": 8,
        "rope_theta": 5000000, "rotary_dim": 64, "use_qk_norm": true}
    """,
    "minicpm3-4b": """
        {"hidden_size": 2560, "kv_lora_rank": 256, "max_position_embeddings": 32768, "model_type":
        "minicpm3", "num_attention_heads": 40, "num_hidden_layers": 62, "num_key_value_heads": 40,
        "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "rope_scaling": {"long_factor": LONG16,
        "original_max_position_embeddings": 32768, "short_factor": SHORT16, "type": "longrope"}}
    """,
    "apertus-8b": """
        {"hidden_size": 4096, "max_position_embeddings": 65536, "model_type": "apertus",
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "rope_scaling":
        {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings":
        8192, "rope_type": "llama3", "type": "llama3"}, "rope_theta": 12000000}
    """,
    "ernie-4.5-0.3b": """
        {"head_dim": 128, "hidden_size": 1024, "max_position_embeddings": 131072, "model_type": "ernie4_5",
        "num_attention_heads": 16, "num_hidden_layers": 18, "num_key_value_heads": 2, "rope_scaling": null,
        "rope_theta": 500000.0}
    """,
    "seed-oss-36b": """
        {"head_dim": 128, "hidden_size": 5120, "max_position_embeddings": 524288, "model_type": "seed_oss",
        "num_attention_heads": 80, "num_hidden_layers": 64, "num_key_value_heads": 8, "rope_scaling":
        {"rope_type": "default"}, "rope_theta": 10000000.0}
    """,
    "lfm2-1.2b": """
        {"hidden_size": 2048, "layer_types": CONV16, "max_position_embeddings": 128000, "model_type": "lfm2",
        "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8, "rope_theta":
        1000000.0}
    """,
    "bitnet-b1.58-2b": """
        {"hidden_size": 2560, "max_position_embeddings": 4096, "model_type": "bitnet",
        "num_attention_heads": 20, "num_hidden_layers": 30, "num_key_value_heads": 5, "rope_theta": 500000.0}
    """,
    "helium-1-2b": """
        {"head_dim": 128, "hidden_size": 2048, "max_position_embeddings": 4096, "model_type": "helium",
        "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rope_theta": 20000.0}
    """,
    "glm-4-9b-chat": """
        {"add_qkv_bias": true, "hidden_size": 4096, "kv_channels": 128, "model_type": "chatglm",
        "multi_query_attention": true, "multi_query_group_num": 2, "num_attention_heads": 32, "num_layers":
        40, "original_rope": true, "rope_ratio": 500, "seq_length": 131072}
    """,
    "chatglm3-6b": """
        {"add_qkv_bias": true, "hidden_size": 4096, "kv_channels": 128, "model_type": "chatglm",
        "multi_query_attention": true, "multi_query_group_num": 2, "num_attention_heads": 32, "num_layers":
        28, "original_rope": true, "seq_length": 8192}
    """,
}
LISTS = {
    "MARKS36": [1, 1, 1, 0] * 9,
    "FULL36": ["full_attention"] * 36,
    "HYBRID64": [*["sliding_attention"] * 3, "full_attention"] * 16,
    "CONV16": ["full_attention" if n in (2, 5, 8, 10, 12, 14) else "conv" for n in range(16)],
    "SHORT16": [1.0 + i / 16 for i in range(16)],
    "LONG16": [2.0 + i for i in range(16)],
}

# name of a fragment: model type, beginning of the names of its classes in transformers
CLASSES = {
    "llama-3.1-8b": ("llama", "Llama"),
    "qwen2.5-7b": ("qwen2", "Qwen2"),
    "gemma-2-27b": ("gemma2", "Gemma2"),
    "gemma-3-27b": ("gemma3_text", "Gemma3"),
    **dict.fromkeys(["gemma-3-4b", "new-gemma-3"], ("gemma3_text", "Gemma3")),
    "deepseek-v3": ("deepseek_v3", "DeepseekV3"),
    "deepseek-v2-lite": ("deepseek_v2", "DeepseekV2"),
    "kimi-k2": ("deepseek_v3", "DeepseekV3"),
    "gpt-neox-20b": ("gpt_neox", "GPTNeoX"),
    "gpt-oss-20b": ("gpt_oss", "GptOss"),
    "olmo-3-7b": ("olmo3", "Olmo3"),
    "command-r-v01": ("cohere", "Cohere"),
    "stablelm-3b-4e1t": ("stablelm", "StableLm"),
    "phi-3.5": ("phi3", "Phi3"),
    "qwen2-vl": ("qwen2_vl_text", "Qwen2VL"),
    "qwen3-vl": ("qwen3_vl_text", "Qwen3VLText"),
    "granite": ("granite", "Granite"),
}
# the same of configs of other families; chatglm has no class there, and internlm3 rotates by Llama's
MORE_CLASSES = {
    **dict.fromkeys(["llama-2-7b-hf", "llama-3.2-3b", "vicuna-7b-v1.5-16k"], ("llama", "Llama")),
    **dict.fromkeys(["deepseek-coder-6.7b", "yi-34b-200k", "internlm3-8b"], ("llama", "Llama")),
    "llama-4-scout": ("llama4_text", "Llama4Text"),
    **dict.fromkeys(["mistral-nemo", "yarn-mistral-7b-128k"], ("mistral", "Mistral")),
    "ministral-3-8b": ("ministral3", "Ministral3"),
    "mixtral-8x7b": ("mixtral", "Mixtral"),
    **dict.fromkeys(["qwen2.5-7b-yarn", "qwen2.5-7b-1m"], ("qwen2", "Qwen2")),
    "qwen3-8b-yarn": ("qwen3", "Qwen3"),
    "qwen3-next-80b": ("qwen3_next", "Qwen3Next"),
    "qwen2.5-vl-7b": ("qwen2_5_vl_text", "Qwen2_5_VL"),
    "smollm3-3b": ("smollm3", "SmolLM3"),
    "command-r7b": ("cohere2", "Cohere2"),
    "exaone-4-32b": ("exaone4", "Exaone4"),
    "falcon-7b-hf": ("falcon", "Falcon"),
    "falcon-h1-7b": ("falcon_h1", "FalconH1"),
    "phi-2": ("phi", "Phi"),
    "phi-4-mini": ("phi3", "Phi3"),
    "persimmon-8b": ("persimmon", "Persimmon"),
    "stablelm-2-1.6b": ("stablelm", "StableLm"),
    "pythia-2.8b": ("gpt_neox", "GPTNeoX"),
    "starcoder2-7b": ("starcoder2", "Starcoder2"),
    "gemma-7b": ("gemma", "Gemma"),
    "glm-4-9b-0414": ("glm4", "Glm4"),
    "glm-4.5-air": ("glm4_moe", "Glm4Moe"),
    "olmo-2-13b": ("olmo2", "Olmo2"),
    "olmoe-1b-7b": ("olmoe", "Olmoe"),
    "minitron-4b": ("nemotron", "Nemotron"),
    "minimax-m2": ("minimax_m2", "MiniMaxM2"),
    "minicpm3-4b": ("minicpm3", "MiniCPM3"),
    "apertus-8b": ("apertus", "Apertus"),
    "ernie-4.5-0.3b": ("ernie4_5", "Ernie4_5"),
    "seed-oss-36b": ("seed_oss", "SeedOss"),
    "lfm2-1.2b": ("lfm2", "Lfm2"),
    "bitnet-b1.58-2b": ("bitnet", "BitNet"),
    "helium-1-2b": ("helium", "Helium"),
}
WITHOUT_CLASS = {"glm-4-9b-chat", "chatglm3-6b"}


def config(name: str) -> dict[str, Any]:
    text = {**TEXTS, **OTHERS, **MORE}[name]
    lists = {**LISTS, **{word.upper(): values for word, values in FACTORS.items()}}
    for word, values in lists.items():
        text = text.replace(f" {word}", f" {json.dumps(values)}")
    return json.loads(text)
