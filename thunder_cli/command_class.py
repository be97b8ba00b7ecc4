"""The classes of commands and groups: help has no trailing spaces, and an option may be given only once."""

from __future__ import annotations

from collections import Counter
from typing import Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from thunder_cli.console import results_alone, trimmed_stdout
from thunder_cli.options import FLAG, FORMER_NAMES
from thunder_cli.streams import is_closed_pipe
from thunder_core.foundation.errors import BadOption, Bug
from thunder_core.tracing.extension.authorship import authors_error


class HelpfulGroup(TyperGroup):
    """A group of commands whose help has no trailing spaces when it is piped."""

    def get_help_option(self, ctx: Any) -> Any:
        """Return the option `--help`, which help shows without a type."""
        return without_type(super().get_help_option(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help."""
        with trimmed_stdout():
            super().format_help(ctx, formatter)


class OnceCommand(TyperCommand):
    """A command whose options, except flags and repeatable options, may be given only once."""

    def get_help_option(self, ctx: Any) -> Any:
        """Return the option `--help`, which help shows without a type."""
        return without_type(super().get_help_option(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help."""
        with trimmed_stdout():
            super().format_help(ctx, formatter)

    def invoke(self, ctx: Any) -> Any:
        """Run the command with only results on stdout; raise an error if a library calls `sys.exit`."""
        with results_alone():
            try:
                return super().invoke(ctx)
            except SystemExit as end:
                if is_closed_pipe(end):
                    raise
                refuse_to_end(end)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Return the remaining arguments; raise `BadOption` if an option is given several times."""
        args = with_current_names(args, {name for parameter in self.params for name in parameter.opts})
        if not ctx.resilient_parsing:
            _, _, order = self.make_parser(ctx).parse_args(args=list(args))
            for option, times in Counter(order).items():
                if times > 1 and isinstance(option, TyperOption) and not (option.multiple or option.is_flag):
                    raise BadOption(f"{option.opts[0]} was given {times} times", fix=f"give {option.opts[0]} once")
        rest: list[str] = super().parse_args(ctx, args)
        return rest


def with_current_names(args: list[str], options: set[str]) -> list[str]:
    """Return the arguments of a command with the current names of those of its `options` that had another name."""
    flags = {f"--{former}": f"--{name}" for former, name in FORMER_NAMES.items() if f"--{name}" in options}
    return ["=".join((flags.get(flag, flag), *value)) for flag, *value in (arg.split("=", 1) for arg in args)]


def without_type(flag: Any) -> Any:
    """Remove the type that typer would show for a flag in the help, and return the flag; return None unchanged."""
    if flag is not None:
        flag.metavar = FLAG
    return flag


def refuse_ignored_json(context: typer.Context, json: bool) -> None:
    """Raise `BadOption` for `--json` before the name of a subcommand, as in `thunder cache --json list`."""
    if json:
        command = f"{context.command_path} {context.invoked_subcommand}"
        raise BadOption("--json has no effect before the name of a command", fix=f"write `{command} --json`")


def refuse_to_end(end: SystemExit) -> NoReturn:
    """Raise the error for a library, recipe or model that calls `sys.exit` while a command runs."""
    raise authors_error(end) or Bug(
        f"a library would have ended the process: sys.exit({end.code!r:.80})",
        fix="this is a bug: please report it with what `--debug` and `thunder doctor --json` print",
    ) from end
