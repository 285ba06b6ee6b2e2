"""Kernels under check by their names, and small models of transformers, for the tests that run them."""

from collections.abc import Callable
from pathlib import Path

import pytest
from net.kernel_rows import KERNELS


@pytest.fixture
def spec(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Return a function that names a kernel of the file that the test module has as KERNELS."""
    return lambda name: f"{KERNELS / 'called' / request.module.KERNELS}:{name}"


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that makes a small model of a type once in a session; tests leave it as it is."""
    import small_configs

    folders: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in folders:
            folders[name] = tmp_path_factory.mktemp("model")
            assert small_configs.build(name, folders[name]) is None
        return folders[name]

    return get


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that makes and trains a tiny model once in a session; tests leave it as it is."""
    import tiny_models

    folders: dict[str, Path] = {}

    def get(kind: str) -> Path:
        if kind not in folders:
            folders[kind] = tiny_models.make(kind, tmp_path_factory.mktemp(kind))
        return folders[kind]

    return get


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch, in_process: None) -> Callable[..., None]:
    """Return a function that lets each loading go on with what it does to, or makes of, the loaded model."""
    from ropeaudit.features.model import load

    real = load.load

    def changed(change: Callable[..., object]) -> None:
        def other(*arguments: object) -> object:
            model = real(*arguments)  # type: ignore[arg-type]
            return change(model) or model

        monkeypatch.setattr(load, "load", other)

    return changed
