"""Detect changes of classes, functions and modules between calls, for example by CPython's versions of types."""

from thunder_core.foundation.own_builtins import own_builtins

with own_builtins(__name__):
    from thunder_core.tracing.library.changes import class_entries, class_names, function_codes, type_versions

__all__ = ["class_entries", "class_names", "function_codes", "type_versions"]
