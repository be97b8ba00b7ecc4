"""Report internal errors of Thunder while a program is traced or compiled.

Internal errors are bugs. They are also reported if the call succeeds without the part that failed.
"""

from __future__ import annotations

import logging
import os
import textwrap
import traceback
from collections.abc import Mapping
from pathlib import Path

from thunder_core.foundation.errors import Bug, InternalError, ThunderError
from thunder_core.foundation.errors.tree import first_line
from thunder_core.tracing.ir.check import REPORT

# Errors that Python raises for wrong code. For sizes that they do not accept, PyTorch's functions raise other errors.
OWN_KINDS = (AssertionError, LookupError, AttributeError, TypeError, NameError)
OWN_FOLDERS = ("thunder_core", "thunder_executors", "thunder_recipes")
VARIABLE = "THUNDER_INTERNAL_ERRORS"  # an environment variable; "raise" raises internal errors
LOGGER = logging.getLogger("thunder_core.internal_errors")
LONGEST_LINE = 200  # characters; some errors of PyTorch list all kernels in one line


def is_own_error(error: BaseException) -> bool:
    """Whether an error of the compiler is a bug in Thunder, and not a refusal."""
    if isinstance(error, InternalError):
        return True
    if isinstance(error, ThunderError) or not isinstance(error, OWN_KINDS):
        return False
    frames = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and any(folder in Path(frames[-1]).parts for folder in OWN_FOLDERS)


def summary_of(error: BaseException) -> str:
    """Return the class and the first line of an error; a long line is cut and ends with `...`."""
    return f"{type(error).__name__}: {textwrap.shorten(first_line(error), LONGEST_LINE, placeholder=' ...')}"


def report_own_error(error: BaseException, environment: Mapping[str, str] = os.environ) -> None:
    """Log an internal error with its traceback at the level DEBUG; if `THUNDER_INTERNAL_ERRORS=raise`, raise `Bug`."""
    LOGGER.debug("internal error", exc_info=error)
    if environment.get(VARIABLE) == "raise":
        raise bug_of(error) from error


def bug_of(error: BaseException) -> Bug:
    """Return the `Bug` that names an internal error."""
    return error if isinstance(error, Bug) else Bug(f"internal error: {summary_of(error)}", fix=REPORT)
