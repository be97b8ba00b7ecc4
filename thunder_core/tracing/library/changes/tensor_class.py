"""Find entries of `torch.Tensor` and `torch.nn.Parameter` that replace or hide PyTorch's methods and attributes."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import Parameter

from thunder_core.tracing.library.changes.class_entries import ABSENT
from thunder_core.tracing.library.changes.type_versions import HAS_VERSIONS, assign_version, type_version

KINDS = (torch.Tensor, Parameter)
OWN = {kind: dict(vars(kind)) for kind in KINDS}  # PyTorch's entries
HIDEABLE = frozenset(dir(torch.Tensor)) | frozenset(dir(Parameter))
Replaced = tuple[tuple[str, str, Any], ...]

# The version also changes whenever `torch.Tensor` changes, because `Parameter` derives from it.
versions = type_version(Parameter)


def current_version() -> int | None:
    """Return the current version of the classes; None if Python gives them no version."""
    for kind in KINDS:
        assign_version(kind)
    return versions.value or None if HAS_VERSIONS else None


class ReplacedEntriesCache:
    """The replaced entries at one version of the classes."""

    version: int | None = None
    entries: Replaced = ()


def replaced_entries() -> Replaced:
    """Return the entries that are not PyTorch's, each with the names of its class and of the entry.

    These are replaced entries, deleted entries, and entries of `Parameter` that hide entries of `Tensor`. A name that
    PyTorch does not have is left out: a program that reads such a name has a guard on it.
    """
    version = current_version()
    if version is None:
        return find_replaced_entries()
    if ReplacedEntriesCache.version != version:
        ReplacedEntriesCache.entries, ReplacedEntriesCache.version = find_replaced_entries(), version
    return ReplacedEntriesCache.entries


def find_replaced_entries() -> Replaced:
    """Compare the classes with PyTorch's entries."""
    replaced = list[tuple[str, str, Any]]()
    for kind, own in OWN.items():
        entries = dict(vars(kind))
        changed = [name for name, entry in entries.items() if own.get(name, ABSENT) is not entry]
        hiding = [name for name in changed if name in HIDEABLE or is_special(name, entries[name])]
        deleted = [name for name in own if name not in entries]
        replaced += [(kind.__name__, name, entries.get(name)) for name in sorted({*hiding, *deleted})]
    return tuple(replaced)


def is_special(name: str, entry: object) -> bool:
    """Whether an entry is a special method, which Python itself looks up in the class.

    Python also stores data under such names, such as `__slotnames__` when it copies an instance.
    """
    return name[:2] == "__" == name[-2:] and (entry is None or callable(entry))


def is_pytorchs(kind: type, name: str) -> bool:
    """Whether a class is `torch.Tensor`, `Parameter` or a base, and `replaced_entries` covers the name in it."""
    if kind not in OWN:
        return kind in torch.Tensor.__mro__
    return name in OWN[kind] or name in HIDEABLE or is_special(name, vars(kind).get(name))
