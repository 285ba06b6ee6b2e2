"""docs/architectures.md: what every type of causal language model gives, and what its code does."""

import importlib.metadata
import json

import architecture_page
import pytest
from architecture_page import KINDS, PAGE, POSITIONS, kind_of, load, page, wrong

# one of each kind: MoE, hybrid, NoPE layers, layer types, latent attention, scaling, learned, ALiBi, partial
DOZEN = [
    "mixtral",
    "cohere2",
    "gemma3_text",
    "deepseek_v3",
    "phi3, longrope",
    "llama, dynamic",
    "gptj",
    "falcon",
    "codegen",
    "gpt_neox_japanese",
    "opt",
]
DOZEN += ["bloom", "smollm3", "jamba", "gpt_neox"]


def test_the_page_is_that_of_the_data() -> None:
    stored = load()
    assert PAGE.read_text(encoding="utf-8") == page(stored["models"], stored["versions"])


def test_every_verdict_is_what_the_code_of_its_type_does() -> None:
    models = load()["models"]
    assert {name: found for name, one in models.items() if (found := wrong(name, one))} == {}
    assert set(POSITIONS) <= set(models)
    assert {kind_of(name) for name in models} == set(KINDS)


def test_a_wrong_verdict_would_be_seen() -> None:
    good = load()["models"]["gemma3_text"]
    assert wrong("gemma3_text", good) == []
    for changed in (
        {"verdict": "structure"},
        {"plain": 0.5},
        {"save_qk": 1e-3},
        {"scores": 1e-3},
        {"frequencies": 1e-6},
        {"rotating": {"full_attention": [1, 1]}},
        {"config": "rope_theta is missing"},
        {"saved": "refused"},
        {"check": ["none: config: fail"]},
        {"built": "no"},
    ):
        assert wrong("gemma3_text", {**good, **changed}), changed
    assert wrong("bart", {**load()["models"]["bart"], "refusal": "IndexError"})


def test_all_types_of_the_installed_library_are_on_the_page() -> None:
    auto = pytest.importorskip("transformers.models.auto.modeling_auto")
    stored = load()
    if f"transformers {importlib.metadata.version('transformers')}," not in stored["versions"]:
        pytest.skip(f"the page is of {stored['versions']}")
    assert set(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) <= set(stored["models"])


@pytest.mark.slow
@pytest.mark.parametrize("name", DOZEN)
def test_an_audit_of_today_is_that_of_the_page(name, tmp_path) -> None:
    pytest.importorskip("transformers")
    import architectures

    today = json.loads(json.dumps(architectures.audit(name, tmp_path)))
    assert wrong(name, today) == []
    stored = load()["models"][name]
    for key in ("verdict", "cause", "refusal", "rotating", "types", "config", "check"):
        assert today.get(key) == stored.get(key)
    assert architecture_page.kind_of(name) in KINDS
