"""The application `thunder`, with a command for each file in the folder `commands`."""

from __future__ import annotations

import importlib.metadata
from typing import Annotated

import typer

from thunder_cli.command_class import HelpfulGroup, OnceCommand
from thunder_cli.options import FLAG
from thunder_core.foundation import plugins
from thunder_core.foundation.errors import UsageError

DISTRIBUTION = "thunder-optimize"
MAIN_COMMAND = "optimize"  # the first command in the help; the others are sorted by name


def version() -> str:
    """Return the version of the installed distribution, or `0+source` for a checkout that was not installed."""
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return "0+source"


def build_app() -> typer.Typer:
    """Return the application with all its commands."""
    app = typer.Typer(
        name="thunder",
        cls=HelpfulGroup,
        invoke_without_command=True,
        rich_markup_mode="markdown",
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_enable=False,
    )
    app.callback()(thunder)
    for name in sorted(plugins.names("commands"), key=lambda name: (name != MAIN_COMMAND, name)):
        _add(app, name)
    return app


def _add(app: typer.Typer, name: str) -> None:
    """Add the command of one file: a function with the file's name, or a `typer.Typer` with its own commands."""
    command = getattr(plugins.load("commands", name), name.replace("-", "_"))
    if isinstance(command, typer.Typer):
        for inner in command.registered_commands:
            inner.cls = OnceCommand
        app.add_typer(command, name=name, cls=HelpfulGroup)
    else:
        app.command(name, cls=OnceCommand)(command)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(f"thunder {version()}")
        raise typer.Exit


def thunder(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", metavar=FLAG, callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Optimize PyTorch models with recipes, into validated and benchmarked artifacts."""
    if context.invoked_subcommand is None:
        context.get_help()  # prints the help
        raise typer.Exit(UsageError.status)
