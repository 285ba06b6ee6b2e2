"""The ticket of a module's worst buffer, or of the worst of what running it showed, with how to reproduce it.

A snippet builds the module, loads it the way in which it is off, and prints how far off it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.formats import FP32
from ropeaudit.features.module import loading, run_report
from ropeaudit.features.module.analysis import Buffer, ModuleAudit
from ropeaudit.features.module.measurement import UP_TO, GridCall
from ropeaudit.features.module.outputs import ROTATED, TensorPlaces, tensors_of
from ropeaudit.features.module.references import TOGETHER
from ropeaudit.features.module.report import COLUMNS, buffers_report, runs_report
from ropeaudit.features.module.runs import RopeModule, Run
from ropeaudit.features.module.source import Source
from ropeaudit.recognition import wording
from ropeaudit.recognition.diagnosis import Diagnosis, codes
from ropeaudit.reports.numbers import short
from ropeaudit.reports.tickets import own_source
from ropeaudit.reports.tickets.inputs import exponents, scaled, theta
from ropeaudit.reports.tickets.reproduction import NoSnippet, Snippet
from ropeaudit.reports.tickets.ticket import Ticket, by_code, reproduction
from ropeaudit.rope.scaling import DEFAULT
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects.calling.building import Builder
from ropeaudit.subjects.calling.call_arguments import LONGEST
from ropeaudit.subjects.calling.forwards import PROBE, Call, NotFitted

_MORE = 2  # times the error of cos
_CLOSE = 1e-9  # relative: frequencies computed in float64 in another order
_ROUNDED = 2.0**-20  # relative: frequencies in float32, computed on any road


def module_ticket(audit: ModuleAudit, columns: Sequence[str] | None = None) -> Ticket | None:
    """Return the ticket of the run that is furthest off or the buffer that moves scores most; None without.

    Runs come first where ways of loading were requested. columns: those of the report.
    """
    off = run_report.furthest_off(audit.runs)
    wrong = [buffer for buffer in audit.buffers if buffer.wrong]
    if off is not None and (audit.ways or not wrong):
        return _of_run(audit, off, columns)
    if not wrong:
        return None
    worst = max(wrong, key=lambda one: (one.drift_near or 0.0, one.error or 0.0))
    return _of_buffer(audit, worst, columns)


def _of_run(audit: ModuleAudit, one: Run, columns: Sequence[str] | None) -> Ticket:
    builder, finding = audit.source.builder, run_report.finding(one)
    assert builder is not None  # noqa: S101  # it was run
    known = one.measured is None or one.measured.positions is not None
    values = f"whole positions times exact frequencies ({one.built.against})" if known else one.built.against
    called = f"{one.module} {one.way}, in eval mode, called as {one.built.call}"
    expected = (
        f"cos and sin should be those of {values}, up to the rounding of angles in float32 and of what is "
        "returned: compute positions, frequencies and angles in float32 whatever the module's dtype, and "
        "keep what they are computed from out of casts."
    )
    return Ticket(
        f"{one.module} {one.way}: {run_report.finding(one, brief=True)}{by_code(codes(one.diagnosis))}",
        replace(runs_report(audit, columns, {}), headline=f"{called}: {finding}."),
        run_report.COLUMNS.row(one),
        expected + _remedy(one.diagnosis),
        reproduction(lambda: snippet_of_run(one, builder)),
    )


def _of_buffer(audit: ModuleAudit, one: Buffer, columns: Sequence[str] | None) -> Ticket:
    off = "" if one.error is None or not math.isfinite(one.error) else f", off by up to {short(one.error)}"
    unit = " (relative)" if off and one.what in ("inv_freq", "periods") else ""
    cast = "is not what it should be" if one.cast == "none" else f"was cast to {one.cast}"
    values = (
        "computed in float32 or wider and not rounded to a narrower format afterwards: the relative error of "
        "a frequency is that of every angle, so the error of an angle grows with the position, and no cast "
        "back restores what was rounded away."
    )
    if one.cast == "none":
        values = "up to the rounding of float32."
    stored = one.remedy(audit.source.expected) if audit.source.checkpoint else ""
    return Ticket(
        f"RoPE {audit.source.noun} {one.stored.name} {cast}{off}{unit}{by_code(codes(one.diagnosis))}",
        buffers_report(audit, columns, {}),
        COLUMNS.row(one),
        f"{'By config.json, the' if stored else 'The'} values should be those of {one.against}, {values} "
        "The exact values follow from the base and the dims alone, as the snippet computes them in float64."
        + (_sentence(stored) if stored else _remedy(one.diagnosis)),
        reproduction(lambda: snippet_of_buffer(one, audit.source)),
    )


def _remedy(diagnosis: Diagnosis | None) -> str:
    """Return what to change, for the end of a paragraph; nothing where that is not known."""
    return _sentence(wording.remedy(diagnosis, FP32, UP_TO))


def _sentence(text: str) -> str:
    return f" {text[:1].upper()}{text[1:]}." if text else ""


def snippet_of_run(one: Run, builder: Builder) -> Snippet:
    """Return code that prints the largest error of cos, or of sin where that is far larger.

    Raises: NoSnippet.
    """
    seen, built = one.measured, one.built
    if seen is None or (call := built.forward) is None:
        raise NoSnippet("the module was not run")
    if seen.nonfinite:
        raise NoSnippet("what it returns is nan or infinite")
    if built.device != "cpu" or (seen.positions or 0) > TOGETHER:
        raise NoSnippet("it was run on another device or in several calls")
    function = "sin" if seen.sin_error > _MORE * seen.cos_error else "cos"
    place, _, name = builder.spec.rpartition(":")
    lines, file = own_source.imported(place, name)
    imports, arguments = _arguments(builder)
    submodule = f".get_submodule({built.name!r})" if built.name else ""
    lines = [*lines, *imports, f"build = lambda: {name}({arguments}).eval(){submodule}"]
    lines.append(f"at = torch.arange({seen.positions or LONGEST})")
    read = _read(built, call, function)
    lines += [*_loaded(one.loaded, one.dtype), f"values = {read(_called(call, 'module', str(one.given)))}"]
    lines.append(f"exact = {_exact(one, function, lambda how: read(_called(call, *how)))}")
    lines.append(f'print("{function}_error", f"{{(values - exact).abs().max():.3g}}")')
    error = seen.cos_error if function == "cos" else seen.sin_error
    where = f"{one.module} {one.way}"
    return Snippet(("import torch", *lines), f"{function}_error", error, where, file)


def _arguments(builder: Builder) -> tuple[list[str], str]:
    """Return imports, and the arguments of a class or a function. Raises: NoSnippet."""
    imports, texts = [], []
    for name, value in (builder.arguments or {}).items():
        if not hasattr(value, "to_dict"):
            texts.append(f"{name}={value!r}")
            continue
        cls = type(value)
        if cls().to_dict() != value.to_dict():
            raise NoSnippet("its config is part of another one")
        imports.append(f"from {cls.__module__} import {cls.__name__}")
        texts.append(f"{name}={cls.__name__}()")
    return imports, ", ".join(texts)


def _loaded(way: str, dtype: str) -> list[str]:
    """Return the lines that load the module in a way. Raises: NoSnippet."""
    name = f"torch.{dtype}"
    if way == loading.BUILT:
        return ["module = build()"]
    if way == "to":
        return [f"module = build().to({name})"]
    if way == "default-dtype":
        before, after = f"torch.set_default_dtype({name})", "torch.set_default_dtype(torch.float32)"
        return [before, "module = build()", after]
    if way == "saved":
        state = f"{{name: one.to({name}) for name, one in build().state_dict().items()}}"
        return ["module = build()", f"module.load_state_dict({state})"]
    raise NoSnippet("a model that is saved and loaded by from_pretrained takes more lines than a snippet has")


def _called(call: Call, module: str, dtype: str) -> str:
    """Return the call of a module as Python."""
    texts = {name: one.text for name, one in call.arguments.items()}
    given = {
        name: dtype if text == "dtype" else text.replace("=dtype", f"={dtype}")
        for name, text in texts.items()
    }
    return f"{module}({', '.join(f'{name}={text}' for name, text in given.items())})"


def _read(built: RopeModule, call: Call, function: str) -> Callable[[str], str]:
    """Return what reads cos or sin, (n, c), out of a call's text. Raises: NoSnippet."""
    assert not isinstance(built.fitted, NotFitted)  # noqa: S101
    places: TensorPlaces = built.fitted.places
    which = 0 if function == "cos" else 1
    returned = call.run(built.module, 0, LONGEST if places.axis is None else PROBE, built.own)
    paths = _paths(returned)
    tensor = places.tensors[which if places.what == "cos and sin" else 0]
    first = "[None]" if places.axis is None else f".movedim({places.axis}, 0)" if places.axis else ""
    half = "" if places.halves is None else f"[{_index(places.halves[which])}]"
    then = {"angles": f".double().{function}()", "complex": _COMPLEX[which]}.get(places.what, ".double()")
    if len(places.tensors) > 1 and places.what == ROTATED:
        if paths != [f"[{index}]" for index in places.tensors]:
            raise NoSnippet("it returns more than rotated tensors")
        return lambda text: f"torch.cat([one{first}{half}{then}.flatten(1) for one in {text}], 1)"
    return lambda text: f"{text}{paths[tensor]}.detach(){first}{half}{then}.flatten(1)"


_COMPLEX = (".to(torch.complex128).real", ".to(torch.complex128).imag")


def _paths(returned: Any, before: str = "") -> list[str]:
    """Return how each tensor is reached, in the order of `outputs.tensors_of`."""
    if len(tensors_of(returned)) == 1 and not isinstance(returned, Mapping | list | tuple):
        return [before]
    items = returned.items() if isinstance(returned, Mapping) else enumerate(returned)
    reached = [(key, part) for key, part in items if tensors_of(part)]
    return [path for key, part in reached for path in _paths(part, f"{before}[{key!r}]")]


def _index(half: Any) -> str:
    """Return an index behind the axis of positions as Python."""
    texts = []
    for index in half:
        text = "..." if index is ... else str(index)
        if isinstance(index, slice):
            start, stop = ("" if end is None else end for end in (index.start, index.stop))
            text = f"{start}:{stop}" + (f":{index.step}" if index.step else "")
        texts.append(text)
    return ", ".join(texts)


def _exact(one: Run, function: str, called: Callable[[tuple[str, str]], str]) -> str:
    """Return what the values should be as Python. Raises: NoSnippet."""
    built, own = one.built, str(one.built.own)
    if isinstance(built.fitted, GridCall):
        return called(("build().double()", "torch.float64") if built.fitted.wide else ("build()", own))
    frequencies = _frequencies(built)
    if frequencies is not None:
        return f"(at.double()[:, None] * {frequencies}).{function}()"
    if one.loaded == loading.BUILT:
        raise NoSnippet("its frequencies are neither a buffer of it nor those of a base alone")
    return called(("build()", own))


def _frequencies(built: RopeModule) -> str | None:
    """Return the frequencies of the columns as Python: of a buffer as built, or of a base; None otherwise."""
    reference = built.references[0]
    theta = reference.theta
    if np.any(reference.factor != 1) or np.any(reference.theta < 0):
        return None
    source = reference.source
    if source is None:
        return None
    exact = None if source.held is None or source.setting is None else _of_base(source.setting, theta)
    if exact is not None:
        return exact
    if source.buffer:
        name = source.buffer.rpartition(".")[2]
        values = getattr(built.module, name, None)
        if source.buffer not in {one.buffer for one in built.known} or values is None:
            return None
        if values.dim() != 1 or values.is_complex():
            return None
        near = _CLOSE if source.held is None else _ROUNDED
        how = _repeated(values.detach().cpu().double().numpy(), theta, near)
        return None if how is None else f"build().{name}.double(){how}"
    return None if source.setting is None else _of_base(source.setting, theta)


def _of_base(setting: RopeSetting, theta: NDArray[np.float64]) -> str | None:
    """Return the frequencies of a base as Python; None of a scaling, and where some are left out."""
    dims, base = 2 * np.unique(theta).size, setting.base
    if setting.scaling != DEFAULT:
        return None
    how = _repeated(base ** -(np.arange(0, dims, 2) / dims), theta)
    return None if how is None else f"({base:.8g} ** -(torch.arange(0, {dims}, 2).double() / {dims})){how}"


def _repeated(values: NDArray[np.float64], theta: NDArray[np.float64], near: float = _CLOSE) -> str | None:
    """Return how the columns repeat the values, as Python; None where they do not. near: relative."""
    columns = theta.size
    count = columns // values.size if values.size else 0
    if not count or count * values.size != columns:
        return None
    forms: Sequence[tuple[str, NDArray[np.float64]]] = (
        ("" if count == 1 else f".repeat({count})", np.tile(values, count)),
        (f".repeat_interleave({count})", np.repeat(values, count)),
    )
    return next((text for text, like in forms if np.allclose(like, theta, rtol=near, atol=0)), None)


def snippet_of_buffer(one: Buffer, source: Source) -> Snippet:
    """Return code that prints the largest error of a buffer. Raises: NoSnippet."""
    if one.setting is None or one.error is None or not math.isfinite(one.error):
        raise NoSnippet("there is nothing to compare its values with")
    if one.what not in ("inv_freq", "periods"):
        raise NoSnippet(f"its values are {one.what}")
    d = one.setting
    exact = theta(d) if one.what == "inv_freq" else f"1 / ({theta(d)})"
    lines, file = _built(one, source) if source.built else _stored(one, source)
    return Snippet(
        (
            "import torch",
            *lines,
            f"x = {exponents(d)}",
            *scaled(d),
            f"exact = {exact}",
            "error = (values.double().flatten() / exact - 1).abs().max()",
            'print("largest_error", f"{error:.3g}")',
        ),
        "largest_error",
        one.error,
        one.stored.name,
        file,
    )


def _built(one: Buffer, source: Source) -> tuple[list[str], str]:
    """Return the lines that build the module and read the buffer, and the file that they import."""
    place, _, function = source.spec.rpartition(":")
    lines, file = own_source.imported(place, function)
    prefix, _, leaf = one.stored.name.rpartition(".")
    module = f"{function}().get_submodule({prefix!r})" if prefix else f"{function}()"
    return [*lines, f"values = {module}.{leaf}"], file


def _stored(one: Buffer, source: Source) -> tuple[list[str], str]:
    """Return the lines that read the buffer out of a file, and that file. Raises: NoSnippet."""
    name, path = one.stored.name, Path(source.spec)
    if source.noun == "constant":
        if one.stored.use is None or one.how == "graph" or not one.stored.use.snippet:
            raise NoSnippet("it takes more than a few lines to find it in its graph")
        return list(one.stored.use.snippet), path.name
    file = path if path.is_file() else path / "model.safetensors"
    where = repr(source.spec if file is path else str(file))
    if not file.is_file():
        raise NoSnippet("its checkpoint is in several files")
    torch_file = [f"values = torch.load({where}, weights_only=True)[{name!r}]"]
    loads = {
        ".pt": torch_file,
        ".pth": torch_file,
        ".bin": torch_file,
        ".safetensors": ["from safetensors.torch import load_file", f"values = load_file({where})[{name!r}]"],
        ".npz": ["import numpy", f"values = torch.from_numpy(numpy.load({where})[{name!r}])"],
        ".npy": ["import numpy", f"values = torch.from_numpy(numpy.load({where}))"],
    }
    if file.suffix not in loads:
        raise NoSnippet(f"a {file.suffix} file takes more than a few lines to read")
    return loads[file.suffix], file.name
