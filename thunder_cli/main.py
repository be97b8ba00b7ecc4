"""The entry point: run a command, and turn whatever it raises into a message and an exit status."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise, takewhile
from typing import Protocol, cast

import typer

from thunder_cli.app import build_app
from thunder_cli.failure import Audience, interrupted, report_error
from thunder_cli.streams import flush_results, open_closed_streams, require_text, settle_streams
from thunder_core.foundation.errors import BadOption, Interrupted, OutOfMemory
from thunder_core.foundation.plugins import meant
from thunder_core.workflow.pipeline.request.launch import launch_of_process

# Read by huggingface_hub and transformers when they are imported: nothing is sent anywhere for statistics. And by
# PyTorch's profiler, which counts memory for `bench`: it writes on stderr when it begins and ends, and its allocator
# when memory is freed that was there before.
ENVIRONMENT = {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DISABLE_TELEMETRY": "1",
    "KINETO_LOG_LEVEL": "6",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}
INTERRUPTED = Interrupted.status
RESERVE = 16 << 20  # bytes of addresses for the report of an error, where nothing else is left within a limit


class ArgumentError(Protocol):
    """An error that typer raises about arguments: it has a message for users."""

    def format_message(self) -> str:
        """The message, with the nearest names where there are some."""


# The base of all that typer raises about arguments; it has no public name in every version of typer.
ARGUMENT_ERROR = cast(type[Exception], typer.BadParameter.__base__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `thunder` with the arguments (default: those of the process) and return its exit status."""
    try:
        status = run(arguments)
    except MemoryError:  # where there is not even memory to say so
        with suppress(OSError):
            os.write(2, b"error TH0702 out of memory\n  fix allow the process more memory (`ulimit -v`)\n")
        status = OutOfMemory.status
    settle_streams()
    return status


def run(arguments: Sequence[str] | None) -> int:
    """Run a command, and report what it raises; returns the exit status."""
    if arguments is None:
        open_closed_streams()
        atexit.register(gc.freeze)  # else Python looks once more at each object of PyTorch's, for a second and longer
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = list(takewhile(lambda argument: argument != "--", given))
    audience = Audience(json=asks_for_json(options) and not follows(), debug="--debug" in options)
    os.environ.update({name: value for name, value in ENVIRONMENT.items() if name not in os.environ})
    reserve = bytearray(RESERVE)
    try:
        require_text(given)
        status = build_app()(args=given, prog_name="thunder", standalone_mode=False)
        flush_results()
    except ARGUMENT_ERROR as error:
        return report_error(usage_error(cast(ArgumentError, error), given), audience)
    except BrokenPipeError:
        return 0
    except KeyboardInterrupt as error:
        return report_error(interrupted(error), audience)
    except Exception as error:
        reserve.clear()
        return report_error(error, audience)
    if status == INTERRUPTED:
        return report_error(interrupted(None), audience)
    return status if isinstance(status, int) else 0


def asks_for_json(options: Sequence[str]) -> bool:
    """Whether results are to be JSON, so that errors are as well."""
    return "--json" in options or "--format=json" in options or ("--format", "json") in pairwise(options)


def follows() -> bool:
    """Whether this process is a rank that prints no results, since the first rank prints those of all."""
    with suppress(BadOption):
        launch = launch_of_process()
        return launch is not None and launch.follows
    return False


def usage_error(error: ArgumentError, given: Sequence[str]) -> BadOption:
    """The error for arguments that typer refused."""
    command = next((argument for argument in given if not argument.startswith("-")), "")
    known = hasattr(error, "ctx") and error.ctx is not None and error.ctx.command_path
    what, near = error.format_message(), ""
    if (option := getattr(error, "option_name", None)) and hasattr(error, "possibilities"):
        what, near = f"there is no option {option}", meant_option(option, error)
    return BadOption(
        what, fix=f"{near}`{known or f'thunder {command}'.strip()} --help` lists the arguments and options"
    )


def meant_option(option: str, error: ArgumentError) -> str:
    """The question whether an option with a similar name was meant; empty where none is similar."""
    context = getattr(error, "ctx", None)
    known = [name for one in (context.command.get_params(context) if context else ()) for name in one.opts]
    return meant(option.lstrip("-"), [name.lstrip("-") for name in known if name.startswith("--")], dashes="--")


if __name__ == "__main__":
    sys.exit(main())
