"""Whether an optimized callable is the eager model: measured on inputs that were not traced, judged by the recipe."""

from thunder_core.validation.comparison import validate
from thunder_core.validation.report import Errors, LanguageReport, OutputReport, ValidationReport

__all__ = ["Errors", "LanguageReport", "OutputReport", "ValidationReport", "validate"]
