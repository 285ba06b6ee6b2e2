"""Vision parts of config files turn rows and columns as the classes of transformers do."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest

from ropeaudit import data
from ropeaudit.rope import config_axes

TYPES = data.table("code_facts.toml")["axial_halves"]
SIZES = ("embed_dim", "hidden_size", "head_dim", "num_heads", "num_attention_heads")


@pytest.mark.filterwarnings("ignore")
def test_angles_of_patches_are_those_of_transformers(tmp_path, monkeypatch) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    transformers.logging.set_verbosity(50)
    monkeypatch.chdir(tmp_path)
    known = transformers.CONFIG_MAPPING
    wrong = []
    rows, columns = (part.ravel() for part in np.mgrid[:3, :5])
    for name in TYPES:
        parent = next(one for one in known if name in _parts_of(one).values())
        key = next(key for key, model in _parts_of(parent).items() if model == name)
        config = getattr(known[parent](), key)
        config.rope_parameters["rope_theta"] = 5e3
        given = {size: getattr(config, size) for size in SIZES if getattr(config, size, None)}
        with open("config.json", "w", encoding="utf-8") as file:
            part = {"model_type": name, **given, "rope_theta": 5e3}
            json.dump({"model_type": parent, key: part}, file)
        rope = config_axes.axial_rope_named(f"config.json#{key}")
        module = importlib.import_module(type(config).__module__.replace("configuration", "modeling"))
        [kind] = [one for key, one in vars(module).items() if key.endswith("VisionRotaryEmbedding")]
        at = torch.from_numpy(np.stack([rows, columns], axis=-1))
        cos, sin = kind(config)(torch.zeros(1), at)
        turns = [
            ("hw".index(rope.axes[pair.axis]), 5e3 ** (-pair.numerator / pair.denominator))
            for pair in rope.pairs()
        ]
        axes, some = [axis for axis, _ in turns], len(turns) // 2
        if axes != [0] * some + [1] * some:  # as `check` says
            wrong.append(f"{name}: {axes}")
        angles = np.stack([at[:, axis].numpy() * frequency for axis, frequency in turns], axis=-1)
        x = torch.from_numpy(np.random.default_rng(0).standard_normal((15, 1, rope.head_dim)))
        apply = getattr(module, "apply_rotary_pos_emb_vision", None) or module.apply_rotary_pos_emb
        theirs = apply(x, x, cos, sin)[0].double().numpy()
        half = rope.head_dim // 2
        right = (x.numpy()[..., :half] + 1j * x.numpy()[..., half:]) * np.exp(1j * angles)[:, None]
        if not np.allclose(theirs, np.concatenate([right.real, right.imag], -1), atol=1e-5):
            wrong.append(name)
    assert wrong == []


def test_sections_that_are_not_given_are_those_of_transformers() -> None:
    folder = Path(pytest.importorskip("transformers").__file__).parent / "models"
    for model, sections in data.table("code_facts.toml")["sections"].items():
        source = (folder / model / f"modeling_{model}.py").read_text(encoding="utf-8")
        assert f'.get("mrope_section", {sections})' in source, model


def _parts_of(name: str) -> dict[str, str]:
    return data.table("model_types.toml").get(name, {}).get("parts", {})
