"""Class C: configs and scalings, as code that a config's reader built. The corrected version beside each.

q, k (b, h, s, d), positions (s,). Letters: b batch, h heads, s positions, d head_dim, p pairs.
"""

import math

import torch
from turning import angles_of, inverse, llama3, rotated, temperature, yarn, yarn_range

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
