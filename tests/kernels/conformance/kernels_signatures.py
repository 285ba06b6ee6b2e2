"""Kernels by the signature that servers and trainers give them, each right and with a fault planted.

Each builder takes whether it is to be wrong and returns what is checked; KERNELS has them by their names.
Letters: b batch, h heads, g heads of k, s positions, t tokens, d head_dim, p pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

BASE = 10000.0


@dataclass(frozen=True)
class Kernel:
    """A builder, the diagnosis of the wrong one, the check that names it, the order of axes, its setting."""

    build: Callable[[bool], Any]
    code: str
    check: str
    order: str
    setting: dict[str, Any]


KERNELS: dict[str, Kernel] = {}


def kernel(code: str, order: str, check: str = "rotation", **setting: Any) -> Callable[[Any], Any]:
    def keep(build: Callable[[bool], Any]) -> Callable[[bool], Any]:
        KERNELS[build.__name__] = Kernel(build, code, check, order, setting)
        return build

    return keep


def frequencies(d: int) -> torch.Tensor:
    return BASE ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)


def angles(at: torch.Tensor, d: int) -> torch.Tensor:
    """Float32 angles (..., p) at positions."""
    return at.double()[..., None].mul(frequencies(d)).float()


def late(at: torch.Tensor, wrong: bool) -> torch.Tensor:
    """Positions that are one too high, where it is to be wrong."""
    return at + 1 if wrong else at


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool = False) -> torch.Tensor:
    """x (..., d) rotated by cos and sin (..., p) that can be broadcast, in float32."""
    a, b = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
    a, b, cos, sin = (y.float() for y in (a, b, cos, sin))
    one, two = a * cos - b * sin, b * cos + a * sin
    whole = torch.stack([one, two], -1).flatten(-2) if interleaved else torch.cat([one, two], -1)
    return whole.to(x.dtype)


def of_tokens(x: torch.Tensor, at: torch.Tensor, interleaved: bool = False) -> torch.Tensor:
    """x (t, h, d) at positions (t,)."""
    t = angles(at, x.shape[-1])[:, None]
    return turned(x, t.cos(), t.sin(), interleaved)


def restarting(cu_seqlens: torch.Tensor, tokens: int) -> torch.Tensor:
    """Positions that begin at 0 in each sequence."""
    at = torch.arange(tokens)
    return at - cu_seqlens[:-1].long().repeat_interleave(cu_seqlens.diff().long())


def vllm(wrong: bool, flat_alone: bool) -> type:
    class RotaryEmbedding(nn.Module):
        def __init__(self, head_size, rotary_dim, max_position_embeddings, base, is_neox_style, dtype):
            super().__init__()
            self.head_size, self.rotary_dim, self.is_neox_style = head_size, rotary_dim, is_neox_style
            inverse = base ** (-torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim)
            t = torch.arange(max_position_embeddings).double()[:, None] * inverse
            self.register_buffer(
                "cos_sin_cache", torch.cat([t.cos(), t.sin()], -1).to(dtype), persistent=False
            )

        def forward(self, positions, query, key):
            cos, sin = self.cos_sin_cache[late(positions, wrong)].chunk(2, -1)
            results = []
            for x in (query, key):
                if flat_alone and x.dim() != 2:
                    raise ValueError("query is (tokens, heads * head_size)")
                y = x.view(len(positions), -1, self.head_size)
                first, rest = y[..., : self.rotary_dim], y[..., self.rotary_dim :]
                first = turned(first, cos[:, None], sin[:, None], not self.is_neox_style)
                results.append(torch.cat([first, rest], -1).reshape(x.shape))
            return tuple(results)

    return RotaryEmbedding


@kernel("positions-off", "thd")
def vllm_class(wrong: bool) -> Any:
    return vllm(wrong, False)


@kernel("positions-off", "t(hd)")
def vllm_class_of_flat_heads(wrong: bool) -> Any:
    return vllm(wrong, True)


@kernel("positions-off", "t(hd)", rotary_dim=16)
def vllm_class_of_part_of_the_head(wrong: bool) -> Any:
    return vllm(wrong, True)


@kernel("positions-off", "t(hd)")
def vllm_operator(wrong: bool) -> Any:
    def rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox):
        if query.dim() != 2:
            raise ValueError("query is (tokens, heads * head_size)")
        cos, sin = cos_sin_cache[late(positions, wrong)].chunk(2, -1)
        for x in (query, key):
            y = x.view(len(positions), -1, head_size)
            y.copy_(turned(y.clone(), cos[:, None], sin[:, None], not is_neox))

    return rotary_embedding


@kernel("wrong-direction", "bhsd")
def hf_until_4_36(wrong: bool) -> Any:
    def rotate_half(x):
        a, b = x.chunk(2, -1)
        return torch.cat([b, -a] if wrong else [-b, a], -1)

    def apply_rotary_pos_emb(q, k, cos, sin, position_ids):
        cos, sin = cos.squeeze(1).squeeze(0)[position_ids][:, None], sin[position_ids][:, None]
        return tuple((x * cos + rotate_half(x) * sin).to(x.dtype) for x in (q, k))

    return apply_rotary_pos_emb


@kernel("positions-off", "bhsd")
def cache_and_positions(wrong: bool) -> Any:
    def rotate(q, k, cos_sin_cache, positions):
        cos, sin = cos_sin_cache[late(positions, wrong)].chunk(2, -1)
        return turned(q, cos, sin), turned(k, cos, sin)

    return rotate


@kernel("positions-off", "bhsd", layout="interleaved")
def cache_of_pairs(wrong: bool) -> Any:
    def rotate(x, rope_cache, input_pos):
        cos, sin = rope_cache[late(input_pos, wrong)].unbind(-1)
        return turned(x, cos, sin, True)

    return rotate


def in_qkv(qkv: torch.Tensor, positions: torch.Tensor, wrong: bool) -> list[torch.Tensor]:
    """q, k and v of qkv (b, s, 3, h, d)."""
    t = angles(late(positions, wrong), qkv.shape[-1])[:, None]
    q, k, v = qkv.unbind(2)
    return [turned(q, t.cos(), t.sin()), turned(k, t.cos(), t.sin()), v]


@kernel("positions-off", "bs3hd")
def packed(wrong: bool) -> Any:
    return lambda qkv, positions: torch.stack(in_qkv(qkv, positions, wrong), 2)


@kernel("positions-off", "bs3hd")
def packed_returned_apart(wrong: bool) -> Any:
    return lambda qkv, positions: tuple(in_qkv(qkv, positions, wrong))


@kernel("", "bs3hd", "inputs")
def packed_with_v_rotated(wrong: bool) -> Any:
    def rotate(qkv, positions):
        q, k, v = in_qkv(qkv, positions, False)
        return torch.stack([q, k, k if wrong else v], 2)

    return rotate


@kernel("positions-off", "bs3hd")
def packed_in_place(wrong: bool) -> Any:
    def rotate(qkv, positions):
        qkv.copy_(torch.stack(in_qkv(qkv.clone(), positions, wrong), 2))

    return rotate


@kernel("positions-off", "t(Hd)")
def packed_flat(wrong: bool) -> Any:
    def rotate(qkv, positions, num_heads, num_kv_heads, head_dim):
        if qkv.dim() != 2:
            raise ValueError("qkv is (tokens, (hq + 2 hk) * d)")
        sizes = (num_heads * head_dim, num_kv_heads * head_dim, num_kv_heads * head_dim)
        q, k, v = (x.view(len(qkv), -1, head_dim) for x in qkv.split(sizes, -1))
        at = late(positions, wrong)
        return torch.cat([of_tokens(q, at), of_tokens(k, at), v], 1).reshape(qkv.shape)

    return rotate


@kernel("positions-off", "bs(Hd)")
def packed_flat_in_three(wrong: bool) -> Any:
    def rotate(qkv, positions, num_heads, num_kv_heads):
        b, s, size = qkv.shape
        d = size // (num_heads + 2 * num_kv_heads)
        t = angles(late(positions, wrong), d)
        q, k, v = qkv.view(b, s, -1, d).transpose(1, 2).split([num_heads, num_kv_heads, num_kv_heads], 1)
        return turned(q, t.cos(), t.sin()), turned(k, t.cos(), t.sin()), v

    return rotate


@kernel("positions-off", "bsh(3d)")
def neox(wrong: bool) -> Any:
    def rotate(qkv, position_ids):
        q, k, v = qkv.chunk(3, -1)
        t = angles(late(position_ids, wrong), q.shape[-1])[:, None]
        return torch.cat([turned(q, t.cos(), t.sin()), turned(k, t.cos(), t.sin()), v], -1)

    return rotate


@kernel("positions-off", "sbh(3d)")
def megatron_packed(wrong: bool) -> Any:
    def rotate(mixed_x_layer, positions):
        q, k, v = mixed_x_layer.chunk(3, -1)
        t = angles(late(positions, wrong), q.shape[-1])[:, None, None]
        return turned(q, t.cos(), t.sin()), turned(k, t.cos(), t.sin()), v

    return rotate


@kernel("positions-off", "thd")
def tokens_and_positions(wrong: bool) -> Any:
    def rotate(q, k, cu_seqlens, positions):
        assert cu_seqlens.dtype == torch.int32
        assert int(cu_seqlens[-1]) == len(q) == len(positions)
        at = late(positions, wrong)
        return of_tokens(q, at), of_tokens(k, at)

    return rotate


@kernel("positions-off", "thd")
def tokens_that_restart(wrong: bool) -> Any:
    def rotate(q, k, cu_seqlens, max_seqlen):
        assert int(cu_seqlens.diff().max()) == max_seqlen
        at = late(restarting(cu_seqlens, len(q)), wrong)
        return of_tokens(q, at), of_tokens(k, at)

    return rotate


@kernel("positions-off", "t3hd")
def packed_tokens_that_restart(wrong: bool) -> Any:
    def rotate(qkv, cu_seqlens):
        at = late(restarting(cu_seqlens, len(qkv)), wrong)
        q, k, v = qkv.unbind(1)
        return torch.stack([of_tokens(q, at), of_tokens(k, at), v], 1)

    return rotate


@kernel("wrong-direction", "thd")
def tokens_and_tables(wrong: bool) -> Any:
    def rotate(x, cos, sin, cu_seqlens, max_seqlen):
        at = restarting(cu_seqlens, len(x))
        return turned(x, cos[at][:, None], (-sin if wrong else sin)[at][:, None])

    return rotate


@kernel("positions-off", "bshd")
def flash(wrong: bool) -> Any:
    def rotate(
        x, cos, sin, interleaved=False, inplace=False, seqlen_offsets=0, cu_seqlens=None, max_seqlen=None
    ):
        if len(cos) <= x.shape[1]:
            raise ValueError("the table ends")
        at = late(torch.arange(x.shape[1]) + seqlen_offsets, wrong)
        return turned(x, cos[at][:, None], sin[at][:, None], interleaved)

    return rotate


@kernel("positions-off", "bhsd")
def a_dict(wrong: bool) -> Any:
    def rotate(q, k, positions):
        t = angles(late(positions, wrong), q.shape[-1])
        return {"key": turned(k, t.cos(), t.sin()), "query": turned(q, t.cos(), t.sin())}

    return rotate


class Rotated(NamedTuple):
    q_embed: torch.Tensor
    k_embed: torch.Tensor


@dataclass
class Both:
    rotated_q: torch.Tensor
    rotated_k: torch.Tensor


def as_result(make: Callable[..., Any], wrong: bool) -> Any:
    def rotate(q, k, positions):
        t = angles(late(positions, wrong), q.shape[-1])
        return make(turned(q, t.cos(), t.sin()), turned(k, t.cos(), t.sin()))

    return rotate


@kernel("positions-off", "bhsd")
def a_named_tuple(wrong: bool) -> Any:
    return as_result(Rotated, wrong)


@kernel("positions-off", "bhsd")
def a_dataclass(wrong: bool) -> Any:
    return as_result(Both, wrong)


@kernel("positions-off", "bhsd")
def a_list(wrong: bool) -> Any:
    return as_result(lambda q, k: [q, k], wrong)


@kernel("positions-off", "bhsd")
def with_values(wrong: bool) -> Any:
    def rotate(query, key, value, positions):
        return (*as_result(Rotated, wrong)(query, key, positions), value)

    return rotate


@kernel("positions-off", "bhsd")
def cos_and_sin(wrong: bool) -> Any:
    class Rotary(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.dim = dim

        def forward(self, x, position_ids):
            t = torch.cat([angles(late(position_ids, wrong), self.dim)] * 2, -1)
            return t.cos().to(x.dtype), t.sin().to(x.dtype)

    return Rotary


@kernel("positions-off", "bhsd")
def cos_and_sin_of_positions(wrong: bool) -> Any:
    def tables(positions, head_dim):
        t = angles(late(positions, wrong), head_dim)
        return t.cos(), t.sin()

    return tables


def of_config(config: Any, wrong: bool) -> Any:
    base = 1e4 if wrong else config.rope_theta
    dim = config.head_dim or config.hidden_size // config.num_attention_heads
    return base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)


@kernel("wrong-base", "bhsd", base=5e5)
def a_plain_config(wrong: bool) -> Any:
    class Rotary(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.inverse = of_config(config, wrong)

        def forward(self, q, k, positions):
            t = (positions.double()[:, None] * self.inverse).float()
            return turned(q, t.cos(), t.sin()), turned(k, t.cos(), t.sin())

    return Rotary


@kernel("wrong-base", "bhsd", base=5e5)
def a_config_of_transformers(wrong: bool) -> Any:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    class Rotary(LlamaRotaryEmbedding):
        def __init__(self, config: LlamaConfig):
            if wrong:
                config.rope_parameters["rope_theta"] = 1e4
            super().__init__(config)

    Rotary.__init__.__annotations__["config"] = LlamaConfig
    return Rotary


@kernel("missing-scaling", "bhsd", scaling="linear:factor=4")
def a_scaling(wrong: bool) -> Any:
    class Rotary:
        def __init__(self, head_dim, max_position, base, rope_scaling=None):
            self.factor = 1.0 if wrong else rope_scaling["factor"]

        def __call__(self, q, k, positions):
            t = angles(positions / self.factor, q.shape[-1])
            return turned(q, t.cos(), t.sin()), turned(k, t.cos(), t.sin())

    return Rotary


@kernel("wrong-layout", "bhsd", layout="interleaved")
def a_flag(wrong: bool) -> Any:
    def rotate(x, positions, interleaved):
        t = angles(positions, x.shape[-1])
        return turned(x, t.cos(), t.sin(), interleaved and not wrong)

    return rotate


@kernel("positions-off", "bhsd", layout="interleaved")
def a_default_of_a_flag(wrong: bool) -> Any:
    def rotate(x, offset=0, traditional=True):
        t = angles(late(torch.arange(x.shape[-2]) + offset, wrong), x.shape[-1])
        return turned(x, t.cos(), t.sin(), traditional)

    return rotate


@kernel("wrong-direction", "sbhd")
def megatron(wrong: bool) -> Any:
    def apply(t, freqs):
        cos, sin = (part[..., : t.shape[-1] // 2] for part in (freqs.cos(), freqs.sin()))
        assert freqs.shape == (t.shape[0], 1, 1, t.shape[-1])
        return turned(t, cos, -sin if wrong else sin)

    return apply


@kernel("wrong-direction", "bhsd", layout="interleaved")
def cos_and_sin_stacked(wrong: bool) -> Any:
    def apply_rotary_emb(x, freqs_cis):
        cos, sin = freqs_cis.unbind(-1)
        return turned(x, cos, -sin if wrong else sin, True)

    return apply_rotary_emb


@kernel("wrong-direction", "bhsd")
def a_tuple_of_halves(wrong: bool) -> Any:
    def apply_rotary_emb(x, freqs_cis):
        (cos, sin), (a, b) = freqs_cis, x.float().chunk(2, -1)
        other = torch.cat([-b, a], -1) * sin
        return (x.float() * cos + (-other if wrong else other)).to(x.dtype)

    return apply_rotary_emb


@kernel("wrong-direction", "bhsd", layout="interleaved")
def a_tuple_of_interleaved(wrong: bool) -> Any:
    def apply_rotary_emb(x, freqs_cis):
        (cos, sin), (a, b) = freqs_cis, x.float().unflatten(-1, (-1, 2)).unbind(-1)
        other = torch.stack([-b, a], -1).flatten(-2) * sin
        return (x.float() * cos + (-other if wrong else other)).to(x.dtype)

    return apply_rotary_emb


@kernel("wrong-direction", "bshd")
def keys_without_heads(wrong: bool) -> Any:
    def rotate(q_pe, k_pe, cos, sin):
        (b, s, d), cos, sin = k_pe.shape, cos[:, None], sin[:, None]
        k = turned(k_pe.view(b, s, 1, d), cos, -sin if wrong else sin)
        return turned(q_pe, cos, sin), k.view(b, s, d)

    return rotate


@kernel("positions-off", "bhsd")
def lengths_with_each_token(wrong: bool) -> Any:
    def rotate(q, k, seq_lens):
        t = angles(late(seq_lens - 1, wrong), q.shape[-1])
        return turned(q, t.cos(), t.sin()), turned(k, t.cos(), t.sin())

    return rotate


@kernel("cos-sin-swapped", "bhsd")
def sines_before_cosines(wrong: bool) -> Any:
    def rotate(q, k, sincos):
        sin, cos = reversed(sincos) if wrong else sincos
        return turned(q, cos, sin), turned(k, cos, sin)

    return rotate


@kernel("rows-mixed-up", "bhsd", check="batch rows")
def keys_with_heads_or_without(wrong: bool) -> Any:
    def rotate(q_pe, k_pe, positions):
        t = angles(positions.reshape(-1, positions.shape[-1]), q_pe.shape[-1])
        q, other = turned(q_pe, t.cos()[:, None], t.sin()[:, None]), t.flip(0) if wrong else t
        return q, turned(k_pe, other.cos(), other.sin())

    return rotate


@kernel("wrong-direction", "bshd")
def whole_tables_and_a_start(wrong: bool) -> Any:
    def rotate(x, cos, sin, start_pos):
        part = slice(start_pos, start_pos + x.shape[1])
        return turned(x, cos[part][:, None], (-sin if wrong else sin)[part][:, None])

    return rotate


@kernel("positions-off", "bhsd")
def tokens_alone(wrong: bool) -> Any:
    def rotate(x):
        t = angles(late(torch.arange(x.shape[-2]), wrong), x.shape[-1])
        return turned(x, t.cos(), t.sin())

    return rotate


@kernel("wrong-base", "bshd")
def queries_and_keys_alone(wrong: bool) -> Any:
    def rotate(q, k):
        t = angles(torch.arange(q.shape[1]), q.shape[-1])[:, None]
        if wrong:
            d = q.shape[-1]
            t = torch.arange(q.shape[1])[:, None, None] * 5e5 ** (-torch.arange(0, d, 2) / d)
        return turned(q, t.cos(), t.sin()), turned(k, t.cos(), t.sin())

    return rotate


@kernel("mixed-layout", "bhsd")
def a_whole_table_within(wrong: bool) -> Any:
    def rotate(x):
        t = angles(torch.arange(x.shape[-2]), x.shape[-1])
        t = t.repeat_interleave(2, -1) if wrong else torch.cat([t, t], -1)
        a, b = x.float().chunk(2, -1)
        return (x.float() * t.cos() + torch.cat([-b, a], -1) * t.sin()).to(x.dtype)

    return rotate


def __getattr__(name: str) -> Any:
    """Return a kernel as a command line names it: `packed_right`, `packed_wrong`."""
    built, _, which = name.rpartition("_")
    if built not in KERNELS or which not in ("right", "wrong"):
        raise AttributeError(name)
    return KERNELS[built].build(which == "wrong")
