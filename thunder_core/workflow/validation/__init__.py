"""Validation: compare an optimized callable with the eager model on new inputs, within the recipe's tolerance.

The names below are imported when they are first used. Reports are plain data, which can be read without PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from thunder_core.foundation import plugins

if TYPE_CHECKING:
    from thunder_core.workflow.validation.comparison import validate
    from thunder_core.workflow.validation.report import Errors, LanguageReport, OutputReport, ValidationReport

HOMES = {
    "Errors": "report",
    "LanguageReport": "report",
    "OutputReport": "report",
    "ValidationReport": "report",
    "validate": "comparison",
}

__all__ = ["Errors", "LanguageReport", "OutputReport", "ValidationReport", "validate"]

__getattr__ = plugins.lazy_face(__name__, HOMES)
