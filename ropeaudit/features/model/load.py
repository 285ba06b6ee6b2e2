"""Loading of a causal language model and its tokens from a local folder.

Nothing is downloaded, and code in the folder is executed only on request.
"""

from __future__ import annotations

import functools
import shlex
from dataclasses import dataclass, field
from importlib import metadata, util
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.formats import FP64, Format
from ropeaudit.errors import BadInput, MissingPackage, RopeAuditError, UsageError, one_line
from ropeaudit.rope import config_parts, hf_config, hf_json
from ropeaudit.rope.hf_config import ModelRope
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime.streams import quiet_transformers
from ropeaudit.subjects import torch_arrays
from ropeaudit.subjects.calling.environments import CPU, Device
from ropeaudit.tensor_files import tensors as tensorfiles

UNINITIALISED = (
    "uninitialised, for loading left it on `meta`, without memory; the model's code has to compute it in "
    "`_init_weights`, as a buffer, or at the first call"
)
ATTENTION = "ropeaudit"  # the name under which transformers finds what keeps q and k


@dataclass
class Folder:
    """The folder of a checkpoint. notes: for the report."""

    path: Path
    config: dict[str, Any]
    files: list[Path]
    trusted: bool
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The name of the folder, which names the model."""
        return self.path.absolute().name

    @property
    def text(self) -> dict[str, Any]:
        """The part of the config about text."""
        return dict(config_parts.text_part(self.config).given)

    @property
    def maximum(self) -> int | None:
        """The number of positions that the model declares; None if it declares none."""
        return hf_json.count(self.text, hf_json.POSITIONS, 2**53)

    @functools.cached_property
    def rope(self) -> ModelRope | None:
        """The RoPE of its config; None if that cannot be read."""
        try:
            return hf_config.read(str(self.path))
        except RopeAuditError:
            return None

    @functools.cached_property
    def known(self) -> bool:
        """Whether transformers knows its model type."""
        with quiet_transformers():
            from transformers.models.auto.configuration_auto import CONFIG_MAPPING

            return self.config.get("model_type") in CONFIG_MAPPING

    def setting(self, layer: int) -> RopeSetting | None:
        """Return the RoPE setting of a layer; None if unknown."""
        if self.rope is None or not self.known:
            return None
        kinds = list(self.rope.layers)
        kind = kinds[0] if len(kinds) == 1 else self.rope.kinds_of_layers.get(layer, "")
        return self.rope.layers.get(kind)

    def query_growth(self, offset: int, count: int) -> NDArray[np.float64] | None:
        """Return the factor of queries by position, as in Llama 4; None without one."""
        rope = hf_json.rope_dict(self.text)
        beta, length = rope.get("llama_4_scaling_beta"), rope.get("original_max_position_embeddings")
        if not isinstance(beta, float) or not length:
            return None
        return 1 + beta * np.log1p((offset + np.arange(count)) // int(length))

    def note(self, text: str) -> None:
        """Add a note, once."""
        if text not in self.notes:
            self.notes.append(text)


def versions(needs: str = "`ropeaudit model` needs", otherwise: str = "") -> dict[str, str]:
    """Return the versions of transformers and torch. Raises: MissingPackage.

    needs, otherwise: beginning and end of its message.
    """
    if util.find_spec("transformers") is None:
        raise MissingPackage(f"{needs} transformers; pip install 'ropeaudit[model]'{otherwise}")
    return {name: metadata.version(name) for name in ("transformers", "torch")}


def open_folder(spec: str, trusted: bool) -> Folder:
    """Check and return the folder of a causal language model. Raises: BadInput, MissingPackage."""
    versions()
    path = Path(spec)
    if not path.is_dir():
        seen = "is not a folder" if path.exists() else "no such folder"
        hub = "; nothing is downloaded: `hf download` gets a repository of the Hub" if "/" in spec else ""
        raise BadInput(
            f"{spec!r}: {seen}; give the local folder of a model, with config.json and *.safetensors{hub}"
        )
    files = tensorfiles.files(path)
    config = hf_json.load(spec)
    if not isinstance(config, dict):
        raise BadInput(f"{spec!r}: config.json holds no object; give the folder of a model")
    folder = Folder(path, config, files, trusted)
    if config.get("auto_map") and not trusted:
        if not folder.known:
            raise BadInput(
                f"{spec!r}: the model comes with custom code (auto_map), which was not executed; "
                "--trust-remote-code executes it"
            )
        folder.notes.append("custom code (auto_map) was not executed; transformers' own model was audited")
    if seen := _other_kind_of_model(folder):
        raise BadInput(
            f"{spec!r}: {seen}; give a causal language model. `ropeaudit check {shlex.quote(spec)}` judges "
            f"this one's config, `ropeaudit module {shlex.quote(spec)}` what it stores"
        )
    return folder


def _other_kind_of_model(folder: Folder) -> str:
    """Return the kind of a model that is no causal language model, by its type; else empty."""
    kind = folder.config.get("model_type")
    if not folder.known or (folder.trusted and folder.config.get("auto_map")):
        return ""
    with quiet_transformers():
        from transformers.models.auto import modeling_auto as auto
    kinds = {
        "an encoder with a decoder": auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
        | auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
        "an encoder": auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    }
    for what, names in kinds.items():
        if kind in names and folder.config.get("is_decoder") is not True:
            return f"{kind} is {what}"
    if kind in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or _has_axes(folder):
        return ""
    return f"{kind} has no causal language model in transformers"


def _has_axes(folder: Folder) -> bool:
    """Return whether the text part of a model has position axes."""
    return hf_json.rope_dict(folder.text).get("mrope_section") is not None


def load(folder: Folder, dtype: Format, device: Device = CPU) -> Any:
    """Load the model in a dtype, in evaluation mode. Raises: BadInput, UsageError."""
    path = repr(str(folder.path))
    with quiet_transformers():
        from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedModel
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as OF_TEXT

        use_attention(None)  # the name must be registered before a model can use it
        of_text = folder.config.get("model_type") in OF_TEXT or folder.config.get("auto_map")
        axes = not of_text and _has_axes(folder)
        make: Any = (AutoModelForImageTextToText if axes else AutoModelForCausalLM).from_pretrained
        given = {
            "dtype": torch_arrays.dtype(dtype),
            "local_files_only": True,
            "trust_remote_code": folder.trusted,
            "output_loading_info": True,
            "ignore_mismatched_sizes": True,  # they are refused below
        }
        if dtype == FP64 and hasattr(PreTrainedModel, "get_correct_experts_implementation"):
            given["experts_implementation"] = "eager"  # grouped products have no float64
        try:
            try:
                model, info = make(str(folder.path), attn_implementation=ATTENTION, **given)
            except (ValueError, KeyError) as error:  # a KeyError where a class has a dict of attentions
                if "attention" not in str(error).lower() and ATTENTION not in str(error):
                    raise
                model, info = make(str(folder.path), **given)
        except Exception as error:  # whatever the library makes of a damaged or hostile folder
            raise BadInput(f"{path}: cannot be loaded: {one_line(error, 300)}") from None
    missing = sorted(info["missing_keys"]) + [str(mismatch[0]) for mismatch in info["mismatched_keys"]]
    if missing:
        raise BadInput(
            f"{path}: config.json does not match the tensors: {len(missing)} that it names are missing or of "
            f"another shape ({missing[0]}); give the config of this checkpoint"
        )
    if unused := sorted(info["unexpected_keys"]):
        tensors = "1 tensor is" if len(unused) == 1 else f"{len(unused)} tensors are"
        folder.note(f"{tensors} not used by the model ({unused[0]})")
    try:
        return device.moved(model.eval())
    except Exception as error:  # such as too little memory
        if left := left_on_meta(model):
            raise BadInput(f"{path}: {left[0]}: {UNINITIALISED}") from None
        reason = f"cannot be moved to {device.name}: {one_line(error, 300)}"
        raise BadInput(f"{path}: {reason}; give --device cpu") from None


def left_on_meta(model: Any) -> list[str]:
    """Return the names of tensors that loading left on `meta`, without memory."""
    return [
        f"{name}.{key}".lstrip(".")
        for name, module in model.named_modules()
        for key, value in {**module._buffers, **vars(module)}.items()
        if getattr(value, "is_meta", False)
    ]


def use_attention(attention: Any) -> None:
    """Make loaded models call this function for attention."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    AttentionInterface.register(ATTENTION, attention)
    AttentionMaskInterface.register(ATTENTION, eager_mask)  # else there is no causal mask


_USUAL, _MOST = 128, 2048  # random tokens; tokens of a text unless more are requested
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt")


@dataclass(frozen=True, slots=True)
class Tokens:
    """Token ids. source: random, ids or the name of a text; seed: of random ones."""

    ids: list[int]
    source: str
    seed: int | None


def read_tokens(folder: Folder, text: str | None, given: str | None, seed: int) -> Tokens:
    """Return the tokens of a text file, the given ids (5,17,3), or random ones.

    A text is cut where the model or --tokens ends, with a note. Raises: BadInput, UsageError.
    """
    vocabulary = hf_json.needed(folder.text, ("vocab_size", "n_vocab"), 2**31)
    maximum = folder.maximum
    try:
        ids = [int(word) for word in given.split(",")] if given is not None else []
    except ValueError:
        raise UsageError(f"--tokens {given!r} is not a count or a list of ids; try 128 or 5,17,3") from None
    count, ids = (ids[0], []) if len(ids) == 1 else (None, ids)
    if count is not None and not 2 <= count <= 2**20:
        raise UsageError(f"--tokens {count} is not a count from 2 to 2^20; try 128, or ids such as 5,17,3")
    if wrong := [token for token in ids if not 0 <= token < vocabulary]:
        raise UsageError(f"--tokens: {wrong[0]} is not a token id below the vocabulary of {vocabulary}")
    if text is not None and ids:
        raise UsageError("--text and a list of --tokens both say what to read; give one of them")
    if text is not None:
        whole, most = _encode_text(folder, text, vocabulary), min(count or _MOST, maximum or 2**20)
        if len(whole) > most:
            why = "--tokens" if count == most else "the model's" if most == maximum else "the usual"
            folder.note(f"the text was cut to {most} of its {len(whole)} tokens ({why} limit)")
        return Tokens(whole[:most], Path(text).name, None)
    if ids:
        return Tokens(ids, "ids", None)
    count = count or _USUAL
    if maximum and count > maximum:
        raise UsageError(f"--tokens {count} is more than the model's {maximum} positions; give fewer")
    return Tokens(np.random.default_rng(seed).integers(0, vocabulary, count).tolist(), "random", seed)


def _encode_text(folder: Folder, text: str, vocabulary: int) -> list[int]:
    """Return the token ids of a text file. Raises: BadInput."""
    path = repr(str(folder.path))
    try:
        content = Path(text).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not text in UTF-8"
        raise BadInput(f"--text {text!r}: {reason}; give a text file") from None
    if not content.strip():
        raise BadInput(f"--text {text!r}: the file is empty; give one with some sentences, or --tokens 128")
    if not any((folder.path / name).is_file() for name in _TOKENIZERS):
        raise BadInput(
            f"{path}: there is no tokenizer (tokenizer.json, tokenizer_config.json); copy it there, or give "
            "--tokens 128 or ids instead of --text"
        )
    given: Any = {"local_files_only": True, "trust_remote_code": folder.trusted}
    with quiet_transformers():
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(str(folder.path), **given)
            ids = [int(token) for token in tokenizer(content)["input_ids"]]
        except Exception as error:  # whatever the library makes of a damaged or hostile folder
            raise BadInput(f"{path}: the tokenizer cannot be loaded: {one_line(error, 300)}") from None
    if len(ids) < 2 or max(ids) >= vocabulary:
        seen = f"{len(ids)} tokens" if len(ids) < 2 else f"ids past the vocabulary of {vocabulary}"
        raise BadInput(f"--text {text!r}: the tokenizer gives {seen}; give another text, or --tokens 128")
    return ids
