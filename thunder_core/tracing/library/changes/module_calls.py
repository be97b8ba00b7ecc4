"""Check that a call of a module runs `forward` with PyTorch's own methods: no class or library replaces them."""

from __future__ import annotations

from typing import Any

from torch.nn import Module

from thunder_core.tracing.library.changes.class_entries import class_entry
from thunder_core.tracing.library.changes.type_versions import ClassCaches, cached_by_version

OWN: dict[str, Any] = {name: vars(Module)[name] for name in ("__call__", "_call_impl", "_compiled_call_impl")}


@cached_by_version(ClassCaches())
def keeps_methods(kind: type, names: str) -> tuple[bool, bool]:
    """Whether a class of modules has PyTorch's own methods of these names, separated by spaces."""
    return all(class_entry(kind, name) is OWN[name] for name in names.split()), True
