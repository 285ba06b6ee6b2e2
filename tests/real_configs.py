"""config.json of public models: fragments of the real files, what is about heads and positions.

They stand in net/configs.jsonl, where what is read of each is held.
"""

import json
from typing import Any

from net.settings import text_of

# what `ropeaudit list models` names too, and what is spelled in other ways
TEXTS = [
    "llama-3.1-8b",
    "qwen2.5-7b",
    "gemma-2-27b",
    "gemma-3-27b",
    "deepseek-v3",
    "deepseek-v2-lite",
    "kimi-k2",
    "gpt-neox-20b",
    "gpt-j-6b",
    "gpt-oss-20b",
    "olmo-3-7b",
    "command-r-v01",
    "falcon-7b",
    "stablelm-3b-4e1t",
    "minimax-text-01",
]
OTHERS = (
    "phi-3.5",
    "qwen2-vl",
    "qwen3-vl",
    "new-gemma-3",
    "gemma-3-4b",
    "gemma-4",
    "granite",
)

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
MORE = [*MORE_CLASSES, *sorted(WITHOUT_CLASS)]


def config(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text_of(f"real/{name}"))
    return found
