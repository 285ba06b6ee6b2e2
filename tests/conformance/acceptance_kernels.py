"""The kernels of the acceptance of `ropeaudit check`: what each is, and how it is called here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import kernels_faulty
import kernels_modules
import kernels_numpy
import kernels_right
import kernels_served
import torch
from kernel_calls import (
    any_dim,
    both,
    by_cache,
    by_operator,
    by_table,
    by_whole_tables,
    complex_table,
    fields_of,
    from_first,
    hf_tables,
    megatron_tables,
    one,
    packed,
    pairs,
    positions_first,
    sequences,
)

BOTH = ("fp32", "bf16")


@dataclass(frozen=True)
class Kernel:
    """A kernel, how it is called here, and what is known of it.

    call: f, q, k, positions (s,) or (b, s), in the kernel's own order of axes -> rotated q, rotated k.
    faulty: the dtypes in which it is wrong; none of a right one. built: what a class is built with.
    """

    name: str
    thing: Any
    call: Callable[..., Any]
    order: str = "bhsd"
    layout: str = "half"
    rows: bool = False
    faulty: tuple[str, ...] = ()
    compiles: bool = False
    built: tuple[Any, ...] = (128,)

    @property
    def numpy(self) -> bool:
        return "kernels_numpy" in self.thing.__module__

    def instance(self) -> Any:
        """A new instance, or the function."""
        if self.name == "make_rotary" or isinstance(self.thing, type):
            return self.thing(*self.built)
        return self.thing


_R, _M, _N, _F, _S = kernels_right, kernels_modules, kernels_numpy, kernels_faulty, kernels_served
RIGHT = (
    Kernel("half_upcast", _R.half_upcast, one),
    Kernel("polar", _R.polar, one, "hsd"),
    Kernel("rotate_in_place", _R.rotate_in_place, one),
    Kernel("float32_table", _R.float32_table, one, rows=True),
    Kernel("compiled", _R.eager, one, layout="interleaved", compiles=True),
    Kernel("rows_of_positions", _R.rows_of_positions, both, rows=True),
    Kernel("flat_tokens", _R.flat_tokens, both, "shd"),
    Kernel("hf_llama", _R.hf_llama, by_table(hf_tables, True)),
    Kernel("meta_complex", _R.meta_complex, by_table(complex_table, True), "bshd", "interleaved"),
    Kernel("freqs_of_one", _R.freqs_of_one, by_table(complex_table, False), "shd", "interleaved"),
    Kernel("megatron", _R.megatron, by_table(megatron_tables, False), "sbhd"),
    Kernel("own_backward", _R.own_backward, by_table(pairs, True)),
    Kernel("from_offset", _R.from_offset, from_first, "bshd", "interleaved"),
    Kernel("any_sequence_dim", _R.any_sequence_dim, any_dim, layout="interleaved"),
    Kernel("HfRotary", _M.HfRotary, one, rows=True),
    Kernel("GrowingCache", _M.GrowingCache, both, "bshd", "interleaved"),
    Kernel("make_rotary", _M.make_rotary, both, rows=True),
    Kernel("numpy_half", _N.numpy_half, one, "hsd"),
    Kernel("numpy_complex", _N.numpy_complex, both, "bshd", "interleaved"),
    Kernel("numpy_tables", _N.numpy_tables, by_table(pairs, False), "sd", "interleaved"),
    Kernel("NumpyCache", _N.NumpyCache, from_first, "bshd"),
)

FAULTY = (
    Kernel("one_position", _N.one_position, one, "hsd", faulty=BOTH),
    Kernel("clamps", _N.clamps, both, "bshd", "interleaved", faulty=BOTH),
    Kernel("another_base", _N.another_base, from_first, "hsd", faulty=BOTH),
    Kernel("restarts", _F.restarts, both, "bshd", "interleaved", faulty=BOTH),
    Kernel("decode_one_late", _F.decode_one_late, one, faulty=BOTH),
    Kernel("pieces_by_page", _F.pieces_by_page, from_first, faulty=BOTH),
    Kernel("first_row", _F.first_row, both, rows=True, faulty=BOTH),
    Kernel("late_alone", _F.late_alone, both, faulty=BOTH),
    Kernel("StaleTable", _F.StaleTable, one, built=(), faulty=BOTH),
    Kernel("TableOfFirstDtype", _F.TableOfFirstDtype, one, faulty=("fp32",)),
    Kernel("crossed", _F.crossed, both, faulty=BOTH),
    Kernel("last_head_of_k", _F.last_head_of_k, both, faulty=BOTH),
    Kernel("two_dims_short", _F.two_dims_short, one, "bshd", "interleaved", faulty=BOTH),
    Kernel("exponent_short", _F.exponent_short, one, faulty=BOTH),
    Kernel("cast_frequencies", _F.cast_frequencies, one, faulty=BOTH),
    Kernel("bfloat16_positions", _F.bfloat16_positions, both, faulty=BOTH),
    Kernel("returns_bfloat16", _F.returns_bfloat16, by_table(pairs, True), faulty=("fp32",)),
    Kernel("compiled_differs", _F.compiled_differs, one, faulty=BOTH, compiles=True),
    Kernel("ignores_strides", _F.ignores_strides, one, faulty=BOTH),
    Kernel(
        "changes_input",
        _F.changes_input,
        one,
        faulty=BOTH,
    ),
    Kernel("gradient_not_inverted", _F.gradient_not_inverted, both, faulty=BOTH),
    Kernel("gradient_in_bfloat16", _F.gradient_in_bfloat16, by_table(pairs, False), faulty=("fp32",)),
    Kernel("no_gradient", _F.no_gradient, one, faulty=BOTH),
)
# Beside the list: float32 for bfloat16 loses nothing and is no dtype for attention; what is wrong in float32
# alone fits no call there, and is judged in the others.
BEYOND = (
    Kernel("returns_float32", _F.returns_float32, one),
    Kernel("in_place_aliased", _F.in_place_aliased, one, faulty=("fp32",)),
)
# In the signatures of servers and trainers, and wrong in their calls alone.
SERVED_RIGHT = (
    Kernel(
        "ServerRotary",
        _S.ServerRotary,
        positions_first,
        "shd",
        built=(128, 128, 131072, 10000.0, True, torch.float32),
    ),
    Kernel("server_operator", _S.server_operator, by_operator, "shd"),
    Kernel("whole_tables", _S.whole_tables, by_whole_tables, rows=True),
    Kernel("joined_table", _S.joined_table, by_cache),
    Kernel("packed_qkv", _S.packed_qkv, packed, "bshd"),
    Kernel("packed_sequences", _S.packed_sequences, sequences, "shd"),
    Kernel("as_dict", _S.as_dict, fields_of),
    Kernel("as_dataclass", _S.as_dataclass, fields_of),
)
SERVED_FAULTY = (
    Kernel("decode_reads_row_0", _S.decode_reads_row_0, both, rows=True, faulty=BOTH),
    Kernel("first_entry_only", _S.first_entry_only, both, faulty=BOTH),
    Kernel("same_output", _S.same_output, one, faulty=BOTH),
    Kernel("one_key_head", _S.one_key_head, both, faulty=BOTH),
    Kernel("groups_over_four", _S.groups_over_four, both, faulty=BOTH),
    Kernel("heads_from_40", _S.heads_from_40, both, faulty=BOTH),
    Kernel("tokens_from_4096", _S.tokens_from_4096, both, faulty=BOTH),
)
KERNELS = {kernel.name: kernel for kernel in (*RIGHT, *FAULTY, *BEYOND, *SERVED_RIGHT, *SERVED_FAULTY)}
