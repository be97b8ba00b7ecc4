"""Attempts to run operations on fakes, which may fail: PyTorch's log messages about failures are dropped."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# PyTorch's loggers that report a failed operation on fakes.
LOGGERS = (
    "torch.fx.experimental.symbolic_shapes",
    "torch.fx.experimental.sym_node",
    "torch.fx.experimental.recording",
    "torch._subclasses.fake_tensor",
    "torch._subclasses.functional_tensor",
    "torch.utils._sympy.interp",
)


class NotOfThisThread(logging.Filter):
    """A filter that drops the log records of the thread that created it, and keeps those of other threads."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.get_ident()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is from another thread."""
        return record.thread != self._thread


@contextmanager
def quiet_attempt() -> Iterator[None]:
    """Drop the log messages of PyTorch's meta functions and symbolic sizes in this thread during the block."""
    loggers, thread_filter = [logging.getLogger(name) for name in LOGGERS], NotOfThisThread()
    for logger in loggers:
        logger.addFilter(thread_filter)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(thread_filter)
