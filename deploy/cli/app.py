"""The command's group of verbs, each imported only when it is called or help is shown."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from deploy.cli.verb import PlainHelp, as_verb
from deploy.cli.verbs import VERBS
from deploy.errors import UsageError
from deploy.registry import nearest, targets
from deploy.target import Command

__all__ = ["build_app", "find_command", "target_commands"]


def target_commands() -> Mapping[str, Command]:
    """Verbs that the registered targets add; where a name is taken, the target's name is put before it."""
    found: dict[str, Command] = {}
    for name, target in targets().items():
        for verb, command in target.commands().items():
            found[verb if verb not in VERBS and verb not in found else f"{name}-{verb}"] = command
    return found


def find_command(verb: str) -> Command | None:
    """The command of a verb, ours or a target's, or None."""
    if verb in VERBS:
        command: Command = importlib.import_module(VERBS[verb]).command
        return command
    return target_commands().get(verb)


class _Verbs(PlainHelp, TyperGroup):
    """Looks verbs up instead of holding them."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*VERBS, *target_commands()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = find_command(cmd_name)
        if command is None:
            if cmd_name.startswith("-"):
                return None
            raise UsageError(f"no verb {cmd_name!r}", remedy=nearest(cmd_name, self.list_commands(ctx)))
        return as_verb(cmd_name, command)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"relu-deploy {version('relu-deploy')}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option("--version", metavar="", help="Print the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """One trained ReLU network, deployed three ways: encrypted, ternary, and as a resistor-diode circuit."""


def build_app() -> Any:
    """The whole command, for ``main(arguments, standalone_mode=False)``."""
    app = typer.Typer(
        cls=_Verbs, pretty_exceptions_enable=False, context_settings={"help_option_names": ["--help", "-h"]}
    )
    app.callback()(_root)
    return typer.main.get_command(app)
