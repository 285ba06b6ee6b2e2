"""All commands by what one types, each imported; the command line itself imports one when it is called."""

from collections.abc import Iterator

import click

from ropeaudit.main import cli


def _named(group: click.Group, before: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield the commands of a group, behind each group those in it."""
    context = click.Context(group)
    for name in group.list_commands(context):
        if command := group.get_command(context, name):
            yield f"{before}{name}", command
            if isinstance(command, click.Group):
                yield from _named(command, f"{before}{name} ")


BY_NAME: dict[str, click.Command] = dict(_named(cli))
