"""All commands, each imported; the command line itself imports one when it is called."""

import click

from ropeaudit.main import cli

_CONTEXT = click.Context(cli)
BY_NAME: dict[str, click.Command] = {
    name: command for name in cli.list_commands(_CONTEXT) if (command := cli.get_command(_CONTEXT, name))
}
