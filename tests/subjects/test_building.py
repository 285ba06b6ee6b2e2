"""What a class is built with: the lengths that its config declares and serves, and not others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import kernels_tables
import pytest

from ropeaudit.arithmetic.formats import FP32
from ropeaudit.audits.cases import Case
from ropeaudit.features.check import code_target
from ropeaudit.features.check.checked import CheckOptions, Target
from ropeaudit.subjects import factories
from ropeaudit.subjects.calling import loading

# declared, original and served differ
YARN = {
    "max_position_embeddings": 200,
    "rope_scaling": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 128},
}
DYNAMIC = {"max_position_embeddings": 128, "rope_scaling": {"rope_type": "dynamic", "factor": 4}}


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
    shape = {"hidden_size": 64, "num_attention_heads": 4, "rope_theta": 10000.0}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", **shape, **config}))
    own, case = factories.implementation(f"{kernels_tables.__file__}:{name}"), Case(config=str(path))
    options = CheckOptions(dtypes=(FP32,), environments=("none",))
    next(iter(code_target.of_code(own, Target(name, "code", case, options, lambda texts: None))))
    assert case.maximum == 512
    inside, _ = loading.here(own.name)
    inside.declared, inside.served = own.declared, own.served
    assert inside.instance(case.setting(512)).rows == rows
