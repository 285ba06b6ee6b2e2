"""config.json of public models, old and new, and a hundred that are damaged or hostile."""

import json
import math
import random
import time
from pathlib import Path

import pytest
from real_configs import config, said_of

from ropeaudit import Case
from ropeaudit.errors import BadInput, RopeAuditError
from ropeaudit.rope import hf_config
from ropeaudit.rope.hf_config import from_config


def test_a_base_can_be_given_where_there_is_none() -> None:
    values = config("falcon-7b")
    del values["rope_theta"]
    assert from_config(values, "f", "here", base=12345.0).layers["full_attention"].base == 12345.0
    assert (
        from_config(config("falcon-7b"), "f", "here", base=12345.0).layers["full_attention"].base == 10000.0
    )


def test_the_text_part_stands_three_levels_deep_at_most() -> None:
    values = config("llama-3.1-8b")
    inner = {"thinker_config": {"text_config": {"text_config": values}}}
    assert from_config(inner, "l", "here").layers == from_config(values, "l", "here").layers
    with pytest.raises(BadInput, match="holds a text_config within a text_config"):
        from_config({"text_config": inner}, "l", "here")


def test_position_axes_by_hand_stand_before_those_of_the_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config("qwen2-vl")))
    own = Case(config=str(tmp_path), seq_len=4)
    assert str(own.position_axes(own.setting(4))).startswith("split 16/24/24")
    given = Case(config=str(tmp_path), seq_len=4, mrope="20,22,22")
    assert str(given.position_axes(given.setting(4))).startswith("split 20/22/22")


def test_a_file_and_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "Llama-3.1-8B"
    folder.mkdir()
    file = folder / "config.json"
    file.write_text(json.dumps(config("llama-3.1-8b")))
    for path in (folder, file):
        result = hf_config.read(str(path))
        assert (result.name, result.source) == ("Llama-3.1-8B", repr(str(path)))
    other = file.rename(folder / "mine.json")
    assert hf_config.read(str(other)).name == "mine"


# Texts that no configuration should have, written to a file as they are.
WHOLE: dict[str, bytes] = {
    "empty": b"",
    "spaces": b" \n\t ",
    "null": b"null",
    "number": b"12",
    "list": b"[]",
    "text": b'"config"',
    "empty object": b"{}",
    "cut short": b'{"rope_theta": 1000',
    "two objects": b"{}{}",
    "comment": b'{"a": 1} // no',
    "single quotes": b"{'a': 1}",
    "trailing comma": b'{"a": 1,}',
    "a list in depth": b"[" * 200_000,
    "objects in depth": b'{"a":' * 100_000,
    "text_config in depth": b'{"text_config":' * 50 + b"{}" + b"}" * 50,
    "latin-1": '{"a": "\xe9"}'.encode("latin-1"),
    "utf-16": '{"a": 1}'.encode("utf-16"),
    "zeros": bytes(1000),
    "a cut character": b'{"a": "\xf0\x9f"}',
    "random": random.Random(1).randbytes(5000),
    "pickle": b"\x80\x04K\x01.",
    "5000 digits": b'{"rope_theta": ' + b"9" * 5000 + b"}",
    "twice": b'{"rope_theta": 1e4, "rope_theta": 1e6}',
    "twice inside": b'{"rope_scaling": {"factor": 1, "factor": 2}}',
    "lone surrogate": b'{"rope_\\ud800": 3}',
    "line breaks in a key": b'{"rope_\\n\\u001b[31m": 3}',
    "a million keys": b"{" + b",".join(b'"%d":0' % i for i in range(300_000)) + b"}",
    "a long key": b'{"rope_' + b"x" * 2_000_000 + b'": 1}',
    "17 MiB": b'{"a": "' + b"x" * (17 * 2**20) + b'"}',
}
VALUES = ["NaN", "Infinity", "-Infinity", "1e400", "-1e400", "9" * 1000, "-1", "0", "-0.0", "1e-400", "true"]
VALUES += ['"8"', '""', "[]", "[1]", "{}", '{"a": {}}', "[" * 300 + "]" * 300, "1e308", "0.3"]
VALUES += ['"' + "x" * 10**6 + '"', "[null]", f"[{','.join(['1'] * 100_000)}]", "9007199254740993", "5e-324"]
VALUES += ['"\\ud800"', '"NaN"', "[1, 2, 3]", "false"]


def outcome(path: Path) -> str:
    """The message of the refusal, or "" where the file was read; nothing else may come out, nor late.

    By processor time, which other work on the machine does not take: a pass over some part of the file for
    each of its keys would need minutes.
    """
    start = time.process_time()
    try:
        result = hf_config.read(str(path))
    except RopeAuditError as error:
        message = str(error)
        assert "\n" not in message
        assert message.isprintable()
        assert len(message) < 1000 + len(str(path))
    else:
        message = ""
        for setting in result.layers.values():
            assert math.isfinite(setting.scale)
            assert math.isfinite(setting.base)
            assert 0 <= setting.rotary_dim <= setting.head_dim < 2**18
    assert time.process_time() - start < 5.0
    return message


def test_a_byte_order_mark_is_refused_as_transformers_does(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config("llama-3.1-8b")), encoding="utf-8-sig")
    with pytest.raises(OSError, match="is not a valid JSON file"):
        transformers.AutoConfig.from_pretrained(str(tmp_path))
    assert outcome(file).endswith(
        ": begins with a byte-order mark, with which transformers does not load it; save it as UTF-8 without "
        "one"
    )


def test_paths_that_hold_no_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    for path in (
        tmp_path,
        tmp_path / "none.json",
        tmp_path / "a\0b",
        tmp_path / ("x" * 5000),
        Path("/dev/null"),
    ):
        with pytest.raises(BadInput) as caught:
            hf_config.read(str(path))
        assert "\n" not in str(caught.value)


def test_what_is_not_understood_is_named() -> None:
    for name, change, message in said_of("refused"):
        with pytest.raises(BadInput, match=message) as caught:
            from_config(config(name) | change, name, "config.json")
        assert str(caught.value).startswith("config.json: ")
        assert "\n" not in str(caught.value)


def test_a_base_that_is_given_leaves_the_scaling_of_a_class() -> None:
    class_s = {"model_type": "apertus", "hidden_size": 4096}
    (own,), (given,) = (from_config(class_s, "x", "", base=base).layers.values() for base in (None, 5e5))
    assert (own.base, given.base) == (12e6, 5e5)
    assert own.scaling == given.scaling
    assert own.scaling.kind == "llama3"


def test_hostile_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    for kind, content in WHOLE.items():
        file.write_bytes(content)
        assert outcome(file), kind
    file.write_bytes(b'{"single": 1')
    assert "is not JSON in UTF-8: " in outcome(file)
    assert "; give a config.json" in outcome(file)


SENSIBLE = {"rope_theta": ("9007199254740993",), "rope_scaling": ("{}",)}
OF_ROPE = ("factor", "low_freq_factor", "original_max_position_embeddings", "rope_type")


def test_values_of_nonsense_are_refused(tmp_path: Path) -> None:
    file, taken = tmp_path / "config.json", []
    keys = ("rope_theta", "num_attention_heads", "hidden_size", "rope_scaling")
    for key, value in ((key, value) for key in (*keys, *OF_ROPE) for value in VALUES):
        values = config("llama-3.1-8b")
        (values["rope_scaling"] if key in OF_ROPE else values)[key] = "@"
        file.write_text(json.dumps(values).replace('"@"', value))
        small = key in OF_ROPE and value in ("0.3", "9007199254740993", "5e-324")
        if not small and value not in SENSIBLE.get(key, ()) and not outcome(file):
            taken.append(f"{key} = {value[:40]}")
    assert taken == []


def test_sections_in_an_order_that_is_not_understood_are_refused() -> None:
    rope = {"rope_type": "default", "mrope_section": [24, 20, 20]}
    by_code = {"model_type": "qwen3_vl_text", "rope_parameters": rope | {"mrope_interleaved": False}}
    for other in ({"model_type": "ernie4_5_vl_text", "rope_parameters": rope}, by_code):
        with pytest.raises(BadInput, match="arranged in a way that is not understood"):
            from_config({"head_dim": 128, "rope_theta": 1e6} | other, "x", "")
