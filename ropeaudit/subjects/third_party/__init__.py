"""Other people's implementations, one small file each; nothing of theirs is imported until it is audited."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from importlib import import_module, metadata, util
from typing import Any

from ropeaudit.errors import MissingPackage, UnknownName
from ropeaudit.rope.setting import Layout
from ropeaudit.subjects.calling.implementation import Implementation

_HALF: tuple[Layout, ...] = ("half",)
_INTERLEAVED: tuple[Layout, ...] = ("interleaved",)
_BOTH: tuple[Layout, ...] = ("half", "interleaved")
_FOUR = ("float64", "float32", "float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class Entry:
    """An implementation that can be requested by name.

    module: the file here that calls it, whose `IMPLEMENTATIONS[name]` makes it of this entry. needs: what it
    imports. package: whose version is recorded. extra: what installs it. layouts, dtypes: those that it can
    be requested, the default layout first. calls: what is called.
    """

    name: str
    module: str
    needs: str
    package: str
    extra: str
    layouts: tuple[Layout, ...]
    dtypes: tuple[str, ...]
    calls: str

    @property
    def installed(self) -> bool:
        """Whether it can be called."""
        return all(util.find_spec(name) is not None for name in self.needs.split())

    @property
    def version(self) -> str:
        """The version that is installed; none where it is not."""
        try:
            return metadata.version(self.package)
        except metadata.PackageNotFoundError:
            return "none"

    @property
    def install(self) -> str:
        """What to type to install it."""
        return f"pip install 'ropeaudit[{self.extra}]'"


def _transformers(name: str, layouts: tuple[Layout, ...], calls: str) -> Entry:
    return Entry(
        f"transformers-{name}",
        "transformers_rope",
        "transformers",
        "transformers",
        "model",
        layouts,
        _FOUR,
        calls,
    )


_ENTRIES = (
    _transformers("llama", _HALF, "LlamaRotaryEmbedding and apply_rotary_pos_emb"),
    _transformers("llama-cast", _HALF, "the same after .to(dtype) of the module, which rounds inv_freq"),
    _transformers("cohere", _INTERLEAVED, "CohereRotaryEmbedding and its apply_rotary_pos_emb"),
    _transformers("llama4", _INTERLEAVED, "Llama4TextRotaryEmbedding and apply_rotary_emb"),
    Entry(
        "rotary-embedding-torch",
        "rotary_torch",
        "rotary_embedding_torch",
        "rotary-embedding-torch",
        "rotary-embedding-torch",
        _INTERLEAVED,
        _FOUR,
        "RotaryEmbedding.rotate_queries_or_keys, a run of positions a call",
    ),
    Entry(
        "x-transformers",
        "xtransformers_rope",
        "x_transformers",
        "x-transformers",
        "x-transformers",
        _INTERLEAVED,
        _FOUR,
        "RotaryEmbedding and apply_rotary_pos_emb",
    ),
    Entry(
        "x-transformers-cast",
        "xtransformers_rope",
        "x_transformers",
        "x-transformers",
        "x-transformers",
        _INTERLEAVED,
        _FOUR,
        "the same after .to(dtype) of the module, which rounds positions and angles",
    ),
    Entry(
        "curated-transformers",
        "curated_rope",
        "curated_transformers catalogue",
        "curated-transformers",
        "curated-transformers",
        _HALF,
        _FOUR,
        "QueryKeyRotaryEmbeddings, which returns float32 for narrower q and k",
    ),
    Entry(
        "diffusers-flux",
        "diffusers_rope",
        "diffusers",
        "diffusers",
        "diffusers",
        _INTERLEAVED,
        _FOUR,
        "FluxPosEmbed and apply_rotary_emb",
    ),
    Entry(
        "diffusers-1d",
        "diffusers_rope",
        "diffusers",
        "diffusers",
        "diffusers",
        _INTERLEAVED,
        _FOUR,
        "get_1d_rotary_pos_embed and apply_rotary_emb",
    ),
    Entry(
        "mistral-inference",
        "freqs_cis",
        "mistral_inference",
        "mistral_inference",
        "mistral-inference",
        _INTERLEAVED,
        _FOUR,
        "precompute_freqs_cis and apply_rotary_emb of mistral_inference.rope",
    ),
    Entry(
        "llama-models",
        "freqs_cis",
        "llama_models fairscale",
        "llama_models",
        "llama-models",
        _INTERLEAVED,
        _FOUR,
        "precompute_freqs_cis and apply_rotary_emb of llama_models.llama3.model",
    ),
    Entry(
        "litgpt",
        "litgpt_rope",
        "litgpt",
        "litgpt",
        "litgpt",
        _HALF,
        _FOUR,
        "build_rope_cache and apply_rope",
    ),
    Entry(
        "megatron-core",
        "megatron_rope",
        "megatron",
        "megatron-core",
        "megatron-core",
        _BOTH,
        _FOUR,
        "RotaryEmbedding.get_freqs_non_repeated and _apply_rotary_pos_emb_bshd, a run of positions a call",
    ),
    Entry(
        "onnxruntime",
        "onnxruntime_rope",
        "onnxruntime onnx",
        "onnxruntime",
        "onnxruntime",
        _BOTH,
        ("float32", "float16"),
        "RotaryEmbedding of opset 23, with tables of the caller: float64 cos and sin, rounded once",
    ),
    Entry(
        "mlx",
        "mlx_rope",
        "mlx",
        "mlx",
        "mlx",
        _BOTH,
        ("float32", "float16", "bfloat16"),
        "mx.fast.rope on the CPU, a run of positions a call",
    ),
    Entry(
        "ggml",
        "ggml_rope",
        "pywhispercpp",
        "pywhispercpp",
        "ggml",
        _BOTH,
        ("float32", "float16"),
        "ggml_rope_ext of the library in pywhispercpp's wheel, modes 2 (half) and 0 (interleaved)",
    ),
)
ENTRIES = {entry.name: entry for entry in _ENTRIES}


def implementation(name: str) -> Implementation:
    """Return an implementation by its name. Raises: UnknownName, MissingPackage."""
    if name not in ENTRIES:
        raise UnknownName("implementation", name, ENTRIES, "(`ropeaudit list impls` shows them)")
    entry = ENTRIES[name]
    if not entry.installed:
        raise MissingPackage(f"--impl {name} needs {' and '.join(entry.needs.split())}; {entry.install}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of theirs: about CUDA, about what else might be installed
            adapter: type[Any] = import_module(f"{__name__}.{entry.module}").IMPLEMENTATIONS[name]
    except Exception as error:  # whatever a half-installed package raises
        reason = " ".join(str(error).split())[:200]
        raise MissingPackage(f"--impl {name} cannot be imported: {reason}; {entry.install}") from error
    loaded: Implementation = adapter(entry)
    return loaded
