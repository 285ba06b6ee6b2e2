"""`ropeaudit list diagnoses`: a row a code; of one code all that is known, with an example."""

import ast
import json

from ropeaudit.main import main
from ropeaudit.recognition.diagnosis import kinds


def test_of_one_code_all_is_told_with_lines_that_are_wrong_and_right(capsys) -> None:
    assert main(["list", "diagnoses", "wrong-base"]) == 0
    lines = capsys.readouterr().out.splitlines()
    told = dict(line.split(maxsplit=1) for line in lines)
    assert told["wrong-base"].strip() == "another base"
    assert told["right"] == "base = config.rope_theta"
    assert any(line.endswith("base 10500 instead of 10000") for line in lines)
    assert "vllm#42624" in lines[-1]
    assert main(["list", "diagnoses", "wrong-base", "-f", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["records"][0]["bugs"].startswith("vllm#42624")


def test_examples_are_python_and_differ() -> None:
    shown = [kind for kind in kinds().values() if kind.wrong]
    assert len(shown) >= 25
    for kind in shown:
        assert kind.wrong != kind.right
        for text in (kind.wrong, kind.right):
            assert text.count("\n") <= 6
            ast.parse(text)
