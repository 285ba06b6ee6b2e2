"""The metadata of a run: versions, platform, threads, command line, time."""

from __future__ import annotations

import datetime
import os
import platform
import shlex
import sys
from typing import Any

_PACKAGES = ("ropeaudit", "numpy", "ml_dtypes", "torch", "click", "rich", "pandas")


def versions() -> dict[str, str]:
    """Return package -> installed version; nothing is imported for it."""
    from importlib import metadata  # in-function: it takes as long as a small audit

    installed = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            installed[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            installed[package] = "not installed"
    return installed


def threads() -> int:
    """Return how many threads an audit uses: the processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1


def free_bytes() -> int:
    """Return the bytes of memory that are free, as far as the system says; else 64 GiB."""
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
    """Return versions, platform, threads and what NumPy computes with as a flat mapping."""
    return versions() | {
        "platform": platform.platform(),
        "machine": platform.machine(),
        "threads": threads(),
        **kernels(),
    }


def kernels() -> dict[str, str]:
    """Return NumPy's BLAS with the kernel that it chose for this processor, and NumPy's SIMD level.

    They decide in which order float32 and float64 sums are added. Nothing where NumPy is not loaded.
    """
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return {}
    from threadpoolctl import threadpool_info  # in-function: what loads no NumPy needs none of it

    libraries = [library for library in threadpool_info() if library["user_api"] == "blas"]
    libraries.sort(key=lambda library: "numpy" not in library["filepath"])  # torch may bring one too
    keys = ("internal_api", "version", "architecture")
    words = [libraries[0].get(key) for key in keys] if libraries else []
    found = numpy.show_config(mode="dicts").get("SIMD Extensions", {})
    levels = [*found.get("baseline", []), *found.get("found", [])]
    return {
        "blas": " ".join(str(word) for word in words if word) or "unknown",
        "simd": levels[-1] if levels else "unknown",
    }


def processor(environment: Any) -> str:
    """Return what in an environment's metadata decides in which order sums are added; empty without it."""
    known = environment if isinstance(environment, dict) else {}
    if {"blas", "simd"} - known.keys() or "unknown" in (known["blas"], known["simd"]):
        return ""
    return f"{known['blas']}, {known['simd']}"


def command_line() -> str:
    """Return the command that is running, as one would type it."""
    return shlex.join(["ropeaudit", *sys.argv[1:]])


def now() -> str:
    """Return the time in UTC to the second; SOURCE_DATE_EPOCH replaces it where it is set."""
    fixed = os.environ.get("SOURCE_DATE_EPOCH", "")
    try:
        moment = datetime.datetime.fromtimestamp(int(fixed), datetime.UTC)
    except (ValueError, OverflowError, OSError):  # not set, or not a time
        moment = datetime.datetime.now(datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def gather() -> dict[str, Any]:
    """Return all metadata of this run."""
    return {"command": command_line(), "time": now(), "environment": environment()}
