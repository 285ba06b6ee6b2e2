"""The kernels of the acceptance of `ropeaudit check`: what each is, and what must be said of it.

`ropeaudit check acceptance_kernels.py:NAME` loads any of them.
"""

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
    faulty: the dtypes in which it is wrong; none of a right one. check: matches the name of a check that
    must fail. diagnosis: matches what the user must be able to read. built: what a class is built with.
    """

    name: str
    thing: Any
    call: Callable[..., Any]
    order: str = "bhsd"
    layout: str = "half"
    rows: bool = False
    faulty: tuple[str, ...] = ()
    check: str = ""
    diagnosis: str = ""
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
    Kernel("compiled", _R.compiled, one, layout="interleaved", compiles=True),
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

SHIFTED = r"positions [+-]1\b|off by one|rotated as|\bone (position )?(late|early|ahead|behind)"
FAULTY = (
    Kernel(
        "one_position",
        _N.one_position,
        one,
        "hsd",
        faulty=BOTH,
        check="rotation|position",
        diagnosis=r"93,?811\b.*rotated as 93,?810",
    ),
    Kernel(
        "clamps",
        _N.clamps,
        both,
        "bshd",
        "interleaved",
        faulty=BOTH,
        check="rotation|position|table|end",
        diagnosis=r"65,?53[56]",
    ),
    Kernel(
        "another_base",
        _N.another_base,
        from_first,
        "hsd",
        faulty=BOTH,
        check="rotation|position",
        diagnosis=r"base (of )?10,?100",
    ),
    Kernel(
        "restarts",
        _F.restarts,
        both,
        "bshd",
        "interleaved",
        faulty=BOTH,
        check="rotation|position",
        diagnosis=r"restart\w* (every|after|at) 3,?000",
    ),
    Kernel(
        "decode_one_late",
        _F.decode_one_late,
        one,
        faulty=BOTH,
        check="decode",
        diagnosis=r"one token|a token|single|alone|decode",
    ),
    Kernel(
        "pieces_by_page",
        _F.pieces_by_page,
        from_first,
        faulty=BOTH,
        check="piece|decode|rotation|position",
        diagnosis=r"rotated as|piece|chunk",
    ),
    Kernel(
        "first_row", _F.first_row, both, rows=True, faulty=BOTH, check="batch|row", diagnosis=r"batch|row"
    ),
    Kernel("late_alone", _F.late_alone, both, faulty=BOTH, check="alone|batch", diagnosis=r"alone|batch"),
    Kernel(
        "StaleTable",
        _F.StaleTable,
        one,
        built=(),
        faulty=BOTH,
        check="state|rotation|position|decode",
        diagnosis=r"state|earlier call|afresh",
    ),
    Kernel(
        "TableOfFirstDtype",
        _F.TableOfFirstDtype,
        one,
        faulty=("fp32",),
        check="state|dtype",
        diagnosis=r"state|earlier|afresh",
    ),
    Kernel(
        "crossed",
        _F.crossed,
        both,
        faulty=BOTH,
        check="rotation|position|cross|q and k",
        diagnosis=r"cross|swap|exchang|k (is|holds|equals|gets|returns) .*q|of q\b|q is returned",
    ),
    Kernel(
        "last_head_of_k",
        _F.last_head_of_k,
        both,
        faulty=BOTH,
        check="rotation|position|head",
        diagnosis=r"(?=.*head).*(" + SHIFTED + ")",
    ),
    Kernel(
        "two_dims_short",
        _F.two_dims_short,
        one,
        "bshd",
        "interleaved",
        faulty=BOTH,
        check="rotation|position",
        diagnosis=r"126|pair 63|last pair|rotary",
    ),
    Kernel(
        "exponent_short",
        _F.exponent_short,
        one,
        faulty=BOTH,
        check="rotation|position",
        diagnosis=r"exponents over 126 instead of 128",
    ),
    Kernel(
        "cast_frequencies",
        _F.cast_frequencies,
        one,
        faulty=BOTH,
        check="drift|rotation|long|grow",
        diagnosis=r"(bf16|bfloat16) frequenc|inv_freq|frequencies.*(bf16|bfloat16)",
    ),
    Kernel(
        "bfloat16_positions",
        _F.bfloat16_positions,
        both,
        faulty=BOTH,
        check="drift|rotation|position|grow",
        diagnosis=r"(bf16|bfloat16) positions|positions.*(bf16|bfloat16)",
    ),
    Kernel(
        "returns_bfloat16",
        _F.returns_bfloat16,
        by_table(pairs, True),
        faulty=("fp32",),
        check="dtype",
        diagnosis=r"bfloat16",
    ),
    Kernel(
        "compiled_differs",
        _F.compiled_differs,
        one,
        faulty=BOTH,
        check="compile",
        diagnosis=r"compile",
        compiles=True,
    ),
    Kernel(
        "ignores_strides",
        _F.ignores_strides,
        one,
        faulty=BOTH,
        check="stride|contiguous",
        diagnosis=r"stride|contiguous",
    ),
    Kernel("changes_input", _F.changes_input, one, faulty=BOTH, check="input", diagnosis=r"input"),
    Kernel(
        "gradient_not_inverted",
        _F.gradient_not_inverted,
        both,
        faulty=BOTH,
        check="gradient",
        diagnosis=r"gradient.*(not (the )?inver|rotated (on|forward|again)|(other|same) direction|forward)",
    ),
    Kernel(
        "gradient_in_bfloat16",
        _F.gradient_in_bfloat16,
        by_table(pairs, False),
        faulty=("fp32",),
        check="gradient",
        diagnosis=r"gradient.*(bf16|bfloat16)",
    ),
    Kernel(
        "no_gradient",
        _F.no_gradient,
        one,
        faulty=BOTH,
        check="gradient",
        diagnosis=r"no gradient|detach|(has|have|gets?|reach\w*).*gradient|requires_grad",
    ),
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
_SERVED: tuple[tuple[Any, Any, bool, str, str], ...] = (
    (_S.decode_reads_row_0, both, True, "served|decode", r"batch|row"),
    (_S.first_entry_only, both, False, "served", r"position"),
    (_S.same_output, one, False, "result", r"buffer|output|overwr|later call"),
    (_S.one_key_head, both, False, "served|short", r"no rotation"),
    (_S.groups_over_four, both, False, "served", SHIFTED),
    (_S.heads_from_40, both, False, "served", r"no rotation"),
    (_S.tokens_from_4096, both, False, "served", r"no rotation|rotated as 0\b|from 4,?096 on"),
)
SERVED_FAULTY = tuple(
    Kernel(thing.__name__, thing, call, rows=rows, faulty=BOTH, check=check, diagnosis=diagnosis)
    for thing, call, rows, check, diagnosis in _SERVED
)
KERNELS = {kernel.name: kernel for kernel in (*RIGHT, *FAULTY, *BEYOND, *SERVED_RIGHT, *SERVED_FAULTY)}
for _kernel in KERNELS.values():
    globals()[_kernel.name] = _kernel.thing
