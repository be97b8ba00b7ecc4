"""Attempts to run operations on tensors without data are quiet: what PyTorch logs of one that fails is not told."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

LOGGERS = (
    "torch.fx.experimental.symbolic_shapes",
    "torch.fx.experimental.sym_node",
    "torch.fx.experimental.recording",
    "torch._subclasses.fake_tensor",
    "torch._subclasses.functional_tensor",
    "torch.utils._sympy.interp",
)


class NotOfThisThread(logging.Filter):
    """Lets pass what other threads log."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.get_ident()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is of another thread."""
        return record.thread != self._thread


@contextmanager
def quiet_attempt() -> Iterator[None]:
    """While this lasts, PyTorch's functions for metadata and for symbolic sizes log nothing in this thread."""
    loggers, dropped = [logging.getLogger(name) for name in LOGGERS], NotOfThisThread()
    for logger in loggers:
        logger.addFilter(dropped)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(dropped)
