"""Models whose positions have axes (M-RoPE): decode behind an image, right and with its delta lost."""

import pytest
import torch

from ropeaudit.arithmetic.formats import parse
from ropeaudit.features.model import decode, images
from ropeaudit.features.model import load as model_load
from ropeaudit.features.model.analysis import model as model_audit
from ropeaudit.features.model.report import report
from ropeaudit.recognition.diagnosis import codes

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("one_thread")

TEXT = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 4, "head_dim": 16}
TEXT |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096}
TEXT |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TEXT |= {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}}
VISION = {"depth": 2, "num_heads": 2, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2}
OUT = {"hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 32}
TYPES = {
    "qwen2_vl": {"embed_dim": 32, "hidden_size": 64},
    "qwen2_5_vl": OUT | {"window_size": 16, "fullatt_block_indexes": [1]},
    "qwen3_vl": OUT | {"num_position_embeddings": 16, "deepstack_visual_indexes": [0, 1]},
}
TOKENS = {"image_token_id": 60, "video_token_id": 61, "vision_start_token_id": 62, "vision_end_token_id": 63}
DELTA = -3  # of an image of 2 x 3 tokens, which takes 3 positions


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return a function that makes a small model of a type once."""
    folders = {}

    def get(name):
        if name not in folders:
            folders[name] = tmp_path_factory.mktemp("model")
            kind = transformers.models.auto.configuration_auto.CONFIG_MAPPING[name]
            torch.manual_seed(0)
            config = kind(text_config=TEXT, vision_config=VISION | TYPES[name], **TOKENS)
            transformers.AutoModelForImageTextToText.from_config(config).save_pretrained(folders[name])
        return folders[name]

    return get


def audited(loads, monkeypatch, folder, plant=lambda model: None):
    """Return what an audit says of a model, spoilt after each loading, and what it says of images."""
    compare, behind = decode.compare_behind_images, []

    def kept(*arguments):
        behind.append(compare(*arguments))
        return behind[-1]

    loads(plant)
    monkeypatch.setattr(decode, "compare_behind_images", kept)
    audit = model_audit(str(folder), 1000, "fp32", tokens="24")
    [one] = audit
    return one, report([audit], None, {}, shifted=[one]), behind


@pytest.mark.parametrize("name", TYPES)
def test_a_right_model_gets_no_alarm(name, built, monkeypatch, loads) -> None:
    one, said, [behind] = audited(loads, monkeypatch, built(name))
    assert (one.word, one.diagnosis, one.held, sorted(one.places)) == ("precision", None, (), [0, 1, 2, 3])
    assert (one.decoded.way, behind.way) == ("", "")
    assert behind.image is not None
    assert behind.change < 1e-12
    assert not [note for note in said.notes if "decode" in note or "compared" in note]


def of_delta(change):
    """Return what spoils the delta that a model keeps for decode: change(delta)."""

    def plant(model):
        right = model.model.get_rope_index

        def wrong(*args, **kwargs):
            positions, delta = right(*args, **kwargs)
            return positions, change(delta)

        model.model.get_rope_index = wrong

    return plant


STEPPED = {"lost": (torch.zeros_like, 3), "added twice": (lambda delta: 2 * delta, DELTA)}


@pytest.mark.parametrize("fault", STEPPED)
@pytest.mark.parametrize("name", TYPES)
def test_a_delta_that_the_model_keeps_wrong(name, fault, built, monkeypatch, loads) -> None:
    """`generate` counts on from the last position of the prompt; a loop of one's own needs the delta."""
    change, by = STEPPED[fault]
    one, said, _ = audited(loads, monkeypatch, built(name), of_delta(change))
    assert (one.word, codes(one.diagnosis)) == ("wrong_decode", "positions-off")
    assert one.diagnosis.values["by"] == by
    assert (one.decoded.way, one.decoded.layer) == ("step by step", 0)
    assert said.headline.startswith(
        f"Wrong positions in decode, layer 0: positions {by:+d}; logits are off by"
    )
    [note] = [note for note in said.notes if note.startswith("decode of a row")]
    assert note.startswith("decode of a row step by step, behind an image of 6 tokens, is not one pass over")
    assert ("first in layer 0: as if M-RoPE's delta of -3 were not added" in note) == (fault == "lost")


def in_decode(by):
    """Return what moves the positions that `generate` gives for each token: by(rows, positions)."""

    def plant(model):
        def other(_, args, kwargs):
            ids, at = kwargs.get("input_ids", args[0] if args else None), kwargs.get("position_ids")
            behind = at is not None and ids.shape[1] == 1 and model.model.rope_deltas.any()
            return args, kwargs | ({"position_ids": at + by(len(ids), at)} if behind else {})

        model.register_forward_pre_hook(other, with_kwargs=True)

    return plant


def second_row(rows, at):
    """Give the second row the delta of the first."""
    return torch.tensor([[0], [-1]]).expand_as(at) if rows == 2 else 0


GENERATED = {
    "lost": (lambda rows, at: -DELTA, 3, "with a cache"),
    "of another row": (second_row, -1, "padded on the left"),
}


@pytest.mark.parametrize("fault", GENERATED)
@pytest.mark.parametrize("name", TYPES)
def test_a_delta_that_generate_loses(name, fault, built, monkeypatch, loads) -> None:
    change, by, way = GENERATED[fault]
    one, _, _ = audited(loads, monkeypatch, built(name), in_decode(change))
    assert (one.word, codes(one.diagnosis)) == ("wrong_decode", "positions-off")
    assert (one.diagnosis.values["by"], one.decoded.way, one.decoded.layer) == (by, way, 0)
    assert one.decoded.image is not None


def test_images_that_cannot_be_read_are_said(built, monkeypatch, loads) -> None:
    def plant(model):
        def refuse(*_, **__):
            raise RuntimeError("no images today")

        model.model.visual.forward = refuse

    one, said, _ = audited(loads, monkeypatch, built("qwen2_vl"), plant)
    assert (one.word, one.decoded.way) == ("precision", "")
    [note] = [note for note in said.notes if "decode" in note]
    assert note.startswith("decode with a cache behind an image was not compared: ")
    assert note.endswith("RuntimeError: no images today")


def test_rows_with_images(built) -> None:
    model = model_load.load(model_load.open_folder(str(built("qwen2_vl")), False), parse("fp32"))
    ids = [3, 60, *range(4, 24), 62]  # marks of images among them are left out
    first, second = images.shown(model, ids, 5)
    assert first.ids == [3, 4, 5, 6, 7, 8, 62, *[60] * 6, *range(9, 24)]
    assert second.ids == [8, 62, *[60] * 4, *range(9, 24)]
    assert [one.image.delta for one in (first, second)] == [-3, -2]
    given = images.beside(model, [first, second], prompt=10)
    assert given["image_grid_thw"].tolist() == [[1, 4, 6], [1, 4, 4]]
    assert given["pixel_values"].shape == (24 + 16, 3 * 2 * 4 * 4)
    assert given["mm_token_type_ids"].tolist() == [[0] * 7 + [1] * 3, [0] * 9 + [1]]
    assert images.shown(model, ids[:10], 5) == []  # too few
    text = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**{key: TEXT[key] for key in list(TEXT)[:5]})
    )
    assert images.shown(text, ids, 5) == []
