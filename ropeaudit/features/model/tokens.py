"""The tokens that a model is to read: of a text, given as ids, or random ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ropeaudit.errors import BadInput, UsageError, one_line
from ropeaudit.features.model.load import Folder, quiet
from ropeaudit.rope import hf_json

_USUAL, _MOST = 128, 2048  # random tokens; tokens of a text unless more are requested


@dataclass(frozen=True, slots=True)
class Tokens:
    """Token ids. source: random, ids or the name of a text; seed: of random ones."""

    ids: list[int]
    source: str
    seed: int | None


def read_tokens(folder: Folder, text: str | None, given: str | None, seed: int) -> Tokens:
    """Return the tokens of a text file, given ids (5,17,3), or a number of random ones.

    A text is cut where the model or --tokens ends, with a note. Raises: BadInput, UsageError.
    """
    vocabulary = hf_json.needed(folder.text, ("vocab_size", "n_vocab"), 2**31)
    ids, count = _given(given)
    for token in ids:
        if not 0 <= token < vocabulary:
            raise UsageError(f"--tokens: {token} is not a token id below the vocabulary of {vocabulary}")
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
    return Tokens(np.random.default_rng(seed).integers(0, vocabulary, count).tolist(), "random", seed)


def _given(text: str | None) -> tuple[list[int], int | None]:
    """Return a list of ids, or how many tokens. Raises: UsageError."""
    if text is None:
        return [], None
    try:
        numbers = [int(word) for word in text.split(",")]
    except ValueError:
        raise UsageError(f"--tokens {text!r} is not a count or a list of ids; try 128 or 5,17,3") from None
    if len(numbers) > 1:
        return numbers, None
    if not 2 <= numbers[0] <= 2**20:
        raise UsageError(
            f"--tokens {numbers[0]} is not a count from 2 to 2^20; try 128, or ids such as 5,17,3"
        )
    return [], numbers[0]


def _encoded(folder: Folder, text: str, vocabulary: int) -> list[int]:
    """Return the ids of a text file, by the tokenizer of the folder. Raises: BadInput."""
    try:
        content = Path(text).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not text in UTF-8"
        raise BadInput(f"--text {text!r}: {reason}; give a text file") from None
    if not content.strip():
        raise BadInput(f"--text {text!r}: the file is empty; give one with some sentences, or --tokens 128")
    names = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt")
    if not any((folder.path / name).is_file() for name in names):
        raise BadInput(
            f"{str(folder.path)!r}: there is no tokenizer (tokenizer.json, tokenizer_config.json); copy it "
            "there, or give --tokens 128 or ids instead of --text"
        )
    with quiet():
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(
                str(folder.path), local_files_only=True, trust_remote_code=folder.trusted
            )
            ids = [int(token) for token in tokenizer(content)["input_ids"]]
        except Exception as error:
            raise BadInput(
                f"{str(folder.path)!r}: the tokenizer cannot be loaded: {one_line(error, 300)}"
            ) from None
    if len(ids) < 2 or max(ids) >= vocabulary:
        seen = (
            f"gives {len(ids)} tokens" if len(ids) < 2 else f"gives ids past the vocabulary of {vocabulary}"
        )
        raise BadInput(f"--text {text!r}: the tokenizer {seen}; give another text, or --tokens 128")
    return ids


def _cut(folder: Folder, ids: list[int], count: int | None) -> list[int]:
    """Return the first ids, as many as are requested, usual, or positions of the model."""
    most = min(count or _MOST, folder.maximum or 2**20)
    if len(ids) > most:
        why = "--tokens" if count == most else "the model's" if most == folder.maximum else "the usual"
        folder.note(f"the text was cut to {most} of its {len(ids)} tokens ({why} limit)")
    return ids[:most]
