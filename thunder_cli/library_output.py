"""Keeping the libraries that we use from talking over us, and saying what we warn of."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from rich.text import Text

from thunder_cli.console import stderr
from thunder_core.foundation.errors import UnsignedWarning

TALKERS = ("transformers", "huggingface_hub", "torch", "torchao", "matplotlib")


@contextmanager
def quiet_libraries(*, debug: bool) -> Iterator[None]:
    """Without warnings and logs of libraries while the block runs, unless somebody is debugging.

    A library that sets its level when it is imported, which may be within the block, does not undo that.
    """
    if debug:
        yield
        return
    with ExitStack() as stack:
        for name in TALKERS:
            stack.enter_context(silenced(logging.getLogger(name)))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UnsignedWarning)
        warnings.showwarning = tell_warning  # type: ignore[assignment]  # of which it takes the first argument
        yield


@contextmanager
def silenced(logger: logging.Logger) -> Iterator[None]:
    """Without what a logger and those below it have to say, at a level that nobody sets while the block runs."""
    level, own = logger.level, vars(logger).get("setLevel")
    logging.Logger.setLevel(logger, logging.CRITICAL)
    logger.setLevel = ignored  # type: ignore[method-assign]
    try:
        yield
    finally:
        vars(logger).pop("setLevel")
        vars(logger).update({} if own is None else {"setLevel": own})
        logging.Logger.setLevel(logger, level)


def ignored(level: int | str) -> None:
    """Stand where a library would set its level."""


def tell_warning(message: Warning | str, *_: Any) -> None:
    """Say a warning of ours on stderr."""
    stderr().print(Text.assemble(("warning", "bold yellow"), f" {message}"), soft_wrap=True)
