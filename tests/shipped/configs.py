"""Class C: configs and scalings, as code that a config's reader built. The corrected version beside each.

q, k (b, h, s, d), positions (s,). Letters: b batch, h heads, s positions, d head_dim, p pairs.
"""

import math

import torch

from shipped.bugs import Bug
from shipped.turning import angles_of, inverse, llama3, rotated, temperature, yarn, yarn_range

# Settings as configs have them.

LLAMA32 = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_attention_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}
PLAIN = {
    "model_type": "qwen3",
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 32768,
}


def by_yarn(q, k, positions, factor, on_tables, base=10000.0, original=4096, truncate=True):
    """q and k rotated by YaRN, with a factor on cos and sin."""
    d = q.shape[-1]
    frequencies = yarn(d, base, factor, yarn_range(d, base, original, truncate))
    return rotated(q, k, angles_of(positions, frequencies), on_tables)


def plainly(q, k, positions, base, dims=None):
    """q and k rotated without a scaling, in the first dims."""
    return rotated(q, k, angles_of(positions, inverse(dims or q.shape[-1], base)))


# C1

FINAL = temperature(128.0)  # 1.4852


def c1_faulty(q, k, positions, attention_factor=FINAL):
    return by_yarn(q, k, positions, 128.0, temperature(128.0) * attention_factor)


def c1_right(q, k, positions, attention_factor=FINAL):
    return by_yarn(q, k, positions, 128.0, attention_factor)


# C3


def c3_faulty(q, k, positions, **scaling):
    known = {key: scaling[key] for key in ("factor", "beta_fast", "beta_slow") if key in scaling}
    factor = known.get("factor", 32.0)
    return by_yarn(q, k, positions, factor, known.get("attention_factor", temperature(factor)))


def c3_right(q, k, positions):
    return by_yarn(q, k, positions, 32.0, 1.0)


# C4: of DeepSeek, mscale over mscale_all_dim


def c4_faulty(q, k, positions):
    return by_yarn(q, k, positions, 16.0, temperature(16.0))


def c4_right(q, k, positions):
    return by_yarn(q, k, positions, 16.0, temperature(16.0, 1.0) / temperature(16.0, 1.0))


# C5


def c5_faulty(q, k, positions):
    return by_yarn(q, k, positions, 4.0, temperature(4.0))


def c5_right(q, k, positions):
    return by_yarn(q, k, positions, 4.0, 1.25)


# C7, C8, C9, C11: a list of divisors for short prompts, one for long ones

SHORT = [1.0 + 0.02 * i for i in range(32)]
LONG = [1.0 + 0.5 * i for i in range(32)]
LONGROPE = {
    "model_type": "phi3",
    "hidden_size": 256,
    "num_attention_heads": 4,
    "max_position_embeddings": 1024,
    "original_max_position_embeddings": 128,
    "rope_theta": 10000.0,
    "rope_scaling": {"type": "longrope", "short_factor": SHORT, "long_factor": LONG},
}
GROWN = math.sqrt(1 + math.log(8) / math.log(128))


def by_list(q, k, positions, long, factor=GROWN):
    """q and k rotated with frequencies over one of the lists."""
    frequencies = inverse(q.shape[-1]) / torch.tensor(LONG if long else SHORT)
    return rotated(q, k, angles_of(positions, frequencies), factor)


def c7_faulty(q, k, positions):
    return rotated(q, k, angles_of(positions, inverse(q.shape[-1])))


def c7_right(q, k, positions):
    return by_list(q, k, positions, long=False)


def c8_faulty(q, k, positions, allocated=1024):
    return by_list(q, k, positions, long=allocated > 128)


def c8_right(q, k, positions, allocated=1024):
    return by_list(q, k, positions, long=int(positions.max()) + 1 > 128)


def c9_faulty(q, k, positions):
    return by_list(q, k, positions, long=int(positions.min()) > 128)


def c9_right(q, k, positions, longest=1024):
    """The list of the longest position that the request may reach."""
    return by_list(q, k, positions, long=longest > 128)


def c11_faulty(q, k, positions):
    return by_list(q, k, positions, long=not int(positions.max()) + 1 < 128)


def c11_right(q, k, positions):
    return by_list(q, k, positions, long=not int(positions.max()) + 1 <= 128)


# C13, C14, C18


def c13_faulty(q, k, positions):
    return rotated(q, k, angles_of(positions, llama3(q.shape[-1], factor=8.0)))


def c13_right(q, k, positions, factor=32.0):
    return rotated(q, k, angles_of(positions, llama3(q.shape[-1], factor=factor)))


def scaled_by(dims, rope_scaling_factor=8.0):
    return llama3(dims, factor=rope_scaling_factor)


def c14_faulty(q, k, positions, rope_scaling_factor=16.0):
    return rotated(q, k, angles_of(positions, scaled_by(q.shape[-1])))


def c14_right(q, k, positions, rope_scaling_factor=16.0):
    return rotated(q, k, angles_of(positions, scaled_by(q.shape[-1], rope_scaling_factor)))


# C15, C17, C19: what is read of a config by those that know its base alone


class Read:
    """RoPE of a config; which of its keys are read, subclasses say."""

    config = LLAMA32

    def __init__(self):
        d, base = self.config["head_dim"], self.config["rope_theta"]
        scaling = self.parsed()
        self.frequencies = llama3(d, base, scaling["factor"]) if self.uses(scaling) else inverse(d, base)

    def parsed(self):
        return self.config.get("rope_scaling")

    def uses(self, scaling):
        return scaling is not None

    def __call__(self, q, k, positions):
        return rotated(q, k, angles_of(positions, self.frequencies))


class C15Faulty(Read):
    """Parsed, and then asked for under another name than it was stored by."""

    def uses(self, scaling):
        return "type" in scaling and scaling["type"] == "llama3"


class C15Right(Read):
    """By the name that it has."""

    def uses(self, scaling):
        return scaling.get("rope_type", scaling.get("type")) == "llama3"


class C17Faulty(Read):
    """The class that takes the place of the model's own has no such argument."""

    def parsed(self):
        return None


class C17Right(Read):
    """It reads it."""


def c18_faulty(q, k, positions, factors=None):
    """The rotation divides by factors, of which it is given none."""
    plain = inverse(q.shape[-1], 500000.0)
    return rotated(q, k, angles_of(positions, plain if factors is None else plain / factors))


def c18_right(q, k, positions):
    d = q.shape[-1]
    return c18_faulty(q, k, positions, inverse(d, 500000.0) / llama3(d))


def converted(config, keys):
    """A drafter's config, made of that of its target."""
    return {"head_dim": config["head_dim"]} | {key: config[key] for key in keys}


class C19Faulty(Read):
    """The converter forwards the base alone."""

    config = converted(LLAMA32, ["rope_theta"])


class C19Right(Read):
    """And the scaling."""

    config = converted(LLAMA32, ["rope_theta", "rope_scaling"])


# C20, C21


def c20_faulty(q, k, positions):
    return by_yarn(q, k, positions, 32.0, temperature(32.0), 150000.0, 131072, truncate=False)


def c20_right(q, k, positions):
    return by_yarn(q, k, positions, 32.0, temperature(32.0), 150000.0, 4096, truncate=False)


DEEPSEEK = {"max_position_embeddings": 163840, "original_max_position_embeddings": 4096}


def c21_faulty(q, k, positions, config=DEEPSEEK):
    return by_yarn(q, k, positions, 40.0, 1.0, original=config["max_position_embeddings"])


def c21_right(q, k, positions, config=DEEPSEEK):
    return by_yarn(q, k, positions, 40.0, 1.0, original=config["original_max_position_embeddings"])


# C22 to C27: the base

NEW = PLAIN | {"rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}}


def c22_faulty(q, k, positions, config=NEW):
    """The older library fills in its default, which then has the last word."""
    completed = {"rope_theta": 10000.0} | config
    parameters = completed["rope_parameters"] | {"rope_theta": completed["rope_theta"]}
    return plainly(q, k, positions, parameters["rope_theta"])


def c22_right(q, k, positions, config=NEW):
    return plainly(q, k, positions, config["rope_parameters"]["rope_theta"])


def c23_faulty(q, k, positions, config=NEW):
    return plainly(q, k, positions, config.get("rope_theta", 10000.0))


def c23_right(q, k, positions, config=NEW):
    return plainly(q, k, positions, config["rope_parameters"]["rope_theta"])


EXAONE = PLAIN | {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}


def c24_faulty(q, k, positions, config=EXAONE):
    return plainly(q, k, positions, config.get("rope_theta", 1000000.0))


def c24_right(q, k, positions, config=EXAONE):
    return plainly(q, k, positions, config["rope_parameters"]["rope_theta"])


EXPORTED = {key: value for key, value in LLAMA32.items() if not key.startswith("rope")} | {
    "rope_parameters": LLAMA32["rope_scaling"] | {"rope_theta": 500000.0}
}


def c25_faulty(q, k, positions, config=EXPORTED):
    scaling, base = config.get("rope_scaling"), config.get("rope_theta", 10000.0)
    frequencies = llama3(q.shape[-1], base, scaling["factor"]) if scaling else inverse(q.shape[-1], base)
    return rotated(q, k, angles_of(positions, frequencies))


def c25_right(q, k, positions, config=EXPORTED):
    block = config["rope_parameters"]
    return rotated(q, k, angles_of(positions, llama3(q.shape[-1], block["rope_theta"], block["factor"])))


OLD = PLAIN | {"model_type": "llama", "rope_theta": 500000.0}


def c26_faulty(q, k, positions, config=OLD):
    copied = {key: config[key] for key in ("hidden_size", "num_attention_heads", "head_dim")}
    return plainly(q, k, positions, copied.get("rope_theta", 10000.0))


def c26_right(q, k, positions, config=OLD):
    return plainly(q, k, positions, config["rope_theta"])


def c27_faulty(q, k, positions):
    return rotated(q, k, angles_of(positions, 1.0 / 10000 ** (torch.arange(0, 64, 2) / 64)))


def c27_right(q, k, positions, base=OLD["rope_theta"]):
    return rotated(q, k, angles_of(positions, 1.0 / base ** (torch.arange(0, 64, 2) / 64)))


# C28, C29: how many dims

PARTIAL = PLAIN | {"model_type": "glm4", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
QUARTER = PLAIN | {"model_type": "qwen3_next", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}


def c28_faulty(q, k, positions, config=PARTIAL):
    share = config.get("rotary_dim", config["head_dim"]) / config["head_dim"]
    return plainly(q, k, positions, config["rope_theta"], int(share * q.shape[-1]))


def c28_right(q, k, positions, config=PARTIAL):
    return plainly(q, k, positions, config["rope_theta"], int(config["partial_rotary_factor"] * q.shape[-1]))


def c29_faulty(q, k, positions, config=QUARTER, use_mrope=True):
    """Text: the three axes stand at the same position."""
    dims = q.shape[-1] if use_mrope else int(config["partial_rotary_factor"] * q.shape[-1])
    return plainly(q, k, positions, config["rope_theta"], dims)


def c29_right(q, k, positions, config=QUARTER):
    return plainly(q, k, positions, config["rope_theta"], int(config["partial_rotary_factor"] * q.shape[-1]))


# C30, C32: layers of two kinds

GEMMA3 = {
    "model_type": "gemma3_text",
    "hidden_size": 256,
    "num_attention_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 131072,
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
    "sliding_window": 1024,
    "sliding_window_pattern": 6,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
}


def c30_faulty(q, k, positions, config=GEMMA3, sliding=True):
    """Every layer gets what the full ones have."""
    frequencies = inverse(q.shape[-1], config["rope_theta"]) / config["rope_scaling"]["factor"]
    return rotated(q, k, angles_of(positions, frequencies))


def c30_right(q, k, positions, config=GEMMA3, sliding=True):
    if sliding:
        return plainly(q, k, positions, config["rope_local_base_freq"])
    return c30_faulty(q, k, positions)


def c32_faulty(q, k, positions):
    """One table for all layers; this one is a sliding layer."""
    return by_yarn(q, k, positions, 16.0, 1.0, 160000.0, 65536)


def c32_right(q, k, positions):
    return plainly(q, k, positions, 10000.0)


# C34


def c34_faulty(q, k, positions, layer=3):
    return plainly(q, k, positions, 10000.0)


def c34_right(q, k, positions, layer=3, interval=4):
    """Every fourth layer is to rotate nothing: p-RoPE with a share of 0."""
    rotates = (layer + 1) % interval != 0
    return plainly(q, k, positions, 10000.0) if rotates else (q.clone(), k.clone())


_SMALL = {"head_dim": 64}
_LLAMA3 = {"config": LLAMA32}


def _config(config, up_to=256):
    return {"config": config, "up_to": up_to}


BUGS: list[Bug] = [
    Bug(
        "C1",
        "sglang#33558",
        "The config's attention factor, which is final, multiplies the code's own: it is squared.",
        "yarn with factor 128 (Laguna)",
        c1_faulty,
        c1_right,
        options=_SMALL | {"scaling": f"yarn:factor=128,original=4096,attention_factor={temperature(128)}"},
        caught=("attention-factor",),
    ),
    Bug(
        "C3",
        "vllm#46280",
        "An explicit attention factor is not among the keys that are passed on.",
        "one that differs from 0.1 ln(factor) + 1 (Laguna: 1)",
        c3_faulty,
        c3_right,
        options=_SMALL | {"scaling": "yarn:factor=32,original=4096,attention_factor=1"},
        caught=("attention-factor",),
    ),
    Bug(
        "C4",
        "vllm#48621",
        "mscale and mscale_all_dim are not read, so that vectors grow by 1.2773.",
        "factor 16, both 1",
        c4_faulty,
        c4_right,
        options=_SMALL | {"scaling": "yarn:factor=16,original=4096,mscale=1,mscale_all_dim=1"},
        caught=("attention-factor",),
    ),
    Bug(
        "C5",
        "mlx-lm#1507",
        "An explicit attention factor is ignored.",
        "yarn with the key",
        c5_faulty,
        c5_right,
        options=_SMALL | {"scaling": "yarn:factor=4,original=4096,attention_factor=1.25"},
        caught=("attention-factor",),
    ),
    Bug(
        "C7",
        "executorch#19235",
        "Neither the divisors nor the attention factor of longrope reach cos and sin.",
        "longrope (Phi-4-mini)",
        c7_faulty,
        c7_right,
        options=_config(LONGROPE, 128),
        caught=("missing-scaling",),
    ),
    Bug(
        "C8",
        "llama.cpp#24823",
        "The long divisors are chosen by the context that was allocated, not by what is in it.",
        "a short prompt in a long context",
        c8_faulty,
        c8_right,
        options=_config(LONGROPE, 128),
        caught=("other-scaling",),
    ),
    Bug(
        "C9",
        "mistral.rs#251",
        "The divisors are chosen by the past length, not by the largest position.",
        "a first prompt past the original length",
        c9_faulty,
        c9_right,
        options=_config(LONGROPE, 256),
        caught=("other-scaling", "check:rotation"),
    ),
    Bug(
        "C11",
        "unsloth#10681",
        "A prompt of exactly the original length gets the long divisors.",
        "that length alone",
        c11_faulty,
        c11_right,
        options=_config(LONGROPE, 128),
        caught=("other-scaling",),
    ),
    Bug(
        "C13",
        "llama-models#241",
        "The factor of llama3 is written into the code as 8.",
        "Llama 3.2, whose factor is 32",
        c13_faulty,
        c13_right,
        options=_LLAMA3,
        caught=("other-scaling",),
    ),
    Bug(
        "C14",
        "swiss-ai/Megatron-LM#80",
        "The argument of the factor is not passed on, so that it stays 8.",
        "another factor",
        c14_faulty,
        c14_right,
        options=_SMALL | {"base": 500000.0, "scaling": "llama3:factor=16,low=1,high=4,original=8192"},
        caught=("other-scaling",),
    ),
    Bug(
        "C15",
        "mlx-vlm#1710",
        "The scaling is parsed, and plain RoPE is built.",
        "Llama 3.2 Vision and nine more",
        C15Faulty,
        C15Right,
        options=_LLAMA3,
        caught=("missing-scaling",),
    ),
    Bug(
        "C17",
        "unsloth#6197",
        "The class that replaces the model's own does not read rope_scaling.",
        "past about 29,000 tokens",
        C17Faulty,
        C17Right,
        options=_LLAMA3,
        caught=("missing-scaling",),
    ),
    Bug(
        "C18",
        "ik_llama.cpp#2291",
        "A null pointer is passed where the frequency factors belong.",
        "llama3, past 8,192 tokens",
        c18_faulty,
        c18_right,
        options=_LLAMA3,
        caught=("missing-scaling",),
    ),
    Bug(
        "C19",
        "speculators#574",
        "The converter forwards the base to the drafter and drops the scaling.",
        "a drafter of a scaled target",
        C19Faulty,
        C19Right,
        options=_LLAMA3,
        caught=("missing-scaling",),
    ),
    Bug(
        "C20",
        "NeMo Speech#14686",
        "YaRN's original length is taken for 131,072 where it is 4,096.",
        "gpt-oss",
        c20_faulty,
        c20_right,
        options=_SMALL | {"base": 150000.0, "scaling": "yarn:factor=32,original=4096,truncate=false"},
        caught=("other-scaling",),
    ),
    Bug(
        "C21",
        "Megatron-LM#1418",
        "max_position_embeddings stands in for YaRN's original length.",
        "DeepSeek-V3",
        c21_faulty,
        c21_right,
        options=_SMALL | {"scaling": "yarn:factor=40,original=4096,maximum=163840,mscale=1,mscale_all_dim=1"},
        caught=("other-scaling",),
    ),
    Bug(
        "C22",
        "vllm#42624",
        "A default base of the older library overwrites the one in rope_parameters.",
        "a newer checkpoint in an older library",
        c22_faulty,
        c22_right,
        options=_config(NEW),
        caught=("wrong-base",),
    ),
    Bug(
        "C23",
        "ANEForge#206",
        "The base is looked up where it no longer is, and 10,000 filled in.",
        "configs of transformers 5",
        c23_faulty,
        c23_right,
        options=_config(NEW),
        caught=("wrong-base",),
    ),
    Bug(
        "C24",
        "DeepSpeed#8345",
        "The base is looked up where it no longer is, and 1,000,000 filled in.",
        "exaone4, whose base is 10,000",
        c24_faulty,
        c24_right,
        options=_config(EXAONE),
        caught=("wrong-base",),
    ),
    Bug(
        "C25",
        "MarinFold#184",
        "A block that the older library does not know is ignored: base and scaling are lost.",
        "an export of the newer library",
        c25_faulty,
        c25_right,
        options=_config(EXPORTED),
        caught=("missing-scaling", "wrong-base"),
    ),
    Bug(
        "C26",
        "airllm#368",
        "The base is not among the keys that are copied, and 10,000 is filled in.",
        "Llama 3",
        c26_faulty,
        c26_right,
        options=_config(OLD),
        caught=("wrong-base",),
    ),
    Bug(
        "C27",
        "TransformerEngine#849",
        "The base is written into the code as 10,000.",
        "any other base",
        c27_faulty,
        c27_right,
        options=_config(OLD),
        caught=("wrong-base",),
    ),
    Bug(
        "C28",
        "vllm#43770",
        "A missing rotary_dim becomes head_dim, which overrides partial_rotary_factor.",
        "configs without rotary_dim",
        c28_faulty,
        c28_right,
        options=_config(PARTIAL) | {"layout": "half"},
        caught=("partial-rotation",),
    ),
    Bug(
        "C29",
        "maxtext#4616",
        "partial_rotary_factor is not read where M-RoPE is on.",
        "factor 0.25 with M-RoPE",
        c29_faulty,
        c29_right,
        options=_config(QUARTER),
        caught=("partial-rotation",),
    ),
    Bug(
        "C30",
        "vllm#29111",
        "Sliding layers get the base and the scaling of the full ones.",
        "Gemma 3",
        c30_faulty,
        c30_right,
        options=_config(GEMMA3) | {"layer": "sliding_attention"},
        caught=("wrong-base", "other-scaling"),
    ),
    Bug(
        "C32",
        "atlas#276",
        "One YaRN table serves all layers; the sliding ones want plain frequencies of another base.",
        "DeepSeek-V4",
        c32_faulty,
        c32_right,
        options=_SMALL | {"base": 10000.0},
        caught=("check:rotation",),
    ),
    Bug(
        "C34",
        "executorch#22043",
        "The interval of layers without RoPE is not read: every layer rotates.",
        "SmolLM3",
        c34_faulty,
        c34_right,
        options=_SMALL | {"scaling": "proportional:fraction=0"},
        caught=("check:rotation",),
    ),
]
