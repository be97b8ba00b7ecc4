"""Keeping the libraries that we use from talking over us, and saying what we warn of."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.text import Text

from thunder_cli.console import stderr
from thunder_core.errors import UnsignedWarning

TALKERS = ("transformers", "huggingface_hub", "torch", "torchao", "matplotlib")


@contextmanager
def hushed(*, debug: bool) -> Iterator[None]:
    """Without warnings and logs of libraries while the block runs, unless somebody is debugging."""
    if debug:
        yield
        return
    loggers = [logging.getLogger(name) for name in TALKERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", UnsignedWarning)
            warnings.showwarning = tell_warning  # type: ignore[assignment]  # of which it takes the first argument
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def tell_warning(message: Warning | str, *_: Any) -> None:
    """Say a warning of ours on stderr."""
    stderr().print(Text.assemble(("warning", "bold yellow"), f" {message}"), soft_wrap=True)
