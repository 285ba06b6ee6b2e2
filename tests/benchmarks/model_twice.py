"""The comparison that one would run: a model's logits at positions from 0 and at those from 1000.

Usage: model_twice.py FOLDER TOKENS, or model_twice.py FOLDER, which makes a model there.
"""

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

folder = sys.argv[1]
if len(sys.argv) == 2:
    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4}
    LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=8192, max_position_embeddings=8192)).save_pretrained(
        folder
    )
else:
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    numbers = torch.arange(int(sys.argv[2]))[None]
    with torch.no_grad():
        near, far = (model(numbers, position_ids=numbers + offset).logits.float() for offset in (0, 1000))
    print(float((far - near).abs().max()))
