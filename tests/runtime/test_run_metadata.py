"""Memory and processors, as far as a system says."""

import builtins
import os

import numpy as np

from ropeaudit.runtime import run_metadata


def test_free_memory_without_proc_is_all_there_is_and_without_sysconf_a_guess(monkeypatch) -> None:
    assert 0 < run_metadata.free_bytes() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def absent(*_: object, **__: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(builtins, "open", absent)
    assert run_metadata.free_bytes() == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    monkeypatch.delattr(os, "sysconf")
    assert run_metadata.free_bytes() == 2**36


def test_threads_without_affinity_are_the_processors(monkeypatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert run_metadata.threads() == os.cpu_count()


def test_versions_are_those_that_are_installed() -> None:
    told = run_metadata.hardware(("numpy", "no-such-package"))
    assert told["numpy"] == np.__version__
    assert "no-such-package" not in told
