"""The metadata of a run: versions, platform, hardware, threads, command line, time."""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_PACKAGES = ("ropeaudit", "numpy", "ml_dtypes", "torch", "click", "rich", "pandas")
# they decide which kernels run, and in which dtype weights are loaded
_RELATED_PACKAGES = ("accelerate", "flash-attn", "safetensors", "triton", "vllm", "xformers")


def threads() -> int:
    """Return the number of processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1


def free_bytes() -> int:
    """Return the bytes of free memory; 64 GiB where the system does not tell."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            table = dict(line.split(":", 1) for line in file)
        return int(table["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):  # Windows has no sysconf
        return 2**36


def environment() -> dict[str, Any]:
    """Return versions, platform, threads and NumPy's kernels as a flat mapping."""
    from importlib import metadata  # in-function: it takes as long as a small audit

    installed = {"python": platform.python_version()}
    for package in _PACKAGES:  # nothing is imported for it
        try:
            installed[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            installed[package] = "not installed"
    return installed | {
        "platform": platform.platform(),
        "machine": platform.machine(),
        "threads": threads(),
        **kernels(),
    }


def kernels() -> dict[str, str]:
    """Return NumPy's SIMD level, its BLAS and the kernel for this processor.

    They decide the order of float32 and float64 sums. Nothing without NumPy.
    """
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return {}
    from threadpoolctl import threadpool_info  # in-function: what loads no NumPy needs none of it

    libraries = [library for library in threadpool_info() if library["user_api"] == "blas"]
    libraries.sort(key=lambda library: "numpy" not in library["filepath"])  # torch may bring one too
    keys = ("internal_api", "version", "architecture")
    words = [libraries[0].get(key) for key in keys] if libraries else []
    extensions = numpy.show_config(mode="dicts").get("SIMD Extensions", {})
    levels = [*extensions.get("baseline", []), *extensions.get("found", [])]
    return {
        "blas": " ".join(str(word) for word in words if word) or "unknown",
        "simd": levels[-1] if levels else "unknown",
    }


def processor(environment: Any) -> str:
    """Return BLAS and SIMD level, which decide the order of sums; empty if unknown."""
    values = environment if isinstance(environment, dict) else {}
    if {"blas", "simd"} - values.keys() or "unknown" in (values["blas"], values["simd"]):
        return ""
    return f"{values['blas']}, {values['simd']}"


def command_line() -> str:
    """Return the running command as it would be typed."""
    return shlex.join(["ropeaudit", *sys.argv[1:]])


def gather() -> dict[str, Any]:
    """Return all metadata of this run. Its time is in UTC, or SOURCE_DATE_EPOCH where that is set."""
    fixed = os.environ.get("SOURCE_DATE_EPOCH", "")
    try:
        moment = datetime.datetime.fromtimestamp(int(fixed), datetime.UTC)
    except (ValueError, OverflowError, OSError):  # not set, or not a time
        moment = datetime.datetime.now(datetime.UTC)
    time = moment.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"command": command_line(), "time": time, "environment": environment()}


def hardware(audited: tuple[str, ...] = ()) -> dict[str, str]:
    """Return processor, devices, CUDA, torch's precision switches, BLAS and versions of packages.

    Every value is text, "unknown" where it cannot be determined. torch is imported; an error of that is a
    value too. audited: names of packages under audit.
    """
    from importlib import metadata

    try:
        torch = dict(_torch_facts())
    except Exception as error:  # of many kinds, by what is broken
        torch = {"torch import": f"fails: {type(error).__name__}: {error}".partition("\n")[0]}
    import numpy  # noqa: F401 its BLAS is loaded with it

    results = {"cpu": _cpu()} | torch | kernels()
    for package in sorted({*audited, *_RELATED_PACKAGES}):
        with contextlib.suppress(metadata.PackageNotFoundError):
            results[package] = metadata.version(package)
    return results


def _cpu() -> str:
    with contextlib.suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        if named := re.search(r"^(?:model name|Model)\s*:\s*(.+)$", text, re.MULTILINE):
            return named[1].strip()
    return platform.processor() or platform.machine() or "unknown"


def _torch_facts() -> Iterator[tuple[str, str]]:
    import torch

    yield "cpu capability", _text_or_unknown(torch.backends.cpu.get_cpu_capability)
    yield "cuda", torch.version.cuda or "none in this build of torch"
    yield "gpu", _text_or_unknown(lambda: ", ".join(_gpus(torch)) or "none")
    yield "tf32 matmul", _text_or_unknown(lambda: torch.backends.cuda.matmul.allow_tf32)
    yield "tf32 cudnn", _text_or_unknown(lambda: torch.backends.cudnn.allow_tf32)
    yield "float32 matmul precision", _text_or_unknown(torch.get_float32_matmul_precision)
    yield "default dtype", _text_or_unknown(torch.get_default_dtype)
    yield "torch threads", _text_or_unknown(torch.get_num_threads)


def _gpus(torch: Any) -> Iterator[str]:
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            major, minor = torch.cuda.get_device_capability(number)
            yield f"{torch.cuda.get_device_name(number)} (capability {major}.{minor})"
    if torch.backends.mps.is_available():
        yield "Apple MPS"


def _text_or_unknown(query: Callable[[], Any]) -> str:
    """Return a value as text; torch raises where old and new switches were mixed."""
    try:
        return str(query())
    except Exception:  # of many kinds, by version and build
        return "unknown"
