"""How many threads work, and what they work with."""

import builtins
import os
import subprocess
import sys

import numpy as np
import pytest

from ropeaudit import data
from ropeaudit.runtime import chance, run_metadata, threads

COUNTED = (
    "import threadpoolctl, ropeaudit.main, ropeaudit.__main__ as start\n"
    "ropeaudit.main.main = lambda: 0\n"
    "start.main()\n"
    "import numpy\n"
    "pools = threadpoolctl.threadpool_info()\n"
    "print(*[one['num_threads'] for one in pools if one['internal_api'] == 'openblas'])"
)


def test_short_sequences_are_worth_one_thread() -> None:
    assert [threads.useful_threads(3, n) for n in (1, threads.SHORT, threads.SHORT + 1)] == [1, 1, 3]
    assert threads.useful_threads(3, 200, short=128) == 3


def test_errors_of_threads_arrive() -> None:
    def fail(number: int) -> int:
        return 1 // number

    for count in (1, 2):
        with threads.mapping(count) as mapped, pytest.raises(ZeroDivisionError):
            list(mapped(fail, [1, 0]))


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor")
@pytest.mark.parametrize(("set_to", "seen"), [(None, {"", "1"}), ("2", {"", "2"})])
def test_the_command_starts_openblas_without_threads(set_to, seen) -> None:
    """It is a default: what the environment says stays. Without OpenBLAS there is none to count."""
    unset = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    env = unset | ({"OPENBLAS_NUM_THREADS": set_to} if set_to else {})
    run = subprocess.run([sys.executable, "-c", COUNTED], env=env, check=True, capture_output=True, text=True)
    assert run.stdout.strip() in seen


def test_a_file_of_the_package_that_is_not_there_is_named() -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.toml"):
        data.text("none.toml")


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
    assert told["cpu"]
    assert "model name" not in told["cpu"].lower()


def test_torch_has_one_thread_while_code_is_called_and_its_own_number_after() -> None:
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with chance.put_back():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
