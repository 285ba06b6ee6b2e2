"""docs/reference.md is what --help and docstrings say; `python tests/test_reference_page.py` writes it."""

import inspect
import subprocess
import sys
from pathlib import Path

import click

import ropeaudit
from ropeaudit.main import cli

PAGE = Path(__file__).parent.parent / "docs" / "reference.md"
WIDTH = 100


def page() -> str:
    """Return the page as it should be."""
    parts = [
        "# Reference",
        "Generated from `--help` and docstrings; a test compares it. Sizes in options: k = 1024, m = 1024².",
        "## Commands",
        shown_help(),
    ]
    for name in sorted(cli.commands):
        parts += [f"### ropeaudit {name}", shown_help(name)]
    parts += ["## Python", "`import ropeaudit` loads nothing else; a name is loaded when it is first used."]
    for name in ropeaudit.__all__:
        thing = getattr(ropeaudit, name)
        text = f"{signature(name, thing)}\n\n{inspect.getdoc(thing)}"
        parts += [f"### ropeaudit.{name}", f"```text\n{text}\n```"]
    return "\n\n".join(parts) + "\n"


def shown_help(name: str = "") -> str:
    size = {"max_content_width": WIDTH, "terminal_width": WIDTH}
    size["help_option_names"] = ["-h", "--help"]
    context, command = click.Context(cli, info_name="ropeaudit", **size), cli
    if name:
        command = cli.commands[name]
        context = click.Context(command, info_name=name, parent=context, **size)
    return f"```text\n{command.get_help(context).rstrip()}\n```"


def signature(name: str, thing: object) -> str:
    try:
        text = f"{name}{inspect.signature(thing)}"
    except (TypeError, ValueError):  # a bare exception has none
        return name
    return text.replace("ropeaudit.", "").replace("collections.abc.", "")


def test_the_reference_is_what_help_and_docstrings_say() -> None:
    # in a process of its own: click keeps the first help option that a command is asked for
    command = [sys.executable, __file__, "print"]
    fresh = subprocess.run(command, check=True, capture_output=True, encoding="utf-8").stdout
    assert PAGE.read_text(encoding="utf-8") == fresh, "run python tests/test_reference_page.py"


if __name__ == "__main__":
    if sys.argv[1:] == ["print"]:
        sys.stdout.reconfigure(encoding="utf-8")
        sys.stdout.write(page())
    else:
        PAGE.write_text(page(), encoding="utf-8")
