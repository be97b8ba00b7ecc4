"""Silence the output of libraries, and print Thunder's own warnings."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from rich.text import Text

from thunder_cli.console import stderr
from thunder_core.foundation.errors import UnsignedWarning

LOGGING_LIBRARIES = ("transformers", "huggingface_hub", "torch", "torchao", "matplotlib")


@contextmanager
def quiet_libraries(*, debug: bool) -> Iterator[None]:
    """Suppress warnings and logs of libraries while the block runs, unless `debug` is set.

    Log levels that a library sets within the block, for example when it is imported, are ignored.
    """
    if debug:
        yield
        return
    with ExitStack() as stack:
        for name in LOGGING_LIBRARIES:
            stack.enter_context(silence(logging.getLogger(name)))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UnsignedWarning)
        warnings.showwarning = print_warning  # type: ignore[assignment]  # it uses only the first argument
        yield


@contextmanager
def silence(logger: logging.Logger) -> Iterator[None]:
    """Silence a logger and its children while the block runs; attempts to set its level are ignored."""
    level, own = logger.level, vars(logger).get("setLevel")
    logging.Logger.setLevel(logger, logging.CRITICAL)
    logger.setLevel = ignore_level  # type: ignore[method-assign]
    try:
        yield
    finally:
        vars(logger).pop("setLevel")
        vars(logger).update({} if own is None else {"setLevel": own})
        logging.Logger.setLevel(logger, level)


def ignore_level(level: int | str) -> None:
    """Ignore a library's attempt to set its log level."""


def print_warning(message: Warning | str, *_: Any) -> None:
    """Print a warning of Thunder on stderr."""
    stderr().print(Text.assemble(("warning", "bold yellow"), f" {message}"), soft_wrap=True)
