"""What the text of epilogues calls to log a message: at the program's line, not at that of the epilogue."""

from __future__ import annotations

import logging
from typing import Any


def log(name: str, level: int, where: tuple[str, int, str], message: Any, *arguments: Any) -> None:
    """Log a message of the program's, by the logger of that name, as of the file, line and function `where`."""
    logger = logging.root if name == "root" else logging.getLogger(name)
    if logger is logging.root and not logger.handlers:
        logging.basicConfig()
    if logger.isEnabledFor(level):
        file, line, function = where
        logger.handle(logger.makeRecord(name, level, file, line, message, arguments, None, function))
