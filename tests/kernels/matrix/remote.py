"""A Llama with rotary embeddings of its own, by the steps of `kernel.py`, behind which it is written."""

# ruff: noqa: F821
from transformers.models.llama import modeling_llama as llama


class Rotary(llama.LlamaRotaryEmbedding):
    def forward(self, x, position_ids):
        return kept(*made(moved(position_ids)))


def apply_rotary_pos_emb(q, k, cos, sin):
    return both(q, k, cos, sin)


class Attention(llama.LlamaAttention):
    def forward(self, hidden_states, position_embeddings, attention_mask=None, **rest):
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        q, k, v = (
            each(hidden_states).view(shape).transpose(1, 2)
            for each in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = apply_rotary_pos_emb(q, k, *position_embeddings)
        attend = llama.ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, llama.eager_attention_forward
        )
        result, weights = attend(self, q, k, v, attention_mask, dropout=0.0, scaling=self.scaling, **rest)
        return self.o_proj(result.reshape(*shape[:-2], -1).contiguous()), weights


class Tiny(llama.LlamaForCausalLM):
    """A Llama with rotary embeddings of its own."""

    def __init__(self, config):
        super().__init__(config)
        self.model.rotary_emb = Rotary(config)
        for number, layer in enumerate(self.model.layers):
            layer.self_attn = Attention(config, number)
