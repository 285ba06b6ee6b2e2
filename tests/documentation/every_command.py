"""All commands by what one types, each imported; the command line itself imports one when it is called."""

import click

from ropeaudit.console.help import commands
from ropeaudit.main import cli

BY_NAME: dict[str, click.Command] = dict(commands(cli, click.Context(cli)))
