"""Tiny language models, trained for a moment and written to disk as transformers writes them.

A test that makes one is skipped where transformers is not installed.
"""

import contextlib
import io
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

VOCABULARY, LETTERS = 64, "abcdefghijklmnopqrstuvwxyz .,"
_SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": VOCABULARY}
_SIZES |= {"intermediate_size": 96, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def _config(name: str, **values: object) -> Any:
    return getattr(pytest.importorskip("transformers"), name)(**values)


def _llama(rope_type: str = "default", maximum: int = 2**21, **rope: object) -> Any:
    parameters = {"rope_type": rope_type, "rope_theta": 1e4, **rope}
    return _config(
        "LlamaConfig",
        **_SIZES,
        num_key_value_heads=2,
        max_position_embeddings=maximum,
        rope_parameters=parameters,
    )


def _longrope() -> Any:
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 128}
    rope |= {"short_factor": [1.0] * 8, "long_factor": [1.0 + i for i in range(8)]}
    return _config(
        "Phi3Config",
        **_SIZES,
        num_key_value_heads=2,
        max_position_embeddings=512,
        original_max_position_embeddings=128,
        rope_parameters=rope,
    )


CONFIGS = {
    "llama": _llama,
    "neox": lambda: _config("GPTNeoXConfig", **_SIZES, rotary_pct=0.25),
    "dynamic": lambda: _llama("dynamic", 128, factor=2.0),
    "longrope": _longrope,
    "gpt2": lambda: _config(
        "GPT2Config",
        n_embd=64,
        n_layer=2,
        n_head=4,
        vocab_size=VOCABULARY,
        n_positions=256,
        bos_token_id=1,
        eos_token_id=2,
    ),
}


def make(kind: str, folder: Path, steps: int = 30) -> Path:
    """Train a model on periodic sequences and save it. Returns its folder."""
    torch.manual_seed(0)
    with contextlib.redirect_stderr(io.StringIO()):
        logging.getLogger("transformers").setLevel(logging.CRITICAL)
        model = pytest.importorskip("transformers").AutoModelForCausalLM.from_config(CONFIGS[kind]())
        optimizer = torch.optim.Adam(model.parameters(), 3e-3)
        for _ in range(steps):
            period = torch.randint(3, VOCABULARY, (8, 12))
            batch = torch.cat([period, period, period], 1)
            loss = model(batch, labels=batch).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.save_pretrained(folder)
    return folder


def add_tokenizer(folder: Path) -> None:
    """Write a tokenizer of single letters."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = ["<unk>", "<s>", "</s>", *LETTERS]
    built = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>"))  # noqa: S106
    built.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    PreTrainedTokenizerFast(tokenizer_object=built, unk_token="<unk>").save_pretrained(folder)  # noqa: S106


def change_config(folder: Path, **changes: object) -> None:
    """Change keys of a config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def split(folder: Path) -> list[Path]:
    """Write the weights anew as two shards with their index. Returns the shards."""
    from safetensors.torch import load_file, save_file

    whole = load_file(folder / "model.safetensors")
    names, files = sorted(whole), [folder / f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    parts = names[: len(names) // 2], names[len(names) // 2 :]
    for part, file in zip(parts, files, strict=True):
        save_file({name: whole[name] for name in part}, file, {"format": "pt"})
    index = {n: file.name for part, file in zip(parts, files, strict=True) for n in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    (folder / "model.safetensors").unlink()
    return files
