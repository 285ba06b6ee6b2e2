"""The command group, and the one place where exceptions become messages and exit codes.

0 done, 1 a --fail-if was broken, 2 bad usage or bad input, 3 a fault of ours, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from ropeaudit import __version__
from ropeaudit.cli.env import env
from ropeaudit.cli.list import list_
from ropeaudit.cli.shift import shift
from ropeaudit.errors import RopeAuditError

FAILED, BAD_USE, OUR_FAULT, INTERRUPTED = 1, 2, 3, 130


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with: ropeaudit shift --offset 1000 --dtype fp16",
)
@click.version_option(__version__, prog_name="ropeaudit")
def cli() -> None:
    """Audit the numerical precision of rotary position embeddings (RoPE).

    Exact attention scores depend on the distance between tokens alone. In finite precision, adding a
    number to every position changes them: ropeaudit says by how much.
    """


cli.add_command(shift)
cli.add_command(list_)
cli.add_command(env)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; no exception leaves this function."""
    try:
        code = cli.main(args=arguments, prog_name="ropeaudit", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except BrokenPipeError:
        return _closed_pipe()
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        return _refuse(error.format_message(), _help_of(error))
    except (click.Abort, KeyboardInterrupt):
        return _say("interrupted", INTERRUPTED)
    except RopeAuditError as error:
        return _refuse(str(error))
    except MemoryError:
        return _refuse("out of memory; give a smaller --seq-len, --heads or --head-dim")
    except OSError as error:
        return _refuse(f"cannot write the report: {error.strerror or error}")
    except Exception as error:
        if os.environ.get("ROPEAUDIT_DEBUG"):
            raise
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        _say(f"a fault of ropeaudit, not of yours: {text}", OUR_FAULT)
        return _say("please report it with the command and `ropeaudit env`", OUR_FAULT)


def _refuse(message: str, hint: str = "") -> int:
    return _say(f"error: {message}" + (f"\n{hint}" if hint else ""), BAD_USE)


def _help_of(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    return f"Try `{context.command_path} --help`." if context is not None else ""


def _say(text: str, code: int) -> int:
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        _silence()
    try:
        print(f"ropeaudit: {text}", file=sys.stderr)
    except OSError:
        pass
    return code


def _closed_pipe() -> int:
    """The reader has seen enough, as `head` does: that is no error."""
    _silence()
    return 0


def _silence() -> None:
    """Send the rest of stdout nowhere, or the interpreter complains while it shuts down."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
