"""Write the files beside this one: Llama's RoPE as OpenVINO IR, with compress_to_fp16 and without.

pip install torch==2.13.0 openvino==2026.4.1 transformers==5.23.0
"""

from pathlib import Path

import openvino
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

rope = LlamaRotaryEmbedding(LlamaConfig(hidden_size=512, num_attention_heads=4)).eval()
model = openvino.convert_model(rope, example_input=(torch.ones(1, 4, 128), torch.arange(4)[None]))
for name, half in (("fp16", True), ("fp32", False)):
    openvino.save_model(model, Path(__file__).with_name(f"llama_rope_{name}.xml"), compress_to_fp16=half)
