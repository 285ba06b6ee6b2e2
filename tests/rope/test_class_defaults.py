"""The base and the length that a configuration class takes are those of the classes of transformers.

python tests/rope/test_class_defaults.py     writes ropeaudit/data/class_defaults.toml anew
"""

import importlib.metadata
import tomllib
import warnings
from pathlib import Path
from typing import Any

import pytest

from ropeaudit import data

VERSION = "5.23.0"
FILE = Path(data.__file__).parent / "class_defaults.toml"
HEADER = f"""\
# The base (rope_theta) and the length (positions: max_position_embeddings) that a configuration class of
# transformers {VERSION} takes where a config.json gives none.
# Model type, without the ending "_text" -> the class, and its base, or one by layer type where these differ.
# Types whose class also has a scaling by default are left out. Written by tests/rope/test_class_defaults.py

"""
_MAPPINGS = ("CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM")


def of_transformers() -> dict[str, dict[str, Any]]:
    """Return what the classes of the installed transformers say, type by type."""
    import transformers
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    transformers.logging.set_verbosity(50)
    types = {name for kind in _MAPPINGS for name in getattr(modeling_auto, f"MODEL_FOR_{kind}_MAPPING_NAMES")}
    found: dict[str, dict[str, Any]] = {}
    for name in sorted(types):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                part = CONFIG_MAPPING[name]().get_text_config(decoder=True)
                part = type(part)()  # its own defaults, not those of the model that it stands in
            except Exception as error:  # of whatever kind; the file is compared with what remains
                print(f"{name}: {error!r}"[:150])
                continue
        bases = _bases(getattr(part, "rope_parameters", None) or {})
        if bases:
            values = {"class": type(part).__name__, **bases}
            if isinstance(length := getattr(part, "max_position_embeddings", None), int):
                values["positions"] = length
            found[part.model_type.removesuffix("_text")] = values
    return found


def _bases(parameters: dict[str, Any]) -> dict[str, float]:
    """Return the base, or the bases by layer type; none where a scaling goes with them."""
    nested = {key: value for key, value in parameters.items() if isinstance(value, dict)}
    parts = list(nested.values()) or [parameters]
    if any(one.get("rope_type", "default") != "default" for one in parts):
        return {}
    bases = {key: float(one["rope_theta"]) for key, one in sorted(nested.items())}
    if len(set(bases.values())) > 1:
        return bases
    theta = next(iter(bases.values()), parameters.get("rope_theta"))
    return {} if theta is None else {"rope_theta": float(theta)}


def written(found: dict[str, dict[str, Any]]) -> str:
    """Return the file's text."""
    lines = []
    for name, values in sorted(found.items()):
        inner = ", ".join(f"{key} = {value!r}".replace("'", '"') for key, value in values.items())
        lines.append(f"{name} = {{ {inner} }}\n")
    return HEADER + "".join(lines)


def test_the_file_is_what_the_classes_say() -> None:
    pytest.importorskip("transformers")
    if importlib.metadata.version("transformers") != VERSION:
        pytest.skip(f"the file is of transformers {VERSION}")
    text = FILE.read_text(encoding="utf-8")
    assert text == written(of_transformers())
    assert len(tomllib.loads(text)) > 100


if __name__ == "__main__":
    FILE.write_text(written(of_transformers()), encoding="utf-8")
