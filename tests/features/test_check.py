"""Checks of code, configs and checkpoints: the answer, margins, JUnit XML, waivers, exit codes."""

import datetime
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import ml_dtypes
import numpy as np
import pytest
from cases import table
from command_line import ran
from net.kernel_rows import KERNELS
from real_configs import config, said_of
from tiny_models import change_config

import ropeaudit
from ropeaudit import check
from ropeaudit.audits.cases import Case
from ropeaudit.conformance.finding import Finding
from ropeaudit.errors import BadInput
from ropeaudit.features.check import analysis, waivers
from ropeaudit.features.check.analysis import CheckOptions
from ropeaudit.features.check.checked import NONE, Checked
from ropeaudit.features.limit.analysis import limit
from ropeaudit.main import main
from ropeaudit.recognition.diagnosis import Diagnosis
from ropeaudit.recognition.stored_values import drifts
from ropeaudit.reports.numbers import percent
from ropeaudit.rope.hf_config import from_config
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.tensor_files.rope_values import Dump

SMALL = ["--up-to", "512", "--head-dim", "16", "--under", "none", "-q"]
CODE = KERNELS / "called" / "one_position_off.py"
MARGINS = ("llama-3.1-8b", "gemma-2-27b", "deepseek-v3", "phi-3.5")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run each test in a folder with code to check."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(CODE, tmp_path / "rope.py")
    return tmp_path


def write(name: str, **changes: Any) -> str:
    """Write a config.json of a public model with changes, without what is None; return its path."""
    path = Path(f"{name}.json")
    path.write_text(json.dumps({k: v for k, v in (config(name) | changes).items() if v is not None}))
    return str(path)


def by_check(results: list[Checked]) -> dict[str, Checked]:
    return {one.finding.check: one for one in results}


def failing(check: str, *found: Diagnosis, dtype: str = "bfloat16", **more: Any) -> Checked:
    """Return a check that fails by what stands there first; the others explain as much."""
    first = replace(found[0], alternatives=found[1:]) if found else None
    finding = Finding(check, "fail", f"{check} is off", diagnosis=first, **more)
    return Checked("rope.py:wrong", "code", "", dtype, RopeSetting.of(8), 8, finding)


BASE = Diagnosis("wrong-base", {"base": 5e5, "asked": 1e4})


def test_a_cause_that_several_checks_share_is_said_once() -> None:
    """Equals count for the code that most checks have, and scores are wrong where the rotation is."""
    twice, nothing = Diagnosis("rotated-twice"), Diagnosis("no-rotation")
    results = [
        failing("batch-of-one", nothing),
        failing("rotation", nothing, twice, remedy="rotate once"),
        failing("score-error", measured=2.0),
        failing("rotation", twice, dtype="float16"),
        failing("memory-layout", twice),
        failing(
            "chunked-prefill",
            measured=0.4,
            allowed=0.01,
            unit="relative error of a rotated pair",
            where="q, pair 3",
        ),
        failing("outputs-kept"),
    ]
    [answer] = ropeaudit.report(results).answers
    assert answer.decides == "bf16, fp16, positions 0 to 7   4 causes, 7 of 7 checks fail"
    assert [cause.code for cause in answer.causes] == ["rotated-twice", "no-rotation", "unexplained"]
    assert "fix: rotate once" in answer.causes[0].facts
    assert answer.causes[2].title == "rotation error 0.40 (0.010 allowed)"
    assert answer.facts[0] == ("more", "outputs-kept: -v")


def test_what_is_waived_or_noted_is_a_warning_and_strict_counts_it(capsys) -> None:
    waived = Finding("rotation", "waived", "it is off; waived until 2999-01-31: ticket 12", diagnosis=BASE)
    [answer] = ropeaudit.report([replace(failing("rotation"), finding=waived)]).answers
    assert (answer.status, answer.causes[0].warning) == ("WARN", True)
    assert "waived until 2999-01-31: ticket 12" in answer.causes[0].facts
    path = write("llama-3.1-8b", use_logn_attn=True)
    command = ["check", path, "--dtype", "fp32", "--up-to", "256"]
    assert ran(capsys, command).out.startswith(f"WARN  {path}   ")
    assert "warning[config-keys]" in ran(capsys, [*command, "--strict"], 1).out


@pytest.mark.parametrize("name", MARGINS)
def test_margins_are_those_of_limit(name: str) -> None:
    switching = {"original_max_position_embeddings": 64} if name == "phi-3.5" else {}
    path, case = write(name, **switching), {"seq_len": 32, "heads": 1, "kv_heads": 1}
    results = list(analysis.run([path], Case(**case), CheckOptions(up_to=160), lambda share: None))
    length = "shifted" if name == "phi-3.5" else "unshifted"
    expected = limit(
        dtypes=["bf16", "fp16", "fp32"], recipes="hf", up_to=128, config=path, length=length, **case
    )
    found = [one.finding for one in results if one.finding.check == "limit"]
    assert [one.measured for one in found] == [one.margin for one in expected]
    assert all(one.measured > 0 for one in found)


def test_a_limit_says_how_far_it_is_proved_and_how_far_tested() -> None:
    path = write("llama-3.1-8b", max_position_embeddings=8192, rope_scaling=None)
    found = by_check(list(check(path, "fp32", heads=1, kv_heads=1)))["limit"].finding
    words = (
        r"hf: proved to position ([\d,]+) \(([\d.]+) times\), tested to ([\d,]+), ([\d,]+) times its 8,192"
    )
    told = re.match(words, found.where)
    assert told, found.where
    proved, times, tested, margin = (float(number.replace(",", "")) for number in told.groups())
    assert times == (10 * (proved + 1) // 8192) / 10
    assert margin == (tested + 1) // 8192 == int(found.measured)


@pytest.mark.parametrize(
    ("scaling", "where"),
    [
        (None, ""),
        ({"type": "dynamic", "factor": 2.0}, "from 2,049 positions on"),
        (
            {
                "type": "longrope",
                "short_factor": [1.0] * 12,
                "long_factor": [2.0] * 12,
                "original_max_position_embeddings": 512,
            },
            "from 513 positions on",
        ),
    ],
)
def test_where_frequencies_switch(scaling: Any, where: str) -> None:
    path = write("gpt-neox-20b", rope_scaling=scaling)
    finding = by_check(list(check(path, "bf16", up_to=256)))["frequency-switch"].finding
    assert (finding.status, finding.where) == ("info" if where else "not applicable", where)
    assert ("by up to 50 %" in finding.detail) == (where == "from 513 positions on")


def test_a_cast_module_is_a_note_with_the_drift_of_its_frequencies() -> None:
    finding = by_check(list(check("llama-3.1-8b", "bf16", up_to=256)))["cast module"].finding
    (cast,) = ropeaudit.shift(0, "bf16", "hf-model-cast", model="llama-3.1-8b", heads=8, kv_heads=8)
    told = float(finding.detail.partition("expected drift ")[2].partition(" %")[0]) / 100
    assert finding.status == "info"
    assert told == pytest.approx(cast.drift_relative, rel=0.1)  # of one seed, roundings included
    assert 0.5 < finding.measured < 2**0.5


@pytest.mark.parametrize(("change", "name", "status", "told"), said_of("checked"))
def test_what_a_config_says(change: dict[str, Any], name: str, status: str, told: str) -> None:
    finding = by_check(list(check(write("llama-3.1-8b", **change), "bf16", up_to=256)))[name].finding
    assert finding.status == status
    assert re.search(told if ".*" in told else re.escape(told), finding.detail)


_LISTS = {"short_factor": [1.0] * 64, "long_factor": [2.0] * 64}


@pytest.mark.parametrize(
    ("declared", "scaling"),
    [
        (32768, {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}),
        (32768, {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 65536}),
        (131072, {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32768}),
        (1048577, {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 4096}),
        (8192, {"type": "linear", "factor": 8.0, "original_max_position_embeddings": 8192}),
        (4096, {"type": "longrope", **_LISTS, "original_max_position_embeddings": 8192}),
        (8192, {"type": "longrope", "factor": 4.0, **_LISTS, "original_max_position_embeddings": 8192}),
    ],
)
def test_each_edit_that_mends_lengths_ends_the_warning(declared: int, scaling: dict[str, Any]) -> None:
    def config_keys(scaling: dict[str, Any] | None, **lengths: int) -> Finding:
        given = {"max_position_embeddings": declared, "rope_scaling": scaling} | lengths
        return by_check(list(check(write("llama-3.1-8b", **given), "bf16", up_to=64)))["config keys"].finding

    remedy = config_keys(scaling).remedy
    edits = re.findall(r"(factor|\w*max_position_embeddings) (above |below |)([\d.]+)", remedy)
    assert len(edits) + ("leave the scaling out" in remedy) == 2, remedy
    for key, beyond, text in edits:
        value = json.loads(text) + {"above ": 1, "below ": -1}.get(beyond, 0)
        if key == "max_position_embeddings":
            mended = config_keys(scaling, **{key: value})
        else:
            mended = config_keys(scaling | {key: value})
        assert (mended.status, mended.remedy) == ("pass", ""), (key, text, mended.detail)
    assert config_keys(None).status == "pass"


def test_what_is_wrong_with_a_config_is_said_whole_whatever_its_path_is(folder: Path) -> None:
    (folder / "a: b").mkdir()
    moved = Path(write("llama-3.1-8b", rope_theta=1)).rename(folder / "a: b" / "config.json")
    finding = by_check(list(check(str(moved), "bf16", up_to=256)))["config"].finding
    assert finding.detail == "rope_theta = 1 is not a finite number above 1"


def test_a_model_without_rope_has_nothing_to_check(folder: Path, capsys) -> None:
    """Exit code, answer and JUnit agree."""
    (folder / "bloom.json").write_text('{"model_type": "bloom", "n_head": 4, "hidden_size": 64}')
    assert main(["check", "bloom.json", "--junit", "j.xml"]) == 0
    told = "OK  bloom.json   nothing to check: the model does not encode positions by rotation"
    assert capsys.readouterr().out.startswith(told)
    [case] = parsed("j.xml").iter("testcase")
    assert [(one.tag, one.get("type")) for one in case] == [("skipped", "ropeaudit.nothing-to-check")]
    assert main(["check", "bloom.json", "llama-3.1-8b", "--dtype", "bf16", "--up-to", "256", "-q"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(told)
    assert second.startswith("PASS  llama-3.1-8b   bf16, hf: ")


def test_what_nothing_judges_is_no_pass(folder: Path, capsys) -> None:
    (folder / "w.safetensors").write_bytes(b"\x02" + bytes(7) + b"{}")  # no tensors at all
    told = ran(capsys, ["check", "w.safetensors", "--junit", "j.xml"], 1).out.splitlines()[1]
    assert told.startswith("error[judged]: no check judges it: there is no config")
    cases = parsed("j.xml").iter("testcase")
    assert [case.get("name") for case in cases if case.find("failure") is not None] == ["judged"]


def parsed(path: str) -> ElementTree.Element:
    return ElementTree.parse(path).getroot()  # noqa: S314 pytest and ropeaudit wrote it


def test_code_of_one_axis_is_right_for_the_text_of_a_config_of_mrope_alone(capsys) -> None:
    code = KERNELS / "called" / "kernels_on_axes.py"
    asked = ["--config", code.with_name("mrope.json"), "--up-to", "64", "--under", "none", "--dtype", "bf16"]
    assert "not judged: mrope_section" in ran(capsys, ["check", f"{code}:one_axis", *asked]).out


def test_junit_has_what_pytest_writes(folder: Path) -> None:
    command = ["check", "rope.py:wrong", "--dtype", "fp32,fp64", "--junit", "ours.xml", *SMALL]
    assert main(command) == 1
    ours = parsed("ours.xml")
    known = {("testsuites", "name"), ("testsuites", "testsuite"), ("testsuite", "testcase")}
    known |= {("testsuite", name) for name in ("name", "errors", "failures", "skipped", "tests")}
    known |= {("testcase", name) for name in ("classname", "name", "failure", "skipped", "system-out")}
    known |= {("failure", "message"), ("failure", "type"), ("skipped", "type"), ("skipped", "message")}
    for one in ours.iter():
        assert {(one.tag, name) for name in (*one.attrib, *(child.tag for child in one))} <= known, one.tag
    assert [suite.get("name") for suite in ours] == ["rope.py:wrong float32", "rope.py:wrong float64"]
    for suite in ours:
        cases = list(suite)
        assert int(suite.get("tests", -1)) == len(cases)
        assert int(suite.get("failures", -1)) == len(suite.findall("testcase/failure")) >= 1
        assert int(suite.get("skipped", -1)) == len(suite.findall("testcase/skipped"))
    failure = ours.find("testsuite/testcase[@name='rotation']/failure")
    assert failure is not None
    assert failure.get("type") == "another-position"
    assert "position 300" in (failure.text or "")


@pytest.mark.slow  # a whole check
def test_a_comma_in_the_name_of_a_file_is_no_list(folder: Path, capsys) -> None:
    plain = write("gpt-j-6b")
    Path("a,b").mkdir()
    shutil.copy(CODE, "a,b/c,d.py")
    Path("a,b/config.json").write_text(Path(plain).read_text())
    command = ["--dtype", "fp32", "--under", "none", "--up-to", "64", "-q", "-o", "x,y.json"]
    assert main(["check", "a,b/c,d.py:right", f"rope.py:right,{plain}", "a,b/config.json", *command]) == 0
    rows = json.loads(Path("x,y.json").read_text())["records"]
    named = ["a,b/c,d.py:right", "rope.py:right", plain, "a,b/config.json"]
    assert list(dict.fromkeys(row["target"] for row in rows)) == named
    for target in ("rope.py:right,", "a,b/c,d.py:right,rope.py:right"):
        assert main(["check", target, *command[:-2]]) == 2
    err = capsys.readouterr().err
    assert "TARGETS 'rope.py:right,' has an empty element" in err
    assert "'a' is no target: there is no such file or folder" in err


def test_junit_is_claimed_before_the_work(folder: Path, capsys) -> None:
    (folder / "old.xml").write_text("old")
    assert main(["check", "rope.py:absent", "--junit", "old.xml", *SMALL]) == 2
    assert (folder / "old.xml").read_text() == "old"
    assert [path.name for path in folder.iterdir() if "old" in path.name] == ["old.xml"]
    refused = {
        "absent/a.xml": "--junit 'absent/a.xml'",
        "a.csv": "-o 'a.csv' and --junit 'a.csv' both write",
        "rope.py": "one of",
    }
    for path, message in refused.items():
        capsys.readouterr()
        assert main(["check", "rope.py:right", "--junit", path, "-o", "a.csv", *SMALL]) == 2
        assert message in capsys.readouterr().err


ENTRY = {"check": "rotation", "target": "rope.py:wrong", "reason": "ticket 12", "until": "2999-01-31"}


def entry(values: dict[str, Any]) -> str:
    return "[[waive]]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in values.items())


def waive(*entries: dict[str, Any]) -> str:
    Path("waive.toml").write_text("\n".join(map(entry, entries)))
    return "waive.toml"


def test_a_waived_failure_does_not_fail_and_an_idle_waiver_is_named(capsys) -> None:
    path = write("gpt-neox-20b")
    entry = {**ENTRY, "check": "limit", "target": path}
    command = ["check", path, "--recipe", "uniform", "--dtype", "bf16", "--up-to", "256"]
    waived = [*command, "--waive", waive(entry, {**entry, "dtype": "fp16"}), "--junit", "j.xml"]
    shown = ran(capsys, [*waived, "-f", "json"]).json
    rows = {row["check"]: row for row in shown["records"]}
    assert rows["limit"]["status"] == "waived"
    assert rows["limit"]["detail"].endswith("waived until 2999-01-31: ticket 12")
    assert shown["headline"].startswith(f"WARN {path}: ")
    assert f"the waiver of limit of {path} in float16 waives nothing" in " ".join(shown["notes"])
    skipped = parsed("j.xml").find("testsuite/testcase[@name='limit']/skipped")
    assert skipped is not None
    assert skipped.get("type") == "ropeaudit.waived"


@pytest.mark.parametrize(
    ("named", "run", "same"),
    [
        ("./rope.py:wrong", "rope.py:wrong", True),
        ("rope.py:wrong", "./rope.py:wrong", True),
        ("a/../rope.py:wrong", "rope.py:wrong", True),
        ("rope.py:right", "./rope.py:wrong", False),
        ("other.py:wrong", "rope.py:wrong", False),
        ("./model", "model/", True),
        ("model/../model/config.json", "model/config.json", True),
        ("./gpt-j-6b", "gpt-j-6b", False),
        ("./mypkg.rope:f", "mypkg.rope:f", False),
    ],
)
def test_a_waiver_is_of_a_file_however_its_path_is_written(folder: Path, named, run, same) -> None:
    Path("a").mkdir()
    Path("model").mkdir()
    Path("model/config.json").write_text("{}")
    kind = "code" if ":" in run else "model" if run == "gpt-j-6b" else "config"
    failed = Checked(run, kind, NONE, NONE, None, 0, Finding("rotation", "fail", "it is wrong"))
    accepted = waivers.read(waive({**ENTRY, "target": named}))
    [one] = waivers.applied([failed], accepted, datetime.date(2027, 1, 31))
    assert one.finding.status == ("waived" if same else "fail")
    assert bool(waivers.notes([failed], accepted)) != same


def test_a_waiver_holds_through_its_last_day_and_says_then_that_it_ended() -> None:
    [one] = waivers.read(waive({**ENTRY, "until": "2027-01-31"}))
    held, ended = (
        next(waivers.applied([failing("rotation", BASE)], [one], day)).finding
        for day in (datetime.date(2027, 1, 31), datetime.date(2027, 2, 1))
    )
    assert (held.status, ended.status) == ("waived", "fail")
    assert ended.detail.endswith("; its waiver ended on 2027-01-31: ticket 12")


def test_a_waiver_of_a_diagnosis_is_of_failures_with_that_code() -> None:
    day = datetime.date(2027, 1, 31)
    [one] = waivers.read(waive({**ENTRY, "diagnosis": "wrong-base"}))
    assert one.diagnosis == "wrong-base"
    layout = Diagnosis("wrong-layout", {"layout": "half"})
    cases = {
        "waived": [[BASE], [layout, BASE], [replace(layout, also=(BASE,))]],
        "fail": [[], [layout]],
    }
    for status, diagnoses in cases.items():
        for found in diagnoses:
            [result] = waivers.applied([failing("rotation", *found)], [one], day)
            assert result.finding.status == status, found
            assert bool(waivers.notes([result], [one])) == (status == "fail")
    right = replace(failing("rotation"), finding=Finding("rotation", "pass", ""))
    [text] = waivers.notes([right], [one])
    assert text.startswith("the waiver of rotation of rope.py:wrong by wrong-base waives nothing: ")
    assert waivers.notes([failing("rotation", BASE)], [replace(one, dtype="float16")])


BAD = {one["text"]: one["said"] for one in table(__file__, "waivers.toml")["bad"]}


@pytest.mark.parametrize("text", BAD)
def test_bad_waivers_are_refused(text: str) -> None:
    Path("waive.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises(BadInput) as caught:
        waivers.read("waive.toml")
    assert BAD[text] in str(caught.value)
    with pytest.raises(BadInput, match="No such file"):
        waivers.read("absent.toml")


def stored(folder: Path, values: np.ndarray, *names: str) -> None:
    """Make the folder "model", whose config has base 10000 and 2048 positions, with frequencies by names."""
    from safetensors.numpy import save_file

    (folder / "model").mkdir(exist_ok=True)
    (folder / "model" / "config.json").write_text(json.dumps(config("gpt-j-6b")))
    save_file(dict.fromkeys(names, values.astype(np.float32)), folder / "model" / "model.safetensors")


def of_base(base: float) -> np.ndarray:
    return base ** (-np.arange(32) / 32)


def test_a_checkpoint_with_cast_buffers_fails(folder: Path, capsys) -> None:
    names = [f"layers.{n}.inv_freq" for n in range(3)]
    stored(folder, of_base(1e4).astype(np.float32).astype(ml_dtypes.bfloat16), *names)
    whole = ran(capsys, ["check", "model", "--up-to", "300", "--dtype", "bf16", "-f", "json"], 1).json
    [row] = [row for row in whole["records"] if row["check"] == "stored inv_freq"]
    assert (row["status"], row["where"]) == ("fail", "layers.0.inv_freq and 2 more")
    assert row["diagnosis"] == "narrow-frequencies"
    assert row["resembles"] == "bfloat16 frequencies"
    assert row["detail"].startswith("cast to bfloat16 and back; ")
    assert {row["kind"] for row in whole["records"]} == {"checkpoint"}
    stored(folder, of_base(1e4), *names)
    assert main(["check", "model", "--up-to", "300", "--dtype", "bf16", "-q"]) == 0
    (folder / "model" / "config.json").unlink()
    results = by_check(list(check("model/model.safetensors")))
    assert results["config"].finding.status == "not applicable"
    assert results["stored inv_freq"].finding.status == "info"  # its base was guessed


TRANSFORMERS = "transformers computes inv_freq from config.json and drops stored ones"
OTHER_CODE = "code that computes the values from config.json does not use it"


@pytest.mark.slow  # a whole check
@pytest.mark.parametrize(
    ("name", "reader"), [("layers.0.rotary_emb.inv_freq", TRANSFORMERS), ("h.0.inv_freq", OTHER_CODE)]
)
def test_a_stored_tensor_of_another_base_is_wrong_or_its_config_is(
    name: str, reader: str, folder: Path
) -> None:
    stored(folder, of_base(5e5), name)
    finding = by_check(list(check("model", "bf16", up_to=300)))["stored inv_freq"].finding
    assert finding.diagnosis is not None
    assert finding.diagnosis.code == "wrong-base"
    assert finding.remedy == (
        f"either config.json or the stored tensor is wrong: {reader}, and code that loads the tensor rotates "
        "by it"
    )
    by_options = by_check(list(check("model", "bf16", up_to=300, base=20000.0)))["stored inv_freq"].finding
    assert (by_options.status, by_options.remedy) == ("fail", "use base 20000")


def test_the_drift_of_a_stored_tensor_is_that_within_the_range_of_its_config(folder: Path) -> None:
    stored(folder, of_base(5e5), "h.0.inv_freq")
    detail = by_check(list(check("model", "bf16", up_to=300)))["stored inv_freq"].finding.detail
    setting = from_config(config("gpt-j-6b"), "g", "here").layers["full_attention"]
    theta = of_base(5e5).astype(np.float32).astype(np.float64)
    far = drifts(Dump("", "inv_freq", frequencies=theta), setting, 2047)[1]
    assert far is not None
    assert detail.endswith(f", {percent(far)} at a distance of 2,047")


def test_what_is_only_nearest_to_a_stored_table_is_not_what_it_behaves_like(folder: Path, capsys) -> None:
    stored(folder, np.full(32, 0.3), "layers.0.inv_freq")
    said = ran(capsys, ["check", "model", "--up-to", "300", "--dtype", "bf16"], 1).out
    assert "error[unexplained]" in said
    assert "closest known: wrong-base: base " in said


def test_a_checkpoint_is_refused_at_once_where_it_is_to_run_and_cannot(built, monkeypatch, capsys) -> None:
    """What is stored needs no transformers."""
    from importlib import util

    find = util.find_spec
    monkeypatch.setattr(
        util, "find_spec", lambda name, *a: None if name == "transformers" else find(name, *a)
    )
    shown = ran(capsys, ["check", built("llama"), "--tokens", "24", "--dtype", "bf16"], 2)
    assert shown.out == ""
    assert "--tokens and --text run the model, which needs transformers; pip install 'ropeaud" in shown.err
    assert main(["check", str(built("llama")), "--dtype", "bf16", "--up-to", "64", "-q"]) == 0


def test_a_checkpoint_that_runs(folder: Path, built, in_process) -> None:
    pytest.importorskip("transformers")
    copied = shutil.copytree(built("llama"), folder / "llama")
    change_config(copied, max_position_embeddings=4096)
    results = list(check(str(copied), "bf16", tokens="16", up_to=256))
    of_model = [one for one in results if one.finding.check.startswith("model ")]
    at_each_offset = [
        ("model structure", "float64", "pass"),
        ("model rotation", "bfloat16", "pass"),
        ("model rounding", "bfloat16", "info"),
    ]
    assert [(one.finding.check, one.dtype, one.finding.status) for one in of_model] == [
        ("model decode", "float64", "pass"),
        *at_each_offset * 2,
    ]
    stored = by_check(results)["stored buffers"].finding
    assert stored.status == "not applicable"
    assert all(one.finding.measured <= one.finding.allowed for one in of_model if one.dtype == "float64")


def test_the_table_of_a_config(capsys, snapshot) -> None:
    path = write("gpt-j-6b", num_hidden_layers=28, torch_dtype="float16")
    shown = ran(capsys, ["check", path, "--up-to", "2k", "--dtype", "bf16"])
    assert shown.out == snapshot
    assert shown.err == snapshot
