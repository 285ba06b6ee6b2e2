"""Arrays for code under audit, of torch or NumPy, and the tables that it is given or returns.

Letters: b batch, s positions, d head_dim, r rotated dims, p pairs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import re
import sys
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, cast

import numpy as np

from ropeaudit import data, recipes
from ropeaudit.arithmetic.formats import FP64, FloatArray, Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.errors import ForeignError
from ropeaudit.rope.axes import Layout
from ropeaudit.rope.rotation import split_pairs
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions, torch_arrays
from ropeaudit.subjects.calling.environments import CPU, Device
from ropeaudit.subjects.calling.shapes import WrongShape
from ropeaudit.subjects.calling.stages import Changes
from ropeaudit.subjects.emulated import Emulated

Engine: TypeAlias = Literal["torch", "numpy", "jax"]
Strides: TypeAlias = Literal[
    "contiguous", "transposed", "sliced", "expanded", "packed", "unlike", "guarded", "stepped"
]
_MARGIN = 256  # numbers before, between and after what lies in a buffer
eager = False  # whether what code compiles is called as Python
_LIMITS = ("recompile_limit", "accumulated_recompile_limit")
_COMPILATIONS = 2**16  # of one function: as many as there are shapes


class WroteAround(ForeignError):
    """A call wrote to memory around the vectors that it was given."""


class TwoTables(WrongShape):
    """A call returned two values for one array, as code that returns cos and sin does."""


def torch() -> Any:
    """Return the module, imported when it is first needed."""
    import torch as module

    return module


def new_array(x: FloatArray, dtype: Format, engine: Engine, device: Device = CPU) -> Any:
    """Return a new array without rounding: a tensor on the device, or one of NumPy."""
    if engine == "torch":
        with torch_arrays.hidden_from_modes():
            values = torch().from_numpy(np.ascontiguousarray(x))
            return device.put(values.to(torch_arrays.dtype(dtype), copy=True))
    return x.astype(torch_arrays.numpy_dtype(dtype))


def tensor(x: Any, device: Device) -> Any:
    """Return a NumPy array as a new tensor on the device."""
    with torch_arrays.hidden_from_modes():
        return device.put(torch().from_numpy(np.array(x)))


def copied(array: Any) -> Any:
    """Return a copy of a tensor or an array."""
    return array.copy() if isinstance(array, np.ndarray) else array.clone()


class VectorBuffer:
    """Vectors in one buffer with nan around them, so that stray reads and writes are noticed."""

    def __init__(
        self,
        vectors: dict[str, FloatArray],
        dtype: Format,
        engine: Engine,
        strides: Strides,
        order: str,
        device: Device = CPU,
    ) -> None:
        """Make `views` by name, without rounding. order: of their axes, such as bhsd.

        strides: "contiguous", without a buffer; "guarded", one vector behind the other; "stepped", every
        second number; "sliced", the middle of wider rows; "transposed", heads and positions swapped;
        "expanded", the first batch element for all; "packed", as a joint projection leaves them; "unlike",
        the first vector packed, the others not.
        """
        self.views = {name: new_array(x, dtype, engine, device) for name, x in vectors.items()}
        self._places: list[tuple[tuple[int, ...], int, tuple[int, ...]]] = []  # of views in the buffer
        if strides != "contiguous":
            lies, end = _places({name: x.shape for name, x in vectors.items()}, strides, order)
            nothing = new_array(np.full(1, np.nan, dtype.carrier), dtype, engine, device)
            self.buffer = nothing.repeat(2 * end)  # code that mixes up strides reads nan beyond
            for name, numbers in self.views.items():
                self._places.append((numbers.shape, *lies[name]))
                view = _strided_view(self.buffer, *self._places[-1])
                view[...] = numbers
                if strides == "expanded" and "b" in order:
                    first = view[(slice(None),) * order.index("b") + (slice(0, 1),)]
                    view = (torch() if engine == "torch" else np).broadcast_to(first, view.shape)
                self.views[name] = view
            self._before = copied(self.buffer)

    def check_around(self) -> None:
        """Raise WroteAround if any memory outside the vectors was changed."""
        if not self._places:
            return
        after = copied(self.buffer)
        for place in self._places:
            _strided_view(after, *place)[...] = _strided_view(self._before, *place)
        if raw_bits(after) != raw_bits(self._before):
            raise WroteAround("it changes what lies around q and k in memory")


def with_reused_buffers(function: Any) -> Any:
    """Return code whose integer arguments, such as positions, reuse the arrays of earlier calls.

    Servers do so: they write the positions of each call into the same buffer.
    """
    held: dict[tuple[Any, ...], Any] = {}

    def filled(name: object, given: Any) -> Any:
        """Return the buffer of an argument, filled with its new values."""
        integer = isinstance(given, np.ndarray) and given.dtype.kind == "i"
        if not integer and not (_is_tensor(given) and given.dtype in (torch().int32, torch().int64)):
            return given
        kept = held.setdefault((name, given.dtype, tuple(given.shape)), given)
        kept[...] = given
        return kept

    def called(*plain: Any, **named: Any) -> Any:
        given = [filled(n, one) for n, one in enumerate(plain)]
        return function(*given, **{name: filled(name, one) for name, one in named.items()})

    return called


_Offsets: TypeAlias = dict[str, tuple[int, tuple[int, ...]]]  # where each begins, and its strides


def _places(shapes: dict[str, tuple[int, ...]], strides: Strides, order: str) -> tuple[_Offsets, int]:
    """Return start and strides of each vector in a buffer, and the buffer's end."""
    together = {"packed": list(shapes), "unlike": list(shapes)[:1]}.get(strides, [])
    lies, begin = _packed({name: shapes[name] for name in together}, order)
    swapped = strides == "transposed" and "h" in order
    inside = order.translate(str.maketrans("hs", "sh")) if swapped else order  # from the outermost axis
    for name in [name for name in shapes if name not in together]:
        sizes = dict(zip(order, shapes[name], strict=True))
        step, steps = 2 if strides == "stepped" else 1, {}
        for axis in reversed(inside):
            steps[axis] = step
            step *= sizes[axis] * (3 if strides == "sliced" and axis == inside[-1] else 1)
        first = begin + (sizes[inside[-1]] if strides == "sliced" else 0)
        lies[name] = first, tuple(steps[axis] for axis in order)
        begin += step + _MARGIN
    return lies, begin


def _packed(shapes: dict[str, tuple[int, ...]], order: str) -> tuple[_Offsets, int]:
    """Return start and strides of vectors in rows of a joint projection, and the end."""
    if not shapes:
        return {}, _MARGIN
    sizes = {name: dict(zip(order, shape, strict=True)) for name, shape in shapes.items()}
    widths = {name: size["d"] * size.get("h", 1) for name, size in sizes.items()}  # numbers of a token
    first = next(iter(sizes.values()))
    beside = next(iter(widths.values()))  # before and after the vectors, such as those of v
    width = sum(widths.values()) + 2 * beside
    lies, begin = _Offsets(), _MARGIN + beside
    for name, size in sizes.items():
        strides = {"d": 1, "h": size["d"], "s": width, "b": width * first["s"]}
        lies[name] = begin, tuple(strides[axis] for axis in order)
        begin += widths[name]
    return lies, width * first["s"] * first.get("b", 1) + 2 * _MARGIN


def _strided_view(buffer: Any, shape: tuple[int, ...], begin: int, strides: tuple[int, ...]) -> Any:
    """Return a view of a flat buffer; strides in numbers."""
    if isinstance(buffer, np.ndarray):
        wide = tuple(buffer.itemsize * stride for stride in strides)  # its base is the buffer, as of slices
        return np.ndarray(shape, buffer.dtype, buffer, buffer.itemsize * begin, wide)
    return buffer.as_strided(shape, strides, begin)


def shares_memory(returned: Any, given: Any) -> bool:
    """Return whether a result lies in the memory of an argument."""
    numpy_dtype = [isinstance(one, np.ndarray) for one in (returned, given)]
    if any(numpy_dtype):
        return all(numpy_dtype) and np.may_share_memory(returned, given)
    return bool(returned.untyped_storage().data_ptr() == given.untyped_storage().data_ptr())


def values(array: Any) -> tuple[FloatArray, str]:
    """Return a copy of an array's numbers, and its dtype's name. Raises: WrongShape."""
    if isinstance(array, np.ndarray):
        if array.dtype.kind not in "fV" or array.dtype == object:
            raise WrongShape(f"returns an array of {array.dtype}")
        wide = np.float64 if array.dtype == np.float64 else np.float32
        return np.array(array, dtype=wide), str(array.dtype)
    if not isinstance(array, torch().Tensor):
        raise WrongShape(f"returns {type(array).__name__} instead of an array")
    if not array.is_floating_point():
        raise WrongShape(f"returns a tensor of {str(array.dtype).removeprefix('torch.')}")
    numbers, name = torch_arrays.to_numpy(array), str(array.dtype).removeprefix("torch.")
    return (numbers.copy() if name in ("float32", "float64") else numbers), name


def raw_bits(array: Any) -> bytes:
    """Return all bits of a tensor or an array, in the order of its elements."""
    if isinstance(array, np.ndarray):
        return array.tobytes()
    content: bytes = array.detach().cpu().contiguous().view(torch().uint8).numpy().tobytes()
    return content


def as_numpy(returned: Any) -> Any:
    """Convert arrays of other libraries in a result to NumPy's."""
    returned = as_tuple(returned)
    if isinstance(returned, (tuple, list)):
        return type(returned)(map(as_numpy, returned)) if type(returned) in (tuple, list) else returned
    root = type(returned).__module__.partition(".")[0]
    foreign = hasattr(returned, "__array__") and root not in ("numpy", "torch", "builtins")
    return np.asarray(returned) if foreign and not _is_tensor(returned) else returned


def as_tuple(returned: Any) -> Any:
    """Convert a returned dict, dataclass or named tuple to a tuple, with q, k and v first.

    They are recognised by names such as `query_rotated` or `k_embed`; other fields stay in order.
    """
    if isinstance(returned, Mapping):
        fields = dict(returned)
    elif dataclasses.is_dataclass(returned) and not isinstance(returned, type):
        fields = {one.name: getattr(returned, one.name) for one in dataclasses.fields(returned)}
    elif isinstance(returned, tuple) and hasattr(returned, "_asdict"):
        fields = returned._asdict()
    else:
        return returned
    words = {name: set(re.split("[-_]", str(name).lower())) for name in fields}
    told = data.table("calls.toml")["fields"].items()
    found = {kind: [one for one in fields if words[one] & {*names}] for kind, names in told}
    if found["q"]:
        return tuple(fields[names[0]] for names in found.values() if names)
    return tuple(fields.values())


def _is_tensor(value: Any) -> bool:
    return any(kind.__module__.partition(".")[0] == "torch" for kind in type(value).__mro__)


def split_returned(returned: Any, both: bool) -> tuple[Any, Any, Any]:
    """Split a result into q, and k and v or None. both: whether k was passed. Raises: WrongShape."""
    returned = as_tuple(returned)
    if not isinstance(returned, (tuple, list)):
        return returned, None, None
    if both and len(returned) >= 2:
        return returned[0], returned[1], returned[2] if len(returned) == 3 else None
    if len(returned) == 1:
        return returned[0], None, None
    kind = TwoTables if len(returned) == 2 else WrongShape
    raise kind(f"returns {len(returned)} things for one array")


def call_quietly(
    function: Any,
    positional: list[Any],
    named: dict[str, Any],
    device: Device = CPU,
) -> Any:
    """Call a function without gradients, on the device, without warnings of overflows and nans.

    torch.compile may compile for every shape and dtype, past torch's limit; not at all where `eager`.
    """
    with np.errstate(all="ignore"), contextlib.ExitStack() as stack:
        if any(map(_is_tensor, (*positional, *named.values()))):
            stack.enter_context(torch().no_grad())
            stack.enter_context(device.current())
        if (dynamo := sys.modules.get("torch._dynamo.config")) is not None:
            stack.enter_context(dynamo.patch(**dict.fromkeys(_LIMITS, _COMPILATIONS)))
        python = eager and "torch" in sys.modules and not getattr(function, "compiled_on_request", False)
        if python and hasattr(torch().compiler, "set_stance"):
            stack.enter_context(torch().compiler.set_stance("force_eager"))
        return function(*positional, **named)


_FEWEST_ROWS = 2**12  # of a table of all positions
_LARGE, _STEP = 2**20, 61  # of larger arrays only each 61st number is read
# role, width, narrow, engine, device, dtype, setting, changes
WholeKey = tuple[str, str, bool, Engine, Device, Format, RopeSetting, tuple[tuple[str, str], ...]]


def table(
    role: str,
    width: str,
    dtype: Format,
    setting: RopeSetting,
    changes: Changes,
    at: Positions,
) -> tuple[Any, Format | None]:
    """Return cos, sin, both, cos + i sin or the angle, rounded once to float32; its dtype.

    Not at all for float64. dtype: the requested one of the table, None where none is. width: p pairs, or each
    twice, in halves or interleaved; both one after the other, woven or stacked, or a matrix of each pair.
    Shapes: at (s,) -> (s, p), (s, r), both (s, 2p), (s, 2r), stacked (s, p, 2), matrices (s, p, 2, 2).
    """
    cos, sin, angle, stored = _cos_sin(dtype, tuple(sorted(changes.items())), setting, at.tobytes())
    held = stored if "table" in changes else None
    wide = np.float64 if dtype is FP64 else np.float32
    both = (sin, cos) if role == "sin_cos" else (cos, sin)
    if width in ("stacked", "woven"):
        joined = np.stack(both, axis=-1).astype(wide)
        return (joined if width == "stacked" else joined.reshape(len(joined), -1)), held
    if width == "matrices":
        rows = np.stack([cos, -sin, sin, cos], axis=-1).astype(wide)
        return rows.reshape(*cos.shape, 2, 2), held
    if role == "freqs":
        result: Any = np.empty(cos.shape, np.result_type(wide, np.complex64))
        result.real, result.imag = cos, sin
        return result, None
    parts = {"cos": (cos,), "sin": (sin,), "angles": (angle,), "cos_sin": both, "sin_cos": both}[role]
    repeated = [part.astype(wide) for part in parts]
    if width != "pairs":
        repeated = [np.tile(one, 2) if width == "half" else np.repeat(one, 2, axis=1) for one in repeated]
    return (repeated[0] if len(repeated) == 1 else np.concatenate(repeated, axis=1)), held


def to_engine(
    table: Any,
    held: Format | None,
    engine: Engine,
    device: Device,
) -> Any:
    """Convert a table to an array of the engine, rounded if `held` has at most 16 bits."""
    if table.dtype.kind != "c" and held and held.storage_bits <= 16:
        rounded = round_to(np.ascontiguousarray(table), held)
        return new_array(rounded, held, engine, device)
    return tensor(table, device) if engine == "torch" else table


def whole_table(key: WholeKey, last: int) -> Any:
    """Return a cached table of all positions from 0 to at least `last`.

    It is computed again if code has changed it.
    """
    rows = max(_FEWEST_ROWS, 1 << last.bit_length())
    result, before = _cached_table(key, rows)
    if fingerprint(result) != before:
        _cached_table.cache_clear()
        result, _ = _cached_table(key, rows)
    return result


@functools.lru_cache(maxsize=4)
def _cached_table(key: WholeKey, rows: int) -> tuple[Any, object]:
    """Compute the table of positions 0 to `rows` - 1; return it and its fingerprint."""
    role, width, narrow, engine, device, dtype, setting, changes = key
    at = np.arange(rows, dtype=np.int64)
    if (grid := setting.grid) is not None:  # at its diagonal, each axis counts from 0
        setting = dataclasses.replace(
            setting, grid=dataclasses.replace(grid, sizes=(rows,) * len(grid.sizes))
        )
        at *= sum(rows**axis for axis in range(len(grid.sizes)))
    numbers, held = table(role, width, dtype, setting, dict(changes), at)
    result = to_engine(numbers, dtype if narrow else held, engine, device)
    return result, fingerprint(result)


def fingerprint(array: Any) -> object:
    """Return a value that changes with an array's content; large arrays are read in part."""
    if isinstance(array, tuple):
        return tuple(map(fingerprint, array))
    if math.prod(array.shape) < _LARGE:
        return raw_bits(array)
    return array.reshape(-1)[::_STEP].tobytes() if isinstance(array, np.ndarray) else array._version


@functools.lru_cache(maxsize=4)
def _cos_sin(
    dtype: Format, changes: tuple[tuple[str, str], ...], setting: RopeSetting, at: bytes
) -> tuple[FloatArray, FloatArray, FloatArray, Format | None]:
    """Return cos, sin and the angle at positions, and the tables' dtype. Shapes: (s, p)."""
    recipe = recipes.named("fp64-angles").changed(dict(changes)).resolve(dtype)
    emulated, positions = Emulated(recipe, setting), np.frombuffer(at, np.int64)
    return *emulated.table(positions, 0), emulated.angles(positions), recipe.table


def apply_tables(
    returned: Any,
    x: FloatArray,
    letters: str,
    setting: RopeSetting,
    dtype: Format,
    width: str,
) -> FloatArray:
    """Rotate x by tables that code returned: in float64, rounded once to the dtype.

    returned: two tables, one of complex numbers, of both, or of angles.
    width: what their columns are, of p pairs or of r dims. Shapes: x has the axes `letters`.
    Raises: WrongShape.
    """
    batch = x.shape[letters.index("b")] if "b" in letters else 1
    length = x.shape[letters.index("s")]
    columns = setting.pairs if width == "pairs" else setting.rotary_dim
    if isinstance(returned, (tuple, list)) and len(returned) != 2:
        raise WrongShape("does not return cos and sin")
    if _is_tensor(returned) and returned.is_complex():
        returned = returned.detach().cpu().numpy()
    if isinstance(returned, (tuple, list)):
        both = values(returned[0])[0], values(returned[1])[0]
    elif not _is_tensor(returned) and np.iscomplexobj(returned):  # NumPy reads no bfloat16
        both = returned.real, returned.imag
    else:
        numbers = values(returned)[0].astype(np.float64)
        if numbers.shape[-2:] == (2, 2):  # matrices
            both = numbers[..., 0, 0], numbers[..., 1, 0]
        elif numbers.ndim > 2 and numbers.shape[-1] == 2:
            both = numbers[..., 0], numbers[..., 1]
        elif numbers.shape[-1] == 2 * columns:  # one after the other
            both = numbers[..., :columns], numbers[..., columns:]
        else:
            both = np.cos(numbers), np.sin(numbers)
    wide = [one.astype(np.float64) for one in both]
    cos, sin = (_columns(one, (batch, length), setting, width, letters) for one in wide)
    result, layout = np.array(x, np.float64), "interleaved" if width == "interleaved" else "half"
    of = RopeSetting.of(setting.head_dim, setting.rotary_dim, layout=cast(Layout, layout))
    first, second = split_pairs(result, of)
    a, b = first.copy(), second.copy()
    first[...], second[...] = a * cos - b * sin, b * cos + a * sin
    return round_to(result, dtype).astype(dtype.carrier)


def _columns(
    numbers: FloatArray,
    sizes: tuple[int, int],
    setting: RopeSetting,
    width: str,
    letters: str,
) -> FloatArray:
    """Return a table with one column per pair, shaped to multiply x. Raises: WrongShape."""
    batch, length = sizes
    columns = setting.pairs if width == "pairs" else setting.rotary_dim
    if numbers.size not in (length * columns, batch * length * columns):
        raise WrongShape(f"returns cos or sin of the shape {numbers.shape}")
    rows = numbers.reshape(-1, length, columns)
    rows = rows[..., ::2] if width == "interleaved" else rows[..., : setting.pairs]
    result: FloatArray = rows[0] if "b" not in letters else rows[:, None] if "h" in letters else rows
    return result
