"""Constants of ONNX graphs that are a rounded frequency or table, whatever they are called."""

import json
import math

import ml_dtypes
import numpy as np
import pytest
from command_line import ran
from test_module import damaged_at_random

from ropeaudit.tensor_files import rope_values

onnx = pytest.importorskip("onnx")
helper, TensorProto = onnx.helper, onnx.TensorProto
THETA = 10000.0 ** -(np.arange(64) / 64)
ANGLES = np.arange(300)[:, None] * THETA


def audited(capsys, path, *arguments, code):
    return ran(capsys, ["module", path, *arguments, "-f", "json"], code).json


def drift(theta):
    """The RMS drift over all pairs of 256 tokens, written apart from the package; float64 angles."""
    at = np.arange(256)
    each = [np.mean(np.abs(np.exp(1j * D * theta) - np.exp(1j * D * THETA)) ** 2) for D in at]
    return math.sqrt(np.average(each, weights=256 - at))


def test_openvino_ir_is_refused_with_what_to_give(tmp_path, capsys) -> None:
    (tmp_path / "rope.xml").write_text('<?xml version="1.0"?><net name="n" version="11"></net>')
    out, err = ran(capsys, ["module", tmp_path / "rope.xml"], 2)
    assert not out
    assert "OpenVINO IR is no longer read; give the .onnx file that it is made of" in err


def tensor(values, name="w17"):
    return onnx.numpy_helper.from_array(values, name)


def times(name="w17", node="mul"):
    return helper.make_node("Mul", ["p", name], [f"{node}-angles"], name=node)


def model(nodes, constants=(), functions=()):
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("p", TensorProto.FLOAT, ["n", 1])], [], list(constants)
    )
    return helper.make_model(graph, functions=functions)


def saved(folder, graph):
    """Write a model; return its path."""
    onnx.save(graph, folder / "x.onnx")
    return folder / "x.onnx"


def cast(to, source="w17", result="wide"):
    return helper.make_node("Cast", [source], [result], to=to, name="cast")


def typed_half(values):
    """The bits of float16 numbers in integers, as models without raw data hold them."""
    bits = values.astype(np.float16).view(np.uint16).tolist()
    return TensorProto(name="w17", data_type=TensorProto.FLOAT16, dims=[64], int32_data=bits)


def of(nodes, dtype="f4", axes=slice(None)):
    return model(nodes, [tensor(THETA.astype(dtype)[axes])])


def inside_if():
    body = helper.make_graph([times()], "body", [], [], [tensor(THETA.astype("f2"))])
    return model([helper.make_node("If", ["c"], ["o"], then_branch=body, else_branch=body)])


def inside_function():
    constant = helper.make_node("Constant", [], ["w17"], value=tensor(THETA.astype("f2")))
    opset = [helper.make_opsetid("", 20)]
    return model(
        [times("p")], functions=[helper.make_function("own", "f", ["p"], [], [constant, times()], opset)]
    )


FLOAT, HALF, DOUBLE = 1, 10, 11
SPREAD = (None, slice(None), None)
WIDENED = [cast(FLOAT), times("wide")]
NARROWED = [cast(HALF, result="h"), cast(FLOAT, "h"), times("wide")]
FOLDED = THETA.astype("f2").astype("f4").tolist()
CASES = {
    "float32": (of([times()]), "none", "none", "Mul mul"),
    "float16": (of([times()], "f2"), "float16", "stored", "Mul mul"),
    "typed": (model([times()], [typed_half(THETA)]), "float16", "stored", "Mul mul"),
    "bfloat16": (of([times()], ml_dtypes.bfloat16), "bfloat16", "stored", "Mul mul"),
    "decompressed": (of(WIDENED, "f2", SPREAD), "float16", "stored", "Mul mul, as float32"),
    "converted": (of(NARROWED), "float16", "graph", "Mul mul, as float32"),
    "widened": (of([cast(DOUBLE), times("wide")]), "none", "none", "Mul mul, as float64"),
    "two ways": (of([cast(HALF), times("wide", "first"), times()]), "none", "none", "Mul mul and 1 more"),
    "folded": (
        model([helper.make_node("Constant", [], ["w17"], value_floats=FOLDED), times()]),
        *("float16", "back", "Mul mul"),
    ),
    "if": (inside_if(), "float16", "stored", "Mul mul"),
    "function": (inside_function(), "float16", "stored", "Mul mul"),
    "unused": (of([times("p")], "f2"), "float16", "stored", "no node"),
}


@pytest.mark.parametrize("case", CASES)
def test_frequencies_in_onnx(case, tmp_path, capsys) -> None:
    graph, kind, how, used = CASES[case]
    result = audited(capsys, saved(tmp_path, graph), code=0 if kind == "none" else 1)
    assert {(row["cast"], row["how"], row["used_by"]) for row in result["records"]} == {(kind, how, used)}
    assert [row["what"] for row in result["records"]] == ["inv_freq"] * (2 if case == "if" else 1)


def test_a_config_beside_the_graph_says_what_is_right(tmp_path, capsys) -> None:
    saved(tmp_path, of([times()]))
    config = {"model_type": "llama", "hidden_size": 256, "num_attention_heads": 2, "rope_theta": 500000.0}
    (tmp_path / "config.json").write_text(json.dumps(config))
    result = audited(capsys, tmp_path / "x.onnx", code=1)
    assert (result["records"][0]["cast"], result["records"][0]["agrees"]) == ("none", "no")


def test_what_a_cast_costs_is_that_of_float64_angles(tmp_path, capsys) -> None:
    result = audited(capsys, saved(tmp_path, of(WIDENED, "f2")), code=1)
    (row,) = result["records"]
    assert row["drift_256"] == pytest.approx(drift(THETA.astype(np.float16).astype(float)), rel=1e-6)
    # OpenVINO 2026.4.1 on a CPU, RMS of 4 x 256² scores with gaussian q and k of RMS 1.0024: 4.777e-3
    assert row["drift_256"] == pytest.approx(4.777e-3 / 1.0024, rel=0.02)


@pytest.mark.parametrize(("dtype", "code"), [("f2", 1), ("f4", 0)])
def test_tables_in_onnx(dtype, code, tmp_path, capsys) -> None:
    tables = {"a": np.cos(ANGLES), "b": np.sin(ANGLES), "c": ANGLES}
    constants = [tensor(table.astype(dtype), name) for name, table in tables.items()]
    result = audited(capsys, saved(tmp_path, model([times("a")], constants)), "--base", "10000", code=code)
    rows = {row["buffer"]: (row["what"], row["cast"]) for row in result["records"]}
    kind = "float16" if code else "none"
    assert rows == {"a": ("cos", kind), "b": ("sin", kind), "c": ("angles", kind)}


def test_external_data_is_read(tmp_path, capsys) -> None:
    onnx.save(
        model([times()], [tensor(THETA.astype("f2"))]),
        tmp_path / "x.onnx",
        save_as_external_data=True,
        location="x.data",
        size_threshold=0,
    )
    result = audited(capsys, tmp_path / "x.onnx", code=1)
    assert result["records"][0]["drift_256"] == pytest.approx(0.0048, rel=1e-3)
    (tmp_path / "x.data").write_bytes(b"cut")
    assert "copy all files of the model" in ran(capsys, ["module", tmp_path / "x.onnx"], 2).err
    (tmp_path / "x.data").unlink()
    assert "copy all files of the model" in ran(capsys, ["module", tmp_path / "x.onnx"], 2).err


@pytest.mark.parametrize("location", ["../secret", "/etc/hostname", "", "a\0b"])
def test_external_data_outside_of_the_folder_is_refused(location, tmp_path, capsys) -> None:
    (tmp_path / "secret").write_bytes(bytes(256))
    entries = [onnx.StringStringEntryProto(key="location", value=location)]
    far = TensorProto(name="w", data_type=1, dims=[64], data_location=1, external_data=entries)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "x.onnx").write_bytes(model([times()], [far]).SerializeToString())
    assert "of the model" in ran(capsys, ["module", tmp_path / "in" / "x.onnx"], 2).err


def test_what_is_no_model_is_refused(tmp_path, capsys, monkeypatch) -> None:
    short = TensorProto(name="w", data_type=1, dims=[64], raw_data=bytes(8))
    for content, expected in (
        (b"not a model", "not a readable .onnx file"),
        (b"\x08\x07", "holds no graph"),
        (model([times()], [short]).SerializeToString(), "constant 'w' cannot be read"),
    ):
        (tmp_path / "x.onnx").write_bytes(content)
        assert expected in ran(capsys, ["module", tmp_path / "x.onnx"], 2).err
    monkeypatch.setattr("ropeaudit.tensor_files.onnx_graphs.find_spec", lambda name: None)
    assert "pip install 'ropeaudit[onnx]'" in ran(capsys, ["module", tmp_path / "x.onnx"], 2).err


# ---------------------------------------------------------------------------- faults of tables


@pytest.mark.parametrize(("domain", "at"), [("com.microsoft", 2), ("", 1)])
@pytest.mark.parametrize("arguments", [(), ("--base", "10000")])
def test_cos_and_sin_swapped_are_known_by_the_operands(domain, at, arguments, tmp_path, capsys) -> None:
    """The operator says which is which, whatever the constants are called and whatever the base is."""
    tables = [tensor(part(ANGLES).astype("f4"), name) for part, name in ((np.cos, "a"), (np.sin, "b"))]
    for operands, code in ((["a", "b"], 0), (["b", "a"], 1)):
        inputs = ["x", "p"][:at] + operands + ["p"][: 2 - at]
        node = helper.make_node("RotaryEmbedding", inputs, ["o"], domain=domain)
        result = audited(capsys, saved(tmp_path, model([node], tables)), *arguments, code=code)
        rows = {row["buffer"]: row["what"] for row in result["records"]}
        assert rows == dict(zip(operands, ("cos", "sin"), strict=True))
        assert {row["diagnosis"] for row in result["records"]} == {"cos-sin-swapped" if code else ""}


@pytest.mark.parametrize("arguments", [(), ("--base", "10000")])
def test_a_wrong_row_of_a_table_is_named(arguments, tmp_path, capsys) -> None:
    cos, sin = np.cos(ANGLES), np.sin(ANGLES)
    cos[211] = cos[12]
    constants = [tensor(table.astype("f4"), name) for table, name in ((cos, "a"), (sin, "b"))]
    result = audited(capsys, saved(tmp_path, model([times("a")], constants)), *arguments, code=1)
    rows = {row["buffer"]: (row["diagnosis"], row["agrees"]) for row in result["records"]}
    assert rows == {"a": ("entries-off", "no"), "b": ("", "yes" if arguments else "unknown")}
    assert result["headline"].endswith("1 of 2 RoPE constants off (entries-off)")


# ---------------------------------------------------------------------------- damaged at random


def test_damage_is_never_a_traceback(tmp_path, capsys) -> None:
    saved(tmp_path, of(WIDENED, "f2"))
    damaged_at_random(capsys, tmp_path / "x.onnx", 40, "--base", "10000")


def test_a_fourier_basis_is_no_rope() -> None:
    """Its frequencies are those of no rotary embedding, and its rows are its columns."""
    at = np.arange(64)[:, None] * np.arange(33)[None]
    for values in (np.cos(2 * np.pi * at / 64), np.sin(2 * np.pi * at / 64)):
        assert rope_values.kind_of(values) == ""


def test_a_graph_without_rope_says_so(tmp_path, capsys) -> None:
    onnx.save(model([times()], [tensor(np.ones(64, np.float32))]), tmp_path / "none.onnx")
    said = ran(capsys, ["module", tmp_path / "none.onnx"], 1).out  # nothing was judged
    assert "no RoPE constant among 1 tensor" in said
    assert "check the code that was exported: `ropeaudit check FILE.py:NAME`" in said
