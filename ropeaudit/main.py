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
from ropeaudit.errors import ForeignError, RopeAuditError, did, unusable_package
from ropeaudit.runtime import doing, streams

BAD_USE, OUR_FAULT, INTERRUPTED = 2, 3, 130
_MOST_CHARACTERS = 1500  # of a line of a message


def _commands() -> dict[str, dict[str, str]]:
    groups: dict[str, dict[str, str]] = data.table("help.toml")["commands"]
    return groups


class CommandGroup(NamedCommands):
    """The root group, which imports a command only when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names, in the order of `--help`."""
        return [name for lines in _commands().values() for name in lines]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command; None if there is none of that name."""
        if cmd_name not in self.commands and cmd_name in self.list_commands(ctx):
            module = import_module(f"ropeaudit.features.{cmd_name}.command")
            self.add_command(next(each for each in vars(module).values() if isinstance(each, click.Command)))
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, group by group, in aligned columns."""
        width = max(map(len, self.list_commands(ctx)))
        for heading, lines in _commands().items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), line) for name, line in lines.items()])


@click.group(
    cls=CommandGroup,
    invoke_without_command=True,  # which prints the help
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
    # streams that the caller has closed (`>&-`) are None
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = _ClosedStdout()
    stdout, stderr = sys.stdout, sys.stderr
    for stream in (stdout, stderr):
        if isinstance(stream, io.TextIOWrapper):  # on ASCII terminals
            stream.reconfigure(errors=streams.PLAIN)
    try:
        code = cli.main(args=arguments, prog_name="ropeaudit", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except BrokenPipeError:  # such as `head`: no error
        streams.discard_stdout()
        return 0
    except SystemExit as stop:
        if sys.stdout is stdout:  # after shell completion
            return int(stop.code or 0)
        sys.stdout, sys.stderr = stdout, stderr  # a closed pipe, where click wraps the streams
        streams.discard_stdout()
        return 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.NoSuchOption as error:
        return _bad_use(unknown_option(error).typed)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        return _bad_use(error.format_message(), f"Try `{context.command_path} --help`." if context else "")
    except (click.Abort, KeyboardInterrupt):
        return _print_error("interrupted", INTERRUPTED)
    except RopeAuditError as error:
        return _bad_use(*error.lines)
    except ForeignError as error:
        return _bad_use(f"code that was called {did(error)}")
    except Exception as error:
        return _print_error("interrupted", INTERRUPTED) if doing.ended else _unexpected_error(error)


def _unexpected_error(error: Exception) -> int:
    """Print an error that is not of this package, with its reason; return the exit code."""
    if isinstance(error, MemoryError):
        return _bad_use("out of memory; give a smaller --seq-len, --heads or --head-dim")
    if (missing := unusable_package(error)) is not None:
        return _bad_use(missing.typed)
    if isinstance(error, OSError):
        try:
            os.getcwd()
        except OSError:
            return _bad_use("the folder that this was started in is gone; go to another one")
        what = f"{error.filename!r}" if error.filename else "cannot write to stdout"
        return _bad_use(f"{what}: {error.strerror or error}")
    if os.environ.get("ROPEAUDIT_DEBUG"):
        raise error
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    _print_error(f"a fault of ropeaudit, not of yours: {text}", OUR_FAULT)
    return _print_error("please report it with the command and `ropeaudit list environment`", OUR_FAULT)


def _bad_use(message: str, *more: str) -> int:
    return _print_error("\n".join(map(_short, (f"error: {message}", *filter(None, more)))), BAD_USE)


def _print_error(text: str, code: int) -> int:
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        streams.discard_stdout()
    with contextlib.suppress(OSError, ValueError):
        print("\n".join(map(_short, f"ropeaudit: {text}".split("\n"))), file=sys.stderr)
    return code


def _short(line: str) -> str:
    """Return a line, cut in the middle if it is very long."""
    if len(line) > _MOST_CHARACTERS:
        line = f"{line[: _MOST_CHARACTERS // 2]} ... {line[-_MOST_CHARACTERS // 2 :]}"
    from ropeaudit.reports.numbers import printable  # in-function: errors are rare

    return printable(line)


class _ClosedStdout(io.StringIO):
    """A closed stdout: writing to it raises."""

    def write(self, text: str) -> int:
        raise OSError(errno.EBADF, "it is closed")
