"""What the code of a Hugging Face model type does that its config.json does not say.

Model types are named without the ending "_text". Source: transformers 5.23.0, models/*/modeling_*.py and
configuration_*.py (read); kimi_k2 is DeepSeek-V3 there; stablelm_epoch is as stablelm (recalled).
"""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Dims 2i and 2i + 1 are a pair, unless the config says rope_interleave = false.
INTERLEAVED = _words(
    """
    axk1 axk2 bailing_hybrid codegen cohere cohere2 cohere2_moe deepseek_v2 deepseek_v3 deepseek_v32
    dots3_note ernie4_5 ernie4_5_moe glm glm4 glm4_moe_lite glm4v glm_moe_dsa glm_ocr gptj helium
    kimi_k2 llama4 longcat_flash mistral4 mistral_large4 youtu
    """
)

# Beginnings of types whose head_dim, where it is missing, is not hidden_size / num_attention_heads.
OWN_HEAD_DIM = _words(
    """
    afmoe bailing cohere2_moe cwm ernie4_5 gemma glm gpt_oss helium hy_v internlm3 laguna llama4 mellum
    mimo minimax_m ministral3 molmo2 nemotron_h paddleocr qwen3 qwen4 seed_oss solar_open step3 t5gemma
    vaultgemma
    """
)

# A missing partial_rotary_factor is not 1.
OWN_FRACTION = _words(
    """
    codegen dots3_note fuyu glm glm4 glm4_moe glm4v_moe gpt_neox gptj minimax minimax_m2 nemotron
    persimmon phi qwen3_5 qwen3_5_moe qwen3_next recurrent_gemma stablelm stablelm_epoch
    """
)

# The base is in the code, not in the config.
BASE = {"gptj": 10000.0, "codegen": 10000.0}

# Beginnings of types that do not divide scores by the root of head_dim.
SCALE_ONE = ("gemma3n", "gemma4", "diffusion_gemma")

# Beginnings of types with sliding layers of another base; which, old configs leave to the class.
LOCAL_BASE = ("gemma3",)

# A scaling is for the full layers alone.
SLIDING_UNSCALED = ("olmo3",)

# Only the sliding layers rotate, where there are any.
SLIDING_ALONE = ("cohere2", "exaone4")

# Latent attention whose softmax scale YaRN's mscale_all_dim leaves alone.
SCALE_WITHOUT_MSCALE = ("dots3_note", "glm5_next", "kimi_linear")

# Beginnings of types whose M-RoPE interleaves the axes, or arranges them in a way that Axes has not.
AXES_INTERLEAVED = ("qwen3_vl", "qwen3_5", "qwen3_omni", "qwen4")
AXES_OTHERWISE = ("ernie4_5_vl", "hunyuan_vl", "cohere_compass", "neomme")

# Positions are added, learned or biases.
NO_ROPE = _words(
    """
    albert bart bert bloom deberta deberta-v2 distilbert electra gpt2 gpt_bigcode gpt_neo mamba mamba2
    mt5 opt roberta rwkv t5 whisper xlm-roberta xlnet
    """
)
