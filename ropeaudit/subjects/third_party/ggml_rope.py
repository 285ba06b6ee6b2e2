"""ggml: ggml_rope_ext on the CPU, called by ctypes in the library of pywhispercpp's wheel.

It is no row of `data/adapters.toml`, as the library's functions have to be declared one by one.
"""

from __future__ import annotations

import ctypes
import functools
import re
from importlib import metadata
from typing import Any

import numpy as np

from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions
from ropeaudit.subjects.third_party.adapter import Adapter, Turn

_TYPES: dict[str, tuple[int, type[Any]]] = {"float32": (0, np.float32), "float16": (1, np.float16)}
_I32 = 26
_MODES = {"interleaved": 0, "half": 2}
_INT32 = 2**31


class _Memory(ctypes.Structure):
    """ggml_init_params."""

    _fields_ = (("size", ctypes.c_size_t), ("buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


class Ggml(Adapter):
    """ggml_rope_ext without YaRN: int32 positions, angles by a float32 recurrence."""

    def instance(self, setting: RopeSetting, dtype: Format) -> Turn:
        """Return the function; each call has a graph of its own."""
        library = _library()

        def rotate(x: FloatArray, positions: Positions) -> FloatArray:
            if not (positions.min() >= -_INT32 and positions.max() < _INT32):
                raise ValueError("its positions are int32")
            code, dtype = _TYPES[x.dtype.name]
            given = np.ascontiguousarray(x.transpose(1, 0, 2).astype(dtype))  # (s, h, d): ne = [d, h, s, 1]
            heads, size, dim = x.shape
            context = library.ggml_init(_Memory(2**21 + 4 * given.nbytes + 8 * size, None, False))
            try:
                a = library.ggml_new_tensor_4d(context, code, dim, heads, size, 1)
                b = library.ggml_new_tensor_1d(context, _I32, size)
                at = positions.astype(np.int32)
                ctypes.memmove(library.ggml_get_data(a), given.ctypes.data, given.nbytes)
                ctypes.memmove(library.ggml_get_data(b), at.ctypes.data, at.nbytes)
                scale = 1.0 / setting.scaling.stretch
                node = library.ggml_rope_ext(
                    *(context, a, b, None, setting.rotary_dim, _MODES[setting.layout], 0),
                    *(setting.base, scale, 0.0, 1.0, 32.0, 1.0),
                )
                graph = library.ggml_new_graph(context)
                library.ggml_build_forward_expand(graph, node)
                if library.cpu.ggml_graph_compute_with_ctx(context, graph, 1):
                    raise RuntimeError("ggml could not compute the graph")
                output = np.empty_like(given)
                ctypes.memmove(output.ctypes.data, library.ggml_get_data(node), output.nbytes)
            finally:
                library.ggml_free(context)
            return output.transpose(1, 0, 2).astype(np.float32)

        return rotate


@functools.cache
def _library() -> Any:
    """Load the library and declare its functions. Raises: OSError if the wheel lacks it."""
    base, cpu = (_load(part) for part in ("base", "cpu"))
    pointer, integer, real = ctypes.c_void_p, ctypes.c_int, ctypes.c_float
    long = ctypes.c_int64
    for name, restype, arguments in (
        ("ggml_init", pointer, [_Memory]),
        ("ggml_free", None, [pointer]),
        ("ggml_new_tensor_1d", pointer, [pointer, integer, long]),
        ("ggml_new_tensor_4d", pointer, [pointer, integer, long, long, long, long]),
        ("ggml_get_data", pointer, [pointer]),
        ("ggml_rope_ext", pointer, [pointer] * 4 + [integer] * 3 + [real] * 6),
        ("ggml_new_graph", pointer, [pointer]),
        ("ggml_build_forward_expand", None, [pointer, pointer]),
    ):
        function = getattr(base, name)
        function.restype, function.argtypes = restype, arguments
    compute = cpu.ggml_graph_compute_with_ctx
    compute.restype, compute.argtypes = integer, [pointer, pointer, integer]
    cpu.ggml_cpu_init()
    base.cpu = cpu
    return base


def _load(part: str) -> Any:
    files = metadata.files("pywhispercpp") or []
    named = [str(f.locate()) for f in files if re.fullmatch(rf"libggml-{part}\b.*\.(so|dylib)[.\d]*", f.name)]
    if not named:
        raise OSError(f"pywhispercpp's wheel carries no libggml-{part} on this platform")
    bundled = [path for path in named if "pywhispercpp.libs" in path]
    return ctypes.CDLL((bundled or named)[0], mode=ctypes.RTLD_GLOBAL)


adapter = Ggml
