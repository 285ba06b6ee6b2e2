"""A causal language model from a local folder, and the tokens that it is to read; nothing is downloaded.

No code of the folder is executed unless that is asked for.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import metadata, util
from pathlib import Path
from typing import Any

from ropeaudit.arithmetic.formats import Format
from ropeaudit.errors import BadInput, MissingPackage, UsageError
from ropeaudit.rope import hf_json
from ropeaudit.runtime import process_state, streams
from ropeaudit.subjects import torch_arrays
from ropeaudit.tensor_files import checkpoints

ATTENTION = "ropeaudit"  # the name under which transformers finds the function that keeps q and k
_USUAL, _MOST = 128, 2048  # random tokens; tokens of a text unless more are asked for


@dataclass(slots=True)
class Folder:
    """A folder that holds a whole checkpoint. maximum: positions that it declares, None where it does not."""

    path: Path
    config: dict[str, Any]
    files: list[Path]
    trusted: bool
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """What to call the model."""
        return self.path.absolute().name

    @property
    def text(self) -> dict[str, Any]:
        """The part of the config that is about text."""
        return dict(hf_json.text_part(self.config))

    @property
    def maximum(self) -> int | None:
        """Positions that the model declares."""
        return hf_json.count(self.text, ("max_position_embeddings", "n_positions"), 2**53)


@dataclass(frozen=True, slots=True)
class Tokens:
    """Token ids. source: random, ids or the name of a text; seed: of random ones."""

    ids: list[int]
    source: str
    seed: int | None


def versions() -> dict[str, str]:
    """Return the versions of what runs the model. Raises: MissingPackage."""
    if util.find_spec("transformers") is None:
        raise MissingPackage("`ropeaudit model` needs transformers; pip install 'ropeaudit[model]'")
    return {name: metadata.version(name) for name in ("transformers", "torch")}


def opened(spec: str, trusted: bool) -> Folder:
    """Return a folder whose config and shards are all there. Raises: BadInput, MissingPackage."""
    versions()
    path = Path(spec)
    if not path.is_dir():
        seen = "is not a folder" if path.exists() else "no such folder"
        raise BadInput(
            f"{spec!r}: {seen}; give the local folder of a model, with config.json and *.safetensors"
        )
    files = checkpoints.files(path)
    config = hf_json.load(spec)
    if not isinstance(config, dict):
        raise BadInput(f"{spec!r}: config.json holds no object; give the folder of a model")
    folder = Folder(path, config, files, trusted)
    if config.get("auto_map") and not trusted:
        with _quiet():
            from transformers.models.auto.configuration_auto import CONFIG_MAPPING

            known = config.get("model_type") in CONFIG_MAPPING
        if not known:
            raise BadInput(
                f"{spec!r}: the model comes with custom code (auto_map), which was not executed; "
                "--trust-remote-code executes it"
            )
        folder.notes.append("custom code (auto_map) was not executed; transformers' own model was audited")
    return folder


def load(folder: Folder, dtype: Format) -> Any:
    """Return the model, in evaluation, with its weights in a dtype. Raises: BadInput, UsageError."""
    requested = torch_arrays.dtype(dtype)
    with _quiet():
        from transformers import AutoModelForCausalLM

        listen(_unheard)  # it has to be known by name before a model can be told to use it
        make: Any = AutoModelForCausalLM.from_pretrained
        given = {
            "dtype": requested,
            "local_files_only": True,
            "trust_remote_code": folder.trusted,
            "output_loading_info": True,
            "ignore_mismatched_sizes": True,  # they are named, and refused, below
        }
        try:
            try:
                with streams.aside(), process_state.foreign():
                    model, info = make(str(folder.path), attn_implementation=ATTENTION, **given)
            except ValueError as error:
                if "attention" not in str(error).lower() and ATTENTION not in str(error):
                    raise
                with streams.aside(), process_state.foreign():
                    model, info = make(str(folder.path), **given)
                _note(folder, "this model's attention cannot be listened to: there are no rows by layer")
        except Exception as error:  # whatever the library makes of a damaged or hostile folder
            raise BadInput(f"{str(folder.path)!r}: cannot be loaded: {error_line(error)}") from None
    missing = sorted(info["missing_keys"]) + [str(one[0]) for one in info["mismatched_keys"]]
    if missing:
        raise BadInput(
            f"{str(folder.path)!r}: config.json does not match the tensors: {len(missing)} that it names "
            f"are missing or of another shape ({missing[0]}); give the config of this checkpoint"
        )
    if info["unexpected_keys"]:
        first = sorted(info["unexpected_keys"])[0]
        _note(folder, f"{len(info['unexpected_keys'])} tensors are not used by the model ({first})")
    return model.eval()


def listen(attention: Any) -> None:
    """Let models that were loaded here attend with a function of transformers' attention interface."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    AttentionInterface.register(ATTENTION, attention)
    AttentionMaskInterface.register(ATTENTION, eager_mask)  # without it the future is seen


def _unheard(*_: Any, **__: Any) -> Any:
    raise RuntimeError("nobody listens")


def _note(folder: Folder, text: str) -> None:
    if text not in folder.notes:
        folder.notes.append(text)


def tokens(folder: Folder, text: str | None, given: str | None, seed: int) -> Tokens:
    """Return the tokens of a text file, given ids (5,17,3), or a number of random ones.

    A text is cut where the model or --tokens ends, with a note. Raises: BadInput, UsageError.
    """
    vocabulary = hf_json.needed(folder.text, ("vocab_size", "n_vocab"), 2**31)
    ids, count = _given(given)
    for one in ids:
        if not 0 <= one < vocabulary:
            raise UsageError(f"--tokens: {one} is not a token id below the vocabulary of {vocabulary}")
    if text is not None:
        if ids:
            raise UsageError("--text and a list of --tokens both say what to read; give one of them")
        return Tokens(_cut(folder, _encoded(folder, text, vocabulary), count), Path(text).name, None)
    if ids:
        return Tokens(ids, "ids", None)
    import numpy as np

    count = count or _USUAL
    if folder.maximum and count > folder.maximum:
        raise UsageError(f"--tokens {count} is more than the model's {folder.maximum} positions; give fewer")
    sampled = np.random.default_rng(seed).integers(0, vocabulary, count)
    return Tokens([int(one) for one in sampled], "random", seed)


def _given(text: str | None) -> tuple[list[int], int | None]:
    """A list of ids, or how many tokens."""
    if text is None:
        return [], None
    try:
        results = [int(one) for one in text.split(",")]
    except ValueError:
        raise UsageError(f"--tokens {text!r} is not a count or a list of ids; try 128 or 5,17,3") from None
    if len(results) > 1:
        return results, None
    if not 2 <= results[0] <= 2**20:
        raise UsageError(
            f"--tokens {results[0]} is not a count from 2 to 2^20; try 128, or ids such as 5,17,3"
        )
    return [], results[0]


def _encoded(folder: Folder, text: str, vocabulary: int) -> list[int]:
    try:
        written = Path(text).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not text in UTF-8"
        raise BadInput(f"--text {text!r}: {reason}; give a text file") from None
    if not written.strip():
        raise BadInput(f"--text {text!r}: the file is empty; give one with some sentences, or --tokens 128")
    names = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt")
    if not any((folder.path / name).is_file() for name in names):
        raise BadInput(
            f"{str(folder.path)!r}: there is no tokenizer (tokenizer.json, tokenizer_config.json); copy it "
            "there, or give --tokens 128 or ids instead of --text"
        )
    with _quiet():
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(
                str(folder.path), local_files_only=True, trust_remote_code=folder.trusted
            )
            ids = [int(one) for one in tokenizer(written)["input_ids"]]
        except Exception as error:
            raise BadInput(
                f"{str(folder.path)!r}: the tokenizer cannot be loaded: {error_line(error)}"
            ) from None
    if len(ids) < 2 or max(ids) >= vocabulary:
        seen = (
            f"gives {len(ids)} tokens" if len(ids) < 2 else f"gives ids past the vocabulary of {vocabulary}"
        )
        raise BadInput(f"--text {text!r}: the tokenizer {seen}; give another text, or --tokens 128")
    return ids


def _cut(folder: Folder, ids: list[int], count: int | None) -> list[int]:
    most = min(count or _MOST, folder.maximum or 2**20)
    if len(ids) > most:
        why = "--tokens" if count == most else "the model's" if most == folder.maximum else "the usual"
        _note(folder, f"the text was cut to {most} of its {len(ids)} tokens ({why} limit)")
    return ids[:most]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the library offline, and its progress bars and advice off the terminal."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers.utils import logging as library

        logging: Any = library

        level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
        logging.set_verbosity(50)  # critical
        logging.disable_progress_bar()
        try:
            yield
        finally:
            logging.set_verbosity(level)
            if bars:
                logging.enable_progress_bar()


def error_line(error: BaseException) -> str:
    """An exception in a line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
