"""What the code of a Hugging Face model type does that its config.json does not say.

Model types are named without the ending "_text". Source: transformers 5.23.0, models/*/modeling_*.py and
configuration_*.py (read); kimi_k2 is DeepSeek-V3 there; stablelm_epoch is as stablelm, and chatglm, whose
checkpoints bring their code (modeling_chatglm.py of THUDM/glm-4-9b-chat), as written here (recalled).
"""

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ropeaudit import data


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Dims 2i and 2i + 1 are a pair, unless the config says rope_interleave = false.
INTERLEAVED = _words(
    """
    axk1 axk2 bailing_hybrid chatglm codegen cohere cohere2 cohere2_moe deepseek_v2 deepseek_v3 deepseek_v32
    dots3_note ernie4_5 ernie4_5_moe glm glm4 glm4_moe_lite glm4v glm_moe_dsa glm_ocr gptj helium
    kimi_k2 llama4 longcat_flash mistral4 mistral_large4 roformer youtu
    """
)

# Beginnings of types whose head_dim, where it is missing, is not hidden_size / num_attention_heads, for types
# whose class is not in data/class_defaults.toml, such as those that bring their code.
OWN_HEAD_DIM = _words(
    """
    bailing embedding_gemma2 ernie4_5 gemma glm hy_v llama4 mimo minimax_m muse nemotron_h neomme
    openai_privacy_filter paddleocr qwen3 qwen4 step3 t5gemma
    """
)
# Types among those whose code divides all the same.
DIVIDED_HEAD_DIM = ("glm_image", "qwen3_omni_moe_talker")

# A missing partial_rotary_factor is not 1.
OWN_FRACTION = _words(
    """
    bamba codegen dots3_note fuyu glm glm4 glm4_moe glm4v_moe gpt_neox gptj nemotron persimmon phi qwen3_5
    qwen3_5_moe qwen3_next recurrent_gemma stablelm stablelm_epoch
    """
)

# The base is in the code, not in the config.
BASE = {"gptj": 10000.0, "codegen": 10000.0, "roformer": 10000.0, "chatglm": 10000.0}
# It is multiplied by a key rope_ratio.
BASE_TIMES_RATIO = ("chatglm",)
# The fraction of dims that rotate is in the code.
FRACTION = {"chatglm": 0.5}
# What head_dim is called there.
HEAD_DIM_KEY = {"zamba2": "attention_head_dim", "chatglm": "kv_channels", "jetmoe": "kv_channels"}
# Types whose heads, where head_dim is missing, are twice as wide as usual.
DOUBLE_HEAD_DIM = ("zamba2",)
# no_rope_layers lists 0 and 1, 1 for a layer that rotates; without it every fourth does not, or every so many
# as no_rope_layer_interval says. An empty list is as none for some.
NO_ROPE_LAYERS, NO_ROPE_LAYERS_EMPTY = ("llama4", "smollm3"), ("llama4",)
NO_ROPE_INTERVAL = 4

# A rotary_dim is not read: what is rotated is the partial_rotary_factor of the RoPE parameters, else all; and
# all where the code does not take that either (`class_defaults`).
ROTARY_DIM_UNREAD = ("minimax", "minimax_m3_vl")

# The scalings that these load with, of those that are known here; phi3 takes yarn for longrope, and phimoe
# needs a short_mscale and a long_mscale, which are not read here.
SCALINGS: dict[str, tuple[str, ...]] = {"phi3": ("longrope",), "phi4_multimodal": ("longrope",), "phimoe": ()}

# Beginnings of types that do not divide scores by the root of head_dim.
SCALE_ONE = ("gemma3n", "gemma4", "diffusion_gemma")

# Types whose bases, of full and of sliding layers, stand outside the RoPE parameters under these keys.
TWO_BASES = ("modernbert", "modernbert-decoder")
BASE_KEYS = ("global_rope_theta", "local_rope_theta")

# Beginnings of types with sliding layers of another base; which, old configs leave to the class.
LOCAL_BASE = ("gemma3",)

# A scaling is for the full layers alone.
SLIDING_UNSCALED = ("olmo3",)

# Only the sliding layers rotate, where a sliding_window is given.
SLIDING_ALONE = ("afmoe", "beam", "cohere2", "cohere2_moe", "exaone4", "exaone_moe", "flint", "kolibri1")
# Every so many layers one is full, where neither layer_types nor sliding_window_pattern says which.
SLIDING_PATTERN = {"cohere2": 4, "exaone4": 4, "exaone_moe": 4}

# Latent attention whose softmax scale YaRN's mscale_all_dim leaves alone.
SCALE_WITHOUT_MSCALE = ("dots3_note", "glm5_next", "kimi_linear")

# Beginnings of types whose M-RoPE interleaves the axes, or arranges them in a way that Axes has not.
AXES_INTERLEAVED = ("qwen3_vl", "qwen3_5", "qwen3_omni", "qwen4")
AXES_OTHERWISE = ("ernie4_5_vl", "hunyuan_vl", "cohere_compass", "neomme")

# Positions are added, learned or biases, or there are none.
NO_ROPE = _words(
    """
    albert bart bert bert-generation big_bird bigbird_pegasus biogpt blenderbot blenderbot-small bloom
    camembert cpmant ctrl data2vec-text deberta deberta-v2 distilbert electra ernie falcon_mamba git gpt2
    gpt_bigcode gpt_neo inkling inkling2 mamba mamba2 marian mbart megatron-bert mpt mt5 mvp openai-gpt opt
    pegasus plbart prophetnet reformer rembert roberta roberta-prelayernorm roc_bert rwkv t5 trocr whisper
    xglm xlm xlm-roberta xlm-roberta-xl xlnet xlstm xmod
    """
)
# The attention of these has no positions, whatever their configs say of RoPE.
NEVER_ROTATES = ("jamba", "kimi_linear", "nemotron_h", "zamba")
# These rotate where a key has this value alone.
ROTATES_IF = {"granitemoehybrid": ("position_embedding_type", "rope"), "zamba2": ("use_mem_rope", True)}


SIZES = (
    *("max_position_embeddings", "num_attention_heads", "num_key_value_heads"),
    *("head_dim", "qk_nope_head_dim", "qk_rope_head_dim"),
)


@dataclass(frozen=True, slots=True)
class ClassDefault:
    """The defaults of a configuration class. name: the class, "" for none that is known.

    bases: layer type -> base, radians per token of pair i being base^(-2i/d); "" for layers of any type.
    sizes: those of `SIZES` that the class has a default for; others it computes, or has not.
    scaled: its RoPE parameters, where they ask for a scaling. takes_fraction: False where its code, without a
    scaling, rotates all dims whatever partial_rotary_factor says.
    """

    name: str
    bases: Mapping[str, float]
    sizes: Mapping[str, int]
    scaled: Mapping[str, Any]
    takes_fraction: bool

    def base(self, layer: str) -> float | None:
        """Return the base of a layer type; None where it is not known."""
        return self.bases.get(layer, self.bases.get(""))


def class_default(model: str) -> ClassDefault:
    """Return the defaults of a model type, which is named without the ending "_text".

    >>> of("llama").name, of("llama").base("full_attention"), of("gemma3").sizes["head_dim"]
    ('LlamaConfig', 10000.0, 256)
    """
    values = dict(_library().get(model, {}))
    name, sizes = values.pop("class", ""), {key: values.pop(key) for key in SIZES if key in values}
    scaled, takes_fraction = values.pop("scaled", {}), values.pop("partial_rotary_factor", True)
    bases = {key.replace("rope_theta", ""): value for key, value in values.items()}
    return ClassDefault(name, bases, sizes, scaled, takes_fraction)


@functools.cache
def _library() -> dict[str, dict[str, Any]]:
    return tomllib.loads(data.text("class_defaults.toml"))
