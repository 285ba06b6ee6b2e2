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
from kernel_calls import (
    any_dim,
    both,
    by_table,
    complex_table,
    from_first,
    hf_tables,
    megatron_tables,
    one,
    pairs,
)

BOTH = ("fp32", "bf16")


@dataclass(frozen=True)
class Kernel:
    """A kernel, how it is called here, and what is known of it.

    call: f, q, k, positions (s,) or (b, s), in the kernel's own order of axes -> rotated q, rotated k.
    faulty: the dtypes in which it is wrong; none of a right one. check: matches the name of a check that
    must fail. diagnosis: matches what the user must be able to read.
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

    @property
    def numpy(self) -> bool:
        return "kernels_numpy" in self.thing.__module__

    def instance(self) -> Any:
        """A new instance, or the function."""
        if self.name == "make_rotary" or isinstance(self.thing, type):
            return self.thing() if self.name == "StaleTable" else self.thing(128)
        return self.thing


_R, _M, _N, _F = kernels_right, kernels_modules, kernels_numpy, kernels_faulty
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
KERNELS = {kernel.name: kernel for kernel in (*RIGHT, *FAULTY, *BEYOND)}
for _kernel in KERNELS.values():
    globals()[_kernel.name] = _kernel.thing
