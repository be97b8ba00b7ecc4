"""Errors of Thunder's own in an attempt to compile a program for symbolic sizes: bugs, which are told."""

from __future__ import annotations

import traceback
from pathlib import Path

from thunder_core.foundation.errors import InternalError, ThunderError
from thunder_core.passes.autodiff.tape import first_line
from thunder_core.tracing.ir.check import REPORT

# Kinds of errors that Python raises where code is wrong, as PyTorch's functions do not for sizes that they do not take.
OWN_KINDS = (AssertionError, LookupError, AttributeError, TypeError, NameError)
OWN_FOLDERS = ("thunder_core", "thunder_executors", "thunder_recipes")


def is_own_error(error: Exception) -> bool:
    """Whether an error behind the program, in what compiles it, is a bug of Thunder's and no refusal."""
    if isinstance(error, InternalError):
        return True
    if isinstance(error, ThunderError) or not isinstance(error, OWN_KINDS):
        return False
    frames = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    return any(folder in Path(frames[-1]).parts for folder in OWN_FOLDERS)


def of_own_error(error: Exception) -> tuple[str, str]:
    """The warning of an error of Thunder's own, and what to do."""
    told = f"{type(error).__name__}: {first_line(error)}"
    return f"is compiled for constant sizes, because Thunder failed with symbolic sizes ({told})", REPORT
