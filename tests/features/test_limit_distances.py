"""Distances of `limit` beside every distance, computed with float64 angles and plain products."""

import itertools
import json

import numpy as np
import pytest
from cases import thinned

from ropeaudit import limit
from ropeaudit.arithmetic.formats import parse
from ropeaudit.main import main
from ropeaudit.recipes import load
from ropeaudit.reference import exact_frequencies
from ropeaudit.rope.hf_config import read
from ropeaudit.rope.scaled import attention_factor
from ropeaudit.subjects.emulated import Emulated

MAXIMUM = 1024
TOLERANCE, BATCH = 0.01, 31
NEAR = 0.25  # of the tolerance: the RMS of 256 pairs is off by several percent
SETTINGS = {
    "plain": {},
    "base 500000": {"rope_theta": 5e5},
    "base 100": {"rope_theta": 100.0},
    "head_dim 64": {"head_dim": 64},
    "head_dim 32, a base of a million": {"head_dim": 32, "rope_theta": 1e6},
    "a quarter": {"partial_rotary_factor": 0.25},
    "a half of 64": {"partial_rotary_factor": 0.5, "head_dim": 64},
    "linear": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "llama3": {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 256,
        }
    },
    "yarn": {"rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 256}},
    "yarn, base 500000": {
        "rope_theta": 5e5,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
    },
    "linear, a half": {"partial_rotary_factor": 0.5, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
}
RECIPES = {"hf": "fp16", "hf-model-cast": "fp16", "fp64-angles": "bf16", "uniform": "fp16"}


def written(folder, setting):
    """Write the config of a setting; return its path."""
    given = {
        "rope_theta": 1e4,
        "head_dim": 128,
        "model_type": "stablelm",
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    given |= {"hidden_size": 512, "max_position_embeddings": MAXIMUM, "partial_rotary_factor": 1.0}
    path = folder / "config.json"
    path.write_text(json.dumps(given | SETTINGS[setting]))
    return path


def every_distance(config, name, dtype):
    """Return the relative RMS drift at each distance, of 256 pairs whose keys stand near position 0."""
    setting = read(str(config)).layers["full_attention"].for_positions(MAXIMUM)
    subject, r = Emulated(load(name).resolve(parse(dtype)), setting), setting.rotary_dim
    q, k = np.random.default_rng(3).standard_normal((2, 256, setting.head_dim)).astype(np.float16)
    theta = np.array([float(one) for one in exact_frequencies.frequencies(setting)])
    at = np.arange(len(k)) // 4

    def exact(x, positions):
        pairs = x[:, : r // 2].astype(np.float64) + 1j * x[:, r // 2 : r].astype(np.float64)
        return pairs * attention_factor(setting.scaling) * np.exp(1j * positions[:, None] * theta)

    def own(x, positions):
        given = x.astype(subject.dtype.carrier)
        return subject.rotate(given, subject.table(positions, 0)).astype(np.float64)

    exact_k, own_k, relative = exact(k, at), own(k, at), list[float]()
    rest = (q[:, r:].astype(np.float64) * k[:, r:].astype(np.float64)).sum(axis=1)
    for some in np.arange(MAXIMUM - at[-1]).reshape(-1, BATCH):  # distances
        queries, places = np.tile(q, (BATCH, 1)), (at + some[:, None]).reshape(-1)
        right = (exact(queries, places).reshape(BATCH, len(k), -1) * exact_k.conj()).real.sum(axis=2) + rest
        drift = (own(queries, places).reshape(BATCH, len(k), -1) * own_k).sum(axis=2) - right
        relative += np.sqrt(np.mean(drift**2, axis=1) / np.mean(right**2, axis=1)).tolist()
    return np.array(relative)


@pytest.mark.parametrize("case", thinned(itertools.product(RECIPES, SETTINGS), 5))
def test_a_distance_fails_where_it_does_of_all_distances(case, tmp_path):
    name, config = case[0], written(tmp_path, case[1])
    [found] = limit(str(TOLERANCE), RECIPES[name], name, config=str(config), up_to=1, heads=2, seq_len=64)
    relative = every_distance(config, name, RECIPES[name])
    worst, apart = relative.max(), found.distances
    if abs(worst / TOLERANCE - 1) > NEAR:
        assert (apart.failing is not None) == (worst > TOLERANCE)
    if apart.failing is not None:
        assert relative[min(apart.failing, relative.size - 1)] > (1 - NEAR) * TOLERANCE
        assert relative[: apart.failing // 2].max(initial=0.0) < (1 + NEAR) * TOLERANCE
        assert found.at_distance > TOLERANCE
        assert found.standing == "fails"


GATES = [  # recipe, distance, exit code
    ("hf", 4096, 0),  # none fails
    ("hf-model-cast", 4096, 1),
    ("hf-model-cast", 16, 0),
]


def test_a_gate_on_distances_holds_where_none_fails(capsys):
    line = ["limit", "--dtype", "fp16", "--heads", "1"]
    line += ["--seq-len", "64", "--up-to", "4096", "--recipe"]
    for recipe, last, code in GATES:
        condition = f"failing_distance<{last}"
        found = main([*line, recipe, "--fail-if", condition])
        assert found == code, (recipe, capsys.readouterr().err)
