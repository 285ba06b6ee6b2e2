"""Capture q and k from a transformers model before RoPE turns them, and audit them.

The model here is a tiny one with random weights, so that the example needs no download; put your own in
its place. Random weights show how it is done and say nothing about a trained model.
Run it: python examples/capture_qk.py
"""

import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from ropeaudit.main import main


def capture(model: LlamaForCausalLM, tokens: torch.Tensor, layer: int) -> dict[str, torch.Tensor]:
    """Return q and k of one layer, before RoPE, as (batch, heads, positions, head_dim)."""
    attention = model.model.layers[layer].self_attn
    seen = {}

    def keep(name: str):
        def hook(_module, _inputs, output):
            split = output.unflatten(-1, (-1, attention.head_dim))
            seen[name] = split.transpose(1, 2).contiguous()

        return hook

    handles = [getattr(attention, f"{name}_proj").register_forward_hook(keep(name)) for name in "qk"]
    with torch.no_grad():
        model(tokens)
    for handle in handles:
        handle.remove()
    return seen


if __name__ == "__main__":
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=256,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=2,
        vocab_size=1000,
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    tokens = torch.randint(0, config.vocab_size, (1, 128))
    path = Path(tempfile.mkdtemp()) / "captured.safetensors"
    save_file(capture(model, tokens, layer=1), path)
    columns = "implementation,offset,heads,kv_heads,head_dim,distinct_positions,verdict"
    audit = ["shift", "--qk", str(path), "--offset", "1000", "--dtype", "bf16"]
    sys.exit(main([*audit, "--recipe", "hf,uniform", "--columns", columns, "-f", "csv", "-q"]))

# Output:
# implementation,offset,heads,kv_heads,head_dim,distinct_positions,verdict
# hf,1000,8,2,32,128,sound
# uniform,1000,8,2,32,20,broken
