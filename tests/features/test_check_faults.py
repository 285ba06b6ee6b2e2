"""What fails in `check`, as code hosts read it: SARIF 2.1.0, and annotations of GitHub's runner."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit
from xml.etree import ElementTree

import pytest
from command_line import ran, refused
from net.kernel_rows import KERNELS

import ropeaudit
from ropeaudit.conformance.finding import Finding
from ropeaudit.console.delivery import marked_incomplete
from ropeaudit.features.check import config_target
from ropeaudit.features.check.checked import Checked, place_of
from ropeaudit.recognition.diagnosis import Diagnosis
from ropeaudit.reports.answers import Fault
from ropeaudit.reports.forms.sarif import annotation
from ropeaudit.subjects.calling import loading, signatures

SCHEMA = Path(__file__).parents[1] / "data" / "sarif-2.1.0.json"  # OASIS's; README beside it says whence
URI = re.compile(r"([A-Za-z0-9._~:/?#@!$&'()*+,;=\[\]-]|%[0-9A-Fa-f]{2})*")  # characters of RFC 3986
CONFIG = {  # a key that nothing reads
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 1,
    "num_hidden_layers": 1,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "rope_thetta": 5,
}
CALLED = KERNELS / "called"
INTERRUPTING = (CALLED / "interrupting_kernel.py").read_text()


def sarif_errors(log) -> list[str]:
    """Return what the schema says of a log, the places first."""
    jsonschema = pytest.importorskip("jsonschema")
    formats = jsonschema.FormatChecker()
    formats.checks("uri-reference")(lambda text: URI.fullmatch(text) is not None)
    formats.checks("uri")(lambda text: URI.fullmatch(text) is not None and bool(urlsplit(text).scheme))
    validator = jsonschema.Draft7Validator(json.loads(SCHEMA.read_bytes()), format_checker=formats)
    return sorted(f"{one.json_path}: {one.message}" for one in validator.iter_errors(log))


def checked(target: str, kind: str = "code", check: str = "rotation", **finding) -> Checked:
    one = Finding(check, **{"status": "fail", "detail": "it is wrong", **finding})
    return Checked(target, kind, "none", "bfloat16", None, 4096, one)


@pytest.fixture
def kernel(tmp_path, monkeypatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("my kernels").mkdir()
    shutil.copy(CALLED / "placed_kernel.py", "my kernels/rope.py")
    return "my kernels/rope.py"


def test_a_fault_stands_where_its_code_is_defined(kernel, tmp_path) -> None:
    shutil.copy(CALLED / "exported_names.py", "bad.py")
    Path("exported.py").write_text("from bad import Rope, rope as other\n")
    lines = {"rope": 6, "Rope": 10, "Rope.__call__": 11, "wrapped": 6, "made": 10, "bare": 22}
    places = {
        f"{file}:{name}": ("bad.py", line) for file in ("bad.py", "bad") for name, line in lines.items()
    }
    places |= {"exported.py:other": ("bad.py", 6), f"{kernel}:rotate": (kernel, 11)}
    for target, (file, line) in places.items():
        found = signatures.place(loading.load(target)[0].thing)
        assert (os.path.relpath(found[0]), found[1]) == (file, line), target
    assert place_of(checked("torch.nn:Linear")) == ("", 0)
    Path("config.json").write_text("{}")
    assert place_of(checked("transformers-llama")) == ("", 0)
    Path("broken.py").write_text("def f(:\n")
    assert place_of(checked("broken.py:f")) == ("broken.py", 0)
    Path("model").mkdir()
    assert place_of(checked("model", "config")) == ("", 0)
    Path("model/config.json").write_text("{}")
    assert place_of(checked("model", "config")) == ("model/config.json", 0)
    outside = tmp_path.parent / "outside.json"
    outside.write_text("{}")
    assert place_of(checked("../outside.json", "config")) == (str(outside), 0)


def test_sarif_has_a_result_for_each_failure_and_a_rule_for_each_code(kernel) -> None:
    wrong = Diagnosis("wrong-base", {"base": 5e5, "asked": 1e4})
    sizes = {"measured": 2.0, "allowed": 0.01, "unit": "of it", "where": "q", "file": kernel, "line": 11}
    results = [
        checked(f"{kernel}:rotate", diagnosis=wrong, **sizes),
        checked(f"{kernel}:rotate", check="serving-shapes", diagnosis=wrong),
        checked("config.json", "config", "config keys", detail="unused: roep_theta\nor so"),
        checked("config.json", "config", "config", status="pass"),
        *(checked(f"{kernel}:rotate", status=status, diagnosis=wrong) for status in ("waived", "info")),
    ]
    whole = ropeaudit.report(results)
    log = json.loads(ropeaudit.render("sarif", whole))
    assert sarif_errors(log) == []
    [run] = log["runs"]
    assert run["invocations"] == [{"executionSuccessful": True}]
    part = json.loads(
        ropeaudit.render("sarif", marked_incomplete(whole, "18 checks"))
    )  # what was not run is not mended
    assert part["runs"][0]["invocations"] == [{"executionSuccessful": False}]
    base, keys = run["tool"]["driver"]["rules"]
    assert (base["id"], keys["id"]) == ("wrong-base", "config-keys")
    assert base["help"]["text"].count("Cause: ") == base["help"]["text"].count("Remedy: ") == 1
    assert "<" not in ropeaudit.render("sarif", ropeaudit.report(results[2:3]))
    assert [(one["ruleId"], one["ruleIndex"]) for one in run["results"]] == [
        *[("wrong-base", 0)] * 2,
        ("config-keys", 1),
    ]
    first, _, third = run["results"]
    assert "base 500000 instead of 10000" in first["message"]["text"]
    assert "2.00 of it, allowed 0.0100, q" in first["message"]["text"]
    [location] = first["locations"]
    assert location["physicalLocation"] == {
        "artifactLocation": {"uri": "my%20kernels/rope.py", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": 11},
    }
    assert "locations" not in third, "there is no such file"
    prints = {json.dumps(one["partialFingerprints"]) for one in run["results"]}
    assert len(prints) == 3
    later = [checked(f"{kernel}:rotate", diagnosis=wrong, **sizes | {"measured": 9.0})]
    again = json.loads(ropeaudit.render("sarif", ropeaudit.report(later)))
    assert again["runs"][0]["results"][0]["partialFingerprints"] == first["partialFingerprints"]


@pytest.mark.parametrize(
    ("targets", "failing"),
    [
        (["right.json"], 0),
        (["{folder}/config.json", "right.json", "model"], 2),
        pytest.param(
            ["my kernels/rope.py:rotate", "transformers-llama", "config.json"], 2, marks=pytest.mark.slow
        ),
    ],
    ids=["none fails", "configs", "code"],
)
def test_what_the_command_writes_holds_to_the_schema(kernel, capsys, tmp_path, targets, failing) -> None:
    unused = CONFIG | {"rope_scaling": {"type": "linear", "factor": 2.0, "facotr": 1}}
    Path("config.json").write_text(json.dumps(CONFIG))
    Path("right.json").write_text(json.dumps({k: v for k, v in CONFIG.items() if k != "rope_thetta"}))
    Path("model").mkdir()
    Path("model/config.json").write_text(json.dumps(unused))
    named = [target.format(folder=tmp_path) for target in targets]
    given = ["check", *named, "--up-to", "256", "--dtype", "fp32", "-q", "--github"]
    out, err = ran(capsys, [*given, "-f", "sarif", "-o", "found.sarif"], 1 if failing else 0)
    assert out == Path("found.sarif").read_text()
    log = json.loads(out)
    assert sarif_errors(log) == []
    texts = [result["message"]["text"] for result in log["runs"][0]["results"]]
    assert len(err.splitlines()) == len(texts)
    at = r"(file=[^,]+,(line=\d+,)?)?"
    assert all(re.match(rf"::error {at}title=ropeaudit%3A [\w-]+::", line) for line in err.splitlines())
    assert len({text.split(", ")[0] for text in texts}) == failing, texts


@pytest.mark.slow  # processes
@pytest.mark.skipif(os.name != "posix", reason="a signal to this process is a Ctrl-C there")
def test_a_ctrl_c_is_told_of_every_file_and_every_target(tmp_path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.py").write_text(INTERRUPTING)
    (tmp_path / "old.csv").write_text("finished")
    targets = ["a.py:f", "b.py:f", "c.py:f", "a.py:g", "b.py:g", "c.py:g"]
    options = ["--dtype", "fp32,fp64", "--up-to", "64", "--under", "none", "--github"]
    files = ["--junit", "j.xml", "-o", "r.sarif", "-o", "old.csv", "-o", "r.json", "--ticket", "t.md"]
    command = [sys.executable, "-m", "ropeaudit", "check", *targets, *options, *files]
    seen = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert seen.returncode == 130, seen.stderr

    left = "4 targets were not begun: c.py:f, a.py:g, b.py:g and 1 more"
    rows = json.loads((tmp_path / "r.json").read_text())["records"]
    done = sum(row["status"] in ("pass", "fail") for row in rows) - 1
    last = rows[-1]
    assert (last["target"], last["dtype"], last["check"]) == ("b.py:f", "float32", "interrupted")
    assert last["detail"].endswith(f"; {left}")
    assert f"error[interrupted]: {last['detail']}\n" in seen.stdout
    assert json.loads((tmp_path / "r.json").read_text())["interrupted"] == f"after {done} checks"

    told, annotated, ticket = seen.stderr.splitlines()
    written = f"{done} checks done and written; 'old.csv' is left as before"
    assert told == f"ropeaudit: interrupted: {written}; {left}"
    assert annotated.startswith(
        "::error file=b.py,line=16,title=ropeaudit%3A interrupted::b.py:f, interrupted"
    )
    assert left in annotated
    assert ticket == "ropeaudit: no ticket was written: nothing was judged to its end"
    assert (tmp_path / "old.csv").read_text() == "finished"
    names = {path.name for path in tmp_path.iterdir()} - {"a.py", "b.py", "c.py", "old.csv", "sent"}
    assert names == {"j.xml", "r.json", "r.sarif"}
    [run] = json.loads((tmp_path / "r.sarif").read_text())["runs"]
    assert [result["ruleId"] for result in run["results"]] == ["interrupted"]
    *_, suite = ElementTree.parse(tmp_path / "j.xml").getroot()  # noqa: S314
    [failure] = suite.iter("failure")
    assert left in failure.get("message")

    (tmp_path / "j.xml").write_text("finished")
    (tmp_path / "sent").unlink()
    again = [*command[:4], "b.py:f", *options, "--junit", "j.xml"]
    seen = subprocess.run(again, cwd=tmp_path, capture_output=True, text=True)
    told, _ = seen.stderr.splitlines()
    assert told == "ropeaudit: interrupted: 0 checks done; 'j.xml' is left as before"
    assert (tmp_path / "j.xml").read_text() == "finished"


def test_a_config_that_is_not_checked_to_its_end_is_no_pass(monkeypatch, capsys) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(config_target, "limits", stopped)
    out, err = ran(capsys, ["check", "llama-3.1-8b", "qwen2.5-7b", "--github"], 130)
    detail = "no pass: it was not checked to its end; 1 target was not begun: qwen2.5-7b"
    assert f"error[interrupted]: {detail}\n" in out
    assert f"::error title=ropeaudit%3A interrupted::llama-3.1-8b, interrupted: {detail}\n" in err
    assert "interrupted: 1 check done; 1 target was not begun: qwen2.5-7b\n" in err


@pytest.mark.slow  # a whole check
def test_an_error_of_one_target_loses_nothing_of_the_others(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    files = ["-q", "--github", "--junit", "j.xml", "-o", "x.csv"]
    why = "missing.py: there is no such file; try mypackage.rope:apply_rope or path/to/file.py:apply_rope"
    for before in ("x.csv", "j.xml"):
        (tmp_path / before).write_text("finished")
    out, err = ran(capsys, ["check", "gpt-j-6b", "missing.py:f", "qwen2.5-7b", *files], 2)
    assert "FAIL  missing.py:f   not checked\n" in out
    error, annotated = err.splitlines()[-2:]
    assert annotated == f"::error title=ropeaudit%3A interrupted::missing.py:f, interrupted: no pass: {why}"
    assert error == f"ropeaudit: error: {why}"
    assert "stopped" not in err
    for name in ("gpt-j-6b", "qwen2.5-7b"):
        assert f"\n1,{name},model," in (tmp_path / "x.csv").read_text()
        assert name in (tmp_path / "j.xml").read_text()
    (tmp_path / "j.xml").write_text("finished")
    nothing_done = ran(capsys, ["check", "missing.py:f", *files], 2)
    assert nothing_done == ("", f"ropeaudit: error: {why}\n")
    assert (tmp_path / "j.xml").read_text() == "finished"


@pytest.mark.slow  # a whole check
def test_junit_is_written_where_nobody_reads_stdout(tmp_path) -> None:
    line = "check gpt-j-6b -q --junit j.xml --up-to 512"
    command = [sys.executable, "-m", "ropeaudit", *line.split()]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        process.communicate()
    assert (tmp_path / "j.xml").exists()


def test_an_annotation_is_escaped_as_the_runner_reads_it() -> None:
    fault = Fault("a,b", "50 %\r\nat 1:2", "x.py:f", "rotation", "C:\\a,b%.py", 7)
    line = annotation(fault)
    assert line == (
        "::error file=C%3A\\a%2Cb%25.py,line=7,title=ropeaudit%3A a%2Cb::x.py:f, rotation: 50 %25%0D%0Aat 1:2"
    )
    assert annotation(Fault("a", "b", "c", "d")) == "::error title=ropeaudit%3A a::c, d: b"


def test_sarif_is_of_check_alone(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["shift", "--heads", "1", "--seq-len", "2"]
    said = refused(capsys, [*small, "-o", "a.sarif"])
    assert "sarif holds the report of `ropeaudit check` alone; try .json" in said
    assert not list(tmp_path.iterdir())
    for command, told in {"check": True, "shift": False}.items():
        assert (".sarif" in ran(capsys, [command, "--help"]).out) == told
    with pytest.raises(ropeaudit.UsageError, match="give the results of check"):
        ropeaudit.render("sarif", ropeaudit.report(ropeaudit.shift(heads=1, seq_len=2)))
