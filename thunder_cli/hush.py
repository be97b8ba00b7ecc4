"""Keeping the libraries that we use from talking over us."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

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
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
