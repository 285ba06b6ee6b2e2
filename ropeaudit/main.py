"""The command group, and the one place where exceptions become messages and exit codes.

0 done, 1 a failure or a broken --fail-if, 2 bad usage, bad input or a file that cannot be written, 3 a fault
of ours, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module

import click

from ropeaudit import __version__, data
from ropeaudit.console.help import NamedCommands, unknown_option
from ropeaudit.errors import ForeignError, RopeAuditError, did, unusable
from ropeaudit.runtime import doing, streams

BAD_USE, OUR_FAULT, INTERRUPTED = 2, 3, 130
_LONGEST = 1500  # characters of a line of a message


def _listed() -> dict[str, dict[str, str]]:
    """Return the commands in groups, each with what `--help` says of it."""
    groups: dict[str, dict[str, str]] = data.table("help.toml")["commands"]
    return groups


class CommandGroup(NamedCommands):
    """A group that imports a command when it is called: `--help`, and each command, loads no other."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names, in the order of `--help`."""
        return [name for lines in _listed().values() for name in lines]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, imported if it was not, or None if there is none of that name."""
        if cmd_name not in self.commands and cmd_name in self.list_commands(ctx):
            module = import_module(f"ropeaudit.features.{cmd_name}.command")
            self.add_command(next(each for each in vars(module).values() if isinstance(each, click.Command)))
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, group by group, one column for all."""
        width = max(map(len, self.list_commands(ctx)))
        for heading, lines in _listed().items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), line) for name, line in lines.items()])


@click.group(
    cls=CommandGroup,
    invoke_without_command=True,  # to say what there is
    context_settings={"help_option_names": ["-h", "--help", "--help-all"], "max_content_width": 100},
    epilog="Start with: ropeaudit shift --offset 1000 --dtype fp16\n\n"
    "Exit code, the first that holds: 3 a fault of ropeaudit, 130 interrupted, 1 a failure or a broken "
    "--fail-if, 2 bad usage, bad input or a file that cannot be written, 0 done.\n\n"
    'Completion: eval "$(_ROPEAUDIT_COMPLETE=bash_source ropeaudit)", or zsh_source, fish_source.',
)
@click.version_option(__version__, "-V", "--version", prog_name="ropeaudit")
@click.pass_context
def cli(context: click.Context) -> None:
    """Audit the numerical precision of rotary position embeddings (RoPE).

    Exact attention scores depend on the distance between tokens alone. In finite precision, adding a
    number to every position changes them: ropeaudit says by how much.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; no exception leaves this function."""
    # something stands in the place of streams that the caller has closed (`>&-`)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = _Closed()
    stdout, stderr = sys.stdout, sys.stderr
    for stream in (stdout, stderr):
        if isinstance(stream, io.TextIOWrapper):  # ASCII terminals must not end in a fault
            stream.reconfigure(errors=streams.PLAIN)
    try:
        code = cli.main(args=arguments, prog_name="ropeaudit", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except BrokenPipeError:  # the reader has seen enough, as `head` does: that is no error
        streams.silence()
        return 0
    except SystemExit as stop:
        if sys.stdout is stdout:  # after shell completion
            return int(stop.code or 0)
        sys.stdout, sys.stderr = stdout, stderr  # a closed pipe, where click wraps the streams
        streams.silence()
        return 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.NoSuchOption as error:
        return _refuse(unknown_option(error).typed)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        return _refuse(error.format_message(), f"Try `{context.command_path} --help`." if context else "")
    except (click.Abort, KeyboardInterrupt):
        return _say("interrupted", INTERRUPTED)
    except RopeAuditError as error:
        return _refuse(*error.lines)
    except ForeignError as error:
        return _refuse(f"code that was called {did(error)}")
    except Exception as error:
        return _say("interrupted", INTERRUPTED) if doing.ended else _unforeseen(error)


def _unforeseen(error: Exception) -> int:
    """Say what an error that is not of this package comes of, and return the exit code."""
    if isinstance(error, MemoryError):
        return _refuse("out of memory; give a smaller --seq-len, --heads or --head-dim")
    if (missing := unusable(error)) is not None:
        return _refuse(missing.typed)
    if isinstance(error, OSError):
        try:
            os.getcwd()
        except OSError:
            return _refuse("the folder that this was started in is gone; go to another one")
        what = f"{error.filename!r}" if error.filename else "cannot write to stdout"
        return _refuse(f"{what}: {error.strerror or error}")
    if os.environ.get("ROPEAUDIT_DEBUG"):
        raise error
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    _say(f"a fault of ropeaudit, not of yours: {text}", OUR_FAULT)
    return _say("please report it with the command and `ropeaudit list environment`", OUR_FAULT)


def _refuse(message: str, *more: str) -> int:
    return _say("\n".join(map(_short, (f"error: {message}", *filter(None, more)))), BAD_USE)


def _say(text: str, code: int) -> int:
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        streams.silence()
    with contextlib.suppress(OSError, ValueError):
        print("\n".join(map(_short, f"ropeaudit: {text}".split("\n"))), file=sys.stderr)
    return code


def _short(line: str) -> str:
    """A line fit for any terminal: no control characters, and no more than a screenful."""
    if len(line) > _LONGEST:
        line = f"{line[: _LONGEST // 2]} ... {line[-_LONGEST // 2 :]}"
    from ropeaudit.reports.numbers import printable  # in-function: `--help` has nothing to say of errors

    return printable(line)


class _Closed(io.StringIO):
    """A stdout that is not there: every attempt to write to it fails."""

    def write(self, text: str) -> int:
        raise OSError(errno.EBADF, "it is closed")
