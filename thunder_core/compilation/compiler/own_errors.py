"""Internal errors in an attempt to compile a program with symbolic sizes: these are bugs, and are reported."""

from __future__ import annotations

import traceback
from pathlib import Path

from thunder_core.foundation.errors import InternalError, ThunderError
from thunder_core.passes.autodiff.tape import first_line
from thunder_core.tracing.ir.check import REPORT

# Errors that Python raises for wrong code. PyTorch's functions raise other errors for sizes that they do not accept.
OWN_KINDS = (AssertionError, LookupError, AttributeError, TypeError, NameError)
OWN_FOLDERS = ("thunder_core", "thunder_executors", "thunder_recipes")


def is_own_error(error: Exception) -> bool:
    """Whether an error of the compiler is a bug in Thunder, and not a refusal."""
    if isinstance(error, InternalError):
        return True
    if isinstance(error, ThunderError) or not isinstance(error, OWN_KINDS):
        return False
    frames = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    return any(folder in Path(frames[-1]).parts for folder in OWN_FOLDERS)


def warning_of_own_error(error: Exception) -> tuple[str, str]:
    """Return the warning for an internal error, and its fix."""
    summary = f"{type(error).__name__}: {first_line(error)}"
    return f"is compiled for constant sizes, because Thunder failed with symbolic sizes ({summary})", REPORT
