"""What is read of 639 configs, against the table of what was read of them and what is right."""

import contextlib
import io
from pathlib import Path

import pytest

from net.settings import SETTINGS, differs, lines, names, read, text_of
from ropeaudit.main import main


def test_every_config_is_read_as_it_was_or_right(tmp_path: Path) -> None:
    stored, wrong = lines(SETTINGS), {}
    assert list(stored) == list(names())
    for number, (name, row) in enumerate(stored.items()):
        path = tmp_path / f"{number}.json"
        path.write_text(text_of(name), encoding="utf-8")
        seen = read(path)
        was = differs(seen, row["today"])
        if was and ("right" not in row or differs(seen, row["right"])):
            wrong[name] = was
    assert not wrong, "\n".join(f"{name}: {'; '.join(found)}" for name, found in wrong.items())


def test_what_is_right_is_not_what_is_read_today() -> None:
    stored = lines(SETTINGS)
    done = [
        name for name, row in stored.items() if "right" in row and not differs(row["today"], row["right"])
    ]
    assert not done, "record them anew: python -m tests.net.record_settings"
    assert all(row.get("said") for row in stored.values() if "right" in row)


@pytest.mark.parametrize(
    "name",
    [
        "cases/gptj_ok",
        "cases/no_rope_bloom",
        "cases/broken_json",
        "refused/01-llama-3.1-8b",
        "unused/01-llama-3.1-8b",
    ],
)
def test_the_command_exits_as_the_table_says(name: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(text_of(name), encoding="utf-8")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        code = main(["check", str(path), "--dtype", "bf16", "--up-to", "256"])
    assert code == lines(SETTINGS)[name]["today"]["exit"]
