"""The entry point: runs a command, and turns errors into messages and an exit status."""

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
from thunder_cli.failure import Audience, interrupt_error, report_error
from thunder_cli.streams import flush_results, is_closed_pipe, open_closed_streams, require_text, settle_streams
from thunder_core.foundation.errors import BadOption, Interrupted, OutOfMemory
from thunder_core.foundation.similar_names import did_you_mean
from thunder_core.workflow.pipeline.request.launch import launch_of_process

# The first two disable telemetry in huggingface_hub and transformers. The others silence PyTorch's profiler, which
# counts memory for `bench`: the profiler prints lines at its start and its end, and PyTorch's allocator prints a line
# for each block that was allocated before the profiler started and is freed while it runs.
ENVIRONMENT = {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DISABLE_TELEMETRY": "1",
    "KINETO_LOG_LEVEL": "6",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}
INTERRUPTED = Interrupted.status
MIN_COLUMNS = 20  # columns in which a table or a help text can be read
ERROR_REPORT_BYTES = 16 << 20  # bytes of addresses for the report of an error, if a memory limit is reached


class ArgumentError(Protocol):
    """An error of typer about arguments, with a message for users."""

    def format_message(self) -> str:
        """Return the message, with the nearest names if there are any."""


# The base class of typer's errors about arguments, which has no public name in every version of typer.
ARGUMENT_ERROR = cast(type[Exception], typer.BadParameter.__base__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `thunder` with the arguments (default: the process's arguments), and return the exit status."""
    try:
        status = run(arguments)
    except MemoryError:  # not even the error report has enough memory
        with suppress(OSError):
            os.write(2, b"error TH0702 out of memory\n  fix allow the process more memory (`ulimit -v`)\n")
        status = OutOfMemory.status
    settle_streams()
    return status


def run(arguments: Sequence[str] | None) -> int:
    """Run a command, and report its error; return the exit status."""
    if arguments is None:
        open_closed_streams()
        atexit.register(gc.freeze)  # otherwise, the last garbage collection visits PyTorch's objects for seconds
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = list(takewhile(lambda argument: argument != "--", words))
    is_other_rank = follows_first_rank()
    json = asks_for_json(options) and not is_other_rank
    audience = Audience(json=json, debug="--debug" in options, follows=is_other_rank)
    os.environ.update({name: value for name, value in ENVIRONMENT.items() if name not in os.environ})
    ignore_narrow_columns()
    reserve = bytearray(ERROR_REPORT_BYTES)
    try:
        require_text(words)
        status = build_app()(args=words, prog_name="thunder", standalone_mode=False)
        flush_results()
    except ARGUMENT_ERROR as error:
        return report_error(usage_error(cast(ArgumentError, error), words), audience)
    except BrokenPipeError:
        return 0
    except SystemExit as end:
        if is_closed_pipe(end):
            return 0
        raise
    except KeyboardInterrupt as error:
        return report_error(interrupt_error(error), audience)
    except Exception as error:
        reserve.clear()
        return report_error(error, audience)
    if status == INTERRUPTED:
        return report_error(interrupt_error(None), audience)
    return status if isinstance(status, int) else 0


def ignore_narrow_columns() -> None:
    """Remove the environment variable `COLUMNS` if its number is so small that rich would print empty lines."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) < MIN_COLUMNS:
        del os.environ["COLUMNS"]


def asks_for_json(options: Sequence[str]) -> bool:
    """Whether the result, and therefore an error, is printed as JSON."""
    return "--json" in options or "--format=json" in options or ("--format", "json") in pairwise(options)


def follows_first_rank() -> bool:
    """Whether this process is a rank other than the first rank, which prints the results of all ranks."""
    with suppress(BadOption):
        launch = launch_of_process()
        return launch is not None and launch.follows
    return False


def usage_error(error: ArgumentError, words: Sequence[str]) -> BadOption:
    """Return the error for arguments that typer rejected."""
    command = next((argument for argument in words if not argument.startswith("-")), "")
    command_path = hasattr(error, "ctx") and error.ctx is not None and error.ctx.command_path
    what, near = error.format_message().replace(": Value error, ", ": "), ""
    if (option := getattr(error, "option_name", None)) and hasattr(error, "possibilities"):
        what, near = f"there is no option {option}", similar_option_hint(option, error)
    return BadOption(
        what, fix=f"{near}`{command_path or f'thunder {command}'.strip()} --help` lists the arguments and options"
    )


def similar_option_hint(option: str, error: ArgumentError) -> str:
    """Return a hint with the most similar option (`did you mean ...?`); empty if no option is similar."""
    context = getattr(error, "ctx", None)
    names = [name for parameter in (context.command.get_params(context) if context else ()) for name in parameter.opts]
    return did_you_mean(option.lstrip("-"), [name.lstrip("-") for name in names if name.startswith("--")], dashes="--")


if __name__ == "__main__":
    sys.exit(main())
