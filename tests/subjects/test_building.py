"""What a class is built with: the lengths that its config declares and serves, and not others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import kernels_tables
import pytest

from ropeaudit.arithmetic.formats import FP32
from ropeaudit.audits.cases import Case
from ropeaudit.conformance.finding import Finding
from ropeaudit.features.check import code_target
from ropeaudit.features.check.checked import CheckOptions, Target
from ropeaudit.subjects import factories
from ropeaudit.subjects.calling import loading
from ropeaudit.subjects.calling.foreign import ForeignOwn

PLAIN: dict[str, Any] = {"max_position_embeddings": 300}
# declared, original and served differ
YARN = {
    "max_position_embeddings": 200,
    "rope_scaling": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 128},
}
DYNAMIC = {"max_position_embeddings": 128, "rope_scaling": {"rope_type": "dynamic", "factor": 4}}


def checked(name: str, config: dict[str, Any], folder: Path) -> tuple[ForeignOwn, Case, Finding]:
    """Return a class that was checked by a config, and whether its table ends."""
    shape = {"hidden_size": 64, "num_attention_heads": 4, "rope_theta": 10000.0}
    path = folder / "config.json"
    path.write_text(json.dumps({"model_type": "llama", **shape, **config}))
    own, case = factories.implementation(f"{kernels_tables.__file__}:{name}"), Case(config=str(path))
    options = CheckOptions(dtypes=(FP32,), environments=("none",))
    results = code_target.of_code(own, Target(name, "code", case, options, lambda texts: None))
    return own, case, next(one.finding for one in results if one.finding.check == "table end")


@pytest.mark.parametrize("name", ["OfConfig", "OfLength"])
def test_a_table_that_is_a_row_shorter_than_its_config_declares_is_seen(name: str, tmp_path: Path) -> None:
    *_, whole = checked(name, PLAIN, tmp_path)
    assert (whole.status, whole.detail) == ("pass", "a token at position 299 is taken")
    *_, short = checked(f"{name}OneShort", PLAIN, tmp_path)
    assert short.failed
    assert (short.where, short.measured, short.allowed) == ("position 299", 299, 300)


@pytest.mark.parametrize(
    ("name", "config", "rows"),
    [
        ("OfConfig", YARN, 200),
        ("OfLength", YARN, 512),
        ("OfConfig", DYNAMIC, 128),  # as it was before the extension
        ("OfLength", DYNAMIC, 128),
    ],
)
def test_a_config_says_what_is_declared_and_a_length_is_what_is_served(
    name: str, config: dict[str, Any], rows: int, tmp_path: Path
) -> None:
    own, case, _ = checked(name, config, tmp_path)
    assert case.maximum == 512
    inside, _ = loading.here(own.name)
    inside.declared, inside.served = own.declared, own.served
    assert inside.instance(case.setting(512)).rows == rows
