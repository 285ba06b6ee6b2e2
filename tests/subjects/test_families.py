"""Families: every RoPE class of transformers and diffusers by name, what it measures, and what stops none."""

import ast
import csv
import importlib.util
import io
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from optional import needs
from planted import Planted, plant

from ropeaudit import RopeSetting, explain, parse, shift
from ropeaudit.errors import UnknownName
from ropeaudit.main import main
from ropeaudit.subjects import factories, third_party
from ropeaudit.subjects.third_party import FAMILIES, Entry, adapter

pytestmark = pytest.mark.usefixtures("in_process")  # each package is imported once, not in each child
SMALL = {"heads": 1, "seq_len": 32, "head_dim": 64, "mask": "full"}
BF16 = parse("bf16")


def drift(name: str, dtype: str = "bf16", offset: int = 1000) -> float:
    (row,) = shift(offset, dtype, implementations=name, **SMALL)
    assert row.refused is None
    return row.drift_rms


def specs() -> Iterator[str]:
    """Find the classes of transformers by their names: called rotary or rope, and not attention."""
    [place] = importlib.util.find_spec("transformers.models").submodule_search_locations
    for path in sorted(Path(place).rglob("modeling_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            name = getattr(node, "name", "")
            if isinstance(node, ast.ClassDef) and re.search("(Rotary|R[oO][pP][eE])(?!.*Attention)", name):
                yield f"transformers.models.{path.parent.name}.{path.stem}:{name}"


@pytest.mark.slow  # the syntax of 450 files is read
@needs("transformers")
def test_the_members_are_those_that_are_found_in_the_syntax_of_the_files() -> None:
    assert sorted(one.target for one in FAMILIES["transformers"].members().values()) == sorted(specs())


@needs("transformers")
def test_a_member_measures_as_the_adapter_that_calls_the_same_arithmetic() -> None:
    # the same operations on the same numbers, of partial heads and layer types too
    named = {
        "transformers-llama": ("llama", "phi", "gemma3"),
        "transformers-cohere": ("cohere",),
        "transformers-llama4": ("llama4.Llama4TextRotaryEmbedding",),
    }
    for name, members in named.items():
        assert [drift(f"transformers:{member}") for member in members] == [drift(name)] * len(members)


@needs("transformers")
def test_which_dims_a_class_pairs_is_measured_and_said(capsys) -> None:
    said = {
        "transformers:mlcd": "is audited in 64 of 128 dims, 2 axes at the same position",
        "transformers:kimi_k25": "is audited in 64 of 128 dims, 2 axes at the same position",
        "transformers:nanochat": "rotates the other way",
    }
    command = (
        f"shift --impl {','.join(said)} --dtype fp32 --offset 0 --heads 1 --seq-len 32 --head-dim 64 -f csv"
    )
    assert main(command.split()) == 0
    out, err = capsys.readouterr()
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [(row["verdict"], row["layout"]) for row in rows] == [("sound", "half")] * len(said)
    for name, words in said.items():
        assert f"{name} {words}" in err


@needs("transformers")
def test_a_class_whose_way_of_rotating_is_not_known_is_refused_with_the_reason() -> None:
    (row,) = shift(0, "fp32", implementations="transformers:wav2vec2_conformer", **SMALL)
    assert row.verdict == "refused"
    assert "no function that rotates" in row.why


@needs("diffusers")
def test_classes_of_diffusers_keep_one_axis_and_end_where_their_tables_do() -> None:
    assert drift("diffusers:flux", "fp32") == pytest.approx(drift("diffusers-flux", "fp32"), rel=0.2)
    near, far = shift((0, 4096), "fp32", implementations="diffusers:wan", **SMALL)
    assert near.drift_max < 1e-6  # its table is float64 as built
    assert far.verdict == "refused"


@needs("transformers", "diffusers")
def test_names_and_patterns(monkeypatch, capsys) -> None:
    assert third_party.expanded(["transformers:cohere", "transformers:cohere*"])[0] == (
        "transformers:cohere",
        True,
    )
    several = [name for name, _ in third_party.expanded(["transformers:qwen2_vl.*"])]
    assert several == [f"transformers:qwen2_vl.Qwen2VL{one}RotaryEmbedding" for one in ("", "Vision")]
    every = dict(third_party.expanded(["all"]))
    assert {"transformers:qwen3", "diffusers:wan", "transformers-llama"} <= set(every)
    with pytest.raises(UnknownName, match=r"did you mean transformers:qwen2_vl\.Qwen2VL"):
        third_party.entry_of("transformers:qwen2_vl")
    with pytest.raises(UnknownName, match="unknown implementation 'transformers:nothing"):
        third_party.expanded(["transformers:nothing*"])
    assert not factories.is_own("transformers:qwen3")
    assert factories.is_own("transformers.models.llama:apply")
    assert main(["list", "implementations", "--match", "transformers:qwen3", "-f", "csv"]) == 0
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert "Qwen3RotaryEmbedding" in row["calls"]
    assert main(["list", "formats", "--match", "x"]) == 2
    assert main(["list", "implementations", "--match", "zzz:*"]) == 2
    refused = capsys.readouterr().err
    assert "--match belongs to `ropeaudit list implementations`" in refused


def test_what_of_all_cannot_be_loaded_stops_no_other(monkeypatch) -> None:
    for name in list(reversed(third_party.ENTRIES)):  # in which order they come back, the last taken first
        monkeypatch.delitem(third_party.ENTRIES, name)
    monkeypatch.setattr(third_party, "FAMILIES", {})
    plant(monkeypatch, Planted, "broken", needs=("there_is_no_such_package",))
    monkeypatch.setattr(Entry, "installed", True)
    monkeypatch.setitem(third_party.ENTRIES, "broken", replace(third_party.ENTRIES["broken"], file="gone"))
    plant(monkeypatch, Planted, "planted", layouts=("half",))
    broken, right = factories.implementations(["all"])
    assert "broken cannot be imported: No module named" in broken.refuses(RopeSetting(), BF16)
    assert right.refuses(RopeSetting(), BF16) == ""
    verdicts = [row.verdict for row in shift(0, "fp32", implementations="all", heads=1, seq_len=8)]
    assert verdicts == ["refused", "sound"]


def test_definitions_of_a_file_are_executed_without_its_imports(tmp_path, monkeypatch) -> None:
    folder = tmp_path / "half_installed"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise ImportError('needs a GPU')\n")
    (folder / "rope.py").write_text(
        "import nothing_like_this\n\n@nothing_like_this.registered\nclass Rope(nothing_like_this.Base):\n"
        "    def turn(self, x):\n        return double(x)\n\ndef double(x):\n    return add(x, x)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    given = {"add": lambda a, b: a + b}
    space = adapter.definitions("half_installed", "rope.py", ["Rope", "double"], given)
    assert space["Rope"]().turn(21) == 42
    with pytest.raises(LookupError, match="defines no halve"):
        adapter.definitions("half_installed", "rope.py", ["halve"], given)
    with pytest.raises(FileNotFoundError, match=r"has no file gone\.py"):
        adapter.definitions("half_installed", "gone.py", ["halve"], given)


@pytest.mark.exhaustive
@needs("transformers", "diffusers")
def test_every_member_runs_or_says_why_not() -> None:
    ran = {"transformers": 213, "diffusers": 20}  # of the versions in constraints.txt
    for family, fewest in ran.items():
        rows = list(shift(0, "fp32", implementations=f"{family}:*", **SMALL))
        assert len(rows) == len(FAMILIES[family].members())
        measured = [row for row in rows if row.verdict != "refused"]
        assert len(measured) >= fewest
        assert {row.verdict for row in measured} <= {"sound", "exact"}, family
        assert all(row.refused != "none" for row in rows if row.verdict == "refused")


def test_vectors_of_a_call_are_no_positions_of_its_angles() -> None:
    """The zeros that give a forward its dtype are made beside the positions."""
    [code] = explain((0, 1000), "bf16", implementations="transformers:qwen3", heads=1, seq_len=16)
    assert "hf" in code.trace.nearest()[0].group.names
    assert code.trace.nearest()[0].differing == ()
    assert [one.offset for one in code.explanations] == [0, 1000]
