"""A few lines that read a buffer of frequencies or periods and print how far off it is."""

from __future__ import annotations

import math
from pathlib import Path

from ropeaudit.features.module.buffers import Buffer
from ropeaudit.features.module.source import Source
from ropeaudit.reports.tickets import own_source
from ropeaudit.reports.tickets.inputs import exponents, scaled, theta
from ropeaudit.reports.tickets.reproduction import NoSnippet, Snippet


def snippet(one: Buffer, source: Source) -> Snippet:
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
