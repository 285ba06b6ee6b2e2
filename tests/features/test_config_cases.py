"""Config files that were misread once are read as their code does, or refused in words that help."""

import tomllib
from pathlib import Path

from ropeaudit.main import main

CASES = tomllib.loads(Path(__file__).with_name("config_cases.toml").read_text(encoding="utf-8"))


def test_configs_as_they_are(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = []
    for name, case in CASES.items():
        Path("config.json").write_text(case["config"], encoding="utf-8")
        code = main(["check", "config.json", "--dtype", "bf16", "--up-to", "64", "-v"])
        shown = " ".join("".join(capsys.readouterr()).split())
        missing = [text for text in case["says"] if " ".join(text.split()) not in shown]
        if code != case["code"] or missing or "rope_theta is missing; give --base" in shown:
            wrong.append((name, code, missing))
    assert wrong == []
